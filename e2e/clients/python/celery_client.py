"""Celery: a worker in a process of its own, tasks with results over rpc://, and the pidbox's ping."""

import os
import subprocess
import sys
import time

from celery.exceptions import TimeoutError as NoResult
from kombu.exceptions import OperationalError

from story import Story, expect, say
from tasks import app, double

ASK_SECONDS = 5


def ask(story, number, deadline):
    """One task and its result; asked again when the brokers were on the move."""
    while True:
        try:
            return double.delay(number).get(timeout=ASK_SECONDS)
        except (NoResult, OperationalError, *app.connection().connection_errors) as error:
            print(f"asking {number} again: {error!r}", file=sys.stderr)
            if time.monotonic() > deadline:
                raise


def ping(worker, deadline):
    while True:
        try:
            replies = app.control.ping(timeout=1, limit=1)
        except (OperationalError, *app.connection().connection_errors) as error:
            replies = [repr(error)]
        if replies == [{worker: {"ok": "pong"}}]:
            return
        expect(time.monotonic() < deadline, f"the worker's pidbox said {replies}")


def main():
    story = Story()
    name = "worker@clients"
    command = [sys.executable, "-m", "celery", "-A", "tasks", "worker", "-n", name, "--pool", "solo", "--loglevel", "info"]
    # The root user may run it here: it takes tasks from this scene alone.
    worker = subprocess.Popen(command, stdout=sys.stderr, stdin=subprocess.DEVNULL, env={**os.environ, "C_FORCE_ROOT": "1"})
    try:
        with story.step("task") as detail:
            results = [ask(story, number, story.deadline()) for number in range(10)]
            expect([result["double"] for result in results] == [n * 2 for n in range(10)], f"results {results}")
            expect({result["worker"] for result in results} == {worker.pid}, f"results {results}")
            detail.append("10 tasks and their results")
        with story.step("ping") as detail:
            ping(name, story.deadline())
            detail.append("pong over the pidbox")
        say(live=True)
        sys.stdin.readline()
        with story.step("task again") as detail:
            results = [ask(story, number, story.deadline()) for number in range(10)]
            expect([result["double"] for result in results] == [n * 2 for n in range(10)], f"results {results}")
            expect({result["worker"] for result in results} == {worker.pid}, "another worker answered")
            detail.append("10 tasks and their results, by the same worker process")
        with story.step("ping again") as detail:
            ping(name, story.deadline())
            detail.append("pong over the pidbox")
    finally:
        worker.terminate()
        try:
            worker.wait(timeout=5)
        except subprocess.TimeoutExpired:
            worker.kill()


main()
