"""How each suite is run against a broker, and how its own report is read.

`run(suite, port, skip, only, directory)` returns {test: (outcome, detail)}. `skip` names tests that are not to be run, `only`, if
it is not None, those that are; a suite that cannot choose runs all. A suite is not changed: it is told its broker as it
provides for, by its environment.
"""

import json
import os
import re
import signal
import subprocess
import xml.etree.ElementTree as ElementTree
from dataclasses import dataclass
from typing import Callable

import sources

HERE = os.path.dirname(os.path.abspath(__file__))
TARGET = os.environ["CONFORMANCE_TARGET"]

PASSED, FAILED, SKIPPED = "passed", "failed", "skipped"
# Of what a failed test wrote, so many characters are kept.
DETAIL = 600


@dataclass
class Suite:
    name: str
    fetch: Callable
    test: Callable
    # For all of it, builds included, on two busy cores; then it is ended.
    seconds: int


class SuiteError(Exception):
    pass


def run(suite, port, skip, only, directory):
    """Raises SuiteError if the suite gave no results at all."""
    results = suite.test(suite, port, skip, only, directory)
    if not results:
        raise SuiteError(f"{suite.name} ran no test; the end of its log:\n{tail(log_of(suite, directory))}")
    return results


def amqp091_go(suite, port, skip, only, directory):
    source, go = suite.fetch()
    # Test2json's events go to the log. The limit is Go's own, so that it says where it hung.
    command = [go, "test", "-tags", "integration", "-count=1", "-json", f"-timeout={suite.seconds - 60}s"]
    command += ["-skip", go_pattern(skip)] if skip else []
    command += ["-run", go_pattern(only)] if only else []
    log = execute(suite, [*command, "."], source, directory, {**sources.go_environment(), "AMQP_URL": f"amqp://guest:guest@127.0.0.1:{port}/"})
    results, said = {}, {}
    for line in log.splitlines():
        if not line.startswith("{"):
            continue
        event = json.loads(line)
        test, action = event.get("Test", "(package)"), event["Action"]
        if action == "run":
            results[test] = (FAILED, "it did not end")
        elif action == "output":
            said[test] = (said.get(test, "") + event["Output"])[-DETAIL:]
        elif action in ("pass", "fail", "skip") and test in results:
            outcome = {"pass": PASSED, "fail": FAILED, "skip": SKIPPED}[action]
            results[test] = (outcome, said.get(test, "") if outcome == FAILED else "")
        elif action == "fail" and not any(outcome == FAILED for outcome, _ in results.values()):
            # All tests passed and the package failed: a leak of goroutines, which it looks for at the end.
            results[test] = (FAILED, said.get(test, ""))
    return results


def go_pattern(tests):
    return "^(" + "|".join(re.escape(test) for test in sorted({test.split("/")[0] for test in tests})) + ")$"


def amqplib(suite, port, _skip, _only, directory):
    source = suite.fetch()
    environment = {
        **os.environ,
        "URL": f"amqp://127.0.0.1:{port}",
        "CONFORMANCE_AMQP_PORT": str(port),
        "NODE_OPTIONS": f"--require {os.path.join(HERE, 'default_port.js')}",
    }
    results = {}
    # Each file for itself: the report of all of them loses its nesting behind a file that was ended.
    for file in sorted(os.listdir(os.path.join(source, "test"))):
        if not file.endswith(".test.js"):
            continue
        report = os.path.join(directory, f"{file}.xml")
        path = os.path.join("test", file)
        # The time limit is that of the file, whose process stays if a test has left a connection behind.
        command = ["node", "--test", "--test-timeout=20000", "--test-reporter=junit", f"--test-reporter-destination={report}", path]
        execute(suite, command, source, directory, environment)

        def name(case, groups):
            last = case.get("name")
            return " > ".join([file, *groups, last]) if os.path.basename(last) != file else f"{file} (the whole file)"

        results |= junit(report, name)
    return results


def lapin(suite, port, skip, only, directory):
    source = suite.fetch()
    environment = {
        **os.environ,
        "AMQP_ADDR": f"amqp://127.0.0.1:{port}/%2f",
        "CARGO_TARGET_DIR": os.path.join(TARGET, "lapin"),
        "CARGO_PROFILE_TEST_DEBUG": "0",
        "CARGO_PROFILE_DEV_DEBUG": "0",
    }
    # Without TLS, which no test of it uses.
    command = ["cargo", "test", "--locked", "--no-default-features", "--features", "default-runtime,smol", "--tests"]
    command += ["--no-fail-fast", "--", "--exact"]
    for test in skip:
        command += ["--skip", test.split(" ")[1]]
    command += [test.split(" ")[1] for test in only or []]
    log = execute(suite, command, source, directory, environment)
    results, file = {}, ""
    for line in log.splitlines():
        if found := re.match(r"\s+Running (?:unittests )?(\S+)", line):
            file = found[1]
        elif found := re.match(r"test (.+?)(?: - should panic)? \.\.\. (ok|FAILED|ignored)", line):
            outcome = {"ok": PASSED, "FAILED": FAILED, "ignored": SKIPPED}[found[2]]
            results[f"{file} {found[1]}"] = (outcome, panic(log, found[1]) if outcome == FAILED else "")
    return results


def panic(log, test):
    return log.partition(f"---- {test} stdout ----")[2].partition("\n\n")[0].strip()[:DETAIL]


def py_amqp(suite, port, skip, only, directory):
    source = suite.fetch()
    return pytest(suite, source, [source], "t/integration", port, skip, only, directory)


def kombu(suite, port, skip, only, directory):
    source = suite.fetch()
    path = [source, sources.python_package("py-amqp")]
    return pytest(suite, source, path, "t/integration/test_py_amqp.py", port, skip, only, directory)


def pytest(suite, source, path, tests, port, skip, only, directory):
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(path),
        "PYTHONDONTWRITEBYTECODE": "1",
        "RABBITMQ_HOST": "127.0.0.1",
        "RABBITMQ_5672_TCP": str(port),
    }
    report = os.path.join(directory, f"{suite.name}.xml")
    python = os.path.join(sources.CACHE, "python", "bin", "python")
    command = [python, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-W", "ignore", f"--junit-xml={report}"]
    for test in skip:
        command += ["--deselect", f"t/integration/{test}"]
    command += [f"t/integration/{test}" for test in only] if only else [tests]
    execute(suite, command, source, directory, environment)

    def name(case, _groups):
        # A test that is inherited has the file of its base class, and the class name of its own.
        module, *classes = case.get("classname").removeprefix("t.integration.").split(".")
        return "::".join([f"{module}.py", *classes, case.get("name")])

    return junit(report, name)


def junit(report, name):
    """Reads a JUnit report. Of two tests with one name the second is numbered."""
    results = {}

    def walk(element, groups):
        for child in element:
            if child.tag != "testcase":
                walk(child, [*groups, child.get("name")] if child.get("name") else groups)
                continue
            outcome, detail = PASSED, ""
            for fault in child:
                if fault.tag in ("failure", "error"):
                    outcome, detail = FAILED, (fault.get("message") or fault.text or "")[:DETAIL]
                elif fault.tag == "skipped":
                    outcome, detail = SKIPPED, fault.get("message") or ""
            test, number = name(child, groups), 1
            while (known := test if number == 1 else f"{test} #{number}") in results:
                number += 1
            results[known] = (outcome, detail)

    try:
        walk(ElementTree.parse(report).getroot(), [])
    except (OSError, ElementTree.ParseError):
        return {}
    return results


def execute(suite, command, source, directory, environment):
    """Runs to its end, or to the suite's limit; returns what it wrote."""
    log = log_of(suite, directory)
    with open(log, "wb") as output:
        process = subprocess.Popen(
            command,
            cwd=source,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        process.wait(timeout=suite.seconds)
    except subprocess.TimeoutExpired:
        with open(log, "a") as output:
            output.write(f"\nended after {suite.seconds} s\n")
    finally:
        try:
            os.killpg(process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass  # Nobody of it is left.
        process.wait()
    with open(log, errors="replace") as output:
        return output.read()


def log_of(suite, directory):
    return os.path.join(directory, f"{suite.name}.log")


def tail(path, lines=25):
    try:
        with open(path, errors="replace") as log:
            return "".join(log.readlines()[-lines:])
    except OSError:
        return ""


SUITES = [
    Suite("amqp091-go", sources.amqp091_go, amqp091_go, 600),
    Suite("amqplib", sources.amqplib, amqplib, 240),
    Suite("lapin", sources.lapin, lapin, 900),
    Suite("py-amqp", lambda: sources.python_package("py-amqp"), py_amqp, 180),
    Suite("kombu", lambda: sources.python_package("kombu"), kombu, 300),
]
