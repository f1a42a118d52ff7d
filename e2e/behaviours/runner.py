"""Runs the behaviours against three Understudy brokers and against RabbitMQ, and shows what each does in one table.

This file knows no AMQP. A test that fails on either broker makes the run fail: on RabbitMQ it is the test that is wrong.
"""

import argparse
import concurrent.futures
import importlib
import os
import random
import signal
import sys
import time
import traceback

from behaviour import REGISTRY, Bench

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.append(os.path.join(HERE, ".."))
import brokers  # noqa: E402, since it lies beside this directory.

GROUPS = (
    "connections", "errors", "exchanges", "queues", "publishing", "consumers", "settling", "expiry", "dead_letters", "limits",
    "users", "policies", "deduplication", "alarms",
)  # fmt: skip
BOTH = ("ours", "oracle")
# Most of them wait for something to expire.
AT_ONCE = 6
# More than any volume has.
ENDLESS_BYTES = 1 << 50
# Of one broker's run.
LIMIT_SECONDS = 150


def say(text=""):
    print(text, flush=True)


def play(behaviour, broker):
    """`None`, or what is wrong, in words."""
    port, _ = broker.address(behaviour.name)
    bench = Bench(behaviour, broker, port)
    wrong = None
    for step in (lambda: behaviour.run(bench), bench.clean_up):
        try:
            step()
        except Exception as error:
            wrong = wrong or told(error)
    return wrong


def told(error):
    """The error and the line of the test that it comes from."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if os.path.basename(frame.filename).removesuffix(".py") in GROUPS]
    line = f"{os.path.basename(own[-1].filename)}:{own[-1].lineno}: {own[-1].line}" if own else traceback.format_exc()
    return f"{line}\n{type(error).__name__}: {error}"


def run(broker, surroundings, chosen):
    """{name: `None` or what is wrong}"""
    started, results = time.monotonic(), {}
    with concurrent.futures.ThreadPoolExecutor(AT_ONCE) as pool:
        for behaviour, wrong in zip(chosen, pool.map(lambda behaviour: play(behaviour, broker), chosen)):
            results[behaviour.name] = wrong
    took = time.monotonic() - started
    say(f"{broker.title}, {surroundings}: {sum(wrong is None for wrong in results.values())} of {len(chosen)}, {took:.0f} s")
    if took > LIMIT_SECONDS:
        sys.exit(f"that took more than {LIMIT_SECONDS} s")
    return results


def table(chosen, played, results):
    width = max(len(behaviour.name) for behaviour in chosen)
    group = None
    for behaviour in chosen:
        if behaviour.group != group:
            group = behaviour.group
            say(f"\n{group.replace('_', ' '):<{width}} {'cases':<12} " + " ".join(f"{broker.title:<11}" for broker in played))
        row = f"{behaviour.name:<{width}} {behaviour.cases:<12}"
        for broker in played:
            wrong = results[broker.name][behaviour.name]
            word = "FAILED" if wrong else "differs" if behaviour.differs and broker.name == "ours" else "ok"
            row += f" {word:<11}"
        say(row.rstrip())


def main():
    # So that an end from outside takes the brokers along.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("ended by SIGTERM"))
    parser = argparse.ArgumentParser(prog="run", description="Behaviours of an AMQP broker, on Understudy and on RabbitMQ.")
    parser.add_argument("names", nargs="*", help="those whose names contain one of these words; all if none is given")
    parser.add_argument("--only", choices=BOTH, help="one of the brokers")
    parser.add_argument("--seed", type=int, default=random.randrange(1_000_000), help="of the choice of the tests' brokers")
    arguments = parser.parse_args()
    for group in GROUPS:
        importlib.import_module(group)
    chosen = [one for one in REGISTRY if not arguments.names or any(word in one.name for word in arguments.names)]
    if not chosen:
        sys.exit("there is no such behaviour")
    say(f"seed {arguments.seed}")

    def choose(name, three):
        return random.Random(f"{arguments.seed} {name}").choice(three)

    def surrounded(surroundings):
        short = surroundings == "short of disk"
        return [
            brokers.Understudy(choose, [f"--broker-arg=--disk-free-watermark={ENDLESS_BYTES}"] if short else []),
            brokers.RabbitMq(f"disk_free_limit.absolute = {ENDLESS_BYTES}" if short else ""),
        ]

    played = [broker for broker in surrounded("usual") if arguments.only in (None, broker.name)]
    results = {broker.name: {} for broker in played}
    try:
        for surroundings in sorted({behaviour.surroundings for behaviour in chosen}, reverse=True):
            group = [behaviour for behaviour in chosen if behaviour.surroundings == surroundings]
            for broker in surrounded(surroundings):
                if broker.name in results:
                    with broker:
                        results[broker.name] |= run(broker, surroundings, group)
    except brokers.BrokerError as error:
        sys.exit(str(error))
    table(chosen, played, results)
    differing = [behaviour for behaviour in chosen if behaviour.differs]
    if differing:
        say("\ndifferent on purpose")
        for behaviour in differing:
            say(f"{behaviour.name}: {behaviour.differs}")
    failed = 0
    for broker in played:
        for name, wrong in results[broker.name].items():
            if wrong:
                failed += 1
                say(f"\nFAILED on {broker.title}: {name}\n    " + wrong.replace("\n", "\n    "))
    say(f"\n{len(chosen)} behaviours, {len(differing)} of them different on purpose; {failed} failed")
    sys.exit(1 if failed else 0)


main()
