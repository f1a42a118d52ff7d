"""Symfony Messenger's AMQP transport, made with pika: workers that poll with basic.get, a queue for each delay that dead-letters to
where the message goes, retries whose delays double, and a transport for what failed for good."""

import json
import time

import pika

from links import Loop, Publisher, connect, ready
from program import EARLY_SECONDS, KILLS, LATE_SECONDS, Effects, check, done, kill_primary, same, wait_for

EXCHANGE, QUEUE, DELAYS, FAILED = "messages", "messages", "delays", "failed"
RETRY_HEADER = "X-Message-Stamp-Symfony\\Component\\Messenger\\Stamp\\RedeliveryStamp"
REASON_HEADER = "X-Message-Stamp-Symfony\\Component\\Messenger\\Stamp\\ErrorDetailsStamp"
MAX_RETRIES, FIRST_RETRY_MS, MULTIPLIER = 3, 1000, 2
# What Symfony adds to a delay for the queue's own life.
QUEUE_EXPIRES_AFTER_MS = 10_000
MAILS, WORKERS, HANDLED_AT_KILL = 200, 2, 60
# The longest of them is due well after the kill.
DELAYED_MS = [1000, 2000, 3000, 5000] * 5
# `messenger:consume --sleep`.
SLEEP_SECONDS = 0.05


def topology(channel):
    """`messenger:setup-transports`, which each process also does as it starts."""
    channel.exchange_declare(EXCHANGE, "fanout", durable=True)
    channel.queue_declare(QUEUE, durable=True)
    channel.queue_bind(QUEUE, EXCHANGE, "")
    channel.exchange_declare(DELAYS, "direct", durable=True)
    channel.exchange_declare(FAILED, "fanout", durable=True)
    channel.queue_declare(FAILED, durable=True)
    channel.queue_bind(FAILED, FAILED, "")


class Transport:
    """Sends, at once or after a delay. Remembers when it last touched each delay's queue."""

    def __init__(self):
        self.publisher = Publisher(topology)
        self.touched = {}

    def send(self, message, headers, exchange=EXCHANGE):
        self.publisher.publish(exchange, "", json.dumps(message), properties(headers))

    def send_delayed(self, message, headers, delay_ms, retry):
        # To all who take such messages; a retry only to the queue where it failed.
        routing_key = QUEUE if retry else ""
        queue = f"delay_{EXCHANGE}_{routing_key}_{delay_ms}_{'retry' if retry else 'delay'}"
        arguments = {
            "x-message-ttl": delay_ms,
            "x-expires": delay_ms + QUEUE_EXPIRES_AFTER_MS,
            "x-dead-letter-exchange": "" if retry else EXCHANGE,
            "x-dead-letter-routing-key": routing_key,
        }

        def declare(channel):
            channel.queue_declare(queue, durable=True, arguments=arguments)
            channel.queue_bind(queue, DELAYS, queue)
            self.touched[queue] = (time.monotonic(), (delay_ms + QUEUE_EXPIRES_AFTER_MS) / 1000)

        message = {**message, "due": time.time() + delay_ms / 1000}
        self.publisher.publish(DELAYS, queue, json.dumps(message), properties(headers), before=declare)


def properties(headers):
    return pika.BasicProperties(
        content_type="application/json", delivery_mode=2, headers={"type": "App\\Message\\SendMail", **headers}
    )


class Worker:
    """`messenger:consume async`: one message at a time, and a little sleep where there is none."""

    def __init__(self, name, effects):
        self.effects, self.transport = effects, Transport()
        self.late, self.waits, self.empty = [], [], 0
        self.loop = Loop(name, self.consume)

    def consume(self, connection, stopped):
        channel = connection.channel()
        topology(channel)
        while not stopped.is_set():
            method, came, body = channel.basic_get(QUEUE)
            if method is None:
                self.empty += 1
                connection.sleep(SLEEP_SECONDS)
                continue
            if self.handle(json.loads(body), came.headers, method.redelivered):
                channel.basic_ack(method.delivery_tag)
            else:
                channel.basic_nack(method.delivery_tag, requeue=False)

    def handle(self, message, headers, redelivered):
        """Whether it went well. What did not has been sent to where it is tried again, or to the failed."""
        again = redelivered or bool(headers.get("again"))
        turn, mail = json.loads(headers.get(RETRY_HEADER, '[{"retryCount": 0}]'))[0]["retryCount"], message["mail"]
        if "due" in message:
            self.late.append((f"{mail}/{turn}", time.time() - message["due"], again))
            message = {key: value for key, value in message.items() if key != "due"}
        self.effects.add(f"{mail}/{turn}", again)
        time.sleep(0.005)
        if turn >= wants(mail):
            return True
        if turn == MAX_RETRIES:
            details = json.dumps([{"exceptionClass": "App\\MailboxFull", "exceptionMessage": "mailbox full"}])
            self.transport.send(message, {REASON_HEADER: details, "again": again}, FAILED)
            return False
        stamp = json.dumps([{"retryCount": turn + 1}])
        self.transport.send_delayed(message, {RETRY_HEADER: stamp, "again": again}, FIRST_RETRY_MS * MULTIPLIER**turn, True)
        return False


def wants(mail):
    """How many retries a mail needs; more than there are for those that never go."""
    kind, number = mail.split("-")
    if kind == "mail" and int(number) % 10 == 4:
        return 1
    if kind == "mail" and int(number) % 20 == 8:
        return MAX_RETRIES + 1
    return 0


def turns(mail):
    return [f"{mail}/{turn}" for turn in range(min(wants(mail), MAX_RETRIES) + 1)]


def main():
    effects, sender = Effects(), Transport()
    workers = [Worker(f"worker {number}", effects) for number in range(WORKERS)]
    mails = [f"mail-{number}" for number in range(MAILS)]
    later = [f"later-{number}" for number in range(len(DELAYED_MS))]
    afterwards = [f"afterwards-{number}" for number in range(len(DELAYED_MS))]
    for number, mail in enumerate(mails):
        if number == MAILS // 2:
            for mail_later, delay_ms in zip(later, DELAYED_MS):
                sender.send_delayed({"mail": mail_later}, {}, delay_ms, False)
            wait_for(lambda: len(effects) >= HANDLED_AT_KILL, "mails to be handled")
            kill_primary()
            killed = time.monotonic()
        sender.send({"mail": mail}, {})
    for mail_later, delay_ms in zip(afterwards, DELAYED_MS):
        sender.send_delayed({"mail": mail_later}, {}, delay_ms, False)

    expected = [turn for mail in mails + later + afterwards for turn in turns(mail)]
    wait_for(lambda: set(expected) <= effects.keys(), lambda: f"{sorted(set(expected) - effects.keys())}")
    lost_for_good = [number for number in range(MAILS) if wants(f"mail-{number}") > MAX_RETRIES]
    wait_for(lambda: ready(QUEUE) == 0 and ready(FAILED) >= len(lost_for_good), "the failed mails")
    time.sleep(5 * SLEEP_SECONDS)
    for worker in workers:
        worker.loop.stop()

    transports = [sender, *(worker.transport for worker in workers)]
    republished = sum(transport.publisher.republished for transport in transports)
    effects.judge("mails", expected, republished)
    connections = [worker.loop.connections for worker in workers]
    check("mails", "over other connections where the primary was killed", (min(connections) > 1) == KILLS, f"{connections}")
    polled = sum(worker.empty for worker in workers)
    check("mails", "the workers have also found nothing", polled > 0, f"{polled} times")
    late = [entry for worker in workers for entry in worker.late]
    punctual("delays", "sent before the kill", [seconds for key, seconds, again in late if key.startswith("later-") and not again])
    punctual("delays", "sent after it", [seconds for key, seconds, again in late if key.startswith("afterwards-") and not again])
    for turn in range(1, MAX_RETRIES + 1):
        seconds = [seconds for key, seconds, again in late if key.startswith("mail-") and key.endswith(f"/{turn}") and not again]
        punctual("retries", f"after {FIRST_RETRY_MS * MULTIPLIER ** (turn - 1)} ms", seconds)
    failed(lost_for_good, republished)
    queues_go(transports, killed)
    for transport in transports:
        transport.publisher.close()
    done()


def punctual(scene, what, late):
    if not check(scene, f"{what}: there are some", late, str(len(late))):
        return
    bounds = f"{len(late)}, {min(late):+.2f} to {max(late):+.2f} s"
    check(scene, f"{what}: came when they were due", min(late) >= -EARLY_SECONDS and max(late) <= LATE_SECONDS, bounds)


def failed(numbers, republished):
    """`messenger:failed:show`, and then all are removed."""
    connection, came = connect(), Effects()
    channel = connection.channel()
    while (got := channel.basic_get(FAILED))[0] is not None:
        method, how, body = got
        came.add(json.loads(body)["mail"], method.redelivered or how.headers.get("again"))
        reason = json.loads(how.headers[REASON_HEADER])[0]["exceptionMessage"]
        channel.basic_ack(method.delivery_tag)
    connection.close()
    came.judge("failed", [f"mail-{number}" for number in numbers], republished)
    same("failed", "with the reason", reason, "mailbox full")
    same("failed", "nothing is left", (ready(FAILED), ready(QUEUE)), (0, 0))


def queues_go(transports, killed):
    """Each delay's queue expires. To look at one may renew it, so it is looked at once, when it should be gone."""
    gone = {}
    for transport in transports:
        for queue, (touched, seconds) in transport.touched.items():
            # With another primary that time begins anew.
            gone[queue] = max(gone.get(queue, 0), max(touched, killed if KILLS else 0) + seconds)
    time.sleep(max(0.0, max(gone.values()) + LATE_SECONDS / 2 - time.monotonic()))
    same("delays", "their queues expire", {queue: ready(queue) for queue in sorted(gone)}, dict.fromkeys(sorted(gone)))


main()
