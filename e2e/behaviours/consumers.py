"""Who gets what: tags, prefetch, priorities, exclusive and single active consumers, and their ends."""

from behaviour import behaviour, equal


def filled(b, count, **arguments):
    """A queue with messages "0", "1" …, and the channel that declared it."""
    channel = b.confirming()
    queue = b.queue(channel, **arguments)
    for n in range(count):
        b.confirmed(channel, "", queue, str(n))
    return channel, queue


@behaviour
def deliveries_say_where_they_come_from(b):
    """And tags count from one, on each channel."""
    channel, queue = filled(b, 0)
    exchange = b.exchange(channel, "direct")
    b.bind(channel, queue, exchange, "k")
    tag = b.consume(channel, queue, no_ack=True)
    for n in (1, 2):
        channel.publish(exchange, "k", b"x")
        delivery = channel.expect("basic.deliver")
        found = delivery.consumer_tag, delivery.delivery_tag, delivery.redelivered, delivery.exchange, delivery.routing_key
        equal(found, (tag, n, False, exchange, "k"))


@behaviour
def the_server_gives_consumer_tags(b):
    """amq.ctag- and 22 characters."""
    channel, queue = filled(b, 0)
    tag = b.consume(channel, queue)
    assert tag.startswith("amq.ctag-") and len(tag) == 31, tag


@behaviour
def consumers_of_a_queue_take_turns(b):
    """Each gets its share of ten."""
    channel, queue = filled(b, 0)
    consumers = [b.channel() for _ in range(2)]
    for consumer in consumers:
        b.consume(consumer, queue, no_ack=True)
    for n in range(10):
        b.confirmed(channel, "", queue, str(n))
    got = [b.bodies(consumer, 5) for consumer in consumers]
    equal(sorted(got[0] + got[1]), [str(n) for n in range(10)])


@behaviour
def without_acknowledgements_nothing_is_held(b):
    """And prefetch does not count."""
    channel, queue = filled(b, 5)
    consumer = b.channel()
    consumer.call("basic.qos", prefetch_count=1)
    b.consume(consumer, queue, no_ack=True)
    equal(b.bodies(consumer, 5), list("01234"))
    consumer.close()
    equal(b.get(channel, queue), None)


@behaviour
def no_local_is_not_there(b):
    """One's own messages come all the same."""
    channel, queue = filled(b, 1)
    b.consume(channel, queue, no_local=True, no_ack=True)
    equal(b.bodies(channel, 1), ["0"])


@behaviour
def prefetch_is_each_consumer_s_own(b):
    """T10, T14: as it was said before consume; a later one is for later consumers."""
    channel, queue = filled(b, 10)
    consumer = b.channel()
    consumer.call("basic.qos", prefetch_count=2)
    one = b.consume(consumer, queue)
    consumer.call("basic.qos", prefetch_count=3)
    b.deliveries(consumer, 2)
    two = b.consume(consumer, queue)
    deliveries = b.deliveries(consumer, 3)
    equal([delivery.consumer_tag for delivery in deliveries], [two] * 3)
    b.await_count(channel, queue, 5)
    consumer.send("basic.ack", delivery_tag=1)
    equal(consumer.expect("basic.deliver").consumer_tag, one)
    b.silent(consumer)
    equal(b.count(channel, queue), 4)


@behaviour
def what_a_cancelled_consumer_held_does_not_count(b):
    """T10: for the next one's prefetch."""
    channel, queue = filled(b, 4)
    consumer = b.channel()
    consumer.call("basic.qos", prefetch_count=2)
    tag = b.consume(consumer, queue)
    b.deliveries(consumer, 2)
    consumer.call("basic.cancel", consumer_tag=tag)
    consumer.call("basic.qos", prefetch_count=1)
    b.consume(consumer, queue)
    equal(b.bodies(consumer, 1), ["2"])
    b.await_count(channel, queue, 1)
    b.silent(consumer)


@behaviour
def global_prefetch_is_shared(b):
    """T14: by the channel's consumers."""
    channel, queue = filled(b, 10)
    consumer = b.channel()
    consumer.call("basic.qos", prefetch_count=3, global_=True)
    b.consume(consumer, queue)
    b.consume(consumer, queue)
    b.deliveries(consumer, 3)
    b.silent(consumer)
    equal(b.count(channel, queue), 7)
    consumer.send("basic.ack", delivery_tag=2, multiple=True)
    b.deliveries(consumer, 2)
    b.silent(consumer)
    equal(b.count(channel, queue), 5)


@behaviour
def both_prefetches_hold(b):
    """T14: the tighter one stops."""
    channel, queue = filled(b, 10)
    consumer = b.channel()
    consumer.call("basic.qos", prefetch_count=2)
    consumer.call("basic.qos", prefetch_count=3, global_=True)
    one = b.consume(consumer, queue)
    equal([delivery.consumer_tag for delivery in b.deliveries(consumer, 2)], [one] * 2)
    b.silent(consumer)
    two = b.consume(consumer, queue)
    equal([delivery.consumer_tag for delivery in b.deliveries(consumer, 1)], [two])
    b.silent(consumer)


@behaviour
def raising_global_prefetch_resumes(b):
    """T14: at once; lowering it below what is held stops until enough is settled."""
    channel, queue = filled(b, 10)
    consumer = b.channel()
    consumer.call("basic.qos", prefetch_count=1, global_=True)
    b.consume(consumer, queue)
    b.deliveries(consumer, 1)
    consumer.call("basic.qos", prefetch_count=4, global_=True)
    b.deliveries(consumer, 3)
    consumer.call("basic.qos", prefetch_count=2, global_=True)
    consumer.send("basic.ack", delivery_tag=2, multiple=True)
    b.silent(consumer)
    equal(b.count(channel, queue), 6)
    consumer.send("basic.ack", delivery_tag=3)
    b.deliveries(consumer, 1)
    consumer.call("basic.qos", prefetch_count=0, global_=True)
    b.deliveries(consumer, 5)


@behaviour
def the_largest_prefetch(b):
    """T14: 65535, both kinds."""
    channel, queue = filled(b, 3)
    consumer = b.channel()
    consumer.call("basic.qos", prefetch_count=65535)
    consumer.call("basic.qos", prefetch_count=65535, global_=True)
    b.consume(consumer, queue)
    equal(b.bodies(consumer, 3), list("012"))


@behaviour
def prefetch_is_not_for_get(b):
    """Nor does what was got count for a consumer."""
    channel, queue = filled(b, 4)
    consumer = b.channel()
    consumer.call("basic.qos", prefetch_count=1)
    for body in (b"0", b"1"):
        equal(b.get(consumer, queue, no_ack=False).message.body, body)
    b.consume(consumer, queue)
    equal(b.bodies(consumer, 1), ["2"])


@behaviour
def get_ok_counts_what_is_left(b):
    """And get-empty comes when nothing is."""
    channel, queue = filled(b, 2)
    equal([b.get(channel, queue).message_count for _ in range(2)], [1, 0])
    equal(channel.call("basic.get", queue=queue).name, "basic.get-empty")


@behaviour
def consumer_priorities(b):
    """P1: the most urgent gets all that it takes, then the next."""
    channel, queue = filled(b, 0)
    low, high = b.channel(), b.channel()
    for consumer in (low, high):
        consumer.call("basic.qos", prefetch_count=2)
    b.consume(low, queue, arguments={"x-priority": -1})
    b.consume(high, queue, arguments={"x-priority": 10})
    for n in range(4):
        b.confirmed(channel, "", queue, str(n))
    equal(b.bodies(high, 2), ["0", "1"])
    equal(b.bodies(low, 2), ["2", "3"])
    b.confirmed(channel, "", queue, "4")
    low.send("basic.ack", delivery_tag=1)
    equal(b.bodies(low, 1), ["4"])


@behaviour
def bad_consumer_arguments(b):
    """406."""
    channel, queue = filled(b, 0)
    text = f"PRECONDITION_FAILED - invalid arg 'x-priority' for queue '{queue}' in vhost '/': \"expected integer, got longstr\""
    with b.refused(406, text, (60, 20)):
        b.consume(channel, queue, arguments={"x-priority": "high"})


@behaviour
def exclusive_consumers(b):
    """403, in both orders; free when it is cancelled."""
    channel, queue = filled(b, 0)
    text = f"ACCESS_REFUSED - queue '{queue}' in vhost '/' in exclusive use"
    tag = b.consume(channel, queue, exclusive=True)
    with b.refused(403, text, (60, 20)):
        b.consume(b.channel(), queue)
    channel.call("basic.cancel", consumer_tag=tag)
    b.consume(channel, queue)
    with b.refused(403, text, (60, 20)):
        b.consume(b.channel(), queue, exclusive=True)


@behaviour
def a_single_active_consumer(b):
    """One gets all; the next in line takes over when it is cancelled, or its channel ends."""
    channel, queue = filled(b, 0, x_single_active_consumer=True)
    first, second, third = (b.channel() for _ in range(3))
    for consumer in (first, second, third):
        b.consume(consumer, queue, consumer_tag="mine")
    b.confirmed(channel, "", queue, "a")
    equal(b.bodies(first, 1), ["a"])
    first.call("basic.cancel", consumer_tag="mine")
    b.confirmed(channel, "", queue, "b")
    equal(b.bodies(second, 1), ["b"])
    second.close()
    equal(b.bodies(third, 1), ["b"])
    b.confirmed(channel, "", queue, "c")
    equal(b.bodies(third, 1), ["c"])


@behaviour
def a_cancelled_single_active_consumer_keeps_what_it_holds(b):
    """And may still acknowledge it."""
    channel, queue = filled(b, 1, x_single_active_consumer=True)
    first, second = b.channel(), b.channel()
    for consumer in (first, second):
        b.consume(consumer, queue, consumer_tag="mine")
    equal(b.bodies(first, 1), ["0"])
    first.call("basic.cancel", consumer_tag="mine")
    b.silent(second)
    first.send("basic.ack", delivery_tag=1)
    first.close()
    b.silent(second)
    b.confirmed(channel, "", queue, "1")
    equal(b.bodies(second, 1), ["1"])


@behaviour
def get_from_a_classic_queue_with_a_single_active_consumer(b):
    """It gets what is ready."""
    channel, queue = filled(b, 1, x_single_active_consumer=True)
    consumer = b.channel()
    consumer.call("basic.qos", prefetch_count=1)
    b.consume(consumer, queue)
    equal(b.bodies(consumer, 1), ["0"])
    b.confirmed(channel, "", queue, "1")
    equal(b.get(channel, queue).message.body, b"1")


@behaviour(differs="a get is served whatever the queue's type, as by a classic one")
def get_from_a_quorum_queue_with_a_single_active_consumer(b):
    """405 in RabbitMQ."""
    channel, queue = filled(b, 1, durable=True, x_queue_type="quorum", x_single_active_consumer=True)
    b.consume(b.channel(), queue)
    if b.ours:
        b.get(channel, queue)
        return
    text = (
        f"RESOURCE_LOCKED - cannot obtain access to locked queue '{queue}' in vhost '/'. basic.get operations are not "
        "supported by quorum queues with single active consumer"
    )
    with b.refused(405, text, (60, 70)):
        channel.call("basic.get", queue=queue)


@behaviour
def an_exclusive_consumer_of_a_single_active_queue(b):
    """403: the one excludes the other."""
    channel, queue = filled(b, 0, x_single_active_consumer=True)
    with b.refused(403, f"ACCESS_REFUSED - queue '{queue}' in vhost '/' in exclusive use", (60, 20)):
        b.consume(channel, queue, exclusive=True)


@behaviour
def cancelling_keeps_what_is_held(b):
    """It may be settled after; nothing more comes."""
    channel, queue = filled(b, 1)
    consumer = b.channel()
    tag = b.consume(consumer, queue)
    equal(b.bodies(consumer, 1), ["0"])
    equal(consumer.call("basic.cancel", consumer_tag=tag).consumer_tag, tag)
    b.confirmed(channel, "", queue, "1")
    b.silent(consumer)
    consumer.send("basic.nack", delivery_tag=1, requeue=True)
    consumer.sync()
    b.await_count(channel, queue, 2)
    equal(b.drain(channel, queue), ["0", "1"])


@behaviour
def cancelling_an_unknown_tag(b):
    """Is answered."""
    equal(b.channel().call("basic.cancel", consumer_tag="never").consumer_tag, "never")


@behaviour
def a_tag_is_free_once_it_is_cancelled(b):
    """On the same channel."""
    channel, queue = filled(b, 1)
    for _ in range(2):
        b.consume(channel, queue, consumer_tag="mine")
        channel.call("basic.cancel", consumer_tag="mine")


@behaviour
def a_deleted_queue_cancels_its_consumers(b):
    """P9: each tag; and a client's cancel that comes too late is answered."""
    channel, queue = filled(b, 0)
    consumer = b.channel()
    tags = {b.consume(consumer, queue), b.consume(consumer, queue)}
    channel.call("queue.delete", queue=queue)
    equal({consumer.expect("basic.cancel").consumer_tag for _ in range(2)}, tags)
    for tag in tags:
        consumer.call("basic.cancel", consumer_tag=tag)


@behaviour
def only_who_declared_it_is_told_of_a_cancel(b):
    """P9: consumer_cancel_notify."""
    channel, queue = filled(b, 0)
    consumer = b.connect(capabilities={}).channel()
    b.consume(consumer, queue)
    channel.call("queue.delete", queue=queue)
    consumer.sync()
    b.quiet(consumer.connection)


@behaviour
def one_tag_on_a_hundred_channels(b):
    """P11: is well."""
    channel, queue = filled(b, 0)
    consumers = [b.channel() for _ in range(100)]
    for consumer in consumers:
        b.consume(consumer, queue, consumer_tag="mine", no_ack=True)
    for n in range(100):
        channel.publish("", queue, str(n))
    equal(sorted(int(b.bodies(consumer, 1)[0]) for consumer in consumers), list(range(100)))


@behaviour
def a_closed_channel_delivers_no_more(b):
    """Not even what was on its way; the number may be used again at once."""
    channel, queue = filled(b, 200)
    consumer = b.connect().channel(5)
    b.consume(consumer, queue)
    consumer.send("channel.close", code=200, text="bye")
    while consumer.next().name != "channel.close-ok":
        pass
    del consumer.connection.channels[5]
    again = consumer.connection.channel(5)
    again.sync()
    equal(list(again.inbox), [])
    b.await_count(channel, queue, 200)


@behaviour
def each_channel_counts_its_tags(b):
    """Tags of two channels are two counts."""
    channel, queue = filled(b, 2)
    one, other = b.channel(), b.channel()
    for consumer in (one, other):
        consumer.call("basic.qos", prefetch_count=1)
        b.consume(consumer, queue)
    for consumer in (one, other):
        equal(consumer.expect("basic.deliver").delivery_tag, 1)
    one.send("basic.ack", delivery_tag=1)
    other.send("basic.ack", delivery_tag=1)
    one.sync()
    other.sync()
    one.close()
    other.close()
    equal(b.get(channel, queue), None)


@behaviour
def a_consumer_that_drops_dead_gives_back(b):
    """T12: at the end of its TCP connection, in their order."""
    channel, queue = filled(b, 3)
    consumer = b.connect().channel()
    b.consume(consumer, queue)
    b.deliveries(consumer, 3)
    consumer.connection.abort()
    b.await_count(channel, queue, 3)
    equal([(taken.message.body, taken.redelivered) for taken in (b.get(channel, queue) for _ in range(3))],
          [(b"0", True), (b"1", True), (b"2", True)])  # fmt: skip


@behaviour
def a_single_active_consumer_is_the_first(b):
    """A more urgent one that comes later waits."""
    channel, queue = filled(b, 0, x_single_active_consumer=True)
    first, second = b.channel(), b.channel()
    b.consume(first, queue, arguments={"x-priority": 1})
    b.consume(second, queue, arguments={"x-priority": 9})
    b.confirmed(channel, "", queue, "a")
    equal(b.bodies(first, 1), ["a"])
    b.silent(second)
