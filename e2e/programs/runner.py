"""Runs each program against three Understudy brokers of its own, kills their primary where the program says so, and shows in a table
what was checked; or against RabbitMQ, where nobody is killed, to see that the program itself is right.

This file knows no AMQP. What a program says is described in `python/program.py`.
"""

import argparse
import concurrent.futures
import contextlib
import json
import os
import queue
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import dataclass, field

HERE = os.path.dirname(os.path.abspath(__file__))
CACHE = os.environ["PROGRAMS_CACHE"]
sys.path.append(os.path.join(HERE, ".."))
import brokers  # noqa: E402, since it lies beside this directory.

# Most of them wait for something to be due.
AT_ONCE = 2
# Of one program, whatever it waits for.
LIMIT_SECONDS = 150
# Lines of a failed program's own words that are shown.
LAST_WORDS = 40
# How often the replicas' states are compared: many times in a program.
SCRUB_MS = 1000
# Brokers look for free ports, and take them a moment later.
STARTING = threading.Lock()
STOPPING = threading.Event()


def python(*words):
    return [sys.executable, os.path.join(HERE, "python", words[0]), *words[1:]]


def java(name):
    path = os.pathsep.join([os.path.join(CACHE, "java", "classes"), os.path.join(CACHE, "java", "lib", "*")])
    # Two JVMs beside six brokers: what starts soonest is what is wanted.
    return ["java", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Xmx256m", "-cp", path, name]


# Those that take longest come first.
PROGRAMS = {
    "celery-quorum": python("celery_program.py", "quorum"),
    "celery": python("celery_program.py", "classic"),
    "symfony": python("symfony.py"),
    "spring": java("SpringProgram"),
    "masstransit": python("masstransit.py"),
    "java": java("ClientProgram"),
}
# Those that know one host, as a DSN of Symfony's has it; whoever it is, and killed or not.
ONE_ADDRESS = {"symfony"}


@dataclass
class Scene:
    checks: list = field(default_factory=list)
    again: int = 0
    skipped: str = ""


class Play:
    """One program on one broker."""

    def __init__(self, name, broker, kills):
        self.name, self.broker, self.kills = name, broker, kills
        self.scenes = {}
        self.killed = []
        self.done = False
        self.wrong = ""
        self.complaints = []
        self.seconds = 0.0
        self.said = ""

    def scene(self, name):
        return self.scenes.setdefault(name, Scene())

    def run(self):
        started = time.monotonic()
        with tempfile.TemporaryDirectory(prefix="understudy-program-") as directory:
            log = os.path.join(directory, "stderr")
            try:
                with contextlib.ExitStack() as stack:
                    with STARTING:
                        stack.enter_context(self.broker)
                    self.converse(directory, log)
                    self.complaints = self.broker.complaints()
            except brokers.BrokerError as error:
                self.wrong = str(error)
            if os.path.exists(log):
                with open(log, errors="replace") as lines:
                    self.said = lines.read()
        self.seconds = time.monotonic() - started
        return self

    def converse(self, directory, log):
        addresses = self.broker.addresses()[: 1 if self.name in ONE_ADDRESS else None]
        given = {"addresses": addresses, "kills": self.kills, "directory": directory}
        environment = {
            **os.environ,
            "UNDERSTUDY_PROGRAM": json.dumps(given),
            "PYTHONPATH": os.path.join(HERE, "python"),
        }
        with open(log, "wb") as stderr:
            process = subprocess.Popen(
                PROGRAMS[self.name],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=stderr,
                text=True,
                env=environment,
                cwd=directory,
                start_new_session=True,
            )
        inbox = queue.Queue()

        def read():
            for line in process.stdout:
                inbox.put(line)
            inbox.put(None)

        threading.Thread(target=read, daemon=True).start()
        deadline = time.monotonic() + LIMIT_SECONDS
        try:
            while (line := self.next(inbox, deadline)) is not None:
                self.hear(json.loads(line), process)
            status = process.wait(timeout=max(0, deadline - time.monotonic()))
            if status != 0 or not self.done:
                self.wrong = f"it ended with status {status} before its end"
        except (queue.Empty, subprocess.TimeoutExpired):
            self.wrong = f"it has not ended within {LIMIT_SECONDS} s"
        except ValueError as error:
            self.wrong = f"it said what is no JSON: {error}"
        finally:
            end_session(process)

    def next(self, inbox, deadline):
        """The next line, or none where there are no more."""
        while not STOPPING.is_set():
            try:
                return inbox.get(timeout=0.2)
            except queue.Empty:
                if time.monotonic() > deadline:
                    raise
        raise brokers.BrokerError("stopped from outside")

    def hear(self, report, process):
        if report.get("done"):
            self.done = True
        elif report.get("kill"):
            if self.kills:
                self.killed.append(self.broker.kill_primary())
            try:
                process.stdin.write("killed\n")
                process.stdin.flush()
            except BrokenPipeError:
                pass  # It ended meanwhile, which is noticed by itself.
        elif "skip" in report:
            self.scene(report["scene"]).skipped = report["skip"]
        elif "again" in report:
            self.scene(report["scene"]).again += report["again"]
        else:
            self.scene(report["scene"]).checks.append((report["check"], report["ok"], report.get("detail", "")))

    def finish(self):
        """A program that did not come to its end, or whose primary was never killed, has failed one check more; so has one whose
        brokers complain, which they do also where their states differ."""
        if self.complaints:
            self.scene("the brokers").checks.append(("log no errors", False, "\n".join(self.complaints[:20])))
        if self.wrong:
            self.scene("the program").checks.append(("comes to its end", False, self.wrong))
        elif self.kills and not self.killed:
            self.scene("the program").checks.append(("has the primary killed", False, "it never asked for it"))

    def failed(self):
        return [(name, *check) for name, scene in self.scenes.items() for check in scene.checks if not check[1]]


def end_session(process):
    """Ends a program with the workers that it has started, which lead groups of their own in its session."""
    brokers.end_group(process)
    for entry in os.listdir("/proc"):
        try:
            with open(f"/proc/{entry}/stat") as stat:
                # Behind the command's name, which may hold anything: state, parent, group, session.
                session = int(stat.read().rpartition(")")[2].split()[3])
            if session == process.pid:
                os.kill(int(entry), signal.SIGKILL)
        except (OSError, ValueError):
            pass  # No process, or none any more.


def say(text=""):
    print(text, flush=True)


def table(plays, verbose):
    say(f"\n{'program':<14} {'scene':<22} {'checks':>6} {'passed':>6} {'failed':>6} {'again':>6}")
    for play in plays:
        for name, scene in play.scenes.items():
            passed = sum(ok for _, ok, _ in scene.checks)
            row = f"{play.name:<14} {name:<22} {len(scene.checks):>6} {passed:>6} {len(scene.checks) - passed:>6} {scene.again:>6}"
            say(row + (f"   skipped: {scene.skipped}" if scene.skipped else ""))
            for what, ok, detail in scene.checks if verbose else []:
                say(f"{'':<14}   {'ok' if ok else 'FAILED':<6} {what}{': ' + detail if detail else ''}")


def failures(plays):
    for play in plays:
        for scene, what, _, detail in play.failed():
            say(f"\nFAILED {play.name}, {scene}: {what}\n    " + detail.replace("\n", "\n    "))
        if play.failed():
            words = play.said.splitlines()[-LAST_WORDS:]
            print(f"--- the end of what {play.name} wrote to its stderr\n" + "\n".join(words) + "\n---", file=sys.stderr)


def main():
    # So that an end from outside takes the programs and their brokers along.
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: STOPPING.set())
    parser = argparse.ArgumentParser(prog="run", description="Real programs across a failover.")
    parser.add_argument("names", nargs="*", help=f"of {', '.join(PROGRAMS)}; all if none is given")
    parser.add_argument("--oracle", action="store_true", help="on RabbitMQ, and nobody is killed")
    parser.add_argument("--no-kill", action="store_true", help="on Understudy, and nobody is killed")
    parser.add_argument("--verbose", action="store_true", help="each check and what it saw")
    parser.add_argument("--keep", metavar="DIR", help="what the programs wrote to their stderr goes there")
    parser.add_argument("--seed", type=int, default=random.randrange(1_000_000), help="of the order of the brokers' addresses")
    arguments = parser.parse_args()
    unknown = [name for name in arguments.names if name not in PROGRAMS]
    if unknown:
        parser.error(f"no program {', '.join(unknown)}; there are {', '.join(PROGRAMS)}")
    names = [name for name in PROGRAMS if not arguments.names or name in arguments.names]
    say(f"seed {arguments.seed}")
    started = time.monotonic()

    def play(name):
        if STOPPING.is_set():
            sys.exit("ended by a signal")
        if arguments.oracle:
            broker = brokers.RabbitMq()
        else:
            order = random.Random(f"{arguments.seed} {name}")
            broker = brokers.Understudy(lambda _, three: order.choice(three), [f"--broker-arg=--scrub-interval-ms={SCRUB_MS}"])
        done = Play(name, broker, not (arguments.oracle or arguments.no_kill)).run()
        done.finish()
        killed = f", killed {', '.join(done.killed)}" if done.killed else ""
        say(f"{name}: {done.seconds:.0f} s{killed}, {len(done.failed())} failed")
        if arguments.keep:
            os.makedirs(arguments.keep, exist_ok=True)
            with open(os.path.join(arguments.keep, name + ".log"), "w") as log:
                log.write(done.said)
        return done

    with concurrent.futures.ThreadPoolExecutor(AT_ONCE) as pool:
        plays = list(pool.map(play, names))
    table(plays, arguments.verbose)
    failures(plays)
    checks = sum(len(scene.checks) for play in plays for scene in play.scenes.values())
    failed = sum(len(play.failed()) for play in plays)
    skipped = sum(bool(scene.skipped) for play in plays for scene in play.scenes.values())
    say(f"\n{checks - failed} passed, {failed} failed, {skipped} skipped; {time.monotonic() - started:.0f} s")
    sys.exit(1 if failed else 0)


main()
