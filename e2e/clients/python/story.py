"""What every Python client of the scene needs: where the brokers are, how a step is reported, and the ledger.

It speaks no AMQP; each client does that in its own library's words.
"""

import json
import os
import sys
import time
import traceback
from contextlib import contextmanager

# Between two rounds over the addresses: a client that finds no door open waits this long, as an application would.
RECONNECT_PAUSE_SECONDS = 0.1


def say(**line):
    print(json.dumps(line), flush=True)


class Story:
    def __init__(self):
        scene = json.loads(os.environ["UNDERSTUDY_SCENE"])
        self.name = scene["name"]
        # A directory of ca.crt, client.crt and client.key; none without TLS.
        self.certificates = scene["certificates"]
        self.addresses = [parse_address(text) for text in scene["addresses"]]
        self.backup = parse_address(scene["backup"])
        self.round = scene["round"]
        self.left = scene["left"]
        self.reply = b"answer".ljust(scene["reply_bytes"], b".")
        self.resume = scene["resume"]
        self.patience_seconds = scene["patience_seconds"]

    def from_backup(self):
        """The addresses in the order of one whose first door is a backup's."""
        at = self.addresses.index(self.backup)
        return self.addresses[at:] + self.addresses[:at]

    @contextmanager
    def step(self, name):
        """Reports the step; the first that fails ends the client, since the later ones stand on it."""
        detail = []
        try:
            yield detail
        except Exception as error:
            traceback.print_exc()
            say(step=name, ok=False, detail=f"{type(error).__name__}: {error}")
            sys.exit(1)
        say(step=name, ok=True, detail=", ".join(detail))

    def deadline(self):
        return time.monotonic() + self.patience_seconds


def parse_address(text):
    host, port = text.rsplit(":", 1)
    return host, int(port)


def expect(condition, otherwise):
    if not condition:
        raise AssertionError(otherwise)


def numbers(count):
    return list(range(count))


class Ledger:
    """Which messages were confirmed and which came, so that none is missed and none comes twice unannounced."""

    def __init__(self, resume):
        self.resume = resume
        self.next = 0
        self.confirmed = set()
        self.received = set()
        self.doubled = []
        self.losses = {"publisher": 0, "consumer": 0}
        self.since_loss = {"publisher": 0, "consumer": 0}
        self.live_said = False

    def number(self):
        """A message's number is used once: what was not confirmed is not sent again."""
        self.next += 1
        return self.next - 1

    def confirm(self, number):
        self.confirmed.add(number)
        self.since_loss["publisher"] += 1
        self._say_live()

    def receive(self, number, redelivered):
        if number in self.received:
            if not redelivered:
                self.doubled.append(number)
            return
        self.received.add(number)
        self.since_loss["consumer"] += 1
        self._say_live()

    def lose(self, side):
        self.losses[side] += 1
        self.since_loss[side] = 0

    def resumed(self):
        """Both sides were lost and went on: enough was published."""
        return all(self.losses.values()) and all(count >= self.resume for count in self.since_loss.values())

    def done(self):
        return self.resumed() and not self.missing()

    def missing(self):
        return sorted(self.confirmed - self.received)

    def close(self, detail):
        """The verdict, after `done` or its deadline."""
        expect(all(self.losses.values()), f"never told of the primary's death: {self.losses}")
        for side, count in self.since_loss.items():
            expect(count >= self.resume, f"the {side} did not resume: {count} messages since its connection was lost")
        expect(not self.missing(), f"confirmed and never delivered: {self.missing()}")
        expect(not self.doubled, f"delivered twice without the redelivered flag: {self.doubled}")
        detail.append(f"{len(self.confirmed)} confirmed, {len(self.received)} received")

    def _say_live(self):
        if not self.live_said and min(len(self.confirmed), len(self.received)) >= self.resume:
            self.live_said = True
            say(live=True)
