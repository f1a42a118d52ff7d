"""Queues that are full, and queues with priorities."""

import time

from behaviour import behaviour, equal


def published(b, bodies, **arguments):
    """A channel, a queue, and how each publish to it was confirmed."""
    channel = b.confirming()
    queue = b.queue(channel, **arguments)
    words = [b.confirmed(channel, "", queue, body) for body in bodies]
    return channel, queue, words


@behaviour
def a_full_queue_drops_its_head(b):
    """T5: and confirms what is new."""
    channel, queue, words = published(b, "abcd", x_max_length=2)
    equal(words, ["ack"] * 4)
    equal(b.drain(channel, queue), ["c", "d"])


@behaviour
def what_is_held_is_not_in_the_queue(b):
    """T5: limits count ready messages."""
    channel, queue, _ = published(b, "ab", x_max_length=2)
    tags = [b.get(channel, queue, no_ack=False).delivery_tag for _ in range(2)]
    for body in "cd":
        b.confirmed(channel, "", queue, body)
    equal(b.count(channel, queue), 2)
    # What comes back is the head, and goes first.
    channel.send("basic.nack", delivery_tag=tags[1], multiple=True, requeue=True)
    channel.sync()
    b.await_count(channel, queue, 2)
    equal(b.drain(channel, queue), ["c", "d"])


@behaviour
def octets_of_bodies_count(b):
    """T5: x-max-length-bytes."""
    channel, queue, _ = published(b, ["a" * 40, "b" * 40, "c" * 40], x_max_length_bytes=100)
    equal(b.drain(channel, queue), ["b" * 40, "c" * 40])
    b.confirmed(channel, "", queue, "d" * 101)
    equal(b.drain(channel, queue), [])


@behaviour(differs="x-max-length-bytes counts properties too, which take memory and disk as bodies do; RabbitMQ counts bodies alone")
def octets_of_properties(b):
    """T5: whether a body of just so many octets fits."""
    channel = b.confirming()
    headers = {"long": "x" * 1000}
    queue = b.queue(channel, x_max_length_bytes=100)
    equal(b.confirmed(channel, "", queue, "a" * 100, headers=headers), "ack")
    equal(len(b.drain(channel, queue)), b.either(0, 1))
    queue = b.queue(channel, x_max_length_bytes=100, x_overflow="reject-publish")
    equal(b.confirmed(channel, "", queue, "a" * 100, headers=headers), b.either("nack", "ack"))


@behaviour
def both_limits_hold(b):
    """T5."""
    channel, queue, _ = published(b, ["a" * 10, "b" * 10, "c" * 10], x_max_length=2, x_max_length_bytes=110)
    equal(b.count(channel, queue), 2)
    b.confirmed(channel, "", queue, "d" * 101)
    equal(b.drain(channel, queue), ["d" * 101])


@behaviour
def a_limit_of_0(b):
    """T5: nothing stays, but who waits is served."""
    channel, queue, words = published(b, "a", x_max_length=0)
    equal((words, b.get(channel, queue)), (["ack"], None))
    consumer = b.channel()
    b.consume(consumer, queue, no_ack=True)
    b.confirmed(channel, "", queue, "b")
    equal(b.bodies(consumer, 1), ["b"])


@behaviour
def reject_publish_says_no(b):
    """T5: by a nack; once there is room, by an ack again."""
    channel, queue, words = published(b, "abc", x_max_length=2, x_overflow="reject-publish")
    equal(words, ["ack", "ack", "nack"])
    equal(b.get(channel, queue).message.body, b"a")
    equal(b.confirmed(channel, "", queue, "d"), "ack")
    equal(b.drain(channel, queue), ["b", "d"])


@behaviour
def reject_publish_without_confirms(b):
    """T5: the message is gone, silently."""
    channel, queue, _ = published(b, "a", x_max_length=1, x_overflow="reject-publish")
    other = b.channel()
    other.publish("", queue, b"b")
    other.sync()
    equal(list(other.inbox), [])
    equal(b.drain(channel, queue), ["a"])


@behaviour
def rejected_by_one_of_two(b):
    """T5: a nack, and the free one keeps its copy."""
    channel, full, _ = published(b, "a", x_max_length=1, x_overflow="reject-publish")
    free = b.queue(channel)
    exchange = b.exchange(channel, "fanout")
    b.bind(channel, full, exchange)
    b.bind(channel, free, exchange)
    equal(b.confirmed(channel, exchange, "", "b"), "nack")
    equal((b.drain(channel, full), b.drain(channel, free)), (["a"], ["b"]))


@behaviour
def reject_publish_by_octets(b):
    """T5: what would bring it above the limit is refused; what is smaller may still come."""
    channel, queue, words = published(b, ["a" * 60, "b" * 60, "c"], x_max_length_bytes=100, x_overflow="reject-publish")
    equal((words, len(b.drain(channel, queue))), (["ack", "nack", "ack"], 2))


@behaviour
def reject_publish_dlx_keeps_what_it_refuses(b):
    """T5: a nack, and a dead letter of reason maxlen."""
    channel = b.confirming()
    dead = b.queue(channel)
    queue = b.queue(
        channel, x_max_length=1, x_overflow="reject-publish-dlx", x_dead_letter_exchange="", x_dead_letter_routing_key=dead
    )
    equal([b.confirmed(channel, "", queue, body) for body in "ab"], ["ack", "nack"])
    letter = b.await_message(channel, dead)
    death = letter.message.headers["x-death"][0]
    equal((letter.message.body, death["reason"], death["queue"]), (b"b", "maxlen", queue))
    equal(b.drain(channel, queue), ["a"])


@behaviour
def a_consumer_that_waits_makes_room(b):
    """T5: what goes right through fills nothing."""
    channel, queue, _ = published(b, "", x_max_length=1, x_overflow="reject-publish")
    consumer = b.channel()
    b.consume(consumer, queue, no_ack=True)
    for body in "abc":
        equal(b.confirmed(channel, "", queue, body), "ack")
        equal(b.bodies(consumer, 1), [body])


def urgent(b, messages, **arguments):
    """A channel and a queue of priorities with these messages, "a5" being "a" of 5, "a" without one."""
    channel = b.confirming()
    queue = b.queue(channel, **arguments)
    for message in messages.split():
        properties = {"priority": int(message[1:])} if message[1:] else {}
        b.confirmed(channel, "", queue, message, **properties)
    return channel, queue


@behaviour
def priorities(b):
    """T7: the most urgent first; first in, first out within a level."""
    channel, queue = urgent(b, "a1 b5 c1 d9 e5", x_max_priority=9)
    equal(b.drain(channel, queue), ["d9", "b5", "e5", "a1", "c1"])


@behaviour
def priorities_above_the_highest(b):
    """T7: are the highest; the property stays as it was."""
    channel, queue = urgent(b, "a2 b200 c3 d255", x_max_priority=3)
    taken = b.get(channel, queue)
    equal((taken.message.body, taken.message.properties["priority"]), (b"b200", 200))
    equal(b.drain(channel, queue), ["c3", "d255", "a2"])


@behaviour
def without_a_priority(b):
    """T7: is 0."""
    channel, queue = urgent(b, "a b0 c1", x_max_priority=5)
    equal(b.drain(channel, queue), ["c1", "a", "b0"])


@behaviour
def priorities_without_a_queue_of_them(b):
    """T7: mean nothing."""
    channel, queue = urgent(b, "a1 b9 c5")
    equal(b.drain(channel, queue), ["a1", "b9", "c5"])


@behaviour
def a_requeued_message_keeps_its_priority(b):
    """T7: and its place in the level."""
    channel, queue = urgent(b, "a1 b5 c5", x_max_priority=9)
    taken = b.get(channel, queue, no_ack=False)
    equal(taken.message.body, b"b5")
    channel.send("basic.nack", delivery_tag=taken.delivery_tag, requeue=True)
    channel.sync()
    b.await_count(channel, queue, 3)
    equal(b.drain(channel, queue), ["b5", "c5", "a1"])


@behaviour
def consumers_get_the_most_urgent(b):
    """T7: of what is there when they take the next."""
    channel, queue = urgent(b, "a1", x_max_priority=9)
    consumer = b.channel()
    consumer.call("basic.qos", prefetch_count=1)
    b.consume(consumer, queue)
    equal(b.bodies(consumer, 1), ["a1"])
    for body, priority in (("b2", 2), ("c7", 7)):
        b.confirmed(channel, "", queue, body, priority=priority)
    for tag, body in ((1, "c7"), (2, "b2")):
        consumer.send("basic.ack", delivery_tag=tag)
        equal(b.bodies(consumer, 1), [body])


@behaviour(differs="a full queue of priorities drops the least urgent; RabbitMQ's head is the most urgent one")
def a_full_queue_of_priorities(b):
    """T7."""
    channel, queue = urgent(b, "a1 b5 c9", x_max_priority=9, x_max_length=2)
    equal(b.drain(channel, queue), b.either(["c9", "b5"], ["b5", "a1"]))


@behaviour(differs="what has expired is never delivered; RabbitMQ looks for it by the time of the first that came")
def priorities_and_expiry(b):
    """T1, T7: an expired message of any level."""
    channel = b.confirming()
    queue = b.queue(channel, x_max_priority=9)
    for body, priority, expiration in (("a", 1, "600000"), ("b", 1, "50"), ("c", 9, "50"), ("d", 9, "600000")):
        b.confirmed(channel, "", queue, body, priority=priority, expiration=expiration)
    time.sleep(0.2)
    equal(b.drain(channel, queue), b.either(["d", "a"], ["c", "d", "a"]))


@behaviour
def what_comes_back_to_a_queue_that_rejects(b):
    """T5: is taken, though it is full."""
    channel, queue, _ = published(b, "a", x_max_length=1, x_overflow="reject-publish")
    held = b.get(channel, queue, no_ack=False)
    equal(b.confirmed(channel, "", queue, "b"), "ack")
    channel.send("basic.nack", delivery_tag=held.delivery_tag, requeue=True)
    b.await_count(channel, queue, 2)
    equal(b.drain(channel, queue), ["a", "b"])
