"""What policies make of queues and exchanges, beside what their arguments say."""

from behaviour import behaviour, equal


def filled(b, bodies, **arguments):
    channel = b.confirming()
    queue = b.queue(channel, **arguments)
    for body in bodies:
        b.confirmed(channel, "", queue, body)
    return channel, queue


@behaviour
def a_policy_holds_for_what_is_there(b):
    """max-length: the oldest go at once, and later ones as they come; no more once it is cleared."""
    channel, queue = filled(b, "abc")
    policy = b.policy(queue, {"max-length": 2})
    b.await_count(channel, queue, 2)
    b.confirmed(channel, "", queue, "d")
    equal(b.drain(channel, queue), ["c", "d"])
    b.clear_policy(policy)

    def unlimited():
        channel.call("queue.purge", queue=queue)
        for body in "efg":
            b.confirmed(channel, "", queue, body)
        return b.count(channel, queue) == 3

    b.eventually(unlimited)


@behaviour
def a_policy_holds_for_what_comes(b):
    """A queue that is declared after it."""
    queue = b.name()
    b.policy(queue, {"max-length": 1, "overflow": "reject-publish"})
    channel = b.confirming()
    b.queue(channel, queue)
    equal([b.confirmed(channel, "", queue, body) for body in "ab"], ["ack", "nack"])


@behaviour
def the_smaller_number_counts(b):
    """Of an argument and a policy, both ways."""
    for argument, policy in ((1, 3), (3, 1)):
        queue = b.name()
        b.policy(queue, {"max-length": policy})
        channel, _ = filled(b, "abcd", queue=queue, x_max_length=argument)
        b.eventually(lambda: b.count(channel, queue) <= 1)
        equal(b.drain(channel, queue), ["d"])


@behaviour
def an_argument_s_text_counts(b):
    """Of an argument and a policy that both name a dead-letter exchange and key."""
    channel = b.confirming()
    own, others, queue = b.queue(channel), b.queue(channel), b.name()
    b.policy(queue, {"dead-letter-exchange": "", "dead-letter-routing-key": others})
    b.queue(channel, queue, x_dead_letter_exchange="", x_dead_letter_routing_key=own, x_max_length=0)
    b.confirmed(channel, "", queue, b"x")
    equal(b.await_message(channel, own).message.body, b"x")
    equal(b.get(channel, others), None)


@behaviour
def only_the_highest_priority_counts(b):
    """Policies are not added up."""
    queue = b.name()
    b.policy(queue, {"max-length": 1}, priority=1)
    b.policy(queue, {"max-length-bytes": 1000}, priority=2)
    channel, _ = filled(b, "abc", queue=queue)
    equal(b.drain(channel, queue), ["a", "b", "c"])


@behaviour
def operators_policies_are_added(b):
    """To users' ones; of two numbers the smaller counts."""
    queue = b.name()
    b.policy(queue, {"max-length": 3})
    b.policy(queue, {"max-length": 1}, operator=True, apply_to="queues")
    channel, _ = filled(b, "abc", queue=queue)
    equal(b.drain(channel, queue), ["c"])


@behaviour
def a_policy_of_exchanges_is_none_of_queues(b):
    """apply-to."""
    queue = b.name()
    b.policy(queue, {"alternate-exchange": "x"}, apply_to="exchanges", priority=9)
    b.policy(queue, {"max-length": 1}, apply_to="queues")
    channel, _ = filled(b, "abc", queue=queue)
    equal(b.drain(channel, queue), ["c"])


@behaviour
def dead_letters_by_a_policy(b):
    """With x-death as ever."""
    channel, queue = filled(b, "a")
    dead = b.queue(channel)
    b.policy(queue, {"dead-letter-exchange": "", "dead-letter-routing-key": dead})

    def letter():
        taken = b.get(channel, queue, no_ack=False)
        if taken:
            channel.send("basic.nack", delivery_tag=taken.delivery_tag, requeue=False)
        else:
            b.confirmed(channel, "", queue, "a")
        return b.get(channel, dead)

    death = b.eventually(letter).message.headers["x-death"][0]
    equal((death["queue"], death["reason"]), (queue, "rejected"))


@behaviour
def messages_expire_by_a_policy(b):
    """T1: those that come after it; the shorter of two times counts."""
    queue = b.name()
    b.policy(queue, {"message-ttl": 50})
    channel, _ = filled(b, "a", queue=queue, x_message_ttl=600_000)
    b.await_count(channel, queue, 0)


@behaviour
def queues_expire_by_a_policy(b):
    """T6."""
    channel, queue = filled(b, "")
    b.policy(queue, {"expires": 50})
    b.eventually(lambda: returned(b, queue))


def returned(b, queue):
    channel = b.channel()
    channel.publish("", queue, b"probe", mandatory=True)
    channel.sync()
    return any(method.name == "basic.return" for method in channel.inbox)


@behaviour
def an_alternate_exchange_by_a_policy(b):
    """Of an exchange that is there."""
    channel = b.confirming()
    exchange, last = b.exchange(channel, "direct"), b.exchange(channel, "fanout")
    queue = b.queue(channel)
    b.bind(channel, queue, last)
    b.policy(exchange, {"alternate-exchange": last}, apply_to="exchanges")

    def routed():
        b.confirmed(channel, exchange, "k", b"x")
        return b.get(channel, queue)

    b.eventually(routed)


@behaviour
def a_policy_is_no_argument(b):
    """A declare without it, or with another value, is no other queue's."""
    channel, queue = filled(b, "")
    b.policy(queue, {"max-length": 5})
    channel.call("queue.declare", queue=queue)
    text = f"PRECONDITION_FAILED - inequivalent arg 'x-max-length' for queue '{queue}' in vhost '/': received …"
    with b.refused(406, text, (50, 10)):
        channel.call("queue.declare", queue=queue, arguments={"x-max-length": 5})
