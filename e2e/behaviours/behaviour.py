"""What a behaviour is written with: a function that is given a `Bench`, the same for both brokers.

A test asserts what the broker in front of it does. It passes on both, or says by `differs` why ours does something else on purpose;
only then may it use `Bench.either`. This module knows the client, and nothing of how brokers are started.
"""

import contextlib
import itertools
import os
import re
import time

import amqp

# Of one test on one broker.
LIMIT_SECONDS = 10
# Between two looks at something that comes about by itself.
POLL_SECONDS = 0.02
# How long a broker has to say nothing before it counts as silent. Too short never fails a test that would pass.
QUIET_SECONDS = 0.5

REGISTRY = []


class Behaviour:
    def __init__(self, run, differs, surroundings):
        self.run, self.differs, self.surroundings = run, differs, surroundings
        self.name = run.__name__
        self.group = run.__module__
        # The cases that the docstring begins with: "P1, T2: ".
        found = re.match(r"((?:[A-Z]\d+(?:, )?)+): ", run.__doc__ or "")
        self.cases = found.group(1) if found else ""


def behaviour(run=None, *, differs=None, surroundings="usual"):
    """Registers a function. `differs`: what ours does otherwise on purpose, and why. `surroundings`: those of the broker that
    it meets, which the runner makes."""

    def register(run):
        assert run.__name__ not in {known.name for known in REGISTRY}, f"{run.__name__} is there twice"
        REGISTRY.append(Behaviour(run, differs, surroundings))
        return run

    return register(run) if run else register


class Bench:
    """One test's view of one broker: connections to it, names of its own, and a deadline for all that it waits for."""

    _numbers = itertools.count(1)

    def __init__(self, behaviour, broker, port):
        """`broker`: what administrators do with it."""
        self.behaviour, self.broker, self.port = behaviour, broker, port
        self.ours = broker.name == "ours"
        self.deadline = time.monotonic() + LIMIT_SECONDS
        self.connections, self.made, self.users = [], [], []
        self._connection = None

    # Connections and names.

    def connect(self, **options):
        connection = amqp.Connection(self.port, self.deadline, **options)
        self.connections.append(connection)
        return connection

    def tcp(self):
        """A connection on which nothing has been said yet."""
        return self.connect(open=False)

    @property
    def connection(self):
        if self._connection is None or self._connection.closed:
            self._connection = self.connect()
        return self._connection

    def channel(self):
        """A new channel, on the connection that most tests need only one of."""
        return self.connection.channel()

    def confirming(self):
        channel = self.channel()
        channel.call("confirm.select")
        return channel

    def name(self):
        return f"behaviour-{os.getpid()}-{next(self._numbers)}"

    def queue(self, channel, queue=None, **arguments):
        """Declares a queue, to be deleted at the end, and returns its name. Keywords with x_ are arguments: x_expires=100."""
        queue = self.name() if queue is None else queue
        table = {key.replace("_", "-"): arguments.pop(key) for key in list(arguments) if key.startswith("x_")}
        table |= arguments.pop("arguments", {})
        queue = channel.call("queue.declare", queue=queue, arguments=table, **arguments).queue
        self.made.append(("queue.delete", {"queue": queue}))
        return queue

    def exchange(self, channel, type, **arguments):
        exchange = arguments.pop("exchange", None) or self.name()
        channel.call("exchange.declare", exchange=exchange, type=type, **arguments)
        self.made.append(("exchange.delete", {"exchange": exchange}))
        return exchange

    def user(self, configure="", write="", read=""):
        """A new user with these permissions; the password is the name."""
        name = self.name()
        self.broker.add_user(name, name)
        self.broker.set_permission(name, configure, write, read)
        self.users.append(name)
        # RabbitMQ's command takes long enough to spoil the time for the test itself.
        self.deadline = time.monotonic() + LIMIT_SECONDS
        return name

    def log_in(self, user):
        return self.connect(user=user, password=user)

    def bind(self, channel, queue, exchange, routing_key="", arguments=None):
        channel.call("queue.bind", queue=queue, exchange=exchange, routing_key=routing_key, arguments=arguments or {})

    def consume(self, channel, queue, **arguments):
        """Its tag."""
        return channel.call("basic.consume", queue=queue, **arguments).consumer_tag

    # Messages.

    def confirmed(self, channel, exchange, routing_key, body=b"", **properties):
        """Publishes on a channel in confirm mode that has nothing outstanding, and returns "ack" or "nack"."""
        channel.publish(exchange, routing_key, body, **properties)
        return channel.expect("basic.ack", "basic.nack").name.removeprefix("basic.")

    def get(self, channel, queue, no_ack=True):
        """`None` if the queue is empty."""
        answer = channel.call("basic.get", queue=queue, no_ack=no_ack)
        return None if answer.name == "basic.get-empty" else answer

    def await_message(self, channel, queue, no_ack=True):
        """Takes a message, as soon as there is one."""
        return self.eventually(lambda: self.get(channel, queue, no_ack))

    def drain(self, channel, queue):
        """The bodies of all that is there now."""
        return [taken.message.body.decode() for taken in iter(lambda: self.get(channel, queue), None)]

    def deliveries(self, channel, count):
        return [channel.expect("basic.deliver") for _ in range(count)]

    def bodies(self, channel, count):
        return [delivery.message.body.decode() for delivery in self.deliveries(channel, count)]

    def silent(self, channel):
        """Nothing was delivered on the channel so far; other channels' effects on it included, as far as they are done."""
        channel.sync()
        waiting = [method for method in channel.inbox if method.name == "basic.deliver"]
        assert not waiting, waiting

    def count(self, channel, queue):
        """Messages that are ready."""
        return channel.call("queue.declare", queue=queue, passive=True).message_count

    def await_count(self, channel, queue, count):
        self.eventually(lambda: self.count(channel, queue) == count)

    def exists(self, method, **arguments):
        channel = self.channel()
        try:
            channel.call(method, passive=True, **arguments)
        except amqp.Closed as closed:
            # To another connection an exclusive queue is there, and locked.
            assert closed.code in (404, 405), closed
            return closed.code == 405
        channel.close()
        return True

    # Expectations.

    @contextlib.contextmanager
    def closes(self, what, code, text, blames=None):
        """The block ends with the broker closing `what`. `text` ending in "…" is how it begins."""
        try:
            yield
        except amqp.Closed as closed:
            told = closed.text[: len(text) - 1] + "…" if text.endswith("…") else closed.text
            assert (closed.what, closed.code, told) == (what, code, text), closed
            assert blames is None or closed.blames == blames, closed
            return
        raise AssertionError(f"the {what} was not closed")

    def refused(self, code, text, blames=None):
        return self.closes("channel", code, text, blames)

    def fatal(self, code, text, blames=None):
        return self.closes("connection", code, text, blames)

    @contextlib.contextmanager
    def dropped(self):
        """The block ends with the broker dropping the TCP connection, without a word."""
        try:
            yield
        except amqp.Dropped:
            return
        raise AssertionError("the connection was not dropped")

    def quiet(self, connection):
        """The broker says nothing, neither now nor soon."""
        connection.deadline, deadline = time.monotonic() + QUIET_SECONDS, connection.deadline
        try:
            connection.pump()
        except amqp.TimedOut:
            connection.deadline = deadline
            return
        raise AssertionError(f"the broker said something: {connection.closed}")

    def either(self, ours, rabbitmq):
        assert self.behaviour.differs, "a difference that is not declared"
        return ours if self.ours else rabbitmq

    def eventually(self, condition):
        while True:
            found = condition()
            if found:
                return found
            if time.monotonic() > self.deadline - 1:
                raise amqp.TimedOut("what was waited for did not come about")
            time.sleep(POLL_SECONDS)

    # The end.

    def clean_up(self):
        for connection in self.connections:
            connection.abort()
        for user in self.users:
            self.broker.delete_user(user)
        if not self.made:
            return
        connection = amqp.Connection(self.port, time.monotonic() + LIMIT_SECONDS)
        channel = connection.channel()
        for method, arguments in reversed(self.made):
            try:
                channel.call(method, **arguments)
            except amqp.Closed:
                # An exclusive queue whose connection is about to end.
                channel = connection.channel()
        connection.close()


def equal(found, expected):
    assert found == expected, f"\n  found    {found!r:.1000}\n  expected {expected!r:.1000}"
