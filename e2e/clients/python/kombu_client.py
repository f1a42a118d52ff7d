"""kombu over its py-amqp transport, with kombu's own failover over the list of brokers."""

import socket
import time

from kombu import Connection, Consumer, Exchange, Producer, Queue

from story import RECONNECT_PAUSE_SECONDS, Ledger, Story, expect, numbers


def connect(addresses, deadline):
    urls = [f"amqp://guest:guest@{host}:{port}//" for host, port in addresses]
    connection = Connection(urls, transport_options={"confirm_publish": True}, connect_timeout=5)
    pause = RECONNECT_PAUSE_SECONDS
    connection.ensure_connection(
        interval_start=pause, interval_step=0, interval_max=pause, timeout=max(1, deadline - time.monotonic())
    )
    return connection


def drain(connection, enough, deadline):
    while not enough():
        expect(time.monotonic() < deadline, "the deliveries stopped")
        try:
            connection.drain_events(timeout=1)
        except socket.timeout:
            pass


def round_trip(story, detail):
    deadline = story.deadline()
    connection = connect(story.addresses, deadline)
    channel = connection.channel()
    exchange = Exchange("clients.kombu", "direct", durable=True)
    queue = Queue("clients.kombu.round", exchange, "round", durable=True)
    returns = []
    producer = Producer(channel, exchange, on_return=lambda *returned: returns.append(returned))
    queue(channel).declare()
    for number in numbers(story.round):
        producer.publish({"number": number}, "round", mandatory=True, headers={"number": number, "odd": number % 2 == 1})
    expect(not returns, f"routable messages came back: {returns}")
    producer.publish({"number": -1}, "nowhere", mandatory=True)
    expect([error.reply_code for error, *_ in returns] == [312], f"an unroutable mandatory message: {returns}")

    came = []

    def received(body, message):
        expect(message.headers["odd"] is (body["number"] % 2 == 1), f"headers {message.headers}")
        came.append(body["number"])
        message.ack()

    with Consumer(channel, [queue], callbacks=[received], prefetch_count=10):
        drain(connection, lambda: len(came) >= story.round, deadline)
    expect(came == numbers(story.round), f"came as {came}")
    left = queue(channel).queue_declare(passive=True).message_count
    expect(left == 0, f"{left} messages left after the acks")

    # As kombu's pidbox does it: a question to everybody by fanout, the answers to an exclusive queue.
    everybody = Exchange("clients.kombu.everybody", "fanout", durable=False, auto_delete=True)
    inbox = Queue("", everybody, exclusive=True, auto_delete=True)(channel)
    inbox.declare()
    Producer(channel, everybody).publish("who is there?", correlation_id="7")
    message = inbox.get(no_ack=True)
    expect(message and message.payload == "who is there?", f"the fanout brought {message}")
    expect(message.properties["correlation_id"] == "7", f"properties {message.properties}")
    Producer(channel).publish(story.reply, inbox.name, mandatory=True)
    reply = inbox.get(no_ack=True)
    expect(reply and reply.payload == story.reply, f"the reply was {reply}")
    connection.release()
    detail.append(f"{story.round} confirmed, consumed and acked")


def relay(story, detail):
    connection = connect([story.backup], story.deadline())
    queue = Queue("clients.kombu.relay", durable=True)(connection.channel())
    queue.declare()
    Producer(queue.channel).publish("through", queue.name, mandatory=True)
    message = queue.get()
    expect(message and message.payload == "through", f"got {message}")
    message.ack()
    queue.delete()
    connection.release()
    detail.append("through {}:{}".format(*story.backup))


def leave(story, detail):
    connection = connect(story.addresses, story.deadline())
    queue = Queue("clients.kombu.left", durable=True)(connection.channel())
    queue.declare()
    producer = Producer(queue.channel)
    for number in numbers(story.left):
        producer.publish(number, queue.name, mandatory=True)
    connection.release()
    detail.append(f"{story.left} confirmed, not consumed")


def live(story, detail):
    """Publishes and consumes on two connections until both were lost and went on."""
    ledger, deadline = Ledger(story.resume), story.deadline()
    queue = Queue("clients.kombu.live", durable=True)
    publisher = consumer = producer = None
    lost = Connection().recoverable_connection_errors

    def received(body, message):
        ledger.receive(body, message.delivery_info["redelivered"])
        message.ack()

    while not ledger.done() and time.monotonic() < deadline:
        try:
            if publisher is None:
                publisher = connect(story.addresses, deadline)
                producer = Producer(publisher.channel())
                queue(producer.channel).declare()
            if not ledger.resumed():
                number = ledger.number()
                producer.publish(number, queue.name, mandatory=True)
                ledger.confirm(number)
        except lost:
            ledger.lose("publisher")
            publisher = None
        try:
            if consumer is None:
                consumer = connect(story.from_backup(), deadline)
                Consumer(consumer.channel(), [queue], callbacks=[received], prefetch_count=10).consume()
            consumer.drain_events(timeout=0.01)
        except socket.timeout:
            pass
        except lost:
            ledger.lose("consumer")
            consumer = None
    ledger.close(detail)


def kept(story, detail):
    connection = connect(story.addresses, story.deadline())
    queue = Queue("clients.kombu.left", durable=True)(connection.channel())
    queue.declare()
    came = []
    while (message := queue.get()) is not None:
        came.append(message.payload)
        message.ack()
    connection.release()
    expect(came == numbers(story.left), f"of {story.left} left before the failover there came {came}")
    detail.append(f"{len(came)} of {story.left}, each once")


def main():
    story = Story()
    with story.step("round") as detail:
        round_trip(story, detail)
    with story.step("relay") as detail:
        relay(story, detail)
    with story.step("leave") as detail:
        leave(story, detail)
    with story.step("resume") as detail:
        live(story, detail)
    with story.step("kept") as detail:
        kept(story, detail)
    with story.step("round again") as detail:
        round_trip(story, detail)


main()
