"""A client of AMQP 0-9-1 at the level of frames, for what clients proper hide: exact codes, texts, types, and frames that are wrong.

It is synchronous, has no threads and no recovery, and knows nothing of the broker. A method is a name and its arguments; what a
broker says unasked waits in its channel's inbox. Every wait ends at the deadline that the connection was given.
"""

import collections
import socket
import struct
import time

METHOD, HEADER, BODY, HEARTBEAT = 1, 2, 3, 8
FRAME_END = 0xCE
PROTOCOL_HEADER = b"AMQP\x00\x00\x09\x01"

# What this client says of itself, unless a test wants less.
CAPABILITIES = {
    "publisher_confirms": True,
    "exchange_exchange_bindings": True,
    "basic.nack": True,
    "consumer_cancel_notify": True,
    "connection.blocked": True,
    "authentication_failure_close": True,
}

# The classes and methods: number, name, arguments. Types: o octet, s short, l long, L longlong, b bit, S short string, X long
# string, F table. A `_` stands for a reserved argument, which is zero or empty.
_SPECIFICATION = """
10 10 connection.start version_major:o version_minor:o server_properties:F mechanisms:X locales:X
10 11 connection.start-ok client_properties:F mechanism:S response:X locale:S
10 20 connection.secure challenge:X
10 21 connection.secure-ok response:X
10 30 connection.tune channel_max:s frame_max:l heartbeat:s
10 31 connection.tune-ok channel_max:s frame_max:l heartbeat:s
10 40 connection.open vhost:S _:S _:b
10 41 connection.open-ok _:S
10 50 connection.close code:s text:S class_id:s method_id:s
10 51 connection.close-ok
10 60 connection.blocked reason:S
10 61 connection.unblocked
10 70 connection.update-secret secret:X reason:S
10 71 connection.update-secret-ok
20 10 channel.open _:S
20 11 channel.open-ok _:X
20 20 channel.flow active:b
20 21 channel.flow-ok active:b
20 40 channel.close code:s text:S class_id:s method_id:s
20 41 channel.close-ok
40 10 exchange.declare _:s exchange:S type:S passive:b durable:b auto_delete:b internal:b nowait:b arguments:F
40 11 exchange.declare-ok
40 20 exchange.delete _:s exchange:S if_unused:b nowait:b
40 21 exchange.delete-ok
40 30 exchange.bind _:s destination:S source:S routing_key:S nowait:b arguments:F
40 31 exchange.bind-ok
40 40 exchange.unbind _:s destination:S source:S routing_key:S nowait:b arguments:F
40 51 exchange.unbind-ok
50 10 queue.declare _:s queue:S passive:b durable:b exclusive:b auto_delete:b nowait:b arguments:F
50 11 queue.declare-ok queue:S message_count:l consumer_count:l
50 20 queue.bind _:s queue:S exchange:S routing_key:S nowait:b arguments:F
50 21 queue.bind-ok
50 30 queue.purge _:s queue:S nowait:b
50 31 queue.purge-ok message_count:l
50 40 queue.delete _:s queue:S if_unused:b if_empty:b nowait:b
50 41 queue.delete-ok message_count:l
50 50 queue.unbind _:s queue:S exchange:S routing_key:S arguments:F
50 51 queue.unbind-ok
60 10 basic.qos prefetch_size:l prefetch_count:s global_:b
60 11 basic.qos-ok
60 20 basic.consume _:s queue:S consumer_tag:S no_local:b no_ack:b exclusive:b nowait:b arguments:F
60 21 basic.consume-ok consumer_tag:S
60 30 basic.cancel consumer_tag:S nowait:b
60 31 basic.cancel-ok consumer_tag:S
60 40 basic.publish _:s exchange:S routing_key:S mandatory:b immediate:b
60 50 basic.return code:s text:S exchange:S routing_key:S
60 60 basic.deliver consumer_tag:S delivery_tag:L redelivered:b exchange:S routing_key:S
60 70 basic.get _:s queue:S no_ack:b
60 71 basic.get-ok delivery_tag:L redelivered:b exchange:S routing_key:S message_count:l
60 72 basic.get-empty _:S
60 80 basic.ack delivery_tag:L multiple:b
60 90 basic.reject delivery_tag:L requeue:b
60 100 basic.recover-async requeue:b
60 110 basic.recover requeue:b
60 111 basic.recover-ok
60 120 basic.nack delivery_tag:L multiple:b requeue:b
85 10 confirm.select nowait:b
85 11 confirm.select-ok
90 10 tx.select
90 11 tx.select-ok
90 20 tx.commit
90 21 tx.commit-ok
90 30 tx.rollback
90 31 tx.rollback-ok
"""

# In the order of their flags, from bit 15 down.
_PROPERTIES = [
    ("content_type", "S"), ("content_encoding", "S"), ("headers", "F"), ("delivery_mode", "o"), ("priority", "o"),
    ("correlation_id", "S"), ("reply_to", "S"), ("expiration", "S"), ("message_id", "S"), ("timestamp", "L"),
    ("type", "S"), ("user_id", "S"), ("app_id", "S"), ("cluster_id", "S"),
]  # fmt: skip

_FORMATS = {"o": ">B", "s": ">H", "l": ">I", "L": ">Q"}
_WITH_CONTENT = {"basic.return", "basic.deliver", "basic.get-ok"}


def _read_specification():
    by_name, by_number = {}, {}
    for line in _SPECIFICATION.strip().splitlines():
        class_id, method_id, name, *arguments = line.split()
        shape = [tuple(argument.split(":")) for argument in arguments]
        by_name[name] = (int(class_id), int(method_id), shape)
        by_number[int(class_id), int(method_id)] = (name, shape)
    return by_name, by_number


BY_NAME, BY_NUMBER = _read_specification()


class Dropped(Exception):
    """The broker ended the TCP connection."""


class TimedOut(Exception):
    """The test's deadline came first."""


class Closed(Exception):
    """The broker closed a channel or the connection: `what`, `code`, `text`, and the method it blames."""

    def __init__(self, what, method):
        self.what, self.code, self.text = what, method.code, method.text
        self.blames = (method.class_id, method.method_id)
        super().__init__(f"{what} closed: {self.code} {self.text} {self.blames}")


class Method:
    """One that was received, with its arguments as attributes; and `message`, if it carries one."""

    def __init__(self, name, arguments):
        self.name, self.message = name, None
        self.__dict__.update(arguments)

    def __repr__(self):
        return f"{self.name} {({key: value for key, value in self.__dict__.items() if key != 'name'})}"


class Message:
    """`properties` without headers; `headers` in plain Python; `tagged`: the same as (type, value), all the way down."""

    def __init__(self, properties, size):
        self.tagged = properties.pop("headers", None)
        self.headers = None if self.tagged is None else plain(("F", self.tagged))
        self.properties, self.size, self.body = properties, size, b""
        self.frames = 0

    def __repr__(self):
        return f"{self.body[:60]!r} {self.properties} {self.headers}"


# Field tables.


def tag_of(value):
    """A Python value as (type, value); a pair that is one already stays."""
    if isinstance(value, tuple):
        return value
    if isinstance(value, bool):
        return "t", value
    if isinstance(value, int):
        return ("I" if -(2**31) <= value < 2**31 else "l"), value
    for kind, letter in ((str, "S"), (bytes, "x"), (float, "d"), (dict, "F"), (list, "A"), (type(None), "V")):
        if isinstance(value, kind):
            return letter, value
    raise TypeError(value)


_SCALARS = {"b": ">b", "B": ">B", "s": ">h", "u": ">H", "I": ">i", "i": ">I", "l": ">q", "L": ">q", "f": ">f", "d": ">d", "T": ">Q"}


def encode_value(value):
    kind, value = tag_of(value)
    return kind.encode() + _encode_untagged(kind, value)


def _encode_untagged(kind, value):
    if kind in _SCALARS:
        return struct.pack(_SCALARS[kind], value)
    if kind == "t":
        return struct.pack(">?", value)
    if kind == "V":
        return b""
    if kind == "D":
        return struct.pack(">Bi", *value)
    if kind == "F":
        return encode_table(value)
    if kind == "A":
        content = b"".join(encode_value(item) for item in value)
    elif kind in "Sx":
        content = value.encode() if isinstance(value, str) else value
    else:
        content = value  # A type that does not exist: its bytes as they are.
        return content
    return struct.pack(">I", len(content)) + content


def encode_table(table):
    content = b"".join(_short_string(name) + encode_value(value) for name, value in table.items())
    return struct.pack(">I", len(content)) + content


def plain(tagged):
    kind, value = tagged
    if kind == "F":
        return {name: plain(item) for name, item in value.items()}
    if kind == "A":
        return [plain(item) for item in value]
    return value


def _short_string(text):
    raw = text.encode() if isinstance(text, str) else text
    return struct.pack(">B", len(raw)) + raw


class Reader:
    def __init__(self, raw):
        self.raw, self.at = raw, 0

    def take(self, size):
        part = self.raw[self.at : self.at + size]
        assert len(part) == size, "the broker's frame is too short for what it says it contains"
        self.at += size
        return part

    def number(self, form):
        return struct.unpack(form, self.take(struct.calcsize(form)))[0]

    def text(self, size):
        raw = self.take(size)
        try:
            return raw.decode()
        except UnicodeDecodeError:
            return raw

    def value(self):
        kind = chr(self.take(1)[0])
        if kind in _SCALARS:
            return kind, self.number(_SCALARS[kind])
        if kind == "t":
            return kind, self.number(">?")
        if kind == "V":
            return kind, None
        if kind == "D":
            return kind, struct.unpack(">Bi", self.take(5))
        if kind == "F":
            return kind, self.table()
        size = self.number(">I")
        if kind == "A":
            inner, items = Reader(self.take(size)), []
            while inner.at < size:
                items.append(inner.value())
            return kind, items
        if kind == "S":
            return kind, self.text(size)
        assert kind == "x", f"the broker sent a field of type {kind!r}"
        return kind, self.take(size)

    def table(self):
        inner, fields = Reader(self.take(self.number(">I"))), {}
        while inner.at < len(inner.raw):
            name = inner.text(inner.number(">B"))
            fields[name] = inner.value()
        return fields

    def arguments(self, shape):
        values, bits = {}, []
        for name, kind in shape:
            if kind == "b":
                if not bits:
                    octet = self.number(">B")
                    bits = [bool(octet >> bit & 1) for bit in range(8)]
                value = bits.pop(0)
            else:
                bits = []
                if kind == "S":
                    value = self.text(self.number(">B"))
                elif kind == "X":
                    value = self.text(self.number(">I"))
                elif kind == "F":
                    value = self.table()
                else:
                    value = self.number(_FORMATS[kind])
            values[name] = value
        values.pop("_", None)
        return values


def encode_method(name, **arguments):
    class_id, method_id, shape = BY_NAME[name]
    unknown = arguments.keys() - {argument for argument, _ in shape}
    assert not unknown, f"{name} has no {unknown}"
    out, bits, bit = struct.pack(">HH", class_id, method_id), 0, 0
    for argument, kind in shape:
        if kind == "b":
            bits |= bool(arguments.get(argument)) << bit
            bit += 1
            continue
        if bit:
            out, bits, bit = out + bytes([bits]), 0, 0
        if kind == "S":
            out += _short_string(arguments.get(argument, ""))
        elif kind == "X":
            raw = arguments.get(argument, "")
            raw = raw.encode() if isinstance(raw, str) else raw
            out += struct.pack(">I", len(raw)) + raw
        elif kind == "F":
            table = arguments.get(argument, {})
            out += table if isinstance(table, bytes) else encode_table(table)
        else:
            out += struct.pack(_FORMATS[kind], arguments.get(argument, 0))
    return out + (bytes([bits]) if bit else b"")


def encode_header(size, properties, class_id=60):
    unknown = properties.keys() - {name for name, _ in _PROPERTIES}
    assert not unknown, f"there is no property {unknown}"
    flags, out = 0, b""
    for bit, (name, kind) in enumerate(_PROPERTIES):
        if name not in properties:
            continue
        flags |= 1 << (15 - bit)
        value = properties[name]
        if kind == "S":
            out += _short_string(value)
        elif kind == "F":
            out += value if isinstance(value, bytes) else encode_table(value)
        else:
            out += struct.pack(_FORMATS[kind], value)
    return struct.pack(">HHQH", class_id, 0, size, flags) + out


def decode_header(raw):
    reader = Reader(raw)
    _, _, size, flags = (reader.number(form) for form in (">H", ">H", ">Q", ">H"))
    shape = [entry for bit, entry in enumerate(_PROPERTIES) if flags >> (15 - bit) & 1]
    return Message(reader.arguments(shape), size)


class Connection:
    """`open=False` stops after the TCP connection; `handshake` does the rest."""

    def __init__(self, port, deadline, open=True, **options):
        self.deadline = deadline
        self.socket = socket.create_connection(("127.0.0.1", port), timeout=self.left())
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.buffer = b""
        self.channels = {}
        self.inbox = collections.deque()
        self.closed = None
        self.largest_frame = 0
        self.heartbeats = 0
        self.frame_max = 131072
        if open:
            self.handshake(**options)

    def handshake(self, user="guest", password="guest", vhost="/", capabilities=CAPABILITIES, mechanism="PLAIN",
                  channel_max=None, frame_max=None, heartbeat=0):  # fmt: skip
        self.socket.sendall(PROTOCOL_HEADER)
        self.start = self.expect("connection.start")
        response = f"\0{user}\0{password}"
        if mechanism == "AMQPLAIN":
            response = encode_table({"LOGIN": user, "PASSWORD": password})[4:]
        self.send("connection.start-ok", client_properties={"capabilities": capabilities}, mechanism=mechanism,
                  response=response, locale="en_US")  # fmt: skip
        self.tune = self.expect("connection.tune")
        self.frame_max = self.tune.frame_max if frame_max is None else frame_max
        self.send("connection.tune-ok", channel_max=self.tune.channel_max if channel_max is None else channel_max,
                  frame_max=self.frame_max, heartbeat=heartbeat)  # fmt: skip
        self.send("connection.open", vhost=vhost)
        self.expect("connection.open-ok")

    def left(self):
        left = self.deadline - time.monotonic()
        if left <= 0:
            raise TimedOut("the test's time is over")
        return left

    # Out.

    def send_raw(self, raw):
        try:
            self.socket.settimeout(self.left())
            self.socket.sendall(raw)
        except (BrokenPipeError, ConnectionResetError):
            # What it said before may be there to read.
            pass

    def send_frame(self, kind, channel, payload):
        self.send_raw(frame(kind, channel, payload))

    def send(self, name, **arguments):
        self.send_frame(METHOD, 0, encode_method(name, **arguments))

    # In.

    def read_frame(self):
        """(kind, channel, payload)"""
        while True:
            if len(self.buffer) >= 7:
                kind, channel, size = struct.unpack(">BHI", self.buffer[:7])
                if len(self.buffer) >= size + 8:
                    payload, end = self.buffer[7 : 7 + size], self.buffer[7 + size]
                    self.buffer = self.buffer[8 + size :]
                    assert end == FRAME_END, "the broker's frame does not end as one"
                    self.largest_frame = max(self.largest_frame, size + 8)
                    return kind, channel, payload
            self.socket.settimeout(self.left())
            try:
                part = self.socket.recv(1 << 16)
            except TimeoutError:
                raise TimedOut("nothing came before the test's time was over") from None
            except ConnectionResetError:
                part = b""
            if not part:
                raise self.closed or Dropped("the broker dropped the connection")
            self.buffer += part

    def pump(self):
        """Reads one frame and puts it where it belongs."""
        kind, number, payload = self.read_frame()
        if kind == HEARTBEAT:
            self.heartbeats += 1
            return
        if number == 0:
            self.handle_own(decode_method(payload))
            return
        channel = self.channels.get(number)
        assert channel is not None, f"a frame for channel {number}, which is not open"
        channel.handle(kind, payload)

    def handle_own(self, method):
        if method.name == "connection.close":
            self.closed = Closed("connection", method)
            self.send("connection.close-ok")
        else:
            self.inbox.append(method)

    def expect(self, *names):
        return take(self, self, names)

    def check(self):
        if self.closed:
            raise self.closed

    def await_closed(self):
        """Reads until the broker closes or drops it, and raises that."""
        while True:
            self.check()
            self.pump()

    def await_dropped(self):
        """Reads until the TCP connection ends."""
        while True:
            try:
                self.pump()
            except (Dropped, Closed):
                return

    def channel(self, number=None):
        number = number or next(n for n in range(1, 65536) if n not in self.channels)
        channel = Channel(self, number)
        channel.call("channel.open")
        return channel

    def close(self):
        if not self.closed:
            self.send("connection.close", code=200, text="bye")
            self.expect("connection.close-ok")
        self.socket.close()

    def abort(self):
        self.socket.close()


class Channel:
    def __init__(self, connection, number):
        self.connection, self.number = connection, number
        self.inbox = collections.deque()
        self.closed = None
        self.incoming = None
        connection.channels[number] = self

    def send(self, name, **arguments):
        self.connection.send_frame(METHOD, self.number, encode_method(name, **arguments))

    def call(self, name, **arguments):
        """Sends a method and returns its answer; raises `Closed` instead if the broker closes."""
        self.send(name, **arguments)
        answers = ("basic.get-ok", "basic.get-empty") if name == "basic.get" else (name + "-ok",)
        return self.expect(*answers)

    def expect(self, *names):
        """The next method of one of these names; others that come before it stay."""
        return take(self.connection, self, names)

    def next(self):
        """The next method, whatever it is."""
        return take(self.connection, self, None)

    def handle(self, kind, payload):
        if kind == METHOD:
            assert self.incoming is None, "a method amid a message's frames"
            method = decode_method(payload)
            if method.name == "channel.close":
                self.closed = Closed("channel", method)
                self.send("channel.close-ok")
                del self.connection.channels[self.number]
            elif method.name in _WITH_CONTENT:
                self.incoming = method
            else:
                self.inbox.append(method)
            return
        assert self.incoming is not None, "a content frame without a method before it"
        if kind == HEADER:
            self.incoming.message = decode_header(payload)
        else:
            assert payload, "an empty body frame"
            self.incoming.message.body += payload
            self.incoming.message.frames += 1
        if len(self.incoming.message.body) == self.incoming.message.size:
            self.inbox.append(self.incoming)
            self.incoming = None

    def publish(self, exchange, routing_key, body=b"", mandatory=False, immediate=False, **properties):
        """In one write: the method, the header, the body in frames as large as negotiated."""
        body = body.encode() if isinstance(body, str) else body
        arguments = {"exchange": exchange, "routing_key": routing_key, "mandatory": mandatory, "immediate": immediate}
        out = frame(METHOD, self.number, encode_method("basic.publish", **arguments))
        out += frame(HEADER, self.number, encode_header(len(body), properties))
        step = (self.connection.frame_max or 131072) - 8
        for at in range(0, len(body), step):
            out += frame(BODY, self.number, body[at : at + step])
        self.connection.send_raw(out)

    def sync(self):
        """When it returns the broker has dealt with all that was sent on this channel before."""
        return self.call("exchange.declare", exchange="amq.direct", type="direct", passive=True)

    def close(self):
        self.call("channel.close", code=200, text="bye")
        del self.connection.channels[self.number]


def take(connection, owner, names):
    while True:
        for at, method in enumerate(owner.inbox):
            if names is None or method.name in names:
                del owner.inbox[at]
                return method
        connection.check()
        if owner.closed:
            raise owner.closed
        connection.pump()


def frame(kind, channel, payload):
    return struct.pack(">BHI", kind, channel, len(payload)) + payload + bytes([FRAME_END])


def decode_method(payload):
    reader = Reader(payload)
    number = reader.number(">H"), reader.number(">H")
    name, shape = BY_NUMBER[number]
    method = Method(name, reader.arguments(shape))
    assert reader.at == len(payload), f"{name} has more than it should"
    return method
