"""Messages on their way in: properties, confirms, returns, transactions, direct replies."""

import amqp
from behaviour import behaviour, equal

ALL_PROPERTIES = {
    "content_type": "text/plain", "content_encoding": "utf-8", "delivery_mode": 2, "priority": 7,
    "correlation_id": "c-1", "reply_to": "r", "expiration": "600000", "message_id": "m-1", "timestamp": 1700000000,
    "type": "t", "user_id": "guest", "app_id": "a", "cluster_id": "old",
}  # fmt: skip


@behaviour
def all_properties_arrive(b):
    """The deprecated one too."""
    channel = b.confirming()
    queue = b.queue(channel)
    b.confirmed(channel, "", queue, b"x", headers={"h": 1}, **ALL_PROPERTIES)
    message = b.get(channel, queue).message
    equal(message.properties, ALL_PROPERTIES)
    equal(message.headers, {"h": 1})


@behaviour
def no_properties_are_none(b):
    """Nothing is added."""
    channel = b.confirming()
    queue = b.queue(channel)
    b.confirmed(channel, "", queue, b"x")
    message = b.get(channel, queue).message
    equal((message.properties, message.headers), ({}, None))


@behaviour
def field_types_arrive_as_they_were(b):
    """P4: types and values of all in the errata."""
    headers = {
        "boolean": ("t", True), "signed 8": ("b", -128), "unsigned 8": ("B", 255), "signed 16": ("s", -32768),
        "unsigned 16": ("u", 65535), "signed 32": ("I", -(2**31)), "unsigned 32": ("i", 2**32 - 1),
        "signed 64": ("l", -(2**63)), "float": ("f", 0.5), "double": ("d", 0.1), "decimal": ("D", (2, 314)),
        "text": ("S", "ü"), "bytes": ("x", b"\x00\xff"), "array": ("A", [("I", 1), ("S", "two"), ("A", []), ("V", None)]),
        "timestamp": ("T", 1700000000), "table": ("F", {"inner": ("F", {"n": ("l", 1)}), "": ("t", False)}), "void": ("V", None),
        "empty": ("F", {}), "no text": ("S", ""),
    }  # fmt: skip
    channel = b.confirming()
    queue = b.queue(channel)
    b.confirmed(channel, "", queue, b"x", headers=headers)
    found = b.get(channel, queue).message.tagged
    for name, value in headers.items():
        equal((name, found.get(name)), (name, value))


@behaviour
def a_field_of_type_L_is_signed(b):
    """P4: 64 bits; what comes out may be an `l`."""
    channel = b.confirming()
    queue = b.queue(channel)
    b.confirmed(channel, "", queue, b"x", headers={"n": ("L", -5)})
    equal(b.get(channel, queue).message.headers, {"n": -5})


@behaviour
def headers_keep_their_order(b):
    """And a name that is there twice does not end the connection."""
    channel = b.confirming()
    queue = b.queue(channel)
    headers = {name: n for n, name in enumerate("zaybxc")}
    b.confirmed(channel, "", queue, b"x", headers=headers)
    equal(list(b.get(channel, queue).message.headers), list("zaybxc"))
    one = amqp.encode_table({"a": 1})[4:]
    b.confirmed(channel, "", queue, b"x", headers=amqp.struct.pack(">I", 2 * len(one)) + one + one)
    equal(b.get(channel, queue).message.headers["a"], 1)


@behaviour
def an_empty_body(b):
    """P5: complete with its header, confirmed, and without a body frame on its way out."""
    channel = b.confirming()
    queue = b.queue(channel)
    equal(b.confirmed(channel, "", queue, b""), "ack")
    b.consume(channel, queue, no_ack=True)
    message = channel.expect("basic.deliver").message
    equal((message.body, message.size, message.frames), (b"", 0, 0))


@behaviour
def bodies_of_many_frames(b):
    """Sizes about the borders of frames, and 3 MB."""
    channel = b.confirming()
    queue = b.queue(channel)
    for size in (1, 131063, 131064, 131065, 131072, 262128, 3_000_001):
        body = bytes(n % 251 for n in range(1000)) * (size // 1000 + 1)
        equal(b.confirmed(channel, "", queue, body[:size]), "ack")
        assert b.get(channel, queue).message.body == body[:size], size


@behaviour
def body_frames_of_any_size(b):
    """A client may cut a body as it likes."""
    channel = b.confirming()
    queue = b.queue(channel)
    channel.send("basic.publish", routing_key=queue)
    channel.connection.send_frame(amqp.HEADER, channel.number, amqp.encode_header(5, {}))
    for part in (b"a", b"bc", b"", b"de"):
        channel.connection.send_frame(amqp.BODY, channel.number, part)
    channel.expect("basic.ack")
    equal(b.get(channel, queue).message.body, b"abcde")


@behaviour
def a_message_amid_other_channels_frames(b):
    """Two channels' messages may mix, frame by frame."""
    one, other = b.confirming(), b.confirming()
    queue = b.queue(one)
    for channel in (one, other):
        channel.send("basic.publish", routing_key=queue)
    for channel in (one, other):
        channel.connection.send_frame(amqp.HEADER, channel.number, amqp.encode_header(4, {}))
    for channel, part in ((one, b"on"), (other, b"ot"), (one, b"e."), (other, b"r.")):
        channel.connection.send_frame(amqp.BODY, channel.number, part)
    one.expect("basic.ack")
    other.expect("basic.ack")
    equal(sorted(b.drain(one, queue)), ["one.", "otr."])


@behaviour
def confirms_count_from_one(b):
    """P1: per channel, each publish once, single or `multiple`."""
    channel = b.channel()
    queue = b.queue(channel)
    channel.publish("", queue, b"before")
    channel.call("confirm.select")
    for n in range(500):
        channel.publish("", queue, str(n))
    confirmed = 0
    while confirmed < 500:
        ack = channel.expect("basic.ack")
        assert ack.delivery_tag == confirmed + 1 or ack.multiple, ack
        assert ack.delivery_tag > confirmed, ack
        confirmed = ack.delivery_tag
    equal(confirmed, 500)
    equal(b.drain(channel, queue), ["before", *map(str, range(500))])


@behaviour
def confirm_select_twice(b):
    """Is one."""
    channel = b.confirming()
    queue = b.queue(channel)
    b.confirmed(channel, "", queue)
    channel.call("confirm.select")
    channel.publish("", queue)
    equal(channel.expect("basic.ack").delivery_tag, 2)


@behaviour
def an_unroutable_message_is_confirmed(b):
    """By an ack: nobody wanted it."""
    equal(b.confirmed(b.confirming(), "amq.direct", b.name(), b"x"), "ack")


@behaviour
def mandatory_is_returned_before_it_is_confirmed(b):
    """P6: 312 with properties and body, then that publish's ack."""
    channel = b.confirming()
    key = b.name()
    channel.publish("amq.direct", key, b"body", mandatory=True, headers={"h": 1}, message_id="m")
    returned, ack = channel.next(), channel.next()
    equal((returned.name, ack.name, ack.delivery_tag), ("basic.return", "basic.ack", 1))
    equal((returned.code, returned.text, returned.exchange, returned.routing_key), (312, "NO_ROUTE", "amq.direct", key))
    equal((returned.message.body, returned.message.headers, returned.message.properties), (b"body", {"h": 1}, {"message_id": "m"}))


@behaviour
def mandatory_with_a_queue_is_not_returned(b):
    """P6."""
    channel = b.confirming()
    queue = b.queue(channel)
    equal(b.confirmed(channel, "", queue, b"x", mandatory=True), "ack")
    equal(list(channel.inbox), [])


@behaviour
def mandatory_without_confirms(b):
    """P6."""
    channel = b.channel()
    channel.publish("", b.name(), b"x", mandatory=True)
    equal(channel.expect("basic.return").code, 312)


@behaviour
def transactions_publish_at_commit(b):
    """Or never."""
    channel, other = b.channel(), b.channel()
    queue = b.queue(channel)
    equal(channel.call("tx.select").name, "tx.select-ok")
    channel.publish("", queue, b"a")
    channel.publish("", queue, b"b")
    channel.sync()
    equal(b.get(other, queue), None)
    channel.call("tx.rollback")
    channel.publish("", queue, b"c")
    channel.call("tx.commit")
    equal(b.drain(other, queue), ["c"])


@behaviour
def transactions_acknowledge_at_commit(b):
    """Rolled back, the message is still held, and may be acknowledged again."""
    channel, other = b.channel(), b.confirming()
    queue = b.queue(channel)
    channel.call("tx.select")
    b.confirmed(other, "", queue, b"a")
    tag = b.await_message(channel, queue, no_ack=False).delivery_tag
    channel.send("basic.ack", delivery_tag=tag)
    channel.call("tx.rollback")
    channel.send("basic.ack", delivery_tag=tag)
    channel.call("tx.commit")
    channel.close()
    equal(b.get(other, queue), None)


@behaviour
def transactions_that_end_unfinished(b):
    """Are rolled back."""
    channel, other = b.channel(), b.confirming()
    queue = b.queue(channel)
    channel.call("tx.select")
    b.confirmed(other, "", queue, b"a")
    held = b.await_message(channel, queue, no_ack=False)
    channel.send("basic.ack", delivery_tag=held.delivery_tag)
    channel.publish("", queue, b"b")
    channel.close()
    equal(b.await_message(other, queue).message.body, b"a")
    equal(b.get(other, queue), None)


@behaviour
def transactions_return_mandatory_at_commit(b):
    """Before commit-ok."""
    channel = b.channel()
    channel.call("tx.select")
    channel.publish("", b.name(), b"x", mandatory=True)
    channel.sync()
    equal(list(channel.inbox), [])
    channel.send("tx.commit")
    equal([channel.next().name, channel.next().name], ["basic.return", "tx.commit-ok"])


@behaviour(differs="the text says which queue is full")
def a_commit_that_a_queue_rejects(b):
    """T9: 406."""
    channel = b.channel()
    queue = b.queue(channel, x_max_length=1, x_overflow="reject-publish")
    channel.call("tx.select")
    channel.publish("", queue, b"a")
    channel.call("tx.commit")
    channel.publish("", queue, b"b")
    ours = f"tx.commit: queue '{queue}' in vhost '/' is full"
    with b.refused(406, f"PRECONDITION_FAILED - {b.either(ours, 'partial tx completion')}", (90, 20)):
        channel.call("tx.commit")
    equal(b.drain(b.channel(), queue), ["a"])


@behaviour
def direct_reply_to(b):
    """P12: the responder sees an address of its own for the requester, and its publish goes there."""
    requester, responder = b.channel(), b.connect().channel()
    queue = b.queue(responder)
    b.consume(requester, "amq.rabbitmq.reply-to", no_ack=True, consumer_tag="replies")
    requester.publish("", queue, b"question", reply_to="amq.rabbitmq.reply-to", correlation_id="1")
    address = b.await_message(responder, queue).message.properties["reply_to"]
    assert address.startswith("amq.rabbitmq.reply-to."), address
    # Is it still there?
    responder.call("queue.declare", queue=address, passive=True)
    responder.publish("", address, b"answer", correlation_id="1")
    delivery = requester.expect("basic.deliver")
    equal((delivery.consumer_tag, delivery.exchange, delivery.routing_key), ("replies", "", address))
    equal((delivery.message.body, delivery.message.properties), (b"answer", {"correlation_id": "1"}))


@behaviour
def direct_reply_to_misused(b):
    """P12: 406 without a consumer of replies on that channel; with acknowledgements; twice."""
    channel = b.channel()
    channel.publish("", b.name(), b"x", reply_to="amq.rabbitmq.reply-to")
    with b.refused(406, "PRECONDITION_FAILED - fast reply consumer does not exist", (60, 40)):
        channel.sync()
    with b.refused(406, "PRECONDITION_FAILED - reply consumer cannot acknowledge", (60, 20)):
        b.consume(b.channel(), "amq.rabbitmq.reply-to")
    channel = b.channel()
    b.consume(channel, "amq.rabbitmq.reply-to", no_ack=True)
    with b.refused(406, "PRECONDITION_FAILED - reply consumer already set", (60, 20)):
        b.consume(channel, "amq.rabbitmq.reply-to", no_ack=True)


@behaviour
def direct_reply_to_somebody_who_left(b):
    """P12: the address is no longer there, and an answer to it is confirmed and gone."""
    requester, responder = b.connect(), b.channel()
    channel = requester.channel()
    queue = b.queue(responder)
    b.consume(channel, "amq.rabbitmq.reply-to", no_ack=True)
    channel.publish("", queue, b"question", reply_to="amq.rabbitmq.reply-to")
    address = b.await_message(responder, queue).message.properties["reply_to"]
    requester.close()
    equal(b.confirmed(b.confirming(), "", address, b"answer"), "ack")
    with b.refused(404, f"NOT_FOUND - no queue '{address}' in vhost '/'", (50, 10)):
        responder.call("queue.declare", queue=address, passive=True)


@behaviour
def empty_properties_are_there(b):
    """An empty text is not none, nor is an empty table."""
    channel = b.confirming()
    queue = b.queue(channel)
    properties = {"content_type": "", "correlation_id": "", "reply_to": "", "message_id": ""}
    b.confirmed(channel, "", queue, b"x", headers={}, **properties)
    message = b.get(channel, queue).message
    equal((message.properties, message.headers), (properties, {}))


@behaviour
def tx_select_twice(b):
    """Is one."""
    channel = b.channel()
    channel.call("tx.select")
    channel.call("tx.select")


@behaviour
def a_transaction_s_errors_come_at_once(b):
    """404 for an exchange, 406 for a tag."""
    channel = b.channel()
    channel.call("tx.select")
    channel.publish("nowhere", "k", b"x")
    with b.refused(404, "NOT_FOUND - no exchange 'nowhere' in vhost '/'", (60, 40)):
        channel.sync()
    channel = b.channel()
    channel.call("tx.select")
    channel.send("basic.ack", delivery_tag=9)
    with b.refused(406, "PRECONDITION_FAILED - unknown delivery tag 9", (60, 80)):
        channel.sync()


@behaviour
def a_rejection_in_a_transaction(b):
    """Rolled back, the message is held as before, and recover gives it back."""
    channel, other = b.channel(), b.confirming()
    queue = b.queue(other)
    b.confirmed(other, "", queue, b"x")
    channel.call("tx.select")
    held = b.get(channel, queue, no_ack=False)
    channel.send("basic.nack", delivery_tag=held.delivery_tag, requeue=True)
    channel.sync()
    equal(b.count(other, queue), 0)
    channel.call("tx.rollback")
    channel.call("basic.recover", requeue=True)
    b.await_count(other, queue, 1)


@behaviour
def the_queue_of_direct_replies(b):
    """P12: it may be declared and deleted, which does nothing; there is nothing to get; a cancelled one is gone."""
    name = "amq.rabbitmq.reply-to"
    channel = b.channel()
    declared = channel.call("queue.declare", queue=name)
    equal((declared.queue, declared.message_count, declared.consumer_count), (name, 0, 1))
    channel.call("queue.delete", queue=name)
    with b.refused(404, f"NOT_FOUND - no queue '{name}' in vhost '/'", (60, 70)):
        b.channel().call("basic.get", queue=name)
    tag = b.consume(channel, name, no_ack=True)
    channel.call("basic.cancel", consumer_tag=tag)
    channel.publish("", b.name(), b"x", reply_to=name)
    with b.refused(406, "PRECONDITION_FAILED - fast reply consumer does not exist", (60, 40)):
        channel.sync()
