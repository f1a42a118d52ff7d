"""Declares, names, and the ends of queues."""

from behaviour import behaviour, equal


@behaviour
def declare_ok_counts(b):
    """Messages that are ready, and consumers."""
    channel = b.confirming()
    queue = b.queue(channel)
    for _ in range(3):
        b.confirmed(channel, "", queue, b"x")
    b.get(channel, queue, no_ack=False)
    answer = channel.call("queue.declare", queue=queue)
    equal((answer.queue, answer.message_count, answer.consumer_count), (queue, 2, 0))
    other = b.channel()
    other.call("basic.qos", prefetch_count=1)
    b.consume(other, queue)
    other.expect("basic.deliver")
    answer = channel.call("queue.declare", queue=queue)
    equal((answer.message_count, answer.consumer_count), (1, 1))


@behaviour
def the_server_gives_names(b):
    """amq.gen- and 22 characters, and each time another."""
    channel = b.channel()
    one, other = (b.queue(channel, "", exclusive=True) for _ in range(2))
    assert one != other
    for name in (one, other):
        assert name.startswith("amq.gen-") and len(name) == 30, name


@behaviour
def names_of_255_octets(b):
    """P5: of more than one octet a character."""
    channel = b.confirming()
    name = (b.name() + "ü" * 127)[:140]
    name = name.encode()[:254].decode(errors="ignore")
    name += "x" * (255 - len(name.encode()))
    queue = b.queue(channel, name)
    exchange = b.exchange(channel, "direct", exchange=name)
    b.bind(channel, queue, exchange, name)
    b.confirmed(channel, exchange, name, b"x")
    equal(b.consume(channel, queue, consumer_tag=name, no_ack=True), name)
    delivery = channel.expect("basic.deliver")
    equal((delivery.consumer_tag, delivery.exchange, delivery.routing_key), (name, name, name))


@behaviour
def exclusive_queues_end_with_their_connection(b):
    """Not with the channel that declared them."""
    owner = b.connect()
    channel = owner.channel()
    queue = b.queue(channel, exclusive=True)
    channel.close()
    owner.channel().call("queue.declare", queue=queue, exclusive=True)
    owner.abort()
    b.eventually(lambda: not b.exists("queue.declare", queue=queue))


@behaviour
def auto_delete_queues_go_with_their_last_consumer(b):
    """By cancel, and by the channel's end; and not before there was one."""
    channel = b.channel()
    for end in ("cancel", "close"):
        queue = b.queue(channel, auto_delete=True)
        consumers = b.channel(), b.channel()
        for consumer in consumers:
            b.consume(consumer, queue, consumer_tag="mine")
        consumers[0].call("basic.cancel", consumer_tag="mine")
        assert b.exists("queue.declare", queue=queue)
        if end == "cancel":
            consumers[1].call("basic.cancel", consumer_tag="mine")
        else:
            consumers[1].close()
        b.eventually(lambda: not b.exists("queue.declare", queue=queue))


@behaviour
def auto_delete_queues_without_a_consumer_stay(b):
    """basic.get is none."""
    channel = b.channel()
    queue = b.queue(channel, auto_delete=True)
    b.get(channel, queue)
    assert b.exists("queue.declare", queue=queue)


@behaviour
def purging_spares_what_is_held(b):
    """It counts what it removed."""
    channel = b.confirming()
    queue = b.queue(channel)
    for body in "abc":
        b.confirmed(channel, "", queue, body)
    held = b.get(channel, queue, no_ack=False)
    equal(channel.call("queue.purge", queue=queue).message_count, 2)
    channel.send("basic.nack", delivery_tag=held.delivery_tag, requeue=True)
    equal(b.await_message(channel, queue).message.body, b"a")


@behaviour
def deleting_counts(b):
    """The messages that were ready."""
    channel = b.confirming()
    queue = b.queue(channel)
    for body in "abc":
        b.confirmed(channel, "", queue, body)
    b.get(channel, queue, no_ack=False)
    equal(channel.call("queue.delete", queue=queue).message_count, 2)
    assert not b.exists("queue.declare", queue=queue)


@behaviour
def deleting_a_queue_takes_its_bindings(b):
    """A new one of that name has none."""
    channel = b.confirming()
    queue = b.queue(channel)
    exchange = b.exchange(channel, "fanout")
    b.bind(channel, queue, exchange)
    channel.call("queue.delete", queue=queue)
    channel.call("queue.declare", queue=queue)
    b.confirmed(channel, exchange, "", b"x")
    equal(b.get(channel, queue), None)


@behaviour
def what_was_held_of_a_deleted_queue_may_be_acknowledged(b):
    """It is no unknown tag."""
    channel = b.confirming()
    queue = b.queue(channel)
    b.confirmed(channel, "", queue, b"x")
    held = b.get(channel, queue, no_ack=False)
    channel.call("queue.delete", queue=queue)
    channel.send("basic.ack", delivery_tag=held.delivery_tag)
    channel.sync()


@behaviour
def nowait_is_not_answered(b):
    """Of declare, bind, consume, purge, cancel and delete."""
    channel = b.confirming()
    queue, exchange = b.name(), b.name()
    channel.send("queue.declare", queue=queue, nowait=True)
    channel.send("exchange.declare", exchange=exchange, type="fanout", nowait=True)
    channel.send("queue.bind", queue=queue, exchange=exchange, nowait=True)
    channel.send("queue.purge", queue=queue, nowait=True)
    channel.send("basic.consume", queue=queue, consumer_tag="mine", no_ack=True, nowait=True)
    b.confirmed(channel, exchange, "", b"x")
    equal(channel.expect("basic.deliver").consumer_tag, "mine")
    channel.send("basic.cancel", consumer_tag="mine", nowait=True)
    channel.send("queue.delete", queue=queue, nowait=True)
    channel.send("exchange.delete", exchange=exchange, nowait=True)
    channel.sync()
    equal(list(channel.inbox), [])
    assert not b.exists("queue.declare", queue=queue)


@behaviour
def a_passive_declare_asks_for_the_name_alone(b):
    """What else it says is not compared."""
    channel = b.channel()
    queue = b.queue(channel, x_expires=60000)
    channel.call("queue.declare", queue=queue, durable=True, auto_delete=True, passive=True)


@behaviour
def unknown_arguments_are_kept_and_not_judged(b):
    """Neither at the declare nor at the next."""
    channel = b.channel()
    queue = b.queue(channel, arguments={"x-unheard-of": {"a": [1]}, "mine": 1})
    channel.call("queue.declare", queue=queue, arguments={"mine": 2})


@behaviour
def a_classic_queue_may_say_so(b):
    """x-queue-type: classic is what it is without."""
    channel = b.channel()
    queue = b.queue(channel, arguments={"x-queue-type": "classic"})
    channel.call("queue.declare", queue=queue)


@behaviour
def quorum_is_another_type(b):
    """406 when it is declared without."""
    channel = b.channel()
    queue = b.queue(channel, durable=True, arguments={"x-queue-type": "quorum"})
    text = f"PRECONDITION_FAILED - inequivalent arg 'x-queue-type' for queue '{queue}' in vhost '/': received none but current is …"
    with b.refused(406, text, (50, 10)):
        channel.call("queue.declare", queue=queue, durable=True)


@behaviour(differs="every queue is replicated, so a quorum queue may be transient, exclusive, auto-delete and have a name from the server")
def quorum_queues_that_are_not_durable(b):
    """406 in RabbitMQ."""
    for property in ("exclusive", "auto_delete", None):
        arguments = {"durable": True, property: True} if property else {"durable": False}
        channel = b.channel()
        if b.ours:
            b.queue(channel, arguments={"x-queue-type": "quorum"}, **arguments)
            continue
        with b.refused(406, "PRECONDITION_FAILED - invalid property …", (50, 10)):
            b.queue(channel, arguments={"x-queue-type": "quorum"}, **arguments)


@behaviour(differs="streams are not there")
def stream_queues(b):
    """540 in ours."""
    channel = b.channel()
    arguments = {"durable": True, "arguments": {"x-queue-type": "stream"}}
    if not b.ours:
        b.queue(channel, **arguments)
        return
    with b.fatal(540, "NOT_IMPLEMENTED - …", (50, 10)):
        b.queue(channel, **arguments)


@behaviour(differs="every queue has every feature; RabbitMQ's quorum queues lack some")
def what_quorum_queues_may_say(b):
    """406 in RabbitMQ: priorities, lazy mode."""
    for argument, value in (("x-max-priority", 5), ("x-queue-mode", "lazy")):
        channel, queue = b.channel(), b.name()
        arguments = {"durable": True, "arguments": {"x-queue-type": "quorum", argument: value}}
        if b.ours:
            b.queue(channel, queue, **arguments)
            continue
        of = f"PRECONDITION_FAILED - invalid arg '{argument}' for queue '{queue}' in vhost '/' of queue type rabbit_quorum_queue"
        with b.refused(406, of, (50, 10)):
            b.queue(channel, queue, **arguments)


@behaviour(differs="every queue has every feature; RabbitMQ's quorum queues know no global prefetch")
def global_prefetch_on_a_quorum_queue(b):
    """540 in RabbitMQ."""
    channel = b.confirming()
    queue = b.queue(channel, durable=True, x_queue_type="quorum")
    for body in "ab":
        b.confirmed(channel, "", queue, body)
    consumer = b.channel()
    consumer.call("basic.qos", prefetch_count=1, global_=True)
    if b.ours:
        b.consume(consumer, queue)
        equal(b.bodies(consumer, 1), ["a"])
        b.silent(consumer)
        return
    with b.fatal(540, f"NOT_IMPLEMENTED - queue '{queue}' in vhost '/' does not support global qos", (60, 20)):
        b.consume(consumer, queue)


@behaviour(differs="every queue has every feature; RabbitMQ's classic queues know no delivery limit")
def a_delivery_limit_on_a_classic_queue(b):
    """406 in RabbitMQ."""
    channel = b.confirming()
    queue = b.name()
    if not b.ours:
        of = f"queue '{queue}' in vhost '/' of queue type rabbit_classic_queue"
        with b.refused(406, f"PRECONDITION_FAILED - invalid arg 'x-delivery-limit' for {of}", (50, 10)):
            b.queue(channel, queue, x_delivery_limit=1)
        return
    b.queue(channel, queue, x_delivery_limit=1)
    b.confirmed(channel, "", queue, b"x")
    for _ in range(2):
        taken = b.await_message(channel, queue, no_ack=False)
        channel.send("basic.nack", delivery_tag=taken.delivery_tag, requeue=True)
    channel.sync()
    equal(b.get(channel, queue), None)


@behaviour
def an_exclusive_queue_is_its_connection_s(b):
    """P8: other channels of it may use it."""
    owner = b.connect()
    queue = b.queue(owner.channel(), exclusive=True)
    other = owner.channel()
    other.publish("", queue, b"x")
    equal(b.await_message(other, queue).message.body, b"x")
    other.call("queue.declare", queue=queue, exclusive=True)
    # Anybody may publish to it.
    b.confirmed(b.confirming(), "", queue, b"y")
    equal(b.await_message(other, queue).message.body, b"y")
