"""What a program tells its runner, and what it learns from it: one JSON object a line.

Out: {"scene", "check", "ok", "detail"} for each thing looked at; {"scene", "again"} for effects that came more than once;
{"scene", "skip"} with the reason; {"kill": true} where the primary shall die; {"done": true} at the very end.
In, as the answer to `kill`: a line, once the signal was sent. This file knows no AMQP.
"""

import collections
import json
import os
import sys
import threading
import time

GIVEN = json.loads(os.environ["UNDERSTUDY_PROGRAM"])
# "127.0.0.1:5672" and so on. One of them is the primary, at first.
ADDRESSES = GIVEN["addresses"]
# On RabbitMQ nobody is killed.
KILLS = GIVEN["kills"]
# For files of the program's own.
DIRECTORY = GIVEN["directory"]
# How long anything may take that is waited for.
PATIENCE_SECONDS = 45
# How much later than it should a message may come: a failover, and a machine that does something else too.
LATE_SECONDS = 3.0
# What the clocks of two processes, and whole milliseconds, may differ by.
EARLY_SECONDS = 0.05

_lock = threading.Lock()


def _tell(**report):
    with _lock:
        print(json.dumps(report), flush=True)


def check(scene, what, ok, detail=""):
    _tell(scene=scene, check=what, ok=bool(ok), detail="" if ok and not isinstance(detail, str) else str(detail)[:2000])
    return ok


def same(scene, what, got, expected, detail=""):
    check(scene, what, got == expected, detail if got == expected else f"expected {expected}, got {got}")


def again(scene, count):
    _tell(scene=scene, again=count)


def skip(scene, reason):
    _tell(scene=scene, skip=reason)


def kill_primary():
    _tell(kill=True)
    if not sys.stdin.readline():
        sys.exit("the runner is gone")


def done():
    _tell(done=True)


def log(text):
    print(f"{time.monotonic():.3f} {text}", file=sys.stderr, flush=True)


def wait_for(condition, what, seconds=PATIENCE_SECONDS):
    """The condition's first true answer; looked at often, since it is cheap. Ends the program if it never comes."""
    deadline = time.monotonic() + seconds
    while not (answer := condition()):
        if time.monotonic() > deadline:
            raise TimeoutError(f"not within {seconds} s: {what() if callable(what) else what}")
        time.sleep(0.02)
    return answer


class Effects:
    """What was done for which key, and whether the broker had said that it may have been delivered before."""

    def __init__(self):
        self.lock = threading.Lock()
        self.by_key = collections.defaultdict(list)

    def add(self, key, redelivered, at=None):
        with self.lock:
            self.by_key[key].append((bool(redelivered), time.time() if at is None else at))

    def __len__(self):
        return len(self.by_key)

    def keys(self):
        with self.lock:
            return set(self.by_key)

    def judge(self, scene, expected, republished):
        """Every key at least once and no other; what came again was marked, or its publisher never heard of the first."""
        with self.lock:
            came = {key: [redelivered for redelivered, _ in effects] for key, effects in self.by_key.items()}
        same(scene, "nothing confirmed is lost", sorted(set(expected) - set(came)), [], f"{len(set(expected))} of {len(set(expected))}")
        same(scene, "nothing came from nowhere", sorted(set(came) - set(expected)), [])
        repeated = {key: marks for key, marks in came.items() if len(marks) > 1}
        # Of those for one key one is the first. A mark may be on that one too.
        unmarked = sum(max(0, marks.count(False) - 1) for marks in repeated.values())
        check(
            scene,
            "what came again was marked as redelivered, or published again",
            unmarked <= republished and (KILLS or not repeated),
            f"{sum(len(marks) - 1 for marks in repeated.values())} again, {unmarked} unmarked, {republished} published again",
        )
        again(scene, sum(len(marks) - 1 for marks in repeated.values()))
