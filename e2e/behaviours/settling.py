"""Acknowledgements, rejections, recovery: what becomes of what was delivered."""

from behaviour import behaviour, equal
from consumers import filled


def held(b, channel, queue, count):
    """The tags of that many messages that a channel took."""
    return [b.get(channel, queue, no_ack=False).delivery_tag for _ in range(count)]


def left(b, channel, queue, holder):
    """What is there once the holder's channel is gone."""
    holder.close()
    return b.drain(channel, queue)


@behaviour
def acknowledging_one(b):
    """In any order."""
    channel, queue = filled(b, 3)
    holder = b.channel()
    tags = held(b, holder, queue, 3)
    holder.send("basic.ack", delivery_tag=tags[1])
    equal(left(b, channel, queue, holder), ["0", "2"])


@behaviour
def acknowledging_all_up_to_one(b):
    """multiple."""
    channel, queue = filled(b, 4)
    holder = b.channel()
    tags = held(b, holder, queue, 4)
    holder.send("basic.ack", delivery_tag=tags[1])
    holder.send("basic.ack", delivery_tag=tags[2], multiple=True)
    equal(left(b, channel, queue, holder), ["3"])


@behaviour
def acknowledging_all(b):
    """multiple, with tag 0; also when nothing is held."""
    channel, queue = filled(b, 3)
    holder = b.channel()
    holder.send("basic.ack", delivery_tag=0, multiple=True)
    held(b, holder, queue, 3)
    holder.send("basic.ack", delivery_tag=0, multiple=True)
    equal(left(b, channel, queue, holder), [])


@behaviour
def acknowledging_up_to_an_unknown_tag(b):
    """406."""
    channel, queue = filled(b, 1)
    held(b, channel, queue, 1)
    channel.send("basic.ack", delivery_tag=9, multiple=True)
    with b.refused(406, "PRECONDITION_FAILED - unknown delivery tag 9", (60, 80)):
        channel.sync()


@behaviour
def tags_are_the_channel_s_own(b):
    """406 for another's."""
    channel, queue = filled(b, 1)
    tag = held(b, channel, queue, 1)[0]
    other = b.channel()
    other.send("basic.ack", delivery_tag=tag)
    with b.refused(406, f"PRECONDITION_FAILED - unknown delivery tag {tag}", (60, 80)):
        other.sync()


@behaviour
def rejecting_discards_or_requeues(b):
    """basic.reject."""
    channel, queue = filled(b, 2)
    tags = held(b, channel, queue, 2)
    channel.send("basic.reject", delivery_tag=tags[0], requeue=False)
    channel.send("basic.reject", delivery_tag=tags[1], requeue=True)
    taken = b.await_message(channel, queue)
    equal((taken.message.body, taken.redelivered), (b"1", True))
    equal(b.get(channel, queue), None)


@behaviour
def nack_of_many(b):
    """P1: basic.nack with multiple; tag 0 is all."""
    channel, queue = filled(b, 4)
    tags = held(b, channel, queue, 4)
    channel.send("basic.nack", delivery_tag=tags[1], multiple=True, requeue=False)
    channel.send("basic.nack", delivery_tag=0, multiple=True, requeue=True)
    channel.sync()
    b.await_count(channel, queue, 2)
    equal(b.drain(channel, queue), ["2", "3"])


@behaviour
def a_requeued_message_has_its_old_place(b):
    """T8: before what was behind it."""
    channel, queue = filled(b, 4)
    tags = held(b, channel, queue, 3)
    channel.send("basic.nack", delivery_tag=tags[2], requeue=True)
    channel.send("basic.nack", delivery_tag=tags[0], requeue=True)
    channel.sync()
    b.await_count(channel, queue, 3)
    equal(b.drain(channel, queue), ["0", "2", "3"])


@behaviour
def the_only_consumer_gets_it_again(b):
    """T8: at prefetch 1, the same message, redelivered."""
    channel, queue = filled(b, 3)
    consumer = b.channel()
    consumer.call("basic.qos", prefetch_count=1)
    b.consume(consumer, queue)
    for n in range(3):
        delivery = consumer.expect("basic.deliver")
        equal((delivery.message.body, delivery.redelivered), (b"0", n > 0))
        consumer.send("basic.nack", delivery_tag=delivery.delivery_tag, requeue=True)
    delivery = consumer.expect("basic.deliver")
    consumer.send("basic.ack", delivery_tag=delivery.delivery_tag)
    equal(consumer.expect("basic.deliver").message.body, b"1")


@behaviour
def recovering_requeues_what_the_channel_holds(b):
    """The consumer of the same channel gets it again, redelivered."""
    channel, queue = filled(b, 3)
    consumer = b.channel()
    b.consume(consumer, queue)
    b.deliveries(consumer, 3)
    consumer.send("basic.ack", delivery_tag=2)
    consumer.call("basic.recover", requeue=True)
    deliveries = b.deliveries(consumer, 2)
    equal([(delivery.message.body, delivery.redelivered) for delivery in deliveries], [(b"0", True), (b"2", True)])
    equal([delivery.delivery_tag for delivery in deliveries], [4, 5])


@behaviour
def recover_async_is_not_answered(b):
    """It does the same."""
    channel, queue = filled(b, 1)
    held(b, channel, queue, 1)
    channel.send("basic.recover-async", requeue=True)
    channel.sync()
    equal(list(channel.inbox), [])
    assert b.await_message(channel, queue).redelivered


@behaviour
def the_end_of_a_channel_gives_back(b):
    """All that it held, in the old places."""
    channel, queue = filled(b, 3)
    holder = b.channel()
    held(b, holder, queue, 2)
    holder.close()
    b.await_count(channel, queue, 3)
    equal(b.drain(channel, queue), ["0", "1", "2"])


@behaviour
def an_error_s_end_of_a_channel_gives_back(b):
    """As any other."""
    channel, queue = filled(b, 1)
    holder = b.channel()
    held(b, holder, queue, 1)
    with b.refused(404, "NOT_FOUND - …"):
        holder.call("queue.purge", queue="nowhere")
    assert b.await_message(channel, queue).redelivered


@behaviour
def a_first_delivery_is_not_redelivered(b):
    """A get that was given back makes the next one so."""
    channel, queue = filled(b, 1)
    first = b.get(channel, queue, no_ack=False)
    equal(first.redelivered, False)
    channel.send("basic.reject", delivery_tag=first.delivery_tag, requeue=True)
    equal(b.await_message(channel, queue).redelivered, True)


def counts(b, **arguments):
    """What x-delivery-count says of a message that is given back twice."""
    channel, queue = filled(b, 1, **arguments)
    found = []
    for _ in range(3):
        taken = b.await_message(channel, queue, no_ack=False)
        found.append((taken.message.tagged or {}).get("x-delivery-count"))
        channel.send("basic.nack", delivery_tag=taken.delivery_tag, requeue=True)
    return found


@behaviour(differs="on redelivered messages only, as RabbitMQ documents it; 3.10 sends 0 with the others")
def a_quorum_queue_counts_returns(b):
    """x-delivery-count, of type long."""
    equal(counts(b, durable=True, x_queue_type="quorum"), [b.either(None, ("l", 0)), ("l", 1), ("l", 2)])


@behaviour(differs="every queue counts returns; RabbitMQ's classic queues do not")
def a_classic_queue_counts_returns(b):
    """x-delivery-count."""
    equal(counts(b), b.either([None, ("l", 1), ("l", 2)], [None, None, None]))


@behaviour
def the_delivery_limit_ends_it(b):
    """Of a quorum queue: after so many returns the message goes."""
    channel, queue = filled(b, 1, durable=True, x_queue_type="quorum", x_delivery_limit=2)
    for _ in range(3):
        taken = b.await_message(channel, queue, no_ack=False)
        channel.send("basic.nack", delivery_tag=taken.delivery_tag, requeue=True)
    channel.sync()
    equal(b.get(channel, queue), None)
