"""Messages that expire, and queues that do. No test here asks for more exactness than a busy machine has."""

import time

from behaviour import behaviour, equal

# Long enough to see a message before it expires, and short enough to wait for.
TTL = 800
# Shorter than any wait.
SOON = 50
NEVER = 600_000


def dead_letter_queue(b, channel):
    """A queue, and the arguments with which another's dead letters go there."""
    queue = b.queue(channel)
    return queue, {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": queue}


@behaviour
def a_queue_s_messages_expire(b):
    """T1: not before, and never delivered after."""
    channel = b.confirming()
    queue = b.queue(channel, x_message_ttl=TTL)
    b.confirmed(channel, "", queue, b"x")
    equal(b.count(channel, queue), 1)
    b.await_count(channel, queue, 0)
    equal(b.get(channel, queue), None)


@behaviour
def a_message_expires_by_its_own_time(b):
    """T1: its expiration is still there while it lives."""
    channel = b.confirming()
    queue = b.queue(channel)
    for _ in range(2):
        b.confirmed(channel, "", queue, b"x", expiration=str(TTL))
    equal(b.get(channel, queue).message.properties["expiration"], str(TTL))
    b.await_count(channel, queue, 0)


@behaviour
def the_shorter_time_counts(b):
    """T1: the queue's or the message's."""
    channel = b.confirming()
    one, other = b.queue(channel, x_message_ttl=SOON), b.queue(channel, x_message_ttl=NEVER)
    b.confirmed(channel, "", one, b"x", expiration=str(NEVER))
    b.confirmed(channel, "", other, b"x", expiration=str(SOON))
    b.await_count(channel, one, 0)
    b.await_count(channel, other, 0)


@behaviour
def zero_is_for_who_waits(b):
    """T1: a TTL of 0 delivers to a consumer that is ready, and else expires at once."""
    channel = b.confirming()
    queue = b.queue(channel, x_message_ttl=0)
    b.confirmed(channel, "", queue, b"a")
    b.await_count(channel, queue, 0)
    consumer = b.channel()
    b.consume(consumer, queue, no_ack=True)
    b.confirmed(channel, "", queue, b"b")
    equal(b.bodies(consumer, 1), ["b"])
    equal(b.confirmed(channel, "", queue, b"c", expiration="0"), "ack")
    equal(b.bodies(consumer, 1), ["c"])


@behaviour
def an_expired_head_is_dead_lettered_without_consumers(b):
    """T1: promptly."""
    channel = b.confirming()
    dead, arguments = dead_letter_queue(b, channel)
    queue = b.queue(channel, arguments=arguments)
    started = time.monotonic()
    b.confirmed(channel, "", queue, b"x", expiration=str(TTL))
    equal(b.await_message(channel, dead).message.body, b"x")
    took = time.monotonic() - started
    assert TTL / 1000 * 0.9 < took < TTL / 1000 + 3, took


@behaviour(differs="a message expires wherever it stands; RabbitMQ's waits until it is the first")
def expired_behind_one_that_lives(b):
    """T1."""
    channel = b.confirming()
    dead, arguments = dead_letter_queue(b, channel)
    queue = b.queue(channel, arguments=arguments)
    b.confirmed(channel, "", queue, b"long", expiration=str(NEVER))
    b.confirmed(channel, "", queue, b"short", expiration=str(SOON))
    if b.ours:
        equal(b.await_message(channel, dead).message.body, b"short")
    else:
        time.sleep(3 * SOON / 1000)
        equal(b.get(channel, dead), None)
    equal(b.get(channel, queue).message.body, b"long")
    # Here too it is delivered to nobody.
    equal(b.get(channel, queue), None)


@behaviour
def expired_messages_are_not_delivered(b):
    """T1: a consumer that comes late gets only what lives."""
    channel = b.confirming()
    queue = b.queue(channel)
    for n in range(20):
        b.confirmed(channel, "", queue, str(n), expiration=str(SOON if n % 2 else NEVER))
    time.sleep(3 * SOON / 1000)
    consumer = b.channel()
    b.consume(consumer, queue, no_ack=True)
    equal(b.bodies(consumer, 10), [str(n) for n in range(0, 20, 2)])
    b.silent(consumer)


@behaviour
def what_is_held_does_not_expire(b):
    """It expires when it comes back."""
    channel = b.confirming()
    dead, arguments = dead_letter_queue(b, channel)
    queue = b.queue(channel, arguments=arguments | {"x-message-ttl": TTL})
    b.confirmed(channel, "", queue, b"x")
    held = b.get(channel, queue, no_ack=False)
    time.sleep(TTL / 1000 * 1.3)
    equal(b.get(channel, dead), None)
    channel.send("basic.nack", delivery_tag=held.delivery_tag, requeue=True)
    equal(b.await_message(channel, dead).message.headers["x-death"][0]["reason"], "expired")


@behaviour
def coming_back_is_no_new_life(b):
    """T1: a requeued message expires when it would have."""
    channel = b.confirming()
    queue = b.queue(channel, x_message_ttl=2000)
    started = time.monotonic()
    b.confirmed(channel, "", queue, b"x")

    def gone():
        taken = b.get(channel, queue, no_ack=False)
        if taken:
            channel.send("basic.nack", delivery_tag=taken.delivery_tag, requeue=True)
        return not taken and not b.count(channel, queue)

    b.eventually(gone)
    assert time.monotonic() - started > 1.5


@behaviour
def an_unused_queue_expires(b):
    """T6: with what is in it, and without dead-lettering that."""
    channel = b.confirming()
    dead, arguments = dead_letter_queue(b, channel)
    queue = b.queue(channel, arguments=arguments | {"x-expires": TTL})
    b.confirmed(channel, "", queue, b"x")
    b.eventually(lambda: not b.exists("queue.declare", queue="nowhere") and expired(b, queue))
    equal(b.get(channel, dead), None)


def expired(b, queue):
    """Whether a queue is gone, without using it: its binding from the default exchange is gone too."""
    channel = b.channel()
    channel.publish("", queue, b"probe", mandatory=True)
    channel.sync()
    return any(method.name == "basic.return" for method in channel.inbox)


@behaviour
def publishing_is_no_use(b):
    """T6: a queue that only publishers know expires."""
    channel = b.channel()
    queue = b.queue(channel, x_expires=TTL)
    b.eventually(lambda: expired(b, queue))


@behaviour
def a_consumer_is_use(b):
    """T6: it expires so long after the last one went."""
    channel = b.channel()
    queue = b.queue(channel, x_expires=TTL)
    tag = b.consume(channel, queue)
    time.sleep(2 * TTL / 1000)
    assert not expired(b, queue)
    channel.call("basic.cancel", consumer_tag=tag)
    b.eventually(lambda: expired(b, queue))


def used_by(b, use):
    """Whether using a queue again and again keeps it beyond its time; it goes when that ends."""
    channel = b.channel()
    queue = b.queue(channel, x_expires=1500)
    until = time.monotonic() + 2.5
    while time.monotonic() < until:
        use(channel, queue)
        time.sleep(0.1)
    assert not expired(b, queue)
    b.eventually(lambda: expired(b, queue))


@behaviour
def get_is_use(b):
    """T6: also of an empty queue."""
    used_by(b, b.get)


@behaviour
def declaring_again_is_use(b):
    """T6."""
    used_by(b, lambda channel, queue: channel.call("queue.declare", queue=queue, arguments={"x-expires": 1500}))


@behaviour
def a_queue_expires_from_its_last_use(b):
    """T6: what somebody held of it is gone too."""
    channel = b.confirming()
    queue = b.queue(channel, x_expires=TTL)
    b.confirmed(channel, "", queue, b"x")
    held = b.get(channel, queue, no_ack=False)
    b.eventually(lambda: expired(b, queue))
    channel.send("basic.nack", delivery_tag=held.delivery_tag, requeue=True)
    channel.sync()
