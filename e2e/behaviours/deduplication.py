"""Messages that are dropped because their key is known, by queues and by exchanges. RabbitMQ has this as a plugin, which is not
part of it: it takes the arguments and does nothing, and does not know the type of exchange."""

from behaviour import behaviour, equal

PLUGIN = "RabbitMQ needs a plugin for it"
TYPE = "x-message-deduplication"


def keyed(b, channel, to, key, body, routing_key="", **properties):
    """Publishes with a key, to a queue or, as (exchange,), to an exchange."""
    exchange, routing_key = (to[0], routing_key) if isinstance(to, tuple) else ("", to)
    return b.confirmed(channel, exchange, routing_key, body, headers={"x-deduplication-header": key}, **properties)


def knowing(b, channel, **arguments):
    return b.queue(channel, x_message_deduplication=True, **arguments)


def remembering(b, channel, queue, size=10, **arguments):
    """An exchange of the type, and a queue behind it."""
    exchange = b.exchange(channel, TYPE, arguments={"x-cache-size": size} | arguments)
    b.bind(channel, queue, exchange)
    return (exchange,)


def known_type(b):
    """False where it is not, after a look at how it is refused."""
    if b.ours:
        return True
    with b.fatal(503, f"COMMAND_INVALID - unknown exchange type '{TYPE}'"):
        b.channel().call("exchange.declare", exchange=b.name(), type=TYPE, arguments={"x-cache-size": 10})
    return False


@behaviour(differs=PLUGIN)
def a_queue_drops_what_it_holds_already(b):
    """Confirmed all the same, and not returned; what has no key is never dropped."""
    channel = b.confirming()
    queue = knowing(b, channel)
    for key, body in (("k", "a"), ("k", "b"), ("l", "c")):
        equal(keyed(b, channel, queue, key, body, mandatory=True), "ack")
    for body in "de":
        b.confirmed(channel, "", queue, body)
    equal(b.drain(channel, queue), b.either(list("acde"), list("abcde")))


@behaviour(differs=PLUGIN)
def a_delivered_message_is_in_its_queue(b):
    """Until it is acknowledged; one that comes back was there all the time."""
    channel = b.confirming()
    queue = knowing(b, channel)
    keyed(b, channel, queue, "k", "a")
    taken = b.get(channel, queue, no_ack=False)
    keyed(b, channel, queue, "k", "b")
    equal(b.count(channel, queue), b.either(0, 1))
    channel.send("basic.reject", delivery_tag=taken.delivery_tag, requeue=True)
    keyed(b, channel, queue, "k", "c")
    taken = b.get(channel, queue, no_ack=False)
    channel.send("basic.ack", delivery_tag=taken.delivery_tag)
    keyed(b, channel, queue, "k", "d")
    equal(b.drain(channel, queue), b.either(["d"], ["b", "c", "d"]))


@behaviour(differs=PLUGIN)
def a_key_is_free_once_its_message_has_left(b):
    """Taken, rejected, expired, dropped, purged."""
    channel = b.confirming()
    queue = knowing(b, channel, x_message_ttl=800, x_max_length=1)

    def again():
        keyed(b, channel, queue, "k", "a duplicate")
        equal(b.count(channel, queue), 1)

    keyed(b, channel, queue, "k", "a")
    again()
    b.get(channel, queue)
    keyed(b, channel, queue, "k", "b")
    again()
    channel.send("basic.reject", delivery_tag=b.get(channel, queue, no_ack=False).delivery_tag, requeue=False)
    keyed(b, channel, queue, "k", "c")
    again()
    b.await_count(channel, queue, 0)
    keyed(b, channel, queue, "k", "d")
    again()
    keyed(b, channel, queue, "l", "in its place")
    b.eventually(lambda: b.count(channel, queue) == 1)
    keyed(b, channel, queue, "k", "e")
    b.eventually(lambda: b.count(channel, queue) == 1)
    channel.call("queue.purge", queue=queue)
    keyed(b, channel, queue, "k", "f")
    keyed(b, channel, queue, "k", "g")
    equal(b.drain(channel, queue), b.either(["f"], ["g"]))


@behaviour(differs="RabbitMQ's plugin has no size of queues; LavinMQ had")
def a_queue_with_a_size_knows_the_last_ones(b):
    """Whatever becomes of their messages; the header has the name that the argument says."""
    channel = b.confirming()
    named = {"x-cache-size": 2, "x-deduplication-header": "id"}
    queue = knowing(b, channel, arguments=named)
    for key, body in ((1, "a"), (1, "b"), (2, "c"), (3, "d"), (1, "e"), (3, "f")):
        b.confirmed(channel, "", queue, body, headers={"id": key})
        b.get(channel, queue) if body == "a" else None
    equal(b.drain(channel, queue), b.either(list("cde"), list("bcdef")))


@behaviour(differs=PLUGIN)
def an_exchange_drops_what_it_has_seen(b):
    """Of the type, which is a fanout: the last so many; a duplicate has no route, so it is returned if it is mandatory."""
    if not known_type(b):
        return
    channel = b.confirming()
    queue = b.queue(channel)
    exchange = remembering(b, channel, queue, size=2)
    keyed(b, channel, exchange, "k", "a", "any key")
    keyed(b, channel, exchange, "k", "b", "another")
    channel.publish(exchange[0], "", "c", mandatory=True, headers={"x-deduplication-header": "k"})
    equal(channel.expect("basic.return").code, 312)
    channel.expect("basic.ack")
    for key, body in (("l", "d"), ("m", "e"), ("k", "f"), ("m", "g")):
        keyed(b, channel, exchange, key, body)
    b.confirmed(channel, exchange[0], "", "h")
    equal(b.drain(channel, queue), list("adefh"))


@behaviour(differs=PLUGIN)
def an_exchange_forgets_after_the_time_to_live(b):
    """Of the argument, or of the message's header."""
    if not known_type(b):
        return
    channel = b.confirming()
    queue = b.queue(channel)
    exchange = remembering(b, channel, queue, **{"x-cache-ttl": 150})
    own = {"x-deduplication-header": "l", "x-cache-ttl": 60_000}
    b.confirmed(channel, exchange[0], "", "l", headers=own)
    keyed(b, channel, exchange, "k", "k")

    def forgotten():
        keyed(b, channel, exchange, "k", "k")
        return b.count(channel, queue) == 3

    b.eventually(forgotten)
    b.confirmed(channel, exchange[0], "", "l", headers=own)
    equal(b.drain(channel, queue), ["l", "k", "k"])


@behaviour(differs=PLUGIN)
def an_exchange_of_any_type_can_drop_duplicates(b):
    """What it drops goes to its alternate."""
    channel = b.confirming()
    alternate, queue, other = b.exchange(channel, "fanout"), b.queue(channel), b.queue(channel)
    knows = {"x-message-deduplication": True, "x-cache-size": 10, "alternate-exchange": alternate}
    exchange = b.exchange(channel, "direct", arguments=knows)
    b.bind(channel, queue, exchange, "one")
    b.bind(channel, other, alternate)
    for body in "ab":
        keyed(b, channel, (exchange,), "k", body, "one")
    equal((b.drain(channel, queue), b.drain(channel, other)), b.either((["a"], ["b"]), (["a", "b"], [])))


@behaviour(differs=PLUGIN)
def keys_are_the_same_by_what_they_say(b):
    """Numbers of any width; a text is no number; lists, tables and nothing are no keys."""
    channel = b.confirming()
    queue = knowing(b, channel)
    keys = (("b", 7), ("l", 7), "7", True, ("A", []), ("A", []), ("F", {}), ("F", {}), None, None)
    for number, key in enumerate(keys):
        keyed(b, channel, queue, key, str(number))
    equal(b.drain(channel, queue), b.either(list("023456789"), list("0123456789")))


@behaviour(differs=PLUGIN)
def duplicates_in_a_transaction(b):
    """Within one, and by the time of its commit."""
    channel, other = b.channel(), b.confirming()
    channel.call("tx.select")
    queue = knowing(b, channel)
    for key, body in (("k", "a"), ("k", "b"), ("l", "c")):
        channel.publish("", queue, body, headers={"x-deduplication-header": key})
    keyed(b, other, queue, "l", "d")
    channel.call("tx.commit")
    equal(sorted(b.drain(other, queue)), b.either(["a", "d"], ["a", "b", "c", "d"]))


@behaviour(differs=PLUGIN)
def dead_letters_are_dropped_where_they_are_known(b):
    """A letter that is a duplicate is gone."""
    channel = b.confirming()
    dead = knowing(b, channel)
    queue = b.queue(channel, x_dead_letter_exchange="", x_dead_letter_routing_key=dead, x_message_ttl=0)
    for body in "ab":
        keyed(b, channel, queue, "k", body)
    b.await_count(channel, queue, 0)
    b.eventually(lambda: b.count(channel, dead) == b.either(1, 2))
    equal(b.drain(channel, dead), b.either(["a"], ["a", "b"]))


@behaviour(differs="RabbitMQ takes any argument that it does not know")
def arguments_that_mean_nothing_are_refused(b):
    """With what to set."""

    def declares(method, text, **arguments):
        name = b.name()
        kind = method.split(".")[0]
        channel = b.channel()
        if b.ours:
            with b.refused(406, f"PRECONDITION_FAILED - invalid arg {text.format(f'{kind} {chr(39)}{name}{chr(39)}')}"):
                channel.call(method, **{kind: name}, **arguments)
        else:
            channel.call(method, **{kind: name}, **arguments)
            channel.call(f"{kind}.delete", **{kind: name})

    knows = {"x-message-deduplication": True}
    declares(
        "exchange.declare",
        "'x-cache-size' for {} in vhost '/': it is missing; set how many keys are remembered, an integer from 1 to 1000000",
        type="topic", arguments=knows,
    )  # fmt: skip
    declares(
        "queue.declare",
        "'x-cache-size' for {} in vhost '/': set how many keys are remembered, an integer from 1 to 1000000",
        arguments=knows | {"x-cache-size": 0},
    )
    declares(
        "queue.declare",
        "'x-cache-ttl' for {} in vhost '/': without x-cache-size a key is remembered as long as its message; set both or none",
        arguments=knows | {"x-cache-ttl": 100},
    )


@behaviour(differs=PLUGIN)
def a_declare_must_ask_for_the_same_duplicates(b):
    """406, as for other arguments."""
    channel = b.channel()
    queue = knowing(b, channel, arguments={"x-cache-size": 5})
    knowing(b, channel, queue=queue, arguments={"x-cache-size": "5"})
    text = f"PRECONDITION_FAILED - inequivalent arg '{{}}' for queue '{queue}' in vhost '/': received '{{}}' but current is '{{}}'"
    for arguments, *told in (
        ({"x-message-deduplication": True, "x-cache-size": 6}, "x-cache-size", 6, 5),
        ({}, TYPE, "false", "true"),
    ):
        channel = b.channel()
        if b.ours:
            with b.refused(406, text.format(*told)):
                channel.call("queue.declare", queue=queue, arguments=arguments)
        else:
            channel.call("queue.declare", queue=queue, arguments=arguments)
