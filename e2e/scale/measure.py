#!/usr/bin/env python3
"""The measuring half of e2e/scale/run: creates clusters, starts the operator, waits, and prints what it all has cost.

Everything is told by the API server (the objects, its audit log), the kernel (/proc) and the operator's own metrics. Presumes the
environment that e2e/scale/run has made: STATE (kubeconfigs, certificates), OUT (logs), OPERATOR and STAND_INS (executables).
"""

import argparse
import collections
import concurrent.futures
import datetime
import http.client
import json
import os
import signal
import ssl
import subprocess
import sys
import threading
import time
import urllib.request

STATE, OUT = os.environ["STATE"], os.environ["OUT"]
NODES = 6
REPLICAS = 3
# How long each thing may take at most; all of it is bounded by the script's limit, too.
CREATED_WITHIN, READY_WITHIN, RESTARTED_WITHIN, ENDS_WITHIN = 180, 240, 180, 20
# Until what a change has set off is over: longer than the slowest retry.
SETTLE = 15
LOOK_EVERY = 0.5
MEMORY_GOAL_MB = 150
METRICS = "http://127.0.0.1:8080/metrics"
TICKS = os.sysconf("SC_CLK_TCK")
CLUSTERS = "/apis/understudy.dev/v1alpha1"


class Api:
    """One connection a thread, made anew where the server has closed one that was idle."""

    def __init__(self):
        self.context = ssl.create_default_context(cafile=f"{STATE}/ca.crt")
        self.context.load_cert_chain(f"{STATE}/admin.crt", f"{STATE}/admin.key")
        self.local = threading.local()

    def call(self, method, path, body=None, content_type="application/json"):
        data = None if body is None else json.dumps(body)
        for is_last in (False, True):
            connection = getattr(self.local, "connection", None)
            if connection is None:
                connection = http.client.HTTPSConnection("127.0.0.1", 6443, context=self.context, timeout=60)
                self.local.connection = connection
            try:
                connection.request(method, path, data, {"Content-Type": content_type})
                response = connection.getresponse()
                text = response.read()
                break
            except (http.client.RemoteDisconnected, ConnectionError):
                self.local.connection = None
                if is_last:
                    raise
        if response.status >= 300:
            raise RuntimeError(f"{method} {path}: {response.status}: {text[:400].decode()}")
        return json.loads(text)

    def list(self, path):
        # From the API server's cache.
        return self.call("GET", f"{path}?resourceVersion=0")["items"]

    def all(self, calls):
        with concurrent.futures.ThreadPoolExecutor(8) as pool:
            list(pool.map(lambda arguments: self.call(*arguments), calls))


class Operator:
    """The process, as the kernel and its metrics show it."""

    def __init__(self, number):
        environment = {
            **os.environ,
            "KUBECONFIG": f"{STATE}/operator.kubeconfig",
            "POD_NAME": f"operator-{number}",
            "POD_NAMESPACE": "understudy-system",
            "UNDERSTUDY_HTTP_LISTEN": "127.0.0.1:8080",
        }
        self.log = open(f"{OUT}/operator-{number}.log", "wb")
        self.process = subprocess.Popen([os.environ["OPERATOR"]], env=environment, stdout=self.log, stderr=self.log)
        self.started = time.monotonic()

    def memory(self):
        """Now and at most, in MB."""
        with open(f"/proc/{self.process.pid}/status") as file:
            fields = dict(line.split(":", 1) for line in file)
        return tuple(int(fields[name].split()[0]) / 1024 for name in ("VmRSS", "VmHWM"))

    def cpu(self):
        with open(f"/proc/{self.process.pid}/stat") as file:
            fields = file.read().rsplit(")", 1)[1].split()
        return (int(fields[11]) + int(fields[12])) / TICKS

    def files(self):
        return len(os.listdir(f"/proc/{self.process.pid}/fd"))

    def metrics(self):
        """By name with its labels; an operator that does not answer yet has none."""
        try:
            with urllib.request.urlopen(METRICS, timeout=10) as answer:
                lines = answer.read().decode().splitlines()
        except OSError:
            return {}
        samples = (line.rsplit(" ", 1) for line in lines if line and not line.startswith("#"))
        return {name: float(value) for name, value in samples}

    def end(self):
        self.process.send_signal(signal.SIGTERM)
        self.process.wait(ENDS_WITHIN)


def await_(what, within, look):
    """Until `look` returns nothing that is missing."""
    begin = told = time.monotonic()
    while missing := look():
        if time.monotonic() - told > 10:
            told = time.monotonic()
            print(f"waiting for {what}; missing: {missing}", file=sys.stderr)
        if time.monotonic() - begin > within:
            sys.exit(f"scale: waited {within} s in vain for {what}; missing: {missing}")
        time.sleep(LOOK_EVERY)
    return time.monotonic() - begin


def quantile(metrics, name, share):
    """Of a histogram, in seconds: the upper edge of the bucket."""
    buckets = []
    for key, value in metrics.items():
        if key.startswith(f"{name}_bucket{{"):
            edge = key.split('le="')[1].split('"')[0]
            buckets.append((float(edge), value))
    buckets.sort()
    if not buckets or not buckets[-1][1]:
        return None
    return next(edge for edge, count in buckets if count >= share * buckets[-1][1])


def requests(begin, end):
    """The operator's requests in a time, by verb and resource."""
    counts = collections.Counter()
    with open(f"{OUT}/audit.log") as file:
        for line in file:
            try:
                event = json.loads(line)
            except ValueError:
                continue  # the last one may be half written
            verb = event["verb"]
            if event["stage"] != ("ResponseStarted" if verb == "watch" else "ResponseComplete"):
                continue
            at = event["requestReceivedTimestamp"].replace("Z", "+00:00")
            if not begin <= datetime.datetime.fromisoformat(at).timestamp() < end:
                continue
            what = event.get("objectRef", {})
            resource = "/".join(filter(None, (what.get("resource", event["requestURI"]), what.get("subresource"))))
            counts[f"{verb} {resource}"] += 1
    return counts


def say(text):
    print(text, flush=True)


class Measurement:
    def __init__(self, arguments):
        self.arguments, self.api = arguments, Api()
        self.operators = 0
        width = len(str(arguments.namespaces - 1))
        spaces = [f"team-{number:0{width}}" for number in range(arguments.namespaces)]
        self.spaces = spaces
        self.clusters = [(spaces[number % len(spaces)], f"orders-{number:03}") for number in range(arguments.clusters)]
        self.peak = 0.0

    def start(self):
        self.operators += 1
        return Operator(self.operators)

    def prepare(self):
        capacity = {"cpu": "1000", "memory": "4Ti", "pods": "2000", "ephemeral-storage": "10Ti"}
        calls = []
        for number in range(NODES):
            labels = {"kubernetes.io/hostname": f"node{number}", "topology.kubernetes.io/zone": f"zone{number % 3}"}
            metadata = {"name": f"node{number}", "labels": labels, "annotations": {"kwok.x-k8s.io/node": "fake"}}
            status = {"capacity": capacity, "allocatable": capacity}
            calls.append(("POST", "/api/v1/nodes", {"metadata": metadata, "status": status}))
        metadata = {"name": "faked", "annotations": {"storageclass.kubernetes.io/is-default-class": "true"}}
        storage_class = {
            "metadata": metadata,
            "provisioner": "kubernetes.io/no-provisioner",
            "volumeBindingMode": "WaitForFirstConsumer",
        }
        calls.append(("POST", "/apis/storage.k8s.io/v1/storageclasses", storage_class))
        for number in range(len(self.clusters) * REPLICAS):
            spec = {
                "capacity": {"storage": "1Gi"},
                "accessModes": ["ReadWriteOnce"],
                "storageClassName": "faked",
                "hostPath": {"path": f"/nowhere/{number}"},
            }
            calls.append(("POST", "/api/v1/persistentvolumes", {"metadata": {"name": f"volume-{number}"}, "spec": spec}))
        for space in self.spaces:
            calls.append(("POST", "/api/v1/namespaces", {"metadata": {"name": space}}))
        self.api.all(calls)

    def create(self):
        spec = {"replicas": REPLICAS, "storage": {"size": "1Gi"}, "resources": {"requests": {"cpu": "50m", "memory": "64Mi"}}}
        path = CLUSTERS + "/namespaces/{}/brokerclusters"
        kind = {"apiVersion": "understudy.dev/v1alpha1", "kind": "BrokerCluster", "spec": spec}
        self.api.all(("POST", path.format(space), {**kind, "metadata": {"name": name}}) for space, name in self.clusters)

    def change(self):
        """Something that the operator has to carry out for each, and that restarts no broker."""
        body = {"spec": {"service": {"annotations": {"example.com/changed": f"by-{self.operators}"}}}}
        path = CLUSTERS + "/namespaces/{}/brokerclusters/{}"
        merge = "application/merge-patch+json"
        self.api.all(("PATCH", path.format(space, name), body, merge) for space, name in self.clusters)

    def unreconciled(self):
        sets = {(item["metadata"]["namespace"], item["metadata"]["name"]) for item in self.api.list("/apis/apps/v1/statefulsets")}
        missing = 0
        for item in self.api.list(CLUSTERS + "/brokerclusters"):
            metadata, status = item["metadata"], item.get("status", {})
            there = (metadata["namespace"], metadata["name"]) in sets
            missing += not (there and status.get("observedGeneration") == metadata["generation"])
        return missing

    def pods_missing(self):
        items = self.api.list("/apis/apps/v1/statefulsets")
        return len(self.clusters) * REPLICAS - sum(item.get("status", {}).get("readyReplicas", 0) for item in items)

    def unready(self):
        ready = 0
        for item in self.api.list(CLUSTERS + "/brokerclusters"):
            conditions = item.get("status", {}).get("conditions", [])
            ready += any(condition["type"] == "Ready" and condition["status"] == "True" for condition in conditions)
        return len(self.clusters) - ready

    def unwatched(self, operator):
        return len(self.clusters) - operator.metrics().get("understudy_operator_clusters", 0)

    def tell(self, phase, operator, begun, elapsed, cpu_before):
        counts = requests(begun, begun + elapsed)
        now, most = operator.memory()
        self.peak = max(self.peak, most)
        cpu = operator.cpu() - cpu_before
        rate = sum(counts.values()) / elapsed
        say(
            f"{phase:<34} {elapsed:7.1f} s   memory {now:5.0f} MB, at most {most:5.0f}   "
            f"CPU {100 * cpu / elapsed:6.1f} % ({cpu:.1f} s)   requests {sum(counts.values()):6} ({rate:.1f}/s)"
        )
        for what, count in counts.most_common(9):
            say(f"    {what:<36} {count:6}  {count / elapsed:7.2f}/s")

    def phase(self, name, operator, act):
        """The work's CPU and requests, from its beginning to its end."""
        cpu, wall, begin = operator.cpu(), time.time(), time.monotonic()
        act()
        self.tell(name, operator, wall, time.monotonic() - begin, cpu)

    def settle_and_rest(self, name, operator):
        time.sleep(SETTLE)
        before = operator.metrics()
        self.phase(name, operator, lambda: time.sleep(self.arguments.steady))
        after = operator.metrics()
        for metric in ("understudy_operator_objects_written_total", "understudy_operator_status_written_total"):
            say(f"    {metric:<44} {after.get(metric, 0) - before.get(metric, 0):4.0f} more")
        say(f"    {operator.files()} open files")

    def reconciles(self, operator):
        metrics, name = operator.metrics(), "understudy_operator_reconcile_seconds"
        p50, p99 = (quantile(metrics, name, share) for share in (0.5, 0.99))
        count = metrics.get(f"{name}_count", 0)
        if p50 is not None:
            say(f"    {count:.0f} reconciliations: half of them within {p50:.3g} s, 99 % within {p99:.3g} s")

    def work_done(self, operator, ready_within):
        await_("all clusters to be reconciled", CREATED_WITHIN, self.unreconciled)
        if not self.arguments.silent:
            await_("all clusters to be Ready", ready_within, self.unready)
        await_("all clusters to be watched", RESTARTED_WITHIN, lambda: self.unwatched(operator))

    def run(self):
        arguments = self.arguments
        if not arguments.silent:
            log = open(f"{OUT}/stand-ins.log", "wb")
            environment = {**os.environ, "KUBECONFIG": f"{STATE}/stand-ins.kubeconfig"}
            subprocess.Popen([os.environ["STAND_INS"]], env=environment, stdout=log, stderr=log)
        self.prepare()
        operator = self.start()
        await_("the operator to lead", RESTARTED_WITHIN, lambda: not operator.metrics().get("understudy_operator_leader"))
        who = "whose brokers refuse connections" if arguments.silent else f"with {REPLICAS} stand-ins each"
        say(f"{arguments.clusters} clusters in {arguments.namespaces} namespaces, {who}")
        self.phase("without clusters", operator, lambda: time.sleep(5))

        self.phase("created", operator, self.create)
        self.phase("reconciled", operator, lambda: await_("all to be reconciled", CREATED_WITHIN, self.unreconciled))
        self.phase("all pods there", operator, lambda: await_("all pods", READY_WITHIN, self.pods_missing))
        self.phase("and all as it should be", operator, lambda: self.work_done(operator, READY_WITHIN))
        self.reconciles(operator)
        self.settle_and_rest("a steady time", operator)

        operator.end()
        if arguments.brief:
            return 0
        operator = self.start()
        self.phase("another operator, all watched", operator, lambda: self.work_done(operator, RESTARTED_WITHIN))
        self.reconciles(operator)
        self.settle_and_rest("a steady time", operator)

        operator.end()
        self.change()
        operator = self.start()
        self.phase("another operator, all changed", operator, lambda: self.work_done(operator, RESTARTED_WITHIN))
        self.reconciles(operator)
        met = self.peak < MEMORY_GOAL_MB
        say(f"memory at most {self.peak:.0f} MB: {'met' if met else 'MISSED'} (< {MEMORY_GOAL_MB} MB)")
        operator.end()
        return 0 if met else 1


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--clusters", type=int, default=200)
    parser.add_argument("--namespaces", type=int, default=20)
    parser.add_argument("--steady", type=float, default=60, metavar="SECONDS")
    parser.add_argument("--silent", action="store_true", help="no stand-ins: every connection to a broker is refused")
    parser.add_argument("--brief", action="store_true", help="the first operator only")
    sys.exit(Measurement(parser.parse_args()).run())


if __name__ == "__main__":
    main()
