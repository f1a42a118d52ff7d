"""The two brokers that a suite of tests meets: `understudy dev` with three replicas, and one RabbitMQ node as the oracle.

Each is a context manager: free ports on loopback, files in a temporary directory, and on leaving nothing of it runs any more.
"""

import json
import os
import queue
import signal
import socket
import subprocess
import tempfile
import threading
import time

HERE = os.path.dirname(os.path.abspath(__file__))
RABBITMQ_CLUSTER = os.path.join(HERE, "..", "bench", "rabbitmq-cluster")

REPLICAS = 3
START_SECONDS = 60
# RabbitMQ's package may have to be installed first.
RABBITMQ_START_SECONDS = 300
# For a change by the command line; RabbitMQ's starts a virtual machine.
ADMINISTRATION_SECONDS = 30
# What a process gets from SIGTERM to SIGKILL.
STOP_SECONDS = 15
# The script uses ports after the first one: for the nodes' own traffic, and for epmd.
RABBITMQ_PORTS = (0, 10, 20)


class BrokerError(Exception):
    pass


class Understudy:
    """Three brokers under one supervisor. A suite gets one of the three addresses. `arguments`: the supervisor's."""

    name = "ours"
    title = "Understudy"

    def __init__(self, choose, arguments=()):
        self.choose, self.arguments = choose, arguments

    def __enter__(self):
        self.directory = tempfile.TemporaryDirectory(prefix="understudy-suite-")
        self.binary = os.path.join(os.environ["BIN_DIR"], "understudy")
        self.brokers_directory = os.path.join(self.directory.name, "brokers")
        first = free_ports(range(REPLICAS))
        self.log = os.path.join(self.directory.name, "supervisor.log")
        with open(self.log, "wb") as log:
            self.process = subprocess.Popen(
                [self.binary, "dev", "--json", "--replicas", str(REPLICAS), "--amqp-port", str(first)]
                + ["--dir", self.brokers_directory, *self.arguments],
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                start_new_session=True,
            )
        try:
            self.brokers = self.await_ready()
        except BaseException:
            self.__exit__()
            raise
        return self

    def await_ready(self):
        self.inbox = queue.Queue()

        def read():
            for line in self.process.stdout:
                self.inbox.put(line)
            self.inbox.put(None)

        # It goes on reading to the end, so that the supervisor never waits for a reader.
        threading.Thread(target=read, daemon=True).start()
        self.pids, self.primary = {}, None
        deadline = time.monotonic() + START_SECONDS
        while True:
            try:
                line = self.inbox.get(timeout=max(0, deadline - time.monotonic()))
            except queue.Empty:
                line = None
            if line is None:
                with open(self.log, errors="replace") as log:
                    raise BrokerError("`understudy dev` is not ready:\n" + log.read()[-2000:])
            event = json.loads(line)
            self.hear(event)
            if event["event"] == "ready":
                return event["brokers"]

    def hear(self, event):
        match event["event"]:
            case "started":
                self.pids[event["name"]] = event["pid"]
            case "primary":
                self.primary = event["name"]

    def kill_primary(self):
        """SIGKILL to the one that was last told to be the primary, whose name this returns. What follows is not waited for."""
        while not self.inbox.empty():
            line = self.inbox.get()
            if line is None:
                raise BrokerError("`understudy dev` ended by itself")
            self.hear(json.loads(line))
        os.kill(self.pids[self.primary], signal.SIGKILL)
        return self.primary

    def complaints(self):
        """Errors and panics in the brokers' logs."""
        found = []
        for broker in self.brokers:
            with open(os.path.join(self.brokers_directory, broker["name"] + ".log"), errors="replace") as log:
                found += [f"{broker['name']}: {line.rstrip()}" for line in log if " ERROR " in line or "panicked at" in line]
        return found

    def addresses(self):
        """All of them, the one for a suite first."""
        first = self.choose("", self.brokers)
        return [broker["amqp"] for broker in sorted(self.brokers, key=lambda broker: broker is not first)]

    def address(self, suite):
        """The port for a suite, and in words which one it is."""
        broker = self.choose(suite, self.brokers)
        return int(broker["amqp"].rsplit(":", 1)[1]), f"{broker['name']}, {broker['role']}"

    def add_user(self, name, password):
        self.administer("user", "add", name, password)

    def set_password(self, name, password):
        self.administer("user", "password", name, password)

    def delete_user(self, name):
        self.administer("user", "delete", name)

    def set_permission(self, user, configure, write, read):
        self.administer("permission", "set", user, configure, write, read)

    def add_vhost(self, name, user):
        """One where a user may do everything."""
        self.administer("vhost", "add", name)
        self.administer("permission", "set", user, ".*", ".*", ".*", "--vhost", name)

    def delete_vhost(self, name):
        self.administer("vhost", "delete", name)

    def set_policy(self, name, pattern, definition, priority, apply_to, operator):
        """`definition`: JSON."""
        options = ["--priority", str(priority), "--apply-to", apply_to, *(["--operator"] if operator else [])]
        self.administer("policy", "set", name, pattern, definition, *options)

    def clear_policy(self, name, operator):
        self.administer("policy", "clear", name, *(["--operator"] if operator else []))

    def set_topic_permission(self, user, exchange, write, read):
        self.administer("permission", "set", user, write, read, "--topic", exchange)

    def administer(self, *words):
        command = [self.binary, *words, "--dir", self.brokers_directory]
        done = subprocess.run(command, capture_output=True, text=True, timeout=ADMINISTRATION_SECONDS)
        if done.returncode != 0:
            raise BrokerError(f"{words}:\n{done.stderr}")

    def __exit__(self, *_):
        # The supervisor, asked to stop, stops its brokers in good order; they end with it in any case.
        self.process.send_signal(signal.SIGTERM)
        try:
            self.process.wait(timeout=STOP_SECONDS)
        except subprocess.TimeoutExpired:
            pass
        end_group(self.process)
        self.directory.cleanup()


class RabbitMq:
    """One node of Debian's package with its defaults, and `settings`, lines of rabbitmq.conf."""

    name = "oracle"
    title = "RabbitMQ"

    def __init__(self, settings=""):
        self.settings = settings

    def __enter__(self):
        self.directory = tempfile.mkdtemp(prefix="understudy-oracle-")
        self.port = free_ports(RABBITMQ_PORTS)
        self.environment = {
            **os.environ,
            "RABBITMQ_CLUSTER_DIR": self.directory,
            "RABBITMQ_CLUSTER_PORT": str(self.port),
            "RABBITMQ_CLUSTER_NODES": "1",
            "RABBITMQ_CLUSTER_SETTINGS": self.settings,
        }
        try:
            self.script("up", RABBITMQ_START_SECONDS)
        except BaseException:
            self.__exit__()
            raise
        return self

    def script(self, command, limit):
        # A session of its own: an interrupt from the keyboard is for this process, which then calls `down`.
        # Not into a pipe, which the node would inherit and hold open.
        log = self.directory + ".log"
        with open(log, "wb") as output:
            process = subprocess.Popen(
                [RABBITMQ_CLUSTER, command],
                env=self.environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )
        try:
            status = process.wait(timeout=limit)
        finally:
            if process.poll() is None:
                end_group(process)
            with open(log, errors="replace") as output:
                said = output.read()[-2000:]
            os.unlink(log)
        if status != 0:
            raise BrokerError(f"rabbitmq-cluster {command}:\n{said}")

    def address(self, _suite):
        return self.port, "one node"

    def addresses(self):
        return [f"127.0.0.1:{self.port}"]

    def complaints(self):
        return []

    def add_user(self, name, password):
        self.administer("add_user", name, password)

    def set_password(self, name, password):
        self.administer("change_password", name, password)

    def delete_user(self, name):
        self.administer("delete_user", name)

    def set_permission(self, user, configure, write, read):
        self.administer("set_permissions", user, configure, write, read)

    def add_vhost(self, name, user):
        self.administer("add_vhost", name)
        self.administer("set_permissions", "-p", name, user, ".*", ".*", ".*")

    def delete_vhost(self, name):
        self.administer("delete_vhost", name)

    def set_policy(self, name, pattern, definition, priority, apply_to, operator):
        command = "set_operator_policy" if operator else "set_policy"
        self.administer(command, "--priority", str(priority), "--apply-to", apply_to, name, pattern, definition)

    def clear_policy(self, name, operator):
        self.administer("clear_operator_policy" if operator else "clear_policy", name)

    def set_topic_permission(self, user, exchange, write, read):
        self.administer("set_topic_permissions", user, exchange, write, read)

    def administer(self, *words):
        command = [RABBITMQ_CLUSTER, "ctl", f"127.0.0.1:{self.port}", *words]
        done = subprocess.run(
            command, env=self.environment, capture_output=True, text=True, timeout=ADMINISTRATION_SECONDS
        )
        if done.returncode != 0:
            raise BrokerError(f"{words}:\n{done.stdout}{done.stderr}")

    def __exit__(self, *_):
        self.script("down", RABBITMQ_START_SECONDS)


def free_ports(offsets):
    """A port of which those at all offsets are free. Two runs at once begin to look at different places."""
    lowest, highest, stride = 20000, 30000, 25
    for step in range(0, highest - lowest, stride):
        first = lowest + (os.getpid() * 100 + step) % (highest - lowest)
        probes = []
        try:
            for offset in offsets:
                probes.append(socket.create_server(("127.0.0.1", first + offset)))
            return first
        except OSError:
            continue
        finally:
            for probe in probes:
                probe.close()
    raise BrokerError(f"no free ports between {lowest} and {highest}")


def end_group(process):
    """Ends a process that leads a session, with all that it started."""
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        pass  # Nobody of it is left.
    process.wait()
