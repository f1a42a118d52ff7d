"""What an application around pika has: connections that come back, and a publisher that repeats what it has no confirm for."""

import threading
import time

import pika
from pika.exceptions import AMQPError, ChannelClosedByBroker, UnroutableError

from program import ADDRESSES, PATIENCE_SECONDS, log

PAUSE_SECONDS = 0.1
LOST = (AMQPError, OSError)


def connect():
    deadline = time.monotonic() + PATIENCE_SECONDS
    while True:
        for address in ADDRESSES:
            host, port = address.rsplit(":", 1)
            try:
                return pika.BlockingConnection(pika.ConnectionParameters(host, int(port), socket_timeout=5, heartbeat=10))
            except LOST:
                if time.monotonic() > deadline:
                    raise
        time.sleep(PAUSE_SECONDS)


class Publisher:
    """One connection, one message unconfirmed at a time. `topology(channel)` declares what it needs, after each connect."""

    def __init__(self, topology):
        self.topology = topology
        self.connection = self.channel = None
        # Publishes without an answer, each of which was repeated: its message may be there twice.
        self.republished = 0
        self.connections = 0

    def open(self):
        """The channel, anew where it was lost."""
        while self.channel is None or not self.channel.is_open:
            try:
                self.close()
                self.connection = connect()
                self.channel = self.connection.channel()
                self.channel.confirm_delivery()
                self.topology(self.channel)
                self.connections += 1
            except LOST as error:
                log(f"publisher connects again: {error!r}")
                self.channel = None
        return self.channel

    def publish(self, exchange, routing_key, body, properties, mandatory=True, before=None):
        """Returns once it is confirmed. `before(channel)` is done ahead of each attempt.

        Raises `UnroutableError`, and `ChannelClosedByBroker` for a channel's error.
        """
        while True:
            channel, sent = self.open(), False
            try:
                if before:
                    before(channel)
                sent = True
                return channel.basic_publish(exchange, routing_key, body, properties, mandatory)
            except (ChannelClosedByBroker, UnroutableError):
                # An answer, and another attempt would have the same.
                raise
            except LOST as error:
                self.republished += sent
                self.channel = None
                log(f"publishes again: {error!r}")

    def close(self):
        try:
            if self.connection and self.connection.is_open:
                self.connection.close()
        except LOST as error:
            # One that had nothing to do did not notice.
            log(f"was closed already: {error!r}")


class Loop(threading.Thread):
    """`turn(connection, stopped)` again and again, over a new connection where the old one broke, until it is stopped."""

    def __init__(self, name, turn):
        super().__init__(name=name, daemon=True)
        self.turn = turn
        self.stopped = threading.Event()
        self.connections = 0
        self.start()

    def run(self):
        while not self.stopped.is_set():
            connection = connect()
            self.connections += 1
            try:
                self.turn(connection, self.stopped)
                connection.close()
            except LOST as error:
                log(f"{self.name}: {error!r}")

    def stop(self):
        self.stopped.set()
        self.join(PATIENCE_SECONDS)


def deliveries(channel, queue, prefetch, stopped, **options):
    """Yields until it is stopped; then the consumer is cancelled."""
    channel.basic_qos(prefetch_count=prefetch)
    for method, properties, body in channel.consume(queue, inactivity_timeout=0.1, **options):
        if stopped.is_set():
            break
        if method is not None:
            yield method, properties, body
    channel.cancel()


def ready(queue):
    """How many messages wait in it, or none where there is no such queue."""
    while True:
        connection = connect()
        try:
            return connection.channel().queue_declare(queue, passive=True).method.message_count
        except ChannelClosedByBroker as error:
            if error.reply_code != 404:
                raise
            return None
        except LOST as error:
            log(f"looks again: {error!r}")
        finally:
            if connection.is_open:
                connection.close()
