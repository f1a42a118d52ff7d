"""The errors of channels: which mistake has which code and text, and what a closed channel is."""

import amqp
from amqp import METHOD, encode_method, frame
from behaviour import behaviour, equal


@behaviour
def other_channels_outlive_an_error_and_the_number_is_free_again(b):
    """404 closes one channel."""
    channel, other = b.channel(), b.channel()
    with b.refused(404, "NOT_FOUND - no queue 'nowhere' in vhost '/'", (50, 10)):
        channel.call("queue.declare", queue="nowhere", passive=True)
    other.sync()
    b.connection.channel(channel.number).sync()


@behaviour
def a_closed_channel_drops_what_comes_before_close_ok(b):
    """What was sent behind the mistake is not done, and nothing more is said."""
    connection = b.connect()
    channel, other = connection.channel(), b.channel()
    queue, made = b.queue(other), b.name()
    methods = [
        encode_method("queue.declare", queue="nowhere", passive=True),
        encode_method("queue.declare", queue=made),
        encode_method("basic.consume", queue=queue),
    ]
    connection.send_raw(b"".join(frame(METHOD, channel.number, method) for method in methods))
    with b.refused(404, "NOT_FOUND - no queue 'nowhere' in vhost '/'"):
        channel.next()
    connection.channel(channel.number).sync()
    assert not b.exists("queue.declare", queue=made)
    equal(other.call("queue.declare", queue=queue, passive=True).consumer_count, 0)


@behaviour
def publishing_to_a_missing_exchange(b):
    """404, with the method's numbers."""
    channel = b.channel()
    channel.publish("nowhere", "k", b"x")
    with b.refused(404, "NOT_FOUND - no exchange 'nowhere' in vhost '/'", (60, 40)):
        channel.sync()


@behaviour
def a_missing_queue(b):
    """404, in every method that names one."""
    for method, blames, arguments in (
        ("basic.consume", (60, 20), {}),
        ("basic.get", (60, 70), {}),
        ("queue.purge", (50, 30), {}),
        ("queue.bind", (50, 20), {"exchange": "amq.direct"}),
    ):
        channel = b.channel()
        with b.refused(404, "NOT_FOUND - no queue 'nowhere' in vhost '/'", blames):
            channel.call(method, queue="nowhere", **arguments)


@behaviour
def a_missing_exchange(b):
    """404."""
    queue = b.queue(b.channel())
    for method, blames, arguments in (
        ("queue.bind", (50, 20), {"queue": queue, "exchange": "nowhere"}),
        ("exchange.bind", (40, 30), {"destination": "amq.fanout", "source": "nowhere"}),
        ("exchange.declare", (40, 10), {"exchange": "nowhere", "type": "direct", "passive": True}),
    ):
        channel = b.channel()
        with b.refused(404, "NOT_FOUND - no exchange 'nowhere' in vhost '/'", blames):
            channel.call(method, **arguments)


@behaviour
def an_empty_queue_name_with_none_declared(b):
    """404."""
    channel = b.channel()
    with b.refused(404, "NOT_FOUND - no previously declared queue", (60, 20)):
        channel.call("basic.consume", queue="")


@behaviour
def an_empty_queue_name_is_the_last_declared(b):
    """On that channel; for bind, with no key either, its name is the key too."""
    channel = b.channel()
    queue = b.queue(channel)
    exchange = b.exchange(channel, "direct")
    channel.call("queue.bind", queue="", exchange=exchange, routing_key="")
    channel.publish(exchange, queue, b"by its name")
    equal(b.await_message(channel, "").message.body, b"by its name")


@behaviour
def deleting_what_is_not_there_is_well(b):
    """So is unbinding it."""
    channel = b.channel()
    equal(channel.call("queue.delete", queue="nowhere").message_count, 0)
    channel.call("exchange.delete", exchange="nowhere")
    queue = b.queue(channel)
    channel.call("queue.unbind", queue=queue, exchange="amq.direct", routing_key="never")


@behaviour
def reserved_names(b):
    """403: a new name that begins with amq."""
    with b.refused(403, "ACCESS_REFUSED - queue name 'amq.mine' contains reserved prefix 'amq.*'", (50, 10)):
        b.channel().call("queue.declare", queue="amq.mine")
    with b.refused(403, "ACCESS_REFUSED - exchange name 'amq.mine' contains reserved prefix 'amq.*'", (40, 10)):
        b.channel().call("exchange.declare", exchange="amq.mine", type="direct")


@behaviour
def a_vanished_generated_name(b):
    """403: it is not made anew under the old name."""
    name = "amq.gen-AAAAAAAAAAAAAAAAAAAAAA"
    with b.refused(403, f"ACCESS_REFUSED - queue name '{name}' contains reserved prefix 'amq.*'", (50, 10)):
        b.channel().call("queue.declare", queue=name, exclusive=True)


@behaviour
def the_default_exchange_is_no_object(b):
    """403."""
    text = "ACCESS_REFUSED - operation not permitted on the default exchange"
    queue = b.queue(b.channel())
    for method, blames, arguments in (
        ("queue.bind", (50, 20), {"queue": queue, "exchange": "", "routing_key": "k"}),
        ("queue.unbind", (50, 50), {"queue": queue, "exchange": "", "routing_key": queue}),
        ("exchange.delete", (40, 20), {"exchange": ""}),
        ("exchange.bind", (40, 30), {"destination": "amq.fanout", "source": ""}),
    ):
        channel = b.channel()
        with b.refused(403, text, blames):
            channel.call(method, **arguments)


@behaviour
def system_exchanges_stay(b):
    """403."""
    channel = b.channel()
    with b.refused(403, "ACCESS_REFUSED - deletion of system exchange 'amq.direct' in vhost '/' not allowed", (40, 20)):
        channel.call("exchange.delete", exchange="amq.direct")


@behaviour
def publishing_to_an_internal_exchange(b):
    """403."""
    channel = b.channel()
    exchange = b.exchange(channel, "fanout", internal=True)
    channel.publish(exchange, "", b"x")
    with b.refused(403, f"ACCESS_REFUSED - cannot publish to internal exchange '{exchange}' in vhost '/'", (60, 40)):
        channel.sync()


@behaviour
def another_connection_s_exclusive_queue(b):
    """P8: 405 in every method; free once its connection ended."""
    owner = b.connect()
    queue = b.queue(owner.channel(), exclusive=True)
    text = (
        f"RESOURCE_LOCKED - cannot obtain exclusive access to locked queue '{queue}' in vhost '/'. It could be originally "
        "declared on another connection or the exclusive property value does not match that of the original declaration."
    )
    for method, blames, arguments in (
        ("queue.declare", (50, 10), {"exclusive": True}),
        ("queue.declare", (50, 10), {"passive": True}),
        ("basic.consume", (60, 20), {}),
        ("basic.get", (60, 70), {}),
        ("queue.purge", (50, 30), {}),
        ("queue.delete", (50, 40), {}),
        ("queue.bind", (50, 20), {"exchange": "amq.direct"}),
    ):
        channel = b.channel()
        with b.refused(405, text, blames):
            channel.call(method, queue=queue, **arguments)
    owner.close()
    b.eventually(lambda: not b.exists("queue.declare", queue=queue))
    b.queue(b.channel(), queue, exclusive=True)


@behaviour
def a_redeclare_with_other_properties(b):
    """406."""
    queue = b.queue(b.channel(), durable=False)
    text = f"PRECONDITION_FAILED - inequivalent arg 'durable' for queue '{queue}' in vhost '/': received 'true' but current is 'false'"
    with b.refused(406, text, (50, 10)):
        b.channel().call("queue.declare", queue=queue, durable=True)
    text = f"PRECONDITION_FAILED - inequivalent arg 'auto_delete' for queue '{queue}' in vhost '/': received 'true' but current is 'false'"
    with b.refused(406, text, (50, 10)):
        b.channel().call("queue.declare", queue=queue, auto_delete=True)


@behaviour
def a_redeclare_with_other_arguments(b):
    """406: what is missing, and what is another value."""
    queue = b.queue(b.channel(), arguments={"x-expires": ("l", 60000)})
    of = f"PRECONDITION_FAILED - inequivalent arg 'x-expires' for queue '{queue}' in vhost '/': "
    with b.refused(406, of + "received none but current is the value '60000' of type 'long'", (50, 10)):
        b.channel().call("queue.declare", queue=queue)
    with b.refused(406, of + "received '70000' but current is '60000'", (50, 10)):
        b.channel().call("queue.declare", queue=queue, arguments={"x-expires": 70000})
    # The same in another width is the same.
    b.channel().call("queue.declare", queue=queue, arguments={"x-expires": 60000})


@behaviour
def an_exchange_redeclared_otherwise(b):
    """406."""
    exchange = b.exchange(b.channel(), "direct")
    of = f"PRECONDITION_FAILED - inequivalent arg '{{}}' for exchange '{exchange}' in vhost '/': received '{{}}' but current is '{{}}'"
    for arguments, words in (
        ({"type": "fanout"}, ("type", "fanout", "direct")),
        ({"type": "direct", "durable": True}, ("durable", "true", "false")),
        ({"type": "direct", "auto_delete": True}, ("auto_delete", "true", "false")),
        ({"type": "direct", "internal": True}, ("internal", "true", "false")),
    ):
        with b.refused(406, of.format(*words), (40, 10)):
            b.channel().call("exchange.declare", exchange=exchange, **arguments)


@behaviour
def another_alternate_exchange(b):
    """406."""
    exchange = b.exchange(b.channel(), "direct", arguments={"alternate-exchange": "one"})
    of = f"PRECONDITION_FAILED - inequivalent arg 'alternate-exchange' for exchange '{exchange}' in vhost '/': "
    with b.refused(406, of + "received 'other' but current is 'one'", (40, 10)):
        b.channel().call("exchange.declare", exchange=exchange, type="direct", arguments={"alternate-exchange": "other"})
    with b.refused(406, of + "received none but current is the value 'one' of type 'longstr'", (40, 10)):
        b.channel().call("exchange.declare", exchange=exchange, type="direct")


@behaviour
def unknown_delivery_tags(b):
    """406: one that never was, and one that was acknowledged before."""
    for method, blames, arguments in (
        ("basic.ack", (60, 80), {}),
        ("basic.nack", (60, 120), {"requeue": True}),
        ("basic.reject", (60, 90), {"requeue": True}),
    ):
        channel = b.channel()
        channel.send(method, delivery_tag=7, **arguments)
        with b.refused(406, "PRECONDITION_FAILED - unknown delivery tag 7", blames):
            channel.sync()
    channel = b.channel()
    queue = b.queue(channel)
    channel.publish("", queue, b"x")
    tag = b.await_message(channel, queue, no_ack=False).delivery_tag
    channel.send("basic.ack", delivery_tag=tag)
    channel.send("basic.ack", delivery_tag=tag)
    with b.refused(406, f"PRECONDITION_FAILED - unknown delivery tag {tag}", (60, 80)):
        channel.sync()


@behaviour
def if_unused_and_if_empty(b):
    """406: of queues in use, queues with messages, exchanges with bindings."""
    channel = b.channel()
    queue = b.queue(channel)
    channel.publish("", queue, b"x")
    b.await_count(channel, queue, 1)
    with b.refused(406, f"PRECONDITION_FAILED - queue '{queue}' in vhost '/' not empty", (50, 40)):
        b.channel().call("queue.delete", queue=queue, if_empty=True)
    b.consume(channel, queue)
    with b.refused(406, f"PRECONDITION_FAILED - queue '{queue}' in vhost '/' in use", (50, 40)):
        b.channel().call("queue.delete", queue=queue, if_unused=True)
    exchange = b.exchange(channel, "direct")
    b.bind(channel, queue, exchange, "k")
    with b.refused(406, f"PRECONDITION_FAILED - exchange '{exchange}' in vhost '/' in use", (40, 20)):
        b.channel().call("exchange.delete", exchange=exchange, if_unused=True)


@behaviour
def bad_queue_arguments(b):
    """406, and for which reason."""
    for argument, value, why in (
        ("x-expires", 0, "{value_zero,0}"),
        ("x-expires", -1, "{value_negative,-1}"),
        ("x-expires", "soon", '"expected integer, got longstr"'),
        ("x-message-ttl", -1, "{value_negative,-1}"),
        ("x-max-length", -1, "{value_negative,-1}"),
        ("x-max-length-bytes", "1k", '"expected integer, got longstr"'),
        ("x-max-priority", 256, "{max_value_exceeded,256}"),
        ("x-max-priority", -1, "{value_negative,-1}"),
        ("x-overflow", "spill", "invalid_overflow"),
        ("x-dead-letter-routing-key", "k", "routing_key_but_no_dlx_defined"),
        ("x-single-active-consumer", 1, "{unacceptable_type,signedint}"),
    ):
        queue = b.name()
        text = f"PRECONDITION_FAILED - invalid arg '{argument}' for queue '{queue}' in vhost '/': {why}"
        with b.refused(406, text, (50, 10)):
            b.channel().call("queue.declare", queue=queue, arguments={argument: value})


@behaviour
def a_dead_letter_exchange_that_is_no_name(b):
    """406, with words of its own."""
    queue = b.name()
    text = f"PRECONDITION_FAILED - invalid type 'signedint' for arg 'x-dead-letter-exchange' in queue '{queue}' in vhost '/'"
    with b.refused(406, text, (50, 10)):
        b.channel().call("queue.declare", queue=queue, arguments={"x-dead-letter-exchange": 5})


@behaviour
def an_unknown_queue_type(b):
    """406."""
    queue = b.name()
    with b.refused(406, f"PRECONDITION_FAILED - invalid arg 'x-queue-type' for queue '{queue}' in vhost '/': …", (50, 10)):
        b.channel().call("queue.declare", queue=queue, durable=True, arguments={"x-queue-type": "magic"})


@behaviour
def bad_expirations(b):
    """T1: 406."""
    queue = b.queue(b.channel())
    for expiration, why in (("later", "no_integer"), ("1000.5", '{leftover_string,".5"}'), ("-1", "{value_negative,-1}")):
        channel = b.channel()
        channel.publish("", queue, b"x", expiration=expiration)
        with b.refused(406, f"PRECONDITION_FAILED - invalid expiration '{expiration}': {why}", (60, 40)):
            channel.sync()


@behaviour
def another_user_s_id(b):
    """406; one's own is well."""
    channel = b.channel()
    queue = b.queue(channel)
    channel.publish("", queue, b"x", user_id="guest")
    equal(b.await_message(channel, queue).message.properties["user_id"], "guest")
    channel.publish("", queue, b"x", user_id="root")
    text = "PRECONDITION_FAILED - user_id property set to 'root' but authenticated user was 'guest'"
    with b.refused(406, text, (60, 40)):
        channel.sync()


@behaviour
def tx_without_select(b):
    """406."""
    for method, blames in (("tx.commit", (90, 20)), ("tx.rollback", (90, 30))):
        with b.refused(406, "PRECONDITION_FAILED - channel is not transactional", blames):
            b.channel().call(method)


@behaviour
def a_channel_is_confirming_or_transactional(b):
    """406."""
    channel = b.confirming()
    with b.refused(406, "PRECONDITION_FAILED - cannot switch from confirm to tx mode", (90, 10)):
        channel.call("tx.select")
    channel = b.channel()
    channel.call("tx.select")
    with b.refused(406, "PRECONDITION_FAILED - cannot switch from tx to confirm mode", (85, 10)):
        channel.call("confirm.select")


@behaviour(differs="refused at the header; RabbitMQ takes the whole body first")
def a_body_above_the_maximum(b):
    """F3: 406."""
    channel = b.channel()
    channel.send("basic.publish", routing_key=b.name())
    size = 600 << 20
    channel.connection.send_frame(amqp.HEADER, channel.number, amqp.encode_header(size, {}))
    channel.connection.send_frame(amqp.BODY, channel.number, b"x" * 1000)
    if not b.ours:
        b.quiet(channel.connection)
        return
    with b.refused(406, f"PRECONDITION_FAILED - message size {size} is larger than configured max size …", (60, 40)):
        channel.next()


@behaviour
def an_unknown_exchange_type(b):
    """503, which ends the connection."""
    with b.fatal(503, "COMMAND_INVALID - unknown exchange type 'magic'", (40, 10)):
        b.channel().call("exchange.declare", exchange=b.name(), type="magic")


@behaviour
def a_consumer_tag_twice_on_a_channel(b):
    """P11: 530; on other channels it is free."""
    channel, other = b.channel(), b.channel()
    queue = b.queue(channel)
    b.consume(channel, queue, consumer_tag="mine")
    b.consume(other, queue, consumer_tag="mine")
    with b.fatal(530, "NOT_ALLOWED - attempt to reuse consumer tag 'mine'", (60, 20)):
        b.consume(channel, queue, consumer_tag="mine")


@behaviour
def immediate_is_not_there(b):
    """540."""
    channel = b.channel()
    channel.publish("", b.name(), b"x", immediate=True)
    with b.fatal(540, "NOT_IMPLEMENTED - immediate=true", (60, 40)):
        channel.sync()


@behaviour
def prefetch_size_is_not_there(b):
    """540."""
    with b.fatal(540, "NOT_IMPLEMENTED - prefetch_size!=0 (1024)", (60, 10)):
        b.channel().call("basic.qos", prefetch_size=1024)


@behaviour
def recover_without_requeue_is_not_there(b):
    """540."""
    with b.fatal(540, "NOT_IMPLEMENTED - requeue=false", (60, 110)):
        b.channel().call("basic.recover", requeue=False)


@behaviour
def the_default_exchange_cannot_be_declared(b):
    """403, passively neither."""
    for passive in (False, True):
        with b.refused(403, "ACCESS_REFUSED - operation not permitted on the default exchange", (40, 10)):
            b.channel().call("exchange.declare", exchange="", type="direct", durable=True, passive=passive)


@behaviour
def predeclared_exchanges_declared_otherwise(b):
    """406."""
    of = "PRECONDITION_FAILED - inequivalent arg '{}' for exchange 'amq.direct' in vhost '/': received '{}' but current is '{}'"
    with b.refused(406, of.format("type", "fanout", "direct"), (40, 10)):
        b.channel().call("exchange.declare", exchange="amq.direct", type="fanout", durable=True)
    with b.refused(406, of.format("durable", "false", "true"), (40, 10)):
        b.channel().call("exchange.declare", exchange="amq.direct", type="direct")


@behaviour
def an_empty_name_declared_passively(b):
    """404: it is not the last declared."""
    channel = b.channel()
    b.queue(channel)
    with b.refused(404, "NOT_FOUND - no queue '' in vhost '/'", (50, 10)):
        channel.call("queue.declare", queue="", passive=True)


@behaviour
def unbinding_what_is_not_there(b):
    """Neither queue nor exchange has to be."""
    channel = b.channel()
    queue = b.queue(channel)
    channel.call("queue.unbind", queue="nowhere", exchange="amq.direct", routing_key="k")
    channel.call("queue.unbind", queue=queue, exchange="nowhere", routing_key="k")
    channel.call("exchange.unbind", destination="nowhere", source="amq.direct")
    channel.call("exchange.unbind", destination="amq.direct", source="nowhere")


@behaviour
def tag_0_is_of_multiple_alone(b):
    """406 without."""
    for method, blames in (("basic.ack", (60, 80)), ("basic.nack", (60, 120)), ("basic.reject", (60, 90))):
        channel = b.channel()
        channel.send(method, delivery_tag=0)
        with b.refused(406, "PRECONDITION_FAILED - unknown delivery tag 0", blames):
            channel.sync()


@behaviour
def what_needs_no_acknowledgement_has_a_tag_too(b):
    """406 when it is acknowledged; the tags go on counting."""
    channel = b.confirming()
    queue = b.queue(channel)
    for _ in range(3):
        b.confirmed(channel, "", queue)
    equal([b.get(channel, queue, no_ack=no_ack).delivery_tag for no_ack in (True, False, True)], [1, 2, 3])
    channel.send("basic.ack", delivery_tag=1)
    with b.refused(406, "PRECONDITION_FAILED - unknown delivery tag 1", (60, 80)):
        channel.sync()


@behaviour
def recover_async_without_requeue_is_not_there(b):
    """540."""
    channel = b.channel()
    channel.send("basic.recover-async", requeue=False)
    with b.fatal(540, "NOT_IMPLEMENTED - requeue=false", (60, 100)):
        channel.sync()


@behaviour
def an_unknown_delivery_mode(b):
    """406: there are 1 and 2."""
    for mode in (0, 3):
        channel = b.channel()
        channel.publish("", b.name(), b"x", delivery_mode=mode)
        with b.refused(406, f"PRECONDITION_FAILED - invalid message: {{delivery_mode_unknown,{mode}}}", (60, 40)):
            channel.sync()


@behaviour
def an_empty_user_id(b):
    """406: it is not none."""
    channel = b.channel()
    channel.publish("", b.name(), b"x", user_id="")
    with b.refused(406, "PRECONDITION_FAILED - user_id property set to '' but authenticated user was 'guest'", (60, 40)):
        channel.sync()


@behaviour
def signs_and_spaces_in_expirations(b):
    """T1: 406 for spaces, and for more than ten years."""
    queue = b.name()
    for good in ("+5", "007", "-0", "315360000000"):
        channel = b.channel()
        channel.publish("", queue, b"x", expiration=good)
        channel.sync()
    for bad, why in (
        ("", "no_integer"), (" 5", "no_integer"), ("5 ", '{leftover_string," "}'), ("0x10", '{leftover_string,"x10"}'),
        ("315360000001", "{value_too_large,315360000001}"),
    ):  # fmt: skip
        channel = b.channel()
        channel.publish("", queue, b"x", expiration=bad)
        with b.refused(406, f"PRECONDITION_FAILED - invalid expiration '{bad}': {why}", (60, 40)):
            channel.sync()


@behaviour
def integers_of_any_width_in_arguments(b):
    """But no timestamps, floats and texts."""
    for value in (("b", 5), ("B", 5), ("s", 5), ("u", 5), ("i", 5), ("l", 5)):
        b.queue(b.channel(), x_max_length=value)
    for value, kind in ((("T", 1000), "timestamp"), (1.5, "double"), (True, "bool"), (None, "void"), (b"5", "binary")):
        queue = b.name()
        text = f"invalid arg 'x-max-length' for queue '{queue}' in vhost '/': \"expected integer, got {kind}\""
        with b.refused(406, f"PRECONDITION_FAILED - {text}", (50, 10)):
            b.queue(b.channel(), queue, x_max_length=value)


@behaviour(differs="names are octets; RabbitMQ refuses a declare of what is no UTF-8")
def names_that_are_no_utf_8(b):
    """501 in RabbitMQ."""
    name = b"\xff\xfe" + b.name().encode()
    if b.ours:
        equal(b.queue(b.channel(), name), name)
        return
    with b.fatal(501, "FRAME_ERROR - Malformed UTF-8 in shortstr", (0, 0)):
        b.queue(b.channel(), name)


@behaviour(differs="names are octets; RabbitMQ takes ends of lines out of them")
def ends_of_lines_in_names(b):
    """Of queues."""
    name = b.name()
    equal(b.queue(b.channel(), f"a\n{name}\r"), b.either(f"a\n{name}\r", f"a{name}"))
