"""Handshake, negotiation, frames, heartbeats, and what ends a connection."""

import struct
import time

import amqp
from amqp import BODY, HEADER, METHOD, encode_header, encode_method, frame
from behaviour import behaviour, equal

LOGIN_REFUSED = (
    "ACCESS_REFUSED - Login was refused using authentication mechanism PLAIN. For details see the broker logfile."
)
TUNE_DIFFERS = "says why in a close frame before it goes; RabbitMQ says it in its log, and drops the connection"
WORDS_DIFFER = "the text says what is wrong with the frame; RabbitMQ's shows its octets"


def untunable(b, text):
    return b.fatal(530, text, (10, 31)) if b.ours else b.dropped()


@behaviour(differs="the product is Understudy")
def the_server_says_what_it_is(b):
    """P1: the properties that clients look at."""
    properties = amqp.plain(("F", b.connection.start.server_properties))
    equal(properties["product"], b.either("Understudy", "RabbitMQ"))
    assert properties["version"][0].isdigit()
    equal((b.connection.start.version_major, b.connection.start.version_minor), (0, 9))
    equal(b.connection.start.locales, "en_US")


@behaviour
def capabilities_are_booleans(b):
    """P1: each is there, with type `t`, and true."""
    kind, capabilities = b.connection.start.server_properties["capabilities"]
    equal(kind, "F")
    for name in (
        "publisher_confirms", "exchange_exchange_bindings", "basic.nack", "consumer_cancel_notify", "connection.blocked",
        "consumer_priorities", "authentication_failure_close", "per_consumer_qos", "direct_reply_to",
    ):  # fmt: skip
        equal((name, capabilities.get(name)), (name, ("t", True)))


@behaviour
def mechanisms(b):
    """Names with spaces between them."""
    assert {"PLAIN", "AMQPLAIN"} <= set(b.connection.start.mechanisms.split(" "))


@behaviour
def amqplain_logs_in(b):
    """The table comes without its length."""
    b.connect(mechanism="AMQPLAIN").channel()


@behaviour
def tune_offers_2047_channels_and_128_kib(b):
    """What clients take as the limits."""
    tune = b.connection.tune
    equal((tune.channel_max, tune.frame_max, tune.heartbeat), (2047, 131072, 60))


@behaviour
def another_protocol_is_told_ours(b):
    """AMQP 1.0's header, and any other eight octets: the answer is the header of 0-9-1, then the end."""
    for greeting in (b"AMQP\x00\x01\x00\x00", b"AMQP\x01\x01\x00\x0a", b"GET / HT"):
        connection = b.tcp()
        connection.send_raw(greeting)
        answer = b""
        while len(answer) < 8:
            part = connection.socket.recv(8)
            assert part, answer
            answer += part
        equal(answer, amqp.PROTOCOL_HEADER)
        connection.await_dropped()


@behaviour
def a_wrong_password_is_told_to_who_declared_it(b):
    """403, with the capability authentication_failure_close."""
    with b.fatal(403, LOGIN_REFUSED, (0, 0)):
        b.connect(password="wrong")


@behaviour
def a_wrong_password_is_dropped_on_others(b):
    """403: no close frame without the capability."""
    with b.dropped():
        b.connect(password="wrong", capabilities={})


@behaviour
def an_unknown_user_reads_like_a_wrong_password(b):
    """403."""
    with b.fatal(403, LOGIN_REFUSED, (0, 0)):
        b.connect(user="nobody")


@behaviour(differs="a close frame for who can read it; RabbitMQ drops the connection")
def an_unknown_mechanism_is_refused(b):
    """403 or nothing."""
    connection = b.tcp()
    connection.send_raw(amqp.PROTOCOL_HEADER)
    connection.expect("connection.start")
    capabilities = {"capabilities": {"authentication_failure_close": True}}
    connection.send("connection.start-ok", client_properties=capabilities, mechanism="MAGIC", locale="en_US")
    with b.fatal(403, "ACCESS_REFUSED - …") if b.ours else b.dropped():
        connection.await_closed()


@behaviour
def an_unknown_vhost(b):
    """530."""
    with b.fatal(530, "NOT_ALLOWED - vhost nowhere not found", (10, 40)):
        b.connect(vhost="nowhere")


@behaviour(differs=TUNE_DIFFERS)
def channel_max_of_0_is_refused(b):
    """P2: 0 means no limit, which is more than was offered."""
    with untunable(b, "NOT_ALLOWED - negotiated channel_max = 0 is higher than the maximum allowed value (2047)"):
        b.connect(channel_max=0)


@behaviour(differs=TUNE_DIFFERS)
def channel_max_above_the_offer_is_refused(b):
    """P2."""
    with untunable(b, "NOT_ALLOWED - negotiated channel_max = 2048 is higher than the maximum allowed value (2047)"):
        b.connect(channel_max=2048)


@behaviour(differs=TUNE_DIFFERS)
def frame_max_above_the_offer_is_refused(b):
    """P2."""
    with untunable(b, "NOT_ALLOWED - negotiated frame_max = 131073 is higher than the maximum allowed value (131072)"):
        b.connect(frame_max=131073)


@behaviour(differs=TUNE_DIFFERS)
def frame_max_below_4096_is_refused(b):
    """P2: 4096 is the least that the protocol knows."""
    with untunable(b, "NOT_ALLOWED - negotiated frame_max = 4095 is lower than the minimum allowed value (4096)"):
        b.connect(frame_max=4095)


@behaviour(differs="the highest channel number is what channel_max says; RabbitMQ counts the open channels, whatever their numbers")
def more_channels_than_negotiated(b):
    """530."""
    connection = b.connect(channel_max=2)
    connection.channel(1)
    connection.channel(2)
    ours = "NOT_ALLOWED - channel number 3 is above the negotiated channel_max (2)"
    theirs = "NOT_ALLOWED - number of channels opened (2) has reached the negotiated channel_max (2)"
    with b.fatal(530, b.either(ours, theirs), (0, 0)):
        connection.channel(3)


@behaviour
def frames_of_4096_octets(b):
    """F3: neither a large body nor large headers come in frames above what was negotiated."""
    channel = b.connect(frame_max=4096).channel()
    queue = b.queue(channel)
    body = bytes(range(256)) * 200
    headers = {f"h{n}": "v" * 100 for n in range(25)}
    channel.publish("", queue, body, headers=headers)
    taken = b.await_message(channel, queue)
    equal(taken.message.body, body)
    equal(taken.message.headers, headers)
    assert channel.connection.largest_frame <= 4096, channel.connection.largest_frame
    equal(taken.message.frames, -(-len(body) // 4088))


@behaviour(differs="the consumer's connection is closed, with a text that says what to do; RabbitMQ sends a frame above what was negotiated")
def headers_larger_than_a_frame_of_4096(b):
    """F3: from a publisher with larger frames."""
    publisher = b.confirming()
    queue = b.queue(publisher)
    b.confirmed(publisher, "", queue, b"x", headers={"long": "v" * 20000})
    channel = b.connect(frame_max=4096).channel()
    if b.ours:
        text = "FRAME_ERROR - properties of 20016 octets do not fit in a frame of 4096: reconnect with a larger frame_max"
        with b.fatal(501, text, (0, 0)):
            b.get(channel, queue, no_ack=False)
        equal(len(b.await_message(publisher, queue).message.headers["long"]), 20000)
    else:
        b.get(channel, queue)
    equal(channel.connection.largest_frame > 4096, b.either(False, True))


@behaviour(differs=WORDS_DIFFER)
def a_frame_above_frame_max(b):
    """F3: 501, and the connection ends."""
    channel = b.connect(frame_max=4096).channel()
    queue = b.queue(channel)
    channel.send("basic.publish", routing_key=queue)
    channel.connection.send_frame(HEADER, channel.number, encode_header(5000, {}))
    channel.connection.send_frame(BODY, channel.number, b"x" * 5000)
    with b.fatal(501, b.either("FRAME_ERROR - a frame with 5000 octets of payload on channel 1, 4096 are negotiated", "FRAME_ERROR - type 3, …")):
        channel.connection.await_closed()


@behaviour(differs=WORDS_DIFFER)
def a_frame_without_its_end_octet(b):
    """501."""
    channel = b.channel()
    raw = frame(METHOD, channel.number, encode_method("basic.qos"))
    channel.connection.send_raw(raw[:-1] + b"\x00")
    with b.fatal(501, b.either("FRAME_ERROR - a frame on channel 1 ends with 0x00 instead of 0xce", "FRAME_ERROR - type 1, …")):
        channel.connection.await_closed()


@behaviour(differs=WORDS_DIFFER)
def an_unknown_frame_type(b):
    """501."""
    channel = b.channel()
    channel.connection.send_raw(frame(7, channel.number, b"abc"))
    with b.fatal(501, b.either("FRAME_ERROR - frame type 7 does not exist", "FRAME_ERROR - type 7, …")):
        channel.connection.await_closed()


@behaviour(differs="502, as the specification has it; RabbitMQ says 501")
def a_malformed_field(b):
    """502: a table that says it is longer than its method."""
    channel = b.channel()
    raw = encode_method("queue.declare", queue=b.name(), arguments=struct.pack(">I", 100) + b"\x01x")
    channel.connection.send_frame(METHOD, channel.number, raw)
    with b.fatal(*b.either((502, "SYNTAX_ERROR - …"), (501, "FRAME_ERROR - cannot decode …"))):
        channel.connection.await_closed()


@behaviour
def an_unknown_field_type_hurts_that_connection_only(b):
    """P4."""
    other = b.channel()
    channel = b.connect().channel()
    queue = b.queue(other)
    channel.publish("", queue, b"x", headers={"bad": ("Z", b"\x00\x00")})
    try:
        channel.sync()
        raise AssertionError("it was taken")
    except (amqp.Closed, amqp.Dropped):
        pass
    other.sync()
    equal(b.count(other, queue), 0)


@behaviour(differs="503, as the specification has it; RabbitMQ drops the connection")
def an_unknown_method(b):
    """503."""
    channel = b.channel()
    channel.connection.send_frame(METHOD, channel.number, struct.pack(">HH", 60, 99))
    with b.fatal(503, "COMMAND_INVALID - …") if b.ours else b.dropped():
        channel.connection.await_closed()


@behaviour
def a_method_before_channel_open(b):
    """504."""
    with b.fatal(504, "CHANNEL_ERROR - expected 'channel.open'", (60, 10)):
        channel = amqp.Channel(b.connection, 1)
        channel.call("basic.qos")


@behaviour
def a_channel_opened_twice(b):
    """504."""
    channel = b.channel()
    with b.fatal(504, "CHANNEL_ERROR - second 'channel.open' seen", (20, 10)):
        channel.call("channel.open")


@behaviour(differs=WORDS_DIFFER)
def a_body_without_a_method(b):
    """505."""
    channel = b.channel()
    channel.connection.send_frame(BODY, channel.number, b"x")
    told = b.either("a content frame", "non method frame instead")
    with b.fatal(505, f"UNEXPECTED_FRAME - expected method frame, got {told}", (0, 0)):
        channel.connection.await_closed()


@behaviour(differs=WORDS_DIFFER)
def a_method_amid_a_message(b):
    """505."""
    channel = b.channel()
    channel.send("basic.publish", routing_key=b.name())
    channel.send("basic.qos")
    told = b.either("content header, got another frame", "content header for class 60, got non content header frame instead")
    with b.fatal(505, f"UNEXPECTED_FRAME - expected {told}", (60, 40)):
        channel.connection.await_closed()


@behaviour(differs="refused; RabbitMQ waits on that channel for octets that there are too many of")
def a_body_longer_than_its_header_says(b):
    """505."""
    channel = b.channel()
    channel.send("basic.publish", routing_key=b.name())
    channel.connection.send_frame(HEADER, channel.number, encode_header(3, {}))
    channel.connection.send_frame(BODY, channel.number, b"xxxxx")
    if not b.ours:
        b.quiet(channel.connection)
        return
    with b.fatal(505, "UNEXPECTED_FRAME - more content body than its header announced", (60, 40)):
        channel.connection.await_closed()


@behaviour(differs=WORDS_DIFFER)
def a_heartbeat_on_a_channel(b):
    """It belongs to channel 0."""
    channel = b.channel()
    channel.connection.send_frame(amqp.HEARTBEAT, channel.number, b"")
    with b.fatal(505, b.either("UNEXPECTED_FRAME - heartbeat on channel 1", "UNEXPECTED_FRAME - type 8, all octets = <<>>"), (0, 0)):
        channel.connection.await_closed()


@behaviour
def the_client_s_heartbeat_counts(b):
    """P3: with 1 s the server says something each half, and drops who is silent for two."""
    connection = b.connect(heartbeat=1)
    started = time.monotonic()
    connection.await_dropped()
    took = time.monotonic() - started
    assert 1.5 < took < 6, took
    assert connection.heartbeats >= 2, connection.heartbeats


@behaviour
def a_heartbeat_of_0_is_none(b):
    """P3."""
    connection = b.connect(heartbeat=0)
    channel = connection.channel()
    time.sleep(4)
    channel.sync()
    equal(connection.heartbeats, 0)


@behaviour
def any_octet_keeps_a_connection(b):
    """P3: a slow upload is no silence."""
    channel = b.connect(heartbeat=1).channel()
    queue = b.queue(channel)
    channel.send("basic.publish", routing_key=queue)
    channel.connection.send_frame(HEADER, channel.number, encode_header(20, {}))
    for octet in frame(BODY, channel.number, b"x" * 20):
        channel.connection.send_raw(bytes([octet]))
        time.sleep(0.2)
    equal(b.await_message(channel, queue).message.body, b"x" * 20)


@behaviour
def close_is_answered(b):
    """And what a consumer held is ready again at once."""
    channel = b.channel()
    queue = b.queue(channel)
    channel.publish("", queue, b"x")
    second = b.connect()
    holder = second.channel()
    b.await_message(holder, queue, no_ack=False)
    second.close()
    assert b.await_message(channel, queue).redelivered


@behaviour
def update_secret_is_answered(b):
    """For passwords it changes nothing."""
    b.connection.send("connection.update-secret", secret="guest", reason="because")
    b.connection.expect("connection.update-secret-ok")
    b.channel()


@behaviour
def a_thousand_channels(b):
    """Opened in one go, each of use."""
    connection = b.connect()
    raw = b"".join(frame(METHOD, n, encode_method("channel.open")) for n in range(1, 1001))
    channels = [amqp.Channel(connection, n) for n in range(1, 1001)]
    connection.send_raw(raw)
    for channel in channels:
        channel.expect("channel.open-ok")
    channels[-1].sync()


@behaviour
def channel_flow_is_answered(b):
    """From the client, active: true."""
    channel = b.channel()
    equal(channel.call("channel.flow", active=True).active, True)


@behaviour
def channel_flow_off_is_not_there(b):
    """540: a client that wants no deliveries has prefetch for it."""
    channel = b.channel()
    with b.fatal(540, "NOT_IMPLEMENTED - active=false", (20, 20)):
        channel.call("channel.flow", active=False)


@behaviour(differs="503, which says what is wrong; RabbitMQ says 504 of all that a connection does not expect")
def methods_on_the_wrong_channel(b):
    """503 or 504: queues on channel 0, a second connection.open."""
    theirs = "CHANNEL_ERROR - unexpected method in connection state running"
    for method, blames, ours in (
        ("queue.declare", (50, 10), "queue.declare on channel 0"),
        ("channel.open", (20, 10), "channel.open on channel 0"),
        ("connection.open", (10, 40), "unexpected connection.open in this state of the connection"),
    ):
        connection = b.connect()
        connection.send(method)
        with b.fatal(*b.either((503, f"COMMAND_INVALID - {ours}"), (504, theirs)), blames):
            connection.await_closed()


@behaviour(differs="the text names the method")
def methods_that_only_servers_send(b):
    """503."""
    for method, ours in (
        ("queue.declare-ok", "queue.declare-ok from a client"),
        ("basic.get-empty", "basic.get-empty from a client"),
        ("connection.close", "connection.close on channel 1"),
    ):
        channel = b.connect().channel(1)
        channel.send(method)
        told = b.either(ours, "unimplemented method")
        with b.fatal(503, f"COMMAND_INVALID - {told}", amqp.BY_NAME[method][:2]):
            channel.connection.await_closed()


@behaviour
def closing_a_channel_that_is_not_open(b):
    """504."""
    connection = b.connect()
    connection.send_frame(METHOD, 3, encode_method("channel.close", code=200))
    with b.fatal(504, "CHANNEL_ERROR - expected 'channel.open'", (20, 40)):
        connection.await_closed()


@behaviour
def an_empty_vhost_is_none(b):
    """530: it is not the default one."""
    with b.fatal(530, "NOT_ALLOWED - vhost  not found", (10, 40)):
        b.connect(vhost="")
