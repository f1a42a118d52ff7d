"""MassTransit's topology, made with pika: a fanout exchange for each type of message, bound to those of its base types and to the exchange
of each endpoint that takes it; `_error` and `_skipped` for what fails or is unknown; delayed redelivery; a temporary endpoint for answers."""

import json
import time
import uuid

import pika
from pika.exceptions import UnroutableError

from links import Loop, Publisher, connect, deliveries, ready
from program import EARLY_SECONDS, KILLS, LATE_SECONDS, Effects, check, done, kill_primary, same, wait_for

SUBMITTED, EVENT, STATUS = "Shop.Orders:OrderSubmitted", "Shop.Orders:OrderEvent", "Shop.Orders:CheckOrderStatus"
FAULT = "MassTransit:Fault--Shop.Orders:OrderSubmitted--"
SERVICE, AUDIT = "order-service", "order-audit"
REDELIVERY_MS = 2000
DELAY = f"{SERVICE}_delay_{REDELIVERY_MS}"
TEMPORARY_EXPIRES_MS = 60_000
ORDERS, UNKNOWN, QUESTIONS, AFTERWARDS = 240, 10, 30, 50
# The primary is killed once so many orders were handled, and so many are on record; none of the delayed ones is due by then.
HANDLED_AT_KILL, AUDITED_AT_KILL = 40, 40
CONTENT_TYPE = "application/vnd.masstransit+json"
ANSWER_SECONDS = 5


def endpoint(channel, name, types, arguments=None):
    channel.exchange_declare(name, "fanout", durable=True)
    channel.queue_declare(name, durable=True, arguments=arguments)
    channel.queue_bind(name, name, "")
    for each in types:
        channel.exchange_declare(each, "fanout", durable=True)
        channel.exchange_bind(name, each, "")


def topology(channel):
    """What every bus declares as it starts, the same each time."""
    for each in (SUBMITTED, EVENT, STATUS, FAULT):
        channel.exchange_declare(each, "fanout", durable=True)
    channel.exchange_bind(EVENT, SUBMITTED, "")
    endpoint(channel, SERVICE, [SUBMITTED, STATUS])
    endpoint(channel, AUDIT, [EVENT], {"x-single-active-consumer": True})
    endpoint(channel, f"{SERVICE}_error", [FAULT])
    endpoint(channel, f"{SERVICE}_skipped", [])
    arguments = {"x-message-ttl": REDELIVERY_MS, "x-dead-letter-exchange": SERVICE, "x-dead-letter-routing-key": ""}
    channel.exchange_declare(DELAY, "fanout", durable=True)
    channel.queue_declare(DELAY, durable=True, arguments=arguments)
    channel.queue_bind(DELAY, DELAY, "")


def envelope(kind, message, **more):
    return {
        "messageId": str(uuid.uuid4()),
        "messageType": [f"urn:message:{kind}"],
        "message": message,
        "sentTime": time.time(),
        **more,
    }


def properties(letter, **headers):
    return pika.BasicProperties(
        content_type=CONTENT_TYPE,
        delivery_mode=2,
        message_id=letter["messageId"],
        correlation_id=letter.get("requestId"),
        headers={"Content-Type": CONTENT_TYPE, **headers},
    )


class Service:
    """The endpoint's consumer, with a publisher of its own, as a bus has it."""

    def __init__(self):
        self.handled, self.redelivered_at = Effects(), {}
        self.publisher = Publisher(topology)
        self.loop = Loop(SERVICE, self.serve)

    def serve(self, connection, stopped):
        channel = connection.channel()
        topology(channel)
        for method, came, body in deliveries(channel, SERVICE, 16, stopped):
            self.handle(method, came, json.loads(body))
            channel.basic_ack(method.delivery_tag)

    def handle(self, method, came, letter):
        kind = letter["messageType"][0].removeprefix("urn:message:")
        again = {"again": method.redelivered or bool(came.headers.get("again"))}
        # Work, so that the kill finds some left.
        time.sleep(0.005)
        if kind == STATUS:
            number = letter["message"]["number"]
            answer = envelope("Shop.Orders:OrderStatus", {"number": number, "status": "open"}, requestId=letter["requestId"])
            # Its asker may be gone, with the exchange.
            self.answer(letter["responseAddress"], answer)
        elif kind != SUBMITTED:
            self.move(f"{SERVICE}_skipped", letter, {"MT-Reason": "skipped", **again})
        elif letter["message"]["number"] % 10 == 3:
            fault = {"MT-Reason": "fault", "MT-Fault-Message": "no such customer", **again}
            self.move(f"{SERVICE}_error", letter, fault)
        elif letter["message"]["number"] % 10 == 5 and "MT-Redelivery-Count" not in came.headers:
            # As of now, so that what the letter itself waited does not count.
            self.move(DELAY, {**letter, "delayedAt": time.time()}, {"MT-Redelivery-Count": 1, **again})
        else:
            number = letter["message"]["number"]
            if "MT-Redelivery-Count" in came.headers:
                late = time.time() - letter["delayedAt"] - REDELIVERY_MS / 1000
                self.redelivered_at.setdefault(number, (late, came.headers.get("x-death")))
            self.handled.add(number, again["again"])

    def move(self, exchange, letter, headers):
        self.publisher.publish(exchange, "", json.dumps(letter), properties(letter, **headers))

    def answer(self, exchange, letter):
        # A temporary endpoint has no durable messages, and may be gone.
        def there(channel):
            channel.exchange_declare(exchange, "fanout", durable=False, auto_delete=True)

        self.publisher.publish(exchange, "", json.dumps(letter), pika.BasicProperties(correlation_id=letter["requestId"]), False, there)


class Auditor:
    """One of two consumers of the audit, of whom the broker lets one be active."""

    def __init__(self, name, record):
        self.record = record
        self.loop = Loop(name, self.serve)

    def serve(self, connection, stopped):
        channel = connection.channel()
        topology(channel)
        for method, _, body in deliveries(channel, AUDIT, 1, stopped):
            self.record.append((method.consumer_tag, json.loads(body)["message"]["number"], method.redelivered))
            channel.basic_ack(method.delivery_tag)


class Bus:
    """The temporary endpoint that takes answers; and one of an instance, exclusive, that hears of all orders while it is there."""

    def __init__(self):
        self.name = f"shop_web_bus_{uuid.uuid4().hex[:12]}"
        self.answers, self.heard, self.instance = {}, set(), None
        self.loop = Loop("bus", self.serve)

    def serve(self, connection, stopped):
        channel = connection.channel()
        topology(channel)
        channel.exchange_declare(self.name, "fanout", durable=False, auto_delete=True)
        channel.queue_declare(self.name, durable=False, auto_delete=True, arguments={"x-expires": TEMPORARY_EXPIRES_MS})
        channel.queue_bind(self.name, self.name, "")
        second = connection.channel()
        instance = second.queue_declare("", exclusive=True, auto_delete=True).method.queue
        second.queue_bind(instance, EVENT, "")
        second.basic_consume(instance, lambda _c, _m, _p, body: self.heard.add(json.loads(body)["message"]["number"]), auto_ack=True)
        self.instance = instance
        try:
            for _, came, body in deliveries(channel, self.name, 16, stopped, auto_ack=True):
                self.answers[came.correlation_id] = json.loads(body)["message"]
        finally:
            self.instance = None

    def ask(self, publisher, number):
        """Asks until there is an answer. Says which one, and how often it has asked."""
        for attempt in range(1, 9):
            question = envelope(STATUS, {"number": number}, requestId=str(uuid.uuid4()), responseAddress=self.name)
            publisher.publish(STATUS, "", json.dumps(question), properties(question))
            deadline = time.monotonic() + ANSWER_SECONDS
            while time.monotonic() < deadline:
                if question["requestId"] in self.answers:
                    return self.answers[question["requestId"]], attempt
                time.sleep(0.005)
        return None, attempt


def drain(queue, effects):
    """All that is in it. The headers of one of them."""
    connection, headers = connect(), None
    channel = connection.channel()
    while (got := channel.basic_get(queue))[0] is not None:
        method, came, body = got
        number, headers = json.loads(body)["message"]["number"], came.headers
        effects.add(number, method.redelivered or headers.get("again"))
        channel.basic_ack(method.delivery_tag)
    connection.close()
    return headers


def submit(publisher, number):
    letter = envelope(SUBMITTED, {"number": number})
    publisher.publish(SUBMITTED, "", json.dumps(letter), properties(letter))


def main():
    publisher, record = Publisher(topology), []
    publisher.open()
    try:
        publisher.publish(FAULT + "nobody", "", b"", pika.BasicProperties())
    except pika.exceptions.ChannelClosedByBroker as error:
        same("publishing", "an exchange that is not there", error.reply_code, 404)
    except pika.exceptions.AMQPError as error:
        check("publishing", "an exchange that is not there", False, repr(error))
    publisher.open().exchange_declare("Shop.Orders:Nobody", "fanout", durable=True)
    try:
        publisher.publish("Shop.Orders:Nobody", "", b"", pika.BasicProperties())
        returned = None
    except UnroutableError as error:
        returned = error.messages[0].method.reply_code
    same("publishing", "a mandatory message for nobody is returned", returned, 312)

    service, bus = Service(), Bus()
    auditors = [Auditor("first", record), Auditor("second", record)]
    asked = [bus.ask(publisher, number) for number in range(QUESTIONS)]
    same("request and answer", "before", asked, [({"number": number, "status": "open"}, 1) for number in range(QUESTIONS)])
    for number in range(ORDERS):
        if number == ORDERS // 2:
            for unknown in range(UNKNOWN):
                letter = envelope("Shop.Orders:Unheard", {"number": unknown})
                publisher.publish(SERVICE, "", json.dumps(letter), properties(letter))
            wait_for(lambda: len(service.handled) >= HANDLED_AT_KILL and len(record) >= AUDITED_AT_KILL, "orders to be handled")
            kill_primary()
        submit(publisher, number)
    during, times = bus.ask(publisher, 7)
    same("request and answer", "amid the failover", during, {"number": 7, "status": "open"}, f"asked {times} times")

    good = [number for number in range(ORDERS) if number % 10 != 3]
    wait_for(lambda: set(good) <= service.handled.keys(), lambda: f"orders {sorted(set(good) - service.handled.keys())}")
    wait_for(lambda: {number for _, number, _ in record} >= set(range(ORDERS)), "the audit")
    wait_for(lambda: bus.instance is not None and ready(f"{SERVICE}_skipped") >= UNKNOWN, "what was skipped")
    wait_for(lambda: ready(SERVICE) == 0 and ready(f"{SERVICE}_error") >= ORDERS // 10, "what failed")
    afterwards = range(ORDERS, ORDERS + AFTERWARDS)
    for number in afterwards:
        submit(publisher, number)
    good += [number for number in afterwards if number % 10 != 3]
    wait_for(lambda: set(good) <= service.handled.keys(), lambda: f"orders {sorted(set(good) - service.handled.keys())}")
    wait_for(lambda: len({number for _, number, _ in record}) == ORDERS + AFTERWARDS, "the audit")
    asked = [bus.ask(publisher, number) for number in range(QUESTIONS)]
    same("request and answer", "after", asked, [({"number": number, "status": "open"}, 1) for number in range(QUESTIONS)])
    wait_for(lambda: set(afterwards) <= bus.heard, "the instance's orders")
    same("temporary endpoints", "the exclusive one heard all once it was back", sorted(set(afterwards) - bus.heard), [])

    bus.loop.stop()
    wait_for(lambda: ready(bus.name) is None, "the bus's queue to go with its consumer")
    check("temporary endpoints", "the queue goes with its last consumer", True)
    unused()
    service.loop.stop()
    for auditor in auditors:
        auditor.loop.stop()
    judge(publisher, service, record, good, list(range(ORDERS + AFTERWARDS)), bus)
    publisher.close()
    service.publisher.close()
    done()


def unused():
    """A temporary queue that nobody ever consumes from goes as well. Looking would keep it, so one looks once."""
    connection = connect()
    connection.channel().queue_declare("shop_web_bus_unused", durable=False, arguments={"x-expires": 1500})
    connection.close()
    time.sleep(1.5 + 1)
    same("temporary endpoints", "one that is not used expires", ready("shop_web_bus_unused"), None)


def judge(publisher, service, record, good, every, bus):
    republished = publisher.republished + service.publisher.republished
    service.handled.judge("orders", good, republished)
    connections = service.loop.connections
    check("orders", "over another connection where the primary was killed", (connections > 1) == KILLS, f"{connections} connections")
    fives = [number for number in good if number % 10 == 5]
    same("delayed redelivery", "each was delayed once", sorted(service.redelivered_at), fives)
    late = [late for late, _ in service.redelivered_at.values()]
    bounds = f"{min(late):+.2f} to {max(late):+.2f} s"
    check("delayed redelivery", "each came when it was due", min(late) >= -EARLY_SECONDS and max(late) <= LATE_SECONDS, bounds)
    deaths = {(death[0]["queue"], death[0]["reason"], death[0]["count"]) for _, death in service.redelivered_at.values()}
    same("delayed redelivery", "and says where it has been", deaths, {(DELAY, "expired", 1)})

    failed, skipped = Effects(), Effects()
    headers = drain(f"{SERVICE}_error", failed)
    failed.judge("_error", [number for number in every if number % 10 == 3], republished)
    same("_error", "with the reason", headers.get("MT-Fault-Message"), "no such customer")
    drain(f"{SERVICE}_skipped", skipped)
    skipped.judge("_skipped", range(UNKNOWN), republished)

    audit = Effects()
    for _, number, redelivered in record:
        audit.add(number, redelivered)
    audit.judge("single active consumer", every, republished)
    same("single active consumer", "in the order of the publisher", list(dict.fromkeys(number for _, number, _ in record)), every)
    # A consumer has a tag of its own each time that it connects.
    tags = {tag for tag, _, _ in record}
    check("single active consumer", "one before the kill, one after it", len(tags) <= (2 if KILLS else 1), sorted(tags))
    left = {queue: ready(queue) for queue in (SERVICE, AUDIT, f"{SERVICE}_error", f"{SERVICE}_skipped", DELAY)}
    same("orders", "nothing is left in any queue", left, dict.fromkeys(left, 0))


main()
