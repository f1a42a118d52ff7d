"""What users may do, and what becomes of those who may no longer."""

import amqp
from behaviour import behaviour, equal


def refusal(kind, name, user):
    return f"ACCESS_REFUSED - access to {kind} '{name}' in vhost '/' refused for user '{user}'"


@behaviour
def without_a_permission(b):
    """403: configure, write and read, each where it is needed."""
    channel = b.channel()
    queue, exchange = b.queue(channel), b.exchange(channel, "direct")
    user = b.user()
    connection = b.log_in(user)
    for method, kind, arguments in (
        ("queue.declare", "queue", {"queue": "new"}),
        ("queue.delete", "queue", {"queue": queue}),
        ("exchange.declare", "exchange", {"exchange": "new", "type": "direct"}),
        ("exchange.delete", "exchange", {"exchange": exchange}),
        ("queue.bind", "queue", {"queue": queue, "exchange": exchange}),
        ("queue.purge", "queue", {"queue": queue}),
        ("basic.get", "queue", {"queue": queue}),
        ("basic.consume", "queue", {"queue": queue}),
    ):
        own = connection.channel()
        numbers = amqp.BY_NAME[method][:2]
        with b.refused(403, refusal(kind, arguments.get(kind), user), numbers):
            own.call(method, **arguments)
    own = connection.channel()
    own.publish(exchange, "k", b"x")
    with b.refused(403, refusal("exchange", exchange, user), (60, 40)):
        own.sync()


@behaviour
def the_default_exchange_s_name_in_permissions(b):
    """403: it is amq.default."""
    user = b.user(configure=".*", write="^behaviour", read=".*")
    channel = b.log_in(user).channel()
    queue = b.queue(channel)
    channel.publish("", queue, b"x")
    with b.refused(403, refusal("exchange", "amq.default", user), (60, 40)):
        channel.sync()


@behaviour
def passive_declares_need_no_permission(b):
    """They ask whether something is there."""
    queue = b.queue(b.channel())
    channel = b.log_in(b.user()).channel()
    channel.call("queue.declare", queue=queue, passive=True)
    with b.refused(404, "NOT_FOUND - no queue 'nowhere' in vhost '/'"):
        channel.call("queue.declare", queue="nowhere", passive=True)


@behaviour
def permissions_are_patterns(b):
    """Found anywhere in a name, unless they say ^ and $."""
    user = b.user(configure="^mine-", write=".*", read=".*")
    connection = b.log_in(user)
    b.queue(connection.channel(), "mine-" + b.name())
    with b.refused(403, refusal("queue", "not-mine-", user)):
        connection.channel().call("queue.declare", queue="not-mine-")


@behaviour
def a_dead_letter_exchange_needs_permissions(b):
    """403: read of the queue and write to the exchange."""
    user = b.user(configure=".*", write="^behaviour", read=".*")
    channel = b.log_in(user).channel()
    with b.refused(403, refusal("exchange", "elsewhere", user), (50, 10)):
        b.queue(channel, x_dead_letter_exchange="elsewhere")


@behaviour
def permission_changes_hold_at_once(b):
    """T11: on channels that are open, too."""
    user = b.user(configure=".*", write=".*", read=".*")
    channel = b.log_in(user).channel()
    queue = b.queue(channel)
    b.get(channel, queue)
    b.broker.set_permission(user, "", "", "")

    def refused():
        own = b.log_in(user).channel()
        try:
            own.call("queue.purge", queue=queue)
        except amqp.Closed as closed:
            return closed.code == 403
        return False

    b.eventually(refused)
    with b.refused(403, refusal("queue", queue, user), (50, 40)):
        channel.call("queue.delete", queue=queue)


@behaviour
def topic_permissions(b):
    """403: routing keys that a user may write."""
    channel = b.channel()
    exchange = b.exchange(channel, "topic")
    user = b.user(configure=".*", write=".*", read=".*")
    b.broker.set_topic_permission(user, exchange, "^allowed", ".*")
    connection = b.log_in(user)
    own = connection.channel()
    own.publish(exchange, "allowed.key", b"x")
    own.sync()
    own.publish(exchange, "other.key", b"x")
    text = f"ACCESS_REFUSED - access to topic 'other.key' in exchange '{exchange}' in vhost '/' refused for user '{user}'"
    with b.refused(403, text, (60, 40)):
        own.sync()


@behaviour
def a_user_that_may_not_enter(b):
    """530: one without any permission in the virtual host."""
    name = b.name()
    b.broker.add_user(name, name)
    b.users.append(name)
    with b.fatal(530, f"NOT_ALLOWED - access to vhost '/' refused for user '{name}'", (10, 40)):
        b.log_in(name)


@behaviour
def another_password_is_for_the_next_login(b):
    """T11: who is logged in stays."""
    user = b.user(configure=".*", write=".*", read=".*")
    connection = b.log_in(user)
    b.broker.set_password(user, "another")
    with b.fatal(403, "ACCESS_REFUSED - …"):
        b.log_in(user)
    b.connect(user=user, password="another")
    b.queue(connection.channel())


@behaviour
def a_deleted_user_is_closed(b):
    """T11: 320."""
    user = b.user(configure=".*", write=".*", read=".*")
    connection = b.log_in(user)
    b.broker.delete_user(user)
    b.users.remove(user)
    with b.fatal(320, "CONNECTION_FORCED - user '…"):
        connection.await_closed()


@behaviour
def a_user_s_own_id(b):
    """406 for guest's."""
    user = b.user(configure=".*", write=".*", read=".*")
    channel = b.log_in(user).channel()
    queue = b.queue(channel)
    channel.publish("", queue, b"x", user_id=user)
    equal(b.await_message(channel, queue).message.properties, {"user_id": user})
    channel.publish("", queue, b"x", user_id="guest")
    text = f"PRECONDITION_FAILED - user_id property set to 'guest' but authenticated user was '{user}'"
    with b.refused(406, text, (60, 40)):
        channel.sync()
