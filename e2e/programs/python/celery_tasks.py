"""The Celery application that worker and caller share. `CELERY_MODE`: "classic", or "quorum" with native delayed delivery.

Each execution leaves a line in a file, so that the program can count them without asking the broker that it tests.
"""

import hashlib
import json
import os
import signal
import time

from celery import Celery

from program import ADDRESSES, DIRECTORY

MODE = os.environ["CELERY_MODE"]
LEDGER = os.path.join(DIRECTORY, "executions")
RESULTS = os.path.join(DIRECTORY, "results")
URGENT, DOOMED = "urgent", "doomed"
MAX_PRIORITY = 9


def note(**line):
    # One write of less than a page to a file opened for appending is whole, whoever else writes.
    descriptor = os.open(LEDGER, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    try:
        os.write(descriptor, (json.dumps({"at": time.time(), "pid": os.getpid(), **line}) + "\n").encode())
    finally:
        os.close(descriptor)


def publishing_again(error, interval):
    # Celery calls this at once, with no pause, where a publish has failed, and with a pause for each attempt to connect.
    if not interval:
        note(kind="republish", error=repr(error))


app = Celery("programs")
app.conf.update(
    broker_url=";".join(f"amqp://guest:guest@{address}//" for address in ADDRESSES),
    broker_transport_options={"confirm_publish": True},
    broker_connection_retry_on_startup=True,
    broker_connection_max_retries=None,
    task_acks_late=True,
    task_reject_on_worker_lost=True,
    task_publish_retry=True,
    task_publish_retry_policy={
        "max_retries": 60, "interval_start": 0.1, "interval_step": 0.1, "interval_max": 0.5, "errback": publishing_again,
    },  # fmt: skip
    worker_prefetch_multiplier=1,
    worker_send_task_events=True,
    task_send_sent_event=True,
)
if MODE == "classic":
    app.conf.update(result_backend="rpc://", task_queue_max_priority=MAX_PRIORITY, task_default_priority=0)
else:
    os.makedirs(RESULTS, exist_ok=True)
    app.conf.update(
        result_backend="file://" + RESULTS,
        task_default_queue_type="quorum",
        # Native delayed delivery knows no direct exchanges.
        task_default_exchange="celery",
        task_default_exchange_type="topic",
    )


def executed(task, key, phase):
    redelivered = bool((task.request.delivery_info or {}).get("redelivered"))
    note(kind=phase, task=task.name.rsplit(".", 1)[-1], key=key, id=task.request.id, redelivered=redelivered)
    return redelivered


@app.task(bind=True)
def work(self, key, seconds=0.05):
    executed(self, key, "begin")
    time.sleep(seconds)
    executed(self, key, "end")
    return key


@app.task(bind=True)
def weigh(self, key, load, digest):
    """For loads of more than one record's size: they have to come as they were sent."""
    right = hashlib.sha256(load.encode()).hexdigest() == digest
    executed(self, key if right else f"{key}, damaged", "end")
    return right


@app.task(bind=True, max_retries=3)
def fickle(self, key, countdown):
    """Fails at first, and asks for another try after so many seconds."""
    executed(self, f"{key}/{self.request.retries}", "end")
    if self.request.retries == 0:
        raise self.retry(countdown=countdown)
    return key


@app.task(bind=True)
def deadly(self, key):
    """Takes its worker's child process along, the first time."""
    if not executed(self, key, "begin"):
        os.kill(os.getpid(), signal.SIGKILL)
    executed(self, key, "end")
    return key


@app.task(bind=True)
def endless(self, key):
    """Does not end, the first time: its worker is killed meanwhile."""
    if not executed(self, key, "begin"):
        time.sleep(600)
    executed(self, key, "end")
    return key


@app.task(bind=True)
def add(self, left, right):
    executed(self, f"{left}+{right}", "end")
    return left + right


@app.task(bind=True)
def total(self, numbers):
    executed(self, f"total of {len(numbers)}", "end")
    return sum(numbers)


@app.task(bind=True)
def length(self, keys):
    executed(self, "length", "end")
    return len(keys)
