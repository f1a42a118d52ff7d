"""Runs suites of AMQP clients against three Understudy brokers and against RabbitMQ, and compares with `expected.toml`.

A test that fails or is skipped without being on that list is a surprise, and so is one on it that passes, or does not exist.
With surprises the run fails. This file knows no AMQP, and no suite.
"""

import argparse
import collections
import os
import random
import signal
import sys
import tempfile
import time
import tomllib

import sources
import suites
from suites import FAILED, PASSED, SKIPPED

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.append(os.path.join(HERE, ".."))
import brokers  # noqa: E402, since it lies beside this directory.

# How often a surprise is tried again: the suites count in fractions of a second, on machines that do something else too.
SECOND_TRIES = 2
# What stands on the list for a test: it fails; it may fail; the suite skips it by itself; it is not even started; it does not come,
# since one before it hangs; it ends at once, and counts as passed, without having tried anything on this broker.
OUTCOMES = {"fails", "may-fail", "skips", "not-run", "not-reached", "empty"}
BOTH = ("ours", "oracle")


class Expected:
    """The list for one suite and one broker."""

    def __init__(self, entries, broker, others):
        self.known = {}
        for entry in entries:
            if entry["outcome"] not in OUTCOMES or not set(entry["on"]) <= set(BOTH):
                sys.exit(f"expected.toml: {entry}")
            for test in entry["tests"] if broker in entry["on"] else []:
                self.known[test] = entry
        # What another broker's run has shown to exist.
        self.others = others

    def not_run(self):
        return [test for test, entry in self.known.items() if entry["outcome"] == "not-run"]

    def complete(self, results):
        """Adds what was not run, and what another broker's run had and this one lacks, behind a test that hung."""
        for test, entry in self.known.items():
            if entry["outcome"] in ("not-run", "not-reached"):
                results.setdefault(test, (SKIPPED, ""))
            elif entry["outcome"] == "empty" and test in results:
                results[test] = (SKIPPED, results[test][1])
        for test in self.others:
            results.setdefault(test, (FAILED, "it did not come"))

    def surprises(self, results):
        """{test: in words}"""
        found = {}
        for test, (outcome, detail) in results.items():
            listed = self.listed(test)
            if outcome == FAILED and listed not in ("fails", "may-fail"):
                found[test] = f"failed: {detail.strip()}"
            elif outcome == SKIPPED and listed not in ("skips", "not-run", "not-reached", "empty"):
                found[test] = f"was skipped: {detail.strip()}"
            elif outcome == PASSED and listed in ("fails", "skips", "not-run", "not-reached"):
                found[test] = f"passed, and is listed as \"{listed}\""
        for test in self.known:
            if test not in results:
                found[test] = "is listed, and there is no such test"
        return found

    def listed(self, test):
        return self.known[test]["outcome"] if test in self.known else PASSED


def play(suite, broker, expected, directory):
    """Runs a suite, what failed by surprise once or twice more, and returns results and surprises."""
    port, which = broker.address(suite.name)
    say(f"{suite.name}: on {broker.title} at 127.0.0.1:{port} ({which})")
    started = time.monotonic()
    results = suites.run(suite, port, expected.not_run(), None, directory)
    for _ in range(SECOND_TRIES):
        again = [test for test in expected.surprises(results) if results.get(test, (PASSED,))[0] == FAILED]
        if not again or "(package)" in again:
            break
        say(f"{suite.name}: once more, {', '.join(again)}")
        second = suite.test(suite, port, expected.not_run(), again, directory)
        results |= {test: second[test] for test in again if test in second}
    expected.complete(results)
    counts = count(results)
    say(f"{suite.name}: {counts[PASSED]} passed, {counts[FAILED]} failed, {counts[SKIPPED]} skipped, {time.monotonic() - started:.0f} s")
    return results


def count(results):
    return collections.Counter(outcome for outcome, _ in results.values())


def say(text):
    print(text, flush=True)


def table(chosen, played, outcomes):
    """The counts, and the reasons for what did not pass."""
    header = f"{'suite':<12} {'tests':>5}"
    for broker in played:
        header += f"   {broker.title + ':':<11} passed failed skipped"
    say("\n" + header)
    for suite in chosen:
        every = set().union(*(outcomes.get((suite.name, broker.name), {}) for broker in played))
        row = f"{suite.name:<12} {len(every):>5}"
        for broker in played:
            counts = count(outcomes.get((suite.name, broker.name), {}))
            row += f"   {'':<11} {counts[PASSED]:>6} {counts[FAILED]:>6} {counts[SKIPPED]:>7}"
        say(row)


def reasons(chosen, entries):
    words = {"fails": "fails", "may-fail": "may fail", "skips": "skipped", "not-run": "not run", "not-reached": "not reached", "empty": "empty"}
    titles = {"ours": "Understudy", "oracle": "RabbitMQ"}
    say("\nexpected")
    for suite in chosen:
        for entry in entries.get(suite.name, []):
            where = "both" if len(entry["on"]) == 2 else titles[entry["on"][0]]
            say(f"{suite.name:<12} {len(entry['tests']):>3} {words[entry['outcome']]:<11} {where:<11} {entry['reason']}")


def main():
    # So that an end from outside takes the brokers along.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("ended by SIGTERM"))
    names = [suite.name for suite in suites.SUITES]
    parser = argparse.ArgumentParser(prog="run", description="Suites of AMQP clients, against Understudy and RabbitMQ.")
    parser.add_argument("--suite", action="append", choices=names, help="this one; may be given several times")
    parser.add_argument("--only", choices=BOTH, help="one of the brokers")
    parser.add_argument("--seed", type=int, default=random.randrange(1_000_000), help="of the choice of the suites' brokers")
    arguments = parser.parse_args()
    chosen = [suite for suite in suites.SUITES if suite.name in (arguments.suite or names)]
    with open(os.path.join(HERE, "expected.toml"), "rb") as file:
        entries = tomllib.load(file)
    say(f"seed {arguments.seed}")

    def choose(suite, three):
        return random.Random(f"{arguments.seed} {suite}").choice(three)

    # The oracle first: what it shows to exist must come on ours too.
    played = [broker for broker in (brokers.RabbitMq(), brokers.Understudy(choose)) if arguments.only in (None, broker.name)]
    outcomes, surprises = {}, {}
    with tempfile.TemporaryDirectory(prefix="understudy-conformance-") as directory:
        try:
            for suite in chosen:
                suite.fetch()
            for broker in played:
                with broker:
                    for suite in chosen:
                        others = outcomes.get((suite.name, "oracle"), {})
                        expected = Expected(entries.get(suite.name, []), broker.name, others)
                        at = (suite.name, broker.name)
                        try:
                            outcomes[at] = play(suite, broker, expected, directory)
                        except suites.SuiteError as error:
                            surprises[(*at, "(all)")] = str(error)
                            continue
                        surprises |= {(*at, test): text for test, text in expected.surprises(outcomes[at]).items()}
        except (brokers.BrokerError, sources.SourceError) as error:
            sys.exit(str(error))
    played.reverse()
    table(chosen, played, outcomes)
    reasons(chosen, entries)
    for (suite, broker, test), text in surprises.items():
        say(f"\nSURPRISE {suite} on {broker}: {test}\n    {text}")
    # What is on the list and did not pass counts as skipped; failed is what differs from the list.
    shown = {at: results for at, results in outcomes.items() if at[1] == played[0].name}
    passed = sum(count(results)[PASSED] for results in shown.values())
    listed = sum(
        outcome != PASSED and (*at, test) not in surprises
        for at, results in shown.items()
        for test, (outcome, _) in results.items()
    )
    say(f"\n{passed} passed, {len(surprises)} failed, {listed} skipped")
    sys.exit(1 if surprises else 0)


main()
