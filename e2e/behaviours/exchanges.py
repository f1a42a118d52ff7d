"""Where messages go: the four types, bindings between exchanges, alternates, and copies by header."""

from behaviour import behaviour, equal


def routed(b, channel, exchange, queues, key="", **properties):
    """Publishes once, and returns in which of the queues it came: {name: queue} → the names."""
    if properties.pop("confirm", True):
        b.confirmed(channel, exchange, key, b"x", **properties)
    return sorted(name for name, queue in queues.items() if b.drain(channel, queue))


def queues(b, channel, names):
    return {name: b.queue(channel) for name in names}


@behaviour
def the_default_exchange_knows_each_queue(b):
    """By its name, from its declare to its end."""
    channel = b.confirming()
    queue = b.queue(channel)
    b.confirmed(channel, "", queue, b"x")
    taken = b.get(channel, queue)
    equal((taken.exchange, taken.routing_key, taken.redelivered, taken.message_count), ("", queue, False, 0))


@behaviour
def predeclared_exchanges(b):
    """With their types."""
    channel = b.channel()
    for name, kind in (
        ("amq.direct", "direct"), ("amq.fanout", "fanout"), ("amq.topic", "topic"), ("amq.headers", "headers"),
        ("amq.match", "headers"),
    ):  # fmt: skip
        channel.call("exchange.declare", exchange=name, type=kind, durable=True)


@behaviour
def direct_exchanges(b):
    """The whole key, several queues with one, several keys for a queue; each queue gets one."""
    channel = b.confirming()
    exchange = b.exchange(channel, "direct")
    there = queues(b, channel, "ab")
    b.bind(channel, there["a"], exchange, "one")
    b.bind(channel, there["b"], exchange, "one")
    b.bind(channel, there["b"], exchange, "two")
    equal(routed(b, channel, exchange, there, "one"), ["a", "b"])
    equal(routed(b, channel, exchange, there, "two"), ["b"])
    equal(routed(b, channel, exchange, there, "on"), [])
    equal(routed(b, channel, exchange, there, "ONE"), [])


@behaviour
def fanout_exchanges(b):
    """Keys say nothing; a queue that is bound twice gets it once."""
    channel = b.confirming()
    exchange = b.exchange(channel, "fanout")
    there = queues(b, channel, "ab")
    b.bind(channel, there["a"], exchange, "k")
    b.bind(channel, there["a"], exchange, "l")
    b.bind(channel, there["b"], exchange)
    b.confirmed(channel, exchange, "other", b"x")
    equal((len(b.drain(channel, there["a"])), len(b.drain(channel, there["b"]))), (1, 1))


@behaviour
def topic_exchanges(b):
    """P15: `*` is one word, `#` any number of them."""
    channel = b.confirming()
    exchange = b.exchange(channel, "topic")
    patterns = ["a.*.c.#", "#", "*", "a.#.c", "#.c", "*.b", "a..c", "", "#.#", "*.#"]
    there = {pattern: b.queue(channel) for pattern in patterns}
    for pattern, queue in there.items():
        b.bind(channel, queue, exchange, pattern)
    for key, expected in {
        "a.b.c": ["#", "#.#", "#.c", "*.#", "a.#.c", "a.*.c.#"],
        "a.b.c.d.e": ["#", "#.#", "*.#", "a.*.c.#"],
        "a.c": ["#", "#.#", "#.c", "*.#", "a.#.c"],
        "a.b": ["#", "#.#", "*.#", "*.b"],
        "a": ["#", "#.#", "*", "*.#"],
        "c": ["#", "#.#", "#.c", "*", "*.#"],
        "a..c": ["#", "#.#", "#.c", "*.#", "a.#.c", "a.*.c.#", "a..c"],
        "": ["", "#", "#.#"],
    }.items():
        equal((key, routed(b, channel, exchange, there, key)), (key, sorted(expected)))


def headers_exchange(b, channel, **bindings):
    exchange = b.exchange(channel, "headers")
    there = queues(b, channel, bindings)
    for name, arguments in bindings.items():
        b.bind(channel, there[name], exchange, "", arguments)
    return exchange, there


@behaviour
def headers_all_and_any(b):
    """P15: names that begin with x- do not count."""
    channel = b.confirming()
    wanted = {"a": 1, "b": "two", "x-c": 3}
    exchange, there = headers_exchange(
        b, channel, all={**wanted, "x-match": "all"}, any={**wanted, "x-match": "any"}, unsaid=wanted
    )
    for headers, expected in (
        ({"a": 1, "b": "two"}, ["all", "any", "unsaid"]),
        ({"a": 1, "b": "two", "more": 0}, ["all", "any", "unsaid"]),
        ({"a": 1}, ["any"]),
        ({"a": 2, "b": "two"}, ["any"]),
        ({"x-c": 3}, []),
        ({}, []),
    ):
        equal((headers, routed(b, channel, exchange, there, headers=headers)), (headers, expected))


@behaviour
def headers_with_x(b):
    """P15: all-with-x and any-with-x count those too."""
    channel = b.confirming()
    wanted = {"a": 1, "x-c": 3}
    exchange, there = headers_exchange(
        b, channel, all={**wanted, "x-match": "all-with-x"}, any={**wanted, "x-match": "any-with-x"}
    )
    for headers, expected in (
        ({"a": 1, "x-c": 3}, ["all", "any"]),
        ({"x-c": 3}, ["any"]),
        ({"a": 1}, ["any"]),
        ({"a": 2, "x-c": 4}, []),
    ):
        equal((headers, routed(b, channel, exchange, there, headers=headers)), (headers, expected))


@behaviour
def headers_that_say_nothing_of_the_value(b):
    """P15: a void in the binding asks only whether the header is there; without any, all matches and any does not."""
    channel = b.confirming()
    exchange, there = headers_exchange(b, channel, there={"a": None}, all={"x-match": "all"}, any={"x-match": "any"})
    equal(routed(b, channel, exchange, there, headers={"a": 5}), ["all", "there"])
    equal(routed(b, channel, exchange, there, headers={"b": 5}), ["all"])
    equal(routed(b, channel, exchange, there), ["all"])


@behaviour
def headers_of_other_types(b):
    """P15: widths of integers are one, text and numbers are not."""
    channel = b.confirming()
    exchange, there = headers_exchange(b, channel, number={"a": 1}, text={"a": "1"}, truth={"a": True})
    equal(routed(b, channel, exchange, there, headers={"a": ("l", 1)}), ["number"])
    equal(routed(b, channel, exchange, there, headers={"a": ("s", 1)}), ["number"])
    equal(routed(b, channel, exchange, there, headers={"a": "1"}), ["text"])
    equal(routed(b, channel, exchange, there, headers={"a": True}), ["truth"])


@behaviour
def an_invalid_x_match(b):
    """406, at the binding."""
    channel = b.channel()
    exchange, queue = b.exchange(channel, "headers"), b.queue(channel)
    text = 'PRECONDITION_FAILED - Invalid x-match field value <<"most">>; expected all, any, all-with-x, or any-with-x'
    with b.refused(406, text, (50, 20)):
        b.bind(channel, queue, exchange, "", {"x-match": "most"})


@behaviour
def bindings_differ_by_their_arguments(b):
    """Two of one key, with other arguments, are two; taking one away leaves the other."""
    channel = b.confirming()
    exchange = b.exchange(channel, "headers")
    queue = b.queue(channel)
    b.bind(channel, queue, exchange, "", {"a": 1})
    b.bind(channel, queue, exchange, "", {"b": 1})
    channel.call("queue.unbind", queue=queue, exchange=exchange, arguments={"a": 1})
    equal(routed(b, channel, exchange, {"q": queue}, headers={"a": 1}), [])
    equal(routed(b, channel, exchange, {"q": queue}, headers={"b": 1}), ["q"])


@behaviour
def unbinding(b):
    """What was bound twice is unbound once."""
    channel = b.confirming()
    exchange = b.exchange(channel, "direct")
    queue = b.queue(channel)
    for _ in range(2):
        b.bind(channel, queue, exchange, "k")
    equal(routed(b, channel, exchange, {"q": queue}, "k"), ["q"])
    channel.call("queue.unbind", queue=queue, exchange=exchange, routing_key="k")
    equal(routed(b, channel, exchange, {"q": queue}, "k"), [])


@behaviour
def exchange_to_exchange(b):
    """P1: chains, and circles; a queue gets one, however many ways lead there. The message tells of the first exchange."""
    channel = b.confirming()
    first, second, third = (b.exchange(channel, kind) for kind in ("direct", "fanout", "topic"))
    queue = b.queue(channel)
    for source, destination, key in ((first, second, "k"), (second, third, ""), (third, first, "#"), (third, second, "#")):
        channel.call("exchange.bind", source=source, destination=destination, routing_key=key)
    b.bind(channel, queue, third, "k")
    b.bind(channel, queue, second, "")
    b.confirmed(channel, first, "k", b"x")
    taken = b.get(channel, queue)
    equal((taken.exchange, taken.routing_key), (first, "k"))
    equal(b.get(channel, queue), None)
    channel.call("exchange.unbind", source=first, destination=second, routing_key="k")
    equal(routed(b, channel, first, {"q": queue}, "k"), [])


@behaviour
def deleting_an_exchange_takes_its_bindings(b):
    """Both ways."""
    channel = b.confirming()
    source, middle = b.exchange(channel, "fanout"), b.exchange(channel, "fanout")
    queue = b.queue(channel)
    channel.call("exchange.bind", source=source, destination=middle)
    b.bind(channel, queue, middle)
    equal(routed(b, channel, source, {"q": queue}), ["q"])
    channel.call("exchange.delete", exchange=middle)
    channel.call("exchange.declare", exchange=middle, type="fanout")
    equal(routed(b, channel, source, {"q": queue}), [])
    equal(routed(b, channel, middle, {"q": queue}), [])


@behaviour
def an_alternate_exchange_takes_what_has_no_way(b):
    """Chains of them; mandatory does not return what it takes."""
    channel = b.confirming()
    last = b.exchange(channel, "fanout")
    middle = b.exchange(channel, "direct", arguments={"alternate-exchange": last})
    first = b.exchange(channel, "direct", arguments={"alternate-exchange": middle})
    there = queues(b, channel, ["first", "last"])
    b.bind(channel, there["first"], first, "k")
    b.bind(channel, there["last"], last)
    equal(routed(b, channel, first, there, "k"), ["first"])
    equal(routed(b, channel, first, there, "other", mandatory=True), ["last"])
    assert not [method for method in channel.inbox if method.name == "basic.return"]


@behaviour
def an_alternate_exchange_that_is_not_there(b):
    """Is no error; the message is unroutable."""
    channel = b.confirming()
    exchange = b.exchange(channel, "direct", arguments={"alternate-exchange": "nowhere"})
    equal(b.confirmed(channel, exchange, "k", b"x", mandatory=True), "ack")
    equal(channel.expect("basic.return").code, 312)


@behaviour
def alternate_exchanges_in_a_circle(b):
    """End."""
    channel = b.confirming()
    one, other = b.name(), b.name()
    b.exchange(channel, "direct", exchange=one, arguments={"alternate-exchange": other})
    b.exchange(channel, "direct", exchange=other, arguments={"alternate-exchange": one})
    equal(b.confirmed(channel, one, "k", b"x", mandatory=True), "ack")
    equal(channel.expect("basic.return").code, 312)


@behaviour
def auto_delete_exchanges_go_with_their_last_binding(b):
    """And not before there was one."""
    channel = b.channel()
    exchange = b.exchange(channel, "fanout", auto_delete=True)
    queue, other = b.queue(channel), b.queue(channel)
    b.bind(channel, queue, exchange)
    b.bind(channel, other, exchange)
    channel.call("queue.unbind", queue=queue, exchange=exchange)
    assert b.exists("exchange.declare", exchange=exchange, type="fanout")
    channel.call("queue.delete", queue=other)
    assert not b.exists("exchange.declare", exchange=exchange, type="fanout")


@behaviour
def internal_exchanges_are_reached_by_bindings(b):
    """Alone."""
    channel = b.confirming()
    inner = b.exchange(channel, "fanout", internal=True)
    outer = b.exchange(channel, "fanout")
    queue = b.queue(channel)
    channel.call("exchange.bind", source=outer, destination=inner)
    b.bind(channel, queue, inner)
    equal(routed(b, channel, outer, {"q": queue}), ["q"])


@behaviour
def passive_exchange_declares(b):
    """Ask for the name alone."""
    channel = b.channel()
    exchange = b.exchange(channel, "direct")
    channel.call("exchange.declare", exchange=exchange, type="fanout", durable=True, passive=True)


@behaviour
def cc_and_bcc_are_more_keys(b):
    """T4: each queue gets one; CC stays in the message, BCC does not."""
    channel = b.confirming()
    there = queues(b, channel, "abc")
    headers = {"CC": [there["b"], there["a"]], "BCC": [there["c"], there["c"]], "kept": 1}
    b.confirmed(channel, "", there["a"], b"x", headers=headers)
    for queue in there.values():
        taken = b.get(channel, queue)
        equal(taken.message.headers, {"CC": [there["b"], there["a"]], "kept": 1})
        equal(taken.routing_key, there["a"])
        equal(b.get(channel, queue), None)


@behaviour
def cc_that_is_no_list(b):
    """T4: 406."""
    channel = b.channel()
    channel.publish("", b.name(), b"x", headers={"CC": "me"})
    with b.refused(406, 'PRECONDITION_FAILED - invalid message: {unacceptable_type_in_header,"CC",longstr}', (60, 40)):
        channel.sync()


@behaviour
def x_match_of_another_type(b):
    """406."""
    channel = b.channel()
    exchange, queue = b.exchange(channel, "headers"), b.queue(channel)
    for value, told in ((5, "signedint (value 5)"), (True, "bool (value true)"), (None, "void (value undefined)")):
        text = f"PRECONDITION_FAILED - Invalid x-match field type {told}; expected longstr"
        with b.refused(406, text, (50, 20)):
            b.bind(b.channel(), queue, exchange, "", {"x-match": value})


@behaviour
def what_is_no_text_in_cc(b):
    """T4: is passed over; so is a list without anything, and the name in small letters."""
    channel = b.confirming()
    queue = b.queue(channel)
    b.confirmed(channel, "", b.name(), b"x", headers={"CC": [1, queue]})
    equal(b.get(channel, queue).message.headers, {"CC": [1, queue]})
    for headers in ({"CC": []}, {"BCC": []}, {"cc": [queue]}):
        equal(b.confirmed(channel, "", b.name(), b"x", headers=headers), "ack")
    equal(b.get(channel, queue), None)


@behaviour
def an_auto_delete_exchange_between_exchanges(b):
    """Goes with its last binding as a source, and not as a destination."""
    channel = b.channel()
    source, destination = b.exchange(channel, "fanout", auto_delete=True), b.exchange(channel, "fanout", auto_delete=True)
    channel.call("exchange.bind", source=source, destination=destination)
    channel.call("exchange.unbind", source=source, destination=destination)
    assert not b.exists("exchange.declare", exchange=source, type="fanout")
    assert b.exists("exchange.declare", exchange=destination, type="fanout")


@behaviour
def an_exchange_that_others_lead_to_is_unused(b):
    """if_unused asks for bindings from it."""
    channel = b.channel()
    source, destination = b.exchange(channel, "fanout"), b.exchange(channel, "fanout")
    channel.call("exchange.bind", source=source, destination=destination)
    channel.call("exchange.delete", exchange=destination, if_unused=True)
