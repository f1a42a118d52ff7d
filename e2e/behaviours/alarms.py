"""What publishers hear of a broker that is short of disk. It stays so while these tests run."""

from behaviour import behaviour, equal

SHORT = "short of disk"


@behaviour(surroundings=SHORT, differs="the reason says who is short, and how much")
def publishers_are_told_to_wait(b):
    """F1: connection.blocked, at the first publish; nothing is confirmed."""
    channel = b.confirming()
    queue = b.queue(channel)
    b.quiet(channel.connection)
    channel.publish("", queue, b"x")
    reason = channel.connection.expect("connection.blocked").reason
    assert reason.startswith(b.either("dev-", "low on disk")) and "low on disk" in reason, reason
    b.quiet(channel.connection)


@behaviour(surroundings=SHORT)
def who_did_not_ask_is_not_told(b):
    """F1: without the capability connection.blocked."""
    channel = b.connect(capabilities={}).channel()
    queue = b.queue(channel)
    channel.publish("", queue, b"x")
    b.quiet(channel.connection)


@behaviour(surroundings=SHORT)
def consumers_go_on(b):
    """F1: a connection that publishes nothing is not stopped, whatever it does."""
    channel = b.channel()
    queue = b.queue(channel)
    tag = b.consume(channel, queue)
    channel.call("basic.cancel", consumer_tag=tag)
    equal(b.get(channel, queue), None)
    equal(list(channel.connection.inbox), [])


@behaviour(surroundings=SHORT)
def heartbeats_go_on(b):
    """F1: a publisher that waits hears them, and is not dropped."""
    connection = b.connect(heartbeat=1)
    channel = connection.channel()
    channel.publish("", b.name(), b"x")
    connection.expect("connection.blocked")
    while connection.heartbeats < 3:
        connection.pump()


@behaviour(surroundings=SHORT)
def who_waits_is_not_read(b):
    """F1: what stands behind a publish that waits is not answered either, a close included."""
    connection = b.connect()
    connection.channel().publish("", b.name(), b"x")
    connection.expect("connection.blocked")
    connection.send("connection.close", code=200, text="bye")
    b.quiet(connection)
