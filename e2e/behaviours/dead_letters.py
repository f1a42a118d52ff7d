"""Dead-lettering: when, where to, and what the message says then."""

import time

from behaviour import behaviour, equal

LAST_DEATH = "x-last-death-* headers are there; RabbitMQ has them since 4.0"


class Route:
    """A queue with a dead-letter exchange and a queue behind that."""

    def __init__(self, b, key=None, **arguments):
        self.b, self.channel = b, b.confirming()
        self.exchange = b.exchange(self.channel, "direct")
        self.letters = b.exchange(self.channel, "topic")
        self.dead = b.queue(self.channel)
        table = {"x-dead-letter-exchange": self.letters} | ({"x-dead-letter-routing-key": key} if key else {})
        self.queue = b.queue(self.channel, arguments=table, **arguments)
        b.bind(self.channel, self.queue, self.exchange, "key")
        b.bind(self.channel, self.dead, self.letters, "#")

    def publish(self, body=b"x", **properties):
        return self.b.confirmed(self.channel, self.exchange, "key", body, **properties)

    def reject(self):
        taken = self.b.await_message(self.channel, self.queue, no_ack=False)
        self.channel.send("basic.nack", delivery_tag=taken.delivery_tag, requeue=False)

    def letter(self):
        return self.b.await_message(self.channel, self.dead)


def without_last(headers):
    return {name: value for name, value in headers.items() if not name.startswith("x-last-death-")}


@behaviour
def a_rejected_message_with_all_it_says(b):
    """T2: x-death field by field, with types; x-first-death-*; properties, body and own headers as they were."""
    route = Route(b)
    began = int(time.time())
    properties = {"message_id": "m", "delivery_mode": 2, "priority": 3, "expiration": "500000", "user_id": "guest"}
    route.publish(b"body", headers={"own": 1}, **properties)
    route.reject()
    letter = route.letter()
    equal((letter.exchange, letter.routing_key, letter.redelivered), (route.letters, "key", False))
    equal(letter.message.body, b"body")
    del properties["expiration"]
    equal(letter.message.properties, properties)
    headers = without_last(letter.message.tagged)
    kind, deaths = headers.pop("x-death")
    equal((kind, len(deaths), deaths[0][0]), ("A", 1, "F"))
    death = deaths[0][1]
    kind, died = death.pop("time")
    assert kind == "T" and began <= died <= time.time() + 1, (kind, died)
    equal(
        death,
        {
            "count": ("l", 1), "reason": ("S", "rejected"), "queue": ("S", route.queue), "exchange": ("S", route.exchange),
            "routing-keys": ("A", [("S", "key")]), "original-expiration": ("S", "500000"),
        },
    )  # fmt: skip
    equal(
        headers,
        {
            "own": ("I", 1), "x-first-death-reason": ("S", "rejected"), "x-first-death-queue": ("S", route.queue),
            "x-first-death-exchange": ("S", route.exchange),
        },
    )  # fmt: skip


@behaviour(differs=LAST_DEATH)
def the_last_death_in_headers(b):
    """T2: x-last-death-reason, -queue, -exchange."""
    route = Route(b)
    route.publish()
    route.reject()
    headers = route.letter().message.headers
    told = {name: value for name, value in headers.items() if name.startswith("x-last-death-")}
    ours = {
        "x-last-death-reason": "rejected", "x-last-death-queue": route.queue, "x-last-death-exchange": route.exchange,
    }  # fmt: skip
    equal(told, b.either(ours, {}))


@behaviour
def reject_is_like_nack(b):
    """basic.reject without requeue."""
    route = Route(b)
    route.publish()
    taken = b.get(route.channel, route.queue, no_ack=False)
    route.channel.send("basic.reject", delivery_tag=taken.delivery_tag, requeue=False)
    equal(route.letter().message.headers["x-death"][0]["reason"], "rejected")


@behaviour
def what_is_acknowledged_or_requeued_is_no_dead_letter(b):
    """Nor what is purged, nor what is deleted with its queue."""
    route = Route(b)
    for _ in range(4):
        route.publish()
    tags = [b.get(route.channel, route.queue, no_ack=False).delivery_tag for _ in range(2)]
    route.channel.send("basic.ack", delivery_tag=tags[0])
    route.channel.send("basic.nack", delivery_tag=tags[1], requeue=True)
    b.await_count(route.channel, route.queue, 3)
    b.get(route.channel, route.queue)
    route.channel.call("queue.purge", queue=route.queue)
    route.publish()
    route.channel.call("queue.delete", queue=route.queue)
    equal(b.get(route.channel, route.dead), None)


@behaviour
def a_dead_letter_does_not_expire_again(b):
    """T2: the message's own time is over; it is told in x-death."""
    route = Route(b)
    route.publish(expiration="50")
    letter = route.letter()
    death = letter.message.headers["x-death"][0]
    equal((death["reason"], death["original-expiration"]), ("expired", "50"))
    assert "expiration" not in letter.message.properties


@behaviour
def expired_by_the_queue_s_time(b):
    """T2: the same reason, and no original-expiration."""
    route = Route(b, x_message_ttl=50)
    route.publish()
    death = route.letter().message.headers["x-death"][0]
    equal((death["reason"], "original-expiration" in death), ("expired", False))


@behaviour
def dropped_from_a_full_queue(b):
    """T5: maxlen."""
    route = Route(b, x_max_length=1)
    route.publish(b"old")
    route.publish(b"new")
    letter = route.letter()
    equal((letter.message.body, letter.message.headers["x-death"][0]["reason"]), (b"old", "maxlen"))
    equal(b.drain(route.channel, route.queue), ["new"])


@behaviour
def returned_too_often(b):
    """delivery_limit, of a quorum queue."""
    route = Route(b, durable=True, x_queue_type="quorum", x_delivery_limit=1)
    route.publish()
    for _ in range(2):
        taken = b.await_message(route.channel, route.queue, no_ack=False)
        route.channel.send("basic.nack", delivery_tag=taken.delivery_tag, requeue=True)
    headers = route.letter().message.headers
    equal((headers["x-death"][0]["reason"], headers["x-first-death-reason"]), ("delivery_limit", "delivery_limit"))


@behaviour
def with_a_key_of_the_queue_s(b):
    """x-dead-letter-routing-key: routed by that; x-death tells the old one."""
    route = Route(b, key="other")
    route.publish()
    route.reject()
    letter = route.letter()
    equal((letter.routing_key, letter.message.headers["x-death"][0]["routing-keys"]), ("other", ["key"]))


@behaviour
def to_the_default_exchange(b):
    """Its name is empty, and the queue is one by the key."""
    channel = b.confirming()
    dead = b.queue(channel)
    arguments = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": dead, "x-max-length": 0}
    queue = b.queue(channel, arguments=arguments)
    b.confirmed(channel, "", queue, b"x")
    letter = b.await_message(channel, dead)
    equal((letter.exchange, letter.routing_key), ("", dead))


@behaviour
def to_an_exchange_that_is_not_there(b):
    """The message is gone, and nobody hears of it."""
    channel = b.confirming()
    queue = b.queue(channel, x_dead_letter_exchange="nowhere")
    b.confirmed(channel, "", queue, b"x")
    taken = b.get(channel, queue, no_ack=False)
    channel.send("basic.nack", delivery_tag=taken.delivery_tag, requeue=False)
    channel.sync()
    equal(b.get(channel, queue), None)


@behaviour
def to_an_exchange_that_came_later(b):
    """It is looked up at the death."""
    channel = b.confirming()
    letters = b.name()
    queue = b.queue(channel, x_dead_letter_exchange=letters)
    b.confirmed(channel, "", queue, b"x")
    b.exchange(channel, "fanout", exchange=letters)
    dead = b.queue(channel)
    b.bind(channel, dead, letters)
    taken = b.get(channel, queue, no_ack=False)
    channel.send("basic.nack", delivery_tag=taken.delivery_tag, requeue=False)
    equal(b.await_message(channel, dead).message.body, b"x")


@behaviour
def by_an_alternate_exchange(b):
    """A dead letter with no way takes the alternate one."""
    channel = b.confirming()
    last = b.exchange(channel, "fanout")
    letters = b.exchange(channel, "direct", arguments={"alternate-exchange": last})
    dead = b.queue(channel)
    b.bind(channel, dead, last)
    queue = b.queue(channel, x_dead_letter_exchange=letters, x_max_length=0)
    b.confirmed(channel, "", queue, b"x")
    equal(b.await_message(channel, dead).message.body, b"x")


@behaviour
def to_many_queues(b):
    """Each gets one."""
    route = Route(b)
    second = b.queue(route.channel)
    b.bind(route.channel, second, route.letters, "key")
    route.publish()
    route.reject()
    equal(route.letter().message.body, b"x")
    equal(b.await_message(route.channel, second).message.body, b"x")


@behaviour
def in_the_order_of_their_deaths(b):
    """Of one queue."""
    route = Route(b)
    for n in range(20):
        route.publish(str(n))
    for _ in range(20):
        b.get(route.channel, route.queue, no_ack=False)
    route.channel.send("basic.nack", delivery_tag=0, multiple=True, requeue=False)
    b.await_count(route.channel, route.dead, 20)
    equal(b.drain(route.channel, route.dead), [str(n) for n in range(20)])


def step(b, channel, queue):
    """Takes a message and rejects it; what x-death said of it, short."""
    taken = b.await_message(channel, queue, no_ack=False)
    channel.send("basic.nack", delivery_tag=taken.delivery_tag, requeue=False)
    deaths = (taken.message.headers or {}).get("x-death", [])
    return [(death["queue"], death["reason"], death["count"]) for death in deaths], taken.message.headers


@behaviour
def the_same_death_is_counted(b):
    """T13: one entry for a queue and a reason, the newest first; the first death stays the first."""
    channel = b.confirming()
    one, other = b.name(), b.name()
    b.queue(channel, one, x_dead_letter_exchange="", x_dead_letter_routing_key=other)
    b.queue(channel, other, x_dead_letter_exchange="", x_dead_letter_routing_key=one)
    b.confirmed(channel, "", one, b"x")
    equal(step(b, channel, one)[0], [])
    equal(step(b, channel, other)[0], [(one, "rejected", 1)])
    equal(step(b, channel, one)[0], [(other, "rejected", 1), (one, "rejected", 1)])
    told, headers = step(b, channel, other)
    equal(told, [(one, "rejected", 2), (other, "rejected", 1)])
    equal((headers["x-first-death-queue"], headers["x-first-death-exchange"]), (one, ""))
    equal(step(b, channel, one)[0], [(other, "rejected", 2), (one, "rejected", 2)])


@behaviour(differs="the newest first, as RabbitMQ documents it; 3.10 turns round those before the newest")
def another_reason_is_another_death(b):
    """T13: two entries of one queue."""
    channel = b.confirming()
    queue, dead = b.name(), b.name()
    b.queue(channel, queue, x_dead_letter_exchange="", x_dead_letter_routing_key=dead)
    b.queue(channel, dead, x_dead_letter_exchange="", x_dead_letter_routing_key=queue)
    b.confirmed(channel, "", queue, b"x", expiration="50")
    equal(step(b, channel, dead)[0], [(queue, "expired", 1)])
    equal(step(b, channel, queue)[0], [(dead, "rejected", 1), (queue, "expired", 1)])
    told, headers = step(b, channel, dead)
    older = [(dead, "rejected", 1), (queue, "expired", 1)]
    equal(told, [(queue, "rejected", 1), *b.either(older, older[::-1])])
    equal(headers["x-first-death-reason"], "expired")


@behaviour
def a_circle_without_a_rejection_ends(b):
    """T13: a message that comes back by itself to where it was is dropped."""
    channel = b.confirming()
    one, other = b.name(), b.name()
    b.queue(channel, one, x_dead_letter_exchange="", x_dead_letter_routing_key=other, x_message_ttl=50)
    b.queue(channel, other, x_dead_letter_exchange="", x_dead_letter_routing_key=one, x_message_ttl=50)
    b.confirmed(channel, "", one, b"x")
    b.eventually(lambda: b.count(channel, one) == b.count(channel, other) == 0)
    time.sleep(0.3)
    equal((b.count(channel, one), b.count(channel, other)), (0, 0))


@behaviour
def a_queue_that_is_its_own_dead_letter_queue(b):
    """T13: an expired message does not come back, a rejected one does."""
    channel = b.confirming()
    queue = b.name()
    b.queue(channel, queue, x_dead_letter_exchange="", x_dead_letter_routing_key=queue)
    b.confirmed(channel, "", queue, b"expired", expiration="50")
    b.await_count(channel, queue, 0)
    b.confirmed(channel, "", queue, b"rejected")
    for count in (None, 1, 2, 3):
        told = step(b, channel, queue)[0]
        equal(told, [(queue, "rejected", count)] if count else [])


@behaviour
def retries_with_a_delay(b):
    """T13: rejected from the work queue, expired from the waiting one, and again: each round is counted."""
    channel = b.confirming()
    work, wait = b.name(), b.name()
    b.queue(channel, work, x_dead_letter_exchange="", x_dead_letter_routing_key=wait)
    b.queue(channel, wait, x_dead_letter_exchange="", x_dead_letter_routing_key=work, x_message_ttl=50)
    b.confirmed(channel, "", work, b"x")
    equal(step(b, channel, work)[0], [])
    for count in (1, 2, 3):
        equal(step(b, channel, work)[0], [(wait, "expired", count), (work, "rejected", count)])


@behaviour(differs="BCC ends with the publish; RabbitMQ keeps its keys out of sight, and dead-letters by them too")
def cc_goes_along(b):
    """T4: without a key of the queue's, a dead letter takes all its keys, and x-death tells them, but for BCC's."""
    route = Route(b)
    cc, bcc = b.name(), b.name()
    second, third = b.queue(route.channel), b.queue(route.channel)
    b.bind(route.channel, second, route.letters, cc)
    b.bind(route.channel, third, route.letters, bcc)
    route.publish(headers={"CC": [cc], "BCC": [bcc]})
    route.reject()
    letter = route.letter()
    headers = letter.message.headers
    equal((headers["CC"], "BCC" in headers, headers["x-death"][0]["routing-keys"]), ([cc], False, ["key", cc]))
    equal(b.await_message(route.channel, second).message.body, b"x")
    b.await_count(route.channel, third, b.either(0, 1))


@behaviour
def cc_ends_with_a_key_of_the_queue_s(b):
    """T4: the letter goes by the new key alone, and CC is gone from it."""
    route = Route(b, key="other")
    cc = b.name()
    second = b.queue(route.channel)
    b.bind(route.channel, second, route.letters, cc)
    route.publish(headers={"CC": [cc], "own": 1})
    route.reject()
    headers = route.letter().message.headers
    equal(("CC" in headers, headers["own"], headers["x-death"][0]["routing-keys"]), (False, 1, ["key", cc]))
    equal(b.get(route.channel, second), None)


@behaviour
def large_bodies_die_whole(b):
    """3 MB, and an empty one."""
    route = Route(b)
    body = b"0123456789" * 300_000
    for content in (body, b""):
        route.publish(content)
        route.reject()
        assert route.letter().message.body == content


@behaviour
def a_transaction_rejects_at_commit(b):
    """The dead letter comes then, not before."""
    route = Route(b)
    route.publish()
    channel = b.channel()
    channel.call("tx.select")
    tag = b.get(channel, route.queue, no_ack=False).delivery_tag
    channel.send("basic.nack", delivery_tag=tag, requeue=False)
    channel.sync()
    equal(b.get(route.channel, route.dead), None)
    channel.call("tx.commit")
    equal(route.letter().message.body, b"x")


@behaviour
def a_republished_message_keeps_its_deaths(b):
    """T13: what a client sends along in x-death is counted on."""
    route = Route(b)
    route.publish()
    route.reject()
    deaths = route.letter().message.tagged["x-death"]
    route.publish(headers={"x-death": deaths, "x-first-death-queue": "elsewhere"})
    route.reject()
    headers = route.letter().message.headers
    equal((len(headers["x-death"]), headers["x-death"][0]["count"]), (1, 2))
    equal(headers["x-first-death-queue"], "elsewhere")


@behaviour
def the_time_of_a_death_is_the_first(b):
    """T2: of those that are counted together; the keys and the exchange too."""
    route = Route(b)
    death = {"count": ("l", 4), "reason": "rejected", "queue": route.queue, "time": ("T", 1700000000), "exchange": "e",
             "routing-keys": ["k"]}  # fmt: skip
    route.publish(headers={"x-death": [death]})
    route.reject()
    told = route.letter().message.headers["x-death"]
    equal(told, [death | {"count": 5, "time": 1700000000}])


@behaviour
def by_the_message_s_key(b):
    """From the default exchange that is the queue's name; x-death tells the empty name of the exchange."""
    channel = b.confirming()
    letters, dead = b.exchange(channel, "fanout"), b.queue(channel)
    b.bind(channel, dead, letters)
    queue = b.queue(channel, x_max_length=0, x_dead_letter_exchange=letters)
    b.confirmed(channel, "", queue, b"x")
    letter = b.await_message(channel, dead)
    equal((letter.exchange, letter.routing_key, letter.message.headers["x-death"][0]["exchange"]), (letters, queue, ""))


@behaviour
def an_x_death_that_is_no_list(b):
    """A client's is replaced; an empty list is filled."""
    route = Route(b)
    for strange in ("text", []):
        route.publish(headers={"x-death": strange})
        route.reject()
        deaths = route.letter().message.headers["x-death"]
        equal([(death["queue"], death["count"]) for death in deaths], [(route.queue, 1)])


@behaviour(differs="it is dead-lettered all the same; RabbitMQ's channel ends with an error of its own, and the message is lost")
def an_x_death_of_no_tables(b):
    """T13."""
    if not b.ours:
        return
    route = Route(b)
    route.publish(headers={"x-death": [5]})
    route.reject()
    deaths = route.letter().message.headers["x-death"]
    equal((deaths[0]["queue"], deaths[1:]), (route.queue, [5]))
