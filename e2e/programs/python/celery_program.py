"""Celery: workers in processes of their own, and a caller. As argument "classic" (late acknowledgements, priorities, results over
rpc://, remote control, events) or "quorum" (quorum queues, countdowns by native delayed delivery, chords with a backend of files)."""

import collections
import hashlib
import json
import os
import random
import signal
import subprocess
import sys
import threading
import time

MODE = sys.argv[1]
os.environ["CELERY_MODE"] = MODE

from celery import chain, chord, group  # noqa: E402, since the tasks read the mode.
from celery.exceptions import TimeoutError as NoResult  # noqa: E402
from kombu.exceptions import OperationalError  # noqa: E402

from celery_tasks import DOOMED, LEDGER, MAX_PRIORITY, URGENT, add, app, deadly, endless, fickle, length, total, weigh, work  # noqa: E402
from program import EARLY_SECONDS, KILLS, LATE_SECONDS, Effects, check, done, kill_primary, log, same, wait_for  # noqa: E402

WORK, URGENT_TASKS = 120, 40
# So many are done when the primary is killed, and half of them are published.
DONE_AT_KILL = 20
# How long a result may take that the broker need not keep.
ASK_SECONDS = 8
# Of the ladder that native delayed delivery is: a queue for each bit of the seconds.
LEVELS = 28
# Beyond 1 MiB a message comes in parts.
LOAD_BYTES = 1_500_000
NO_CHORDS = 'The "rpc" result backend does not support chords!'
LOST = (OperationalError, *app.connection().connection_errors)


class Worker:
    """Leads a process group, so that all of it can be killed."""

    def __init__(self, name, *options):
        self.name = f"{name}@programs"
        command = [sys.executable, "-m", "celery", "-A", "celery_tasks", "worker", "-n", self.name, "--loglevel", "info"]
        environment = {**os.environ, "C_FORCE_ROOT": "1"}  # It takes tasks from this program alone.
        self.process = subprocess.Popen(
            [*command, "--without-mingle", "--without-gossip", *options],
            stdout=sys.stderr, stdin=subprocess.DEVNULL, env=environment, process_group=0,
        )  # fmt: skip

    def kill(self):
        os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()

    def stop(self):
        self.process.terminate()
        try:
            self.process.wait(timeout=8)
        except subprocess.TimeoutExpired:
            pass
        try:
            self.kill()
        except ProcessLookupError:
            pass  # Nobody of it is left.


class Ledger:
    """What the tasks wrote down, read to its present end."""

    def __init__(self):
        self.lines, self.place = [], 0

    def read(self):
        if os.path.exists(LEDGER):
            with open(LEDGER) as file:
                file.seek(self.place)
                for line in file.read().splitlines(keepends=True):
                    if line.endswith("\n"):
                        self.lines.append(json.loads(line))
                        self.place += len(line)
        return self.lines

    def of(self, kind, task):
        return [line for line in self.read() if line["kind"] == kind and line["task"] == task]

    def keys(self, kind, task, prefix=""):
        return [line["key"] for line in self.of(kind, task) if line["key"].startswith(prefix)]

    def effects(self, task, prefix=""):
        effects = Effects()
        for line in self.of("end", task):
            if line["key"].startswith(prefix):
                effects.add(line["key"], line["redelivered"], line["at"])
        return effects

    def republished(self):
        return sum(line["kind"] == "republish" for line in self.read())


class Monitor(threading.Thread):
    """What `celery events` does: takes the workers' events, over a new connection where the old one broke."""

    def __init__(self):
        super().__init__(daemon=True)
        self.kinds = collections.defaultdict(set)
        self.connections = 0

    def run(self):
        while True:
            try:
                with app.connection_for_read() as connection:
                    connection.ensure_connection(interval_start=0.1, interval_step=0.1, interval_max=0.5)
                    receiver = app.events.Receiver(connection, handlers={"*": self.heard})
                    self.connections += 1
                    receiver.capture(limit=None, timeout=None, wakeup=True)
            except (*LOST, *connection.channel_errors) as error:
                log(f"monitor: {error!r}")

    def heard(self, event):
        self.kinds[event["type"]].add(event.get("uuid") or event["hostname"])


def insist(ask, seconds=45):
    """The first answer that is not none. Remote control is best effort: who asks amid a failover asks again."""

    def once():
        try:
            return ask()
        except (NoResult, *LOST) as error:
            log(f"asking again: {error!r}")
            return None

    return wait_for(once, "an answer", seconds)


def pong(worker):
    replies = app.control.inspect(destination=[worker.name], timeout=1).ping()
    return replies == {worker.name: {"ok": "pong"}} or None


def active(worker):
    replies = app.control.inspect(destination=[worker.name], timeout=1).active()
    return replies and [task["name"].rsplit(".", 1)[-1] for task in replies[worker.name]]


def results(scene, when):
    """A group's and a chain's results, asked for anew where an answer was lost with a connection."""
    asked = []

    def ask(signature):
        asked.append(signature)
        return signature.apply_async().get(timeout=ASK_SECONDS)

    got = insist(lambda: ask(group(add.s(number, number) for number in range(10))))
    same(scene, f"a group's results {when}", got, [2 * number for number in range(10)], f"asked {len(asked)} times for both")
    got = insist(lambda: ask(chain(add.s(1, 2), add.s(3), add.s(4))))
    same(scene, f"a chain's result {when}", got, 10)


def classic():
    ledger, monitor = Ledger(), Monitor()
    monitor.start()
    workers = [Worker("main", "--pool", "prefork", "--concurrency", "2")]
    try:
        main = workers[0]
        insist(lambda: pong(main))
        check("remote control", "ping", True)
        sleeper = work.delay("sleeper", 4.0)
        same("remote control", "active", insist(lambda: active(main)), ["work"])
        results("results over rpc", "before")
        try:
            chord([add.s(1, 1)])(total.s())
            said = "nothing"
        except NotImplementedError as error:
            said = str(error).splitlines()[0]
        same("results over rpc", "a chord is refused, as Celery says", said, NO_CHORDS)
        workers_die(ledger, workers)
        urgent = priorities(workers)
        wait_for(lambda: ledger.keys("end", "work", "sleeper"), "the sleeper")

        published = [f"work/{number}" for number in range(WORK)]
        for number, key in enumerate(published):
            if number == WORK // 2:
                wait_for(
                    lambda: len(ledger.keys("end", "work", "work/")) >= DONE_AT_KILL
                    and len(ledger.keys("end", "work", "urgent/")) >= URGENT_TASKS // 4,
                    "work to be going on",
                )
                kill_primary()
            work.delay(key)
            if number % 10 == 7:
                fickle.delay(f"fickle/{number}", 2)
        retried = [f"fickle/{number}/{turn}" for number in range(7, WORK, 10) for turn in (0, 1)]
        wait_for(lambda: set(published + urgent) <= set(ledger.keys("end", "work")), lambda: missing(ledger, "work", published + urgent))
        wait_for(lambda: set(retried) <= set(ledger.keys("end", "fickle")), lambda: missing(ledger, "fickle", retried))
        ledger.effects("work", "work/").judge("late acknowledgement", published, ledger.republished())
        ledger.effects("fickle").judge("retry with countdown", retried, ledger.republished())
        in_order(ledger, urgent)

        same("results over rpc", "the result from before the kill", insist(lambda: sleeper.get(timeout=ASK_SECONDS)), "sleeper")
        results("results over rpc", "after")
        check("remote control", "ping after", insist(lambda: pong(main)))
        # So that it can be seen, whoever looks late.
        work.delay("sleeper/2", 4.0)
        same("remote control", "active after", insist(lambda: active(main)), ["work"])
        events(monitor)
    finally:
        for worker in workers:
            worker.stop()
    done()


def missing(ledger, task, keys):
    return f"the end of {sorted(set(keys) - set(ledger.keys('end', task)))}"


def workers_die(ledger, workers):
    """A child is killed in its task, then a whole worker."""
    deadly.delay("deadly")
    wait_for(lambda: ledger.keys("end", "deadly"), "the task whose child died")
    same("workers killed in tasks", "the child's task was begun twice", len(ledger.keys("begin", "deadly")), 2)
    doomed = Worker("doomed", "--pool", "prefork", "--concurrency", "2", "-Q", DOOMED)
    workers.append(doomed)
    endless.apply_async(("endless",), queue=DOOMED)
    wait_for(lambda: ledger.keys("begin", "endless"), "the endless task")
    doomed.kill()
    app.control.add_consumer(DOOMED, destination=[workers[0].name], reply=False)
    wait_for(lambda: ledger.keys("end", "endless"), "the task whose worker died")
    came = [(line["kind"], line["redelivered"]) for line in ledger.of("begin", "endless") + ledger.of("end", "endless")]
    same("workers killed in tasks", "the worker's task came again, marked", came, [("begin", False), ("begin", True), ("end", True)])


def priorities(workers):
    """All are in the queue before its one worker comes, which holds one at a time."""
    order = [number % (MAX_PRIORITY + 1) for number in range(URGENT_TASKS)]
    random.Random(7).shuffle(order)
    keys = [f"urgent/{priority}/{number:02}" for number, priority in enumerate(order)]
    for priority, key in zip(order, keys):
        work.apply_async((key, 0.1), queue=URGENT, priority=priority)
    workers.append(Worker("urgent", "--pool", "solo", "-Q", URGENT))
    return keys


def in_order(ledger, keys):
    ledger.effects("work", "urgent/").judge("priorities", keys, 0)
    first = list(dict.fromkeys(ledger.keys("begin", "work", "urgent/")))
    expected = sorted(keys, key=lambda key: (-int(key.split("/")[1]), key.split("/")[2]))
    same("priorities", "the most urgent first, and in order among equals", first, expected)


def events(monitor):
    before = monitor.connections
    check("events", "before and after came over two connections", before >= 2 or not KILLS, str(before))
    late = [add.delay(number, 1000).id for number in range(10)]
    for kind in ("task-sent", "task-received", "task-started", "task-succeeded"):
        wait_for(lambda: set(late) <= monitor.kinds[kind], f"the event {kind} of {late}")
        check("events", kind, True, f"{len(monitor.kinds[kind])} in all")
    check("events", "worker-heartbeat", monitor.kinds["worker-heartbeat"], str(sorted(monitor.kinds["worker-heartbeat"])))
    check("events", "task-retried", monitor.kinds["task-retried"], f"{len(monitor.kinds['task-retried'])}")


def heavy(due):
    """Tasks too large for one record, which go through two or three queues of the ladder."""
    for number, countdown in enumerate([3, 5, 7, 3, 5, 7]):
        key, load = f"heavy/{number}", random.Random(number).randbytes(LOAD_BYTES // 2).hex()
        due[key] = time.time() + countdown
        weigh.apply_async((key, load, hashlib.sha256(load.encode()).hexdigest()), countdown=countdown)


def countdowns(published, prefix, seconds):
    """Publishes them, and says when each is due."""
    for number, countdown in enumerate(seconds):
        key = f"{prefix}/{number}/{countdown}"
        # Before it is sent: as late as this the ladder may count from.
        published[key] = time.time() + countdown
        work.apply_async((key, 0.0), countdown=countdown)


def quorum():
    ledger, due, heavy_due = Ledger(), {}, {}
    workers = [Worker("quorum", "--pool", "prefork", "--concurrency", "2")]
    try:
        insist(lambda: pong(workers[0]))
        # The ladder of delays is there once the worker has all its queues; a first task shows that.
        due["first/0/1"] = time.time() + 1
        wait_for(lambda: len(app.control.inspect(timeout=1).active_queues() or []) == 1, "the worker's queues")
        work.apply_async(("warm", 0.0))
        wait_for(lambda: ledger.keys("end", "work", "warm"), "the first task")
        due.clear()
        early = chord([work.s(f"header/{number}", 0.2) for number in range(12)])(length.s())
        heavy(heavy_due)
        countdowns(due, "before", [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 12, 15] * 3)
        wait_for(lambda: len(ledger.keys("end", "work", "header/")) >= 4 and ledger.keys("end", "work", "before/"), "delays to end")
        # In the broker, that is, and not in a worker's memory.
        waiting = sum(ready(f"celery_delayed_{level}") for level in range(LEVELS))
        check("countdowns", "wait in the ladder's queues", waiting >= 12, f"{waiting} when the primary is killed")
        kill_primary()
        countdowns(due, "after", [1, 2, 3, 5, 8, 12] * 3)
        for number in range(12):
            fickle.delay(f"fickle/{number}", 1 + number % 3)
        late = chord([add.s(number, number) for number in range(10)])(total.s())

        wait_for(lambda: set(due) <= set(ledger.keys("end", "work")), lambda: missing(ledger, "work", due))
        wait_for(lambda: set(heavy_due) <= set(ledger.keys("end", "weigh")), lambda: missing(ledger, "weigh", heavy_due))
        came = ledger.effects("weigh")
        came.judge("large messages", heavy_due, ledger.republished())
        punctual("large messages", "each came when it was due", [min(at for _, at in came.by_key[key]) - heavy_due[key] for key in heavy_due])
        retried = [f"fickle/{number}/{turn}" for number in range(12) for turn in (0, 1)]
        wait_for(lambda: set(retried) <= set(ledger.keys("end", "fickle")), lambda: missing(ledger, "fickle", retried))
        on_time(ledger, due)
        ledger.effects("fickle").judge("delayed retry", retried, ledger.republished())
        waits = {}
        for key, effects in ledger.effects("fickle").by_key.items():
            number, turn = key.split("/")[1:]
            waits.setdefault(number, {})[turn] = min(at for _, at in effects)
        apart = [waits[number]["1"] - waits[number]["0"] - (1 + int(number) % 3) for number in waits]
        punctual("delayed retry", "each retry came when it was due", apart)

        same("chords", "across the kill", early.get(timeout=45), 12)
        same("chords", "begun after it", late.get(timeout=45), sum(2 * number for number in range(10)))
        headers = [f"header/{number}" for number in range(12)]
        ledger.effects("work", "header/").judge("chords", headers, ledger.republished())
        results("groups and chains", "after")
        check("remote control", "ping after", insist(lambda: pong(workers[0])))
        left = {f"celery_delayed_{level}": ready(f"celery_delayed_{level}") for level in range(LEVELS)} | {"celery": ready("celery")}
        same("countdowns", "nothing is left in any queue", {queue: count for queue, count in left.items() if count}, {})
    finally:
        for worker in workers:
            worker.stop()
    done()


def ready(queue):
    with app.connection_for_read() as connection:
        return connection.default_channel.queue_declare(queue, passive=True).message_count


def on_time(ledger, due):
    came = Effects()
    for prefix in ("before/", "after/"):
        for key, effects in ledger.effects("work", prefix).by_key.items():
            for redelivered, at in effects:
                came.add(key, redelivered, at)
    came.judge("countdowns", due, ledger.republished())
    for prefix, when in (("before/", "from before the kill"), ("after/", "from after it")):
        late = [min(at for _, at in came.by_key[key]) - due[key] for key in due if key.startswith(prefix) and key in came.by_key]
        punctual("countdowns", f"each one {when} came when it was due", late)


def punctual(scene, what, late):
    check(scene, what, -EARLY_SECONDS <= min(late) and max(late) <= LATE_SECONDS, f"{min(late):+.2f} to {max(late):+.2f} s")


{"classic": classic, "quorum": quorum}[MODE]()
