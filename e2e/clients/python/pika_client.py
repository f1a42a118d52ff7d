"""pika, with its blocking connection; over TLS and with EXTERNAL where there are certificates."""

import os
import ssl
import time

import pika
from pika.exceptions import AMQPError, UnroutableError

from story import RECONNECT_PAUSE_SECONDS, Ledger, Story, expect, numbers

PERSISTENT = pika.BasicProperties(delivery_mode=2)


def connect(story, addresses, deadline):
    options = {"socket_timeout": 5}
    if story.certificates:
        certificate = [os.path.join(story.certificates, file) for file in ("ca.crt", "client.crt", "client.key")]
        context = ssl.create_default_context(cafile=certificate[0])
        context.load_cert_chain(certificate[1], certificate[2])
        options["ssl_options"] = pika.SSLOptions(context, "localhost")
        options["credentials"] = pika.credentials.ExternalCredentials()
    while True:
        for host, port in addresses:
            try:
                return pika.BlockingConnection(pika.ConnectionParameters(host, port, **options))
            except (AMQPError, OSError):
                if time.monotonic() > deadline:
                    raise
        time.sleep(RECONNECT_PAUSE_SECONDS)


def confirming(connection, queue):
    """A channel in confirm mode, and the queue, declared as an application does after each connect."""
    channel = connection.channel()
    channel.confirm_delivery()
    channel.queue_declare(queue, durable=True)
    return channel


def round_trip(story, addresses, detail):
    connection = connect(story, addresses, story.deadline())
    channel = confirming(connection, f"clients.{story.name}.round")
    channel.exchange_declare(f"clients.{story.name}", "direct", durable=True)
    channel.queue_bind(f"clients.{story.name}.round", f"clients.{story.name}", "round")
    for number in numbers(story.round):
        properties = pika.BasicProperties(
            delivery_mode=2, content_type="text/plain", message_id=str(number), headers={"number": number, "odd": number % 2 == 1}
        )
        channel.basic_publish(f"clients.{story.name}", "round", str(number), properties, mandatory=True)
    try:
        channel.basic_publish(f"clients.{story.name}", "nowhere", b"lost", PERSISTENT, mandatory=True)
        raise AssertionError("an unroutable mandatory message was not returned")
    except UnroutableError as returned:
        expect(returned.messages[0].method.reply_code == 312, f"returned with {returned.messages[0].method}")

    channel.basic_qos(prefetch_count=10)
    came = []
    for method, properties, body in channel.consume(f"clients.{story.name}.round", inactivity_timeout=story.patience_seconds):
        expect(method is not None, f"only {len(came)} of {story.round} came")
        expect(properties.headers == {"number": int(body), "odd": int(body) % 2 == 1}, f"headers {properties.headers}")
        came.append(int(body))
        channel.basic_ack(method.delivery_tag)
        if len(came) == story.round:
            break
    channel.cancel()
    expect(came == numbers(story.round), f"came as {came}")
    left = channel.queue_declare(f"clients.{story.name}.round", passive=True).method.message_count
    expect(left == 0, f"{left} messages left after the acks")

    reply_to = channel.queue_declare("", exclusive=True, auto_delete=True).method.queue
    channel.basic_publish("", reply_to, story.reply, pika.BasicProperties(correlation_id="7"), mandatory=True)
    method, properties, body = channel.basic_get(reply_to, auto_ack=True)
    expect(method and (properties.correlation_id, body) == ("7", story.reply), f"the reply was {body[:99]}")
    connection.close()
    detail.append(f"{story.round} confirmed, consumed and acked")


def relay(story, detail):
    connection = connect(story, [story.backup], story.deadline())
    channel = confirming(connection, f"clients.{story.name}.relay")
    channel.basic_publish("", f"clients.{story.name}.relay", b"through", PERSISTENT, mandatory=True)
    method, _, body = channel.basic_get(f"clients.{story.name}.relay")
    expect(body == b"through", f"got {body}")
    channel.basic_ack(method.delivery_tag)
    channel.queue_delete(f"clients.{story.name}.relay")
    connection.close()
    detail.append("through {}:{}".format(*story.backup))


def leave(story, detail):
    connection = connect(story, story.addresses, story.deadline())
    channel = confirming(connection, f"clients.{story.name}.left")
    for number in numbers(story.left):
        channel.basic_publish("", f"clients.{story.name}.left", str(number), PERSISTENT, mandatory=True)
    connection.close()
    detail.append(f"{story.left} confirmed, not consumed")


def live(story, detail):
    """Publishes and consumes on two connections until both were lost and went on."""
    ledger, deadline = Ledger(story.resume), story.deadline()
    publisher = consumer = channel = None

    def received(consuming, method, _properties, body):
        ledger.receive(int(body), method.redelivered)
        consuming.basic_ack(method.delivery_tag)

    while not ledger.done() and time.monotonic() < deadline:
        try:
            if publisher is None:
                publisher = connect(story, story.addresses, deadline)
                channel = confirming(publisher, f"clients.{story.name}.live")
            if not ledger.resumed():
                number = ledger.number()
                channel.basic_publish("", f"clients.{story.name}.live", str(number), PERSISTENT, mandatory=True)
                ledger.confirm(number)
        except AMQPError:
            ledger.lose("publisher")
            publisher = None
        try:
            if consumer is None:
                consumer = connect(story, story.from_backup(), deadline)
                consuming = confirming(consumer, f"clients.{story.name}.live")
                consuming.basic_qos(prefetch_count=10)
                consuming.basic_consume(f"clients.{story.name}.live", received)
            consumer.process_data_events(time_limit=0.01)
        except AMQPError:
            ledger.lose("consumer")
            consumer = None
    ledger.close(detail)


def kept(story, detail):
    connection = connect(story, story.addresses, story.deadline())
    channel = confirming(connection, f"clients.{story.name}.left")
    came = []
    while (got := channel.basic_get(f"clients.{story.name}.left"))[0] is not None:
        came.append(int(got[2]))
        channel.basic_ack(got[0].delivery_tag)
    connection.close()
    expect(came == numbers(story.left), f"of {story.left} left before the failover there came {came}")
    detail.append(f"{len(came)} of {story.left}, each once")


def main():
    story = Story()
    with story.step("round") as detail:
        round_trip(story, story.addresses, detail)
    with story.step("relay") as detail:
        relay(story, detail)
    with story.step("leave") as detail:
        leave(story, detail)
    with story.step("resume") as detail:
        live(story, detail)
    with story.step("kept") as detail:
        kept(story, detail)
    with story.step("round again") as detail:
        round_trip(story, story.addresses, detail)


main()
