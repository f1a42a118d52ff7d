"""Starts three brokers and the clients, kills the primary once every client is at work, and counts the steps.

A client is a process that prints one JSON object a line: {"step", "ok", "detail"} at the end of each step, and {"live": true}
once it publishes and consumes and may lose its broker. This file knows no AMQP.
"""

import json
import os
import queue
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import dataclass, field

HERE = os.path.dirname(os.path.abspath(__file__))
CACHE = os.environ["CLIENTS_CACHE"]
BIN_DIR = os.environ["BIN_DIR"]

BROKERS = 3
# Messages of a round; so many that a prefetch of 10 turns over a few times.
ROUND = 50
# Messages confirmed before the kill and consumed after it.
LEFT = 25
# Bytes of the reply: several frames at every client's frame_max.
REPLY_BYTES = 300_000
# A side has resumed after so many messages.
RESUME = 20
# How long a client waits for any one thing; a failover takes a fraction of a second.
PATIENCE_SECONDS = 40
# The whole scene, so that a client that hangs cannot hold a CI run.
SCENE_SECONDS = 140
# What a process gets from SIGTERM to SIGKILL.
STOP_SECONDS = 10

ORDINARY = ["round", "relay", "leave", "resume", "kept", "round again"]


def python(script):
    return [sys.executable, os.path.join(HERE, "python", script)]


CLIENTS = {
    "pika": (python("pika_client.py"), ORDINARY),
    # The same over TLS, without a password: the certificate says who it is.
    "pika-tls": (python("pika_client.py"), ORDINARY),
    "aio-pika": (
        python("aio_pika_client.py"),
        ["round", "relay", "leave", "robust", "resume", "robust again", "kept", "round again"],
    ),
    "kombu": (python("kombu_client.py"), ORDINARY),
    "celery": (python("celery_client.py"), ["task", "ping", "task again", "ping again"]),
    "amqplib": (["node", os.path.join(HERE, "node", "client.js")], ORDINARY),
    "amqp091-go": ([os.path.join(CACHE, "amqp091-go-client")], ORDINARY),
}


@dataclass
class Client:
    name: str
    steps: list
    process: subprocess.Popen
    log: str
    results: dict = field(default_factory=dict)
    live: bool = False
    ended: bool = False


class SceneError(Exception):
    pass


class Scene:
    """What happens comes into one inbox, from one reader thread for each process."""

    def __init__(self, directory):
        self.directory = directory
        self.inbox = queue.Queue()
        self.deadline = time.monotonic() + SCENE_SECONDS
        self.started = []
        self.clients = []
        self.pids = {}
        self.primary = None
        self.brokers = None

    def start(self, source, command, log, **options):
        with open(log, "wb") as stderr:
            process = subprocess.Popen(
                command, stdout=subprocess.PIPE, stderr=stderr, text=True, start_new_session=True, **options
            )
        self.started.append(process)
        threading.Thread(target=self.read, args=(source, process), daemon=True).start()
        return process

    def read(self, source, process):
        for line in process.stdout:
            self.inbox.put((source, line))
        self.inbox.put((source, None))

    def wait(self, condition, what):
        while not condition():
            try:
                source, line = self.inbox.get(timeout=max(0, self.deadline - time.monotonic()))
            except queue.Empty:
                raise SceneError(f"not within {SCENE_SECONDS} s: {what}") from None
            if source == "brokers":
                self.broker_event(line)
            else:
                client_line(source, line)

    def broker_event(self, line):
        if line is None:
            raise SceneError("`understudy dev` ended by itself; its last words:\n" + tail(self.log("brokers")))
        event = json.loads(line)
        match event["event"]:
            case "started":
                self.pids[event["name"]] = event["pid"]
            case "primary":
                self.primary = event["name"]
            case "ready":
                self.brokers = event["brokers"]

    def log(self, name):
        return os.path.join(self.directory, name + ".log")

    def start_brokers(self):
        command = [os.path.join(BIN_DIR, "understudy"), "dev", "--json", "--replicas", str(BROKERS)]
        data = os.path.join(self.directory, "brokers")
        first = free_ports(2 * BROKERS)
        ports = ["--amqp-port", str(first), f"--tls={first + BROKERS}"]
        self.start("brokers", [*command, *ports, "--dir", data], self.log("brokers"))
        self.wait(lambda: self.brokers is not None, "three brokers and a primary")

    def start_client(self, name):
        command, steps = CLIENTS[name]
        primary_first = sorted(self.brokers, key=lambda broker: broker["name"] != self.primary)
        tls = name.endswith("-tls")
        addresses = [broker["amqps" if tls else "amqp"] for broker in primary_first]
        scene = {
            "name": name,
            "certificates": os.path.join(self.directory, "brokers", "amqps") if tls else None,
            "addresses": addresses,
            "backup": addresses[1],
            "round": ROUND,
            "left": LEFT,
            "reply_bytes": REPLY_BYTES,
            "resume": RESUME,
            "patience_seconds": PATIENCE_SECONDS,
        }
        environment = {
            **os.environ,
            "UNDERSTUDY_SCENE": json.dumps(scene),
            "NODE_PATH": os.path.join(CACHE, "node", "node_modules"),
            "PYTHONPATH": os.path.join(HERE, "python"),
            "PYTHONDONTWRITEBYTECODE": "1",
        }
        client = Client(name, steps, None, self.log(name))
        client.process = self.start(client, command, client.log, env=environment, stdin=subprocess.PIPE, cwd=self.directory)
        self.clients.append(client)

    def kill_primary(self):
        os.kill(self.pids[self.primary], signal.SIGKILL)
        for client in self.clients:
            if client.live and not client.ended:
                try:
                    client.process.stdin.write("killed\n")
                    client.process.stdin.flush()
                except BrokenPipeError:
                    pass  # It ended meanwhile; its missing steps are counted.

    def play(self, names):
        self.start_brokers()
        say("brokers", "ready", "ok", f"primary {self.primary}")
        for name in names:
            self.start_client(name)
        self.wait(lambda: all(client.live or client.ended for client in self.clients), "every client at work")
        victim = self.primary
        self.kill_primary()
        say("brokers", "kill -9", "ok", victim)
        self.wait(lambda: self.primary != victim, "another primary")
        say("brokers", "failover", "ok", f"primary {self.primary}")
        self.wait(lambda: all(client.ended for client in self.clients), "the end of every client")

    def stop(self):
        """Ends what it started: the clients with their children, who share their sessions, then the brokers."""
        self.end([client.process for client in self.clients])
        # The supervisor, asked to stop, stops its brokers in good order; they end with it in any case.
        self.end([process for process in self.started if process not in [client.process for client in self.clients]])

    def end(self, processes):
        deadline = time.monotonic() + STOP_SECONDS
        for process in processes:
            process.send_signal(signal.SIGTERM)
        for process in processes:
            try:
                process.wait(timeout=max(0, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                pass
            try:
                os.killpg(process.pid, signal.SIGKILL)
            except ProcessLookupError:
                pass  # Nobody of it is left.
            process.wait()


def client_line(client, line):
    if line is None:
        client.ended = True
        return
    try:
        report = json.loads(line)
    except ValueError:
        print(f"{client.name}: {line}", end="", file=sys.stderr)
        return
    if report.get("live"):
        client.live = True
        return
    client.results[report["step"]] = report["ok"]
    say(client.name, report["step"], "ok" if report["ok"] else "FAILED", report["detail"])


def say(who, step, result, detail):
    print(f"{who:<11} {step:<13} {result:<7} {detail}".rstrip(), flush=True)


def tail(path, lines=25):
    with open(path, errors="replace") as log:
        return "".join(log.readlines()[-lines:])


def free_ports(count):
    """The first of `count` free ports in a row. Two scenes at once begin to look at different places."""
    lowest, highest = 20000, 30000
    for step in range(0, highest - lowest, count):
        first = lowest + (os.getpid() * 100 + step) % (highest - lowest)
        probes = []
        try:
            for port in range(first, first + count):
                probes.append(socket.create_server(("127.0.0.1", port)))
            return first
        except OSError:
            continue
        finally:
            for probe in probes:
                probe.close()
    raise SceneError(f"no {count} free ports in a row between {lowest} and {highest}")


def count(clients):
    """Steps passed and failed; one that never came has failed."""
    passed = failed = 0
    for client in clients:
        for step in client.steps:
            if client.results.get(step):
                passed += 1
                continue
            failed += 1
            if step not in client.results:
                say(client.name, step, "FAILED", "did not come")
        if not all(client.results.get(step) for step in client.steps):
            print(f"--- the end of what {client.name} wrote to its stderr\n{tail(client.log)}---", file=sys.stderr)
    return passed, failed


def main():
    # So that an end from outside takes the brokers along.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("ended by SIGTERM"))
    names = sys.argv[1:] or list(CLIENTS)
    unknown = [name for name in names if name not in CLIENTS]
    if unknown:
        sys.exit(f"no client {', '.join(unknown)}; there are {', '.join(CLIENTS)}")
    with tempfile.TemporaryDirectory(prefix="understudy-clients-") as directory:
        scene = Scene(directory)
        broken = 0
        try:
            scene.play(names)
        except SceneError as error:
            broken = 1
            say("scene", "", "FAILED", str(error))
        finally:
            scene.stop()
        passed, failed = count(scene.clients)
        failed += broken
        if broken and scene.brokers:
            print(f"--- the end of what the brokers' supervisor wrote\n{tail(scene.log('brokers'))}---", file=sys.stderr)
    print(f"{passed} passed, {failed} failed")
    sys.exit(1 if failed else 0)


main()
