"""The application that celery_client.py asks: where the tasks live that its worker runs."""

import os

from celery import Celery

from story import Story

app = Celery("clients", backend="rpc://")
app.conf.broker_url = [f"amqp://guest:guest@{host}:{port}//" for host, port in Story().addresses]
app.conf.broker_transport_options = {"confirm_publish": True}
app.conf.broker_connection_retry_on_startup = True
app.conf.task_default_queue = "clients.celery"
app.conf.task_acks_late = True


@app.task
def double(number):
    return {"double": number * 2, "worker": os.getpid()}
