"""aio-pika: plain connections over the list of brokers, and one robust connection that has to mend itself."""

import asyncio
import time

import aio_pika
from aio_pika import DeliveryMode, ExchangeType, Message
from aio_pika.exceptions import AMQPError, DeliveryError

from story import RECONNECT_PAUSE_SECONDS, Ledger, Story, expect, numbers

LOST = (AMQPError, ConnectionError, asyncio.TimeoutError)


def persistent(number, **properties):
    return Message(str(number).encode(), delivery_mode=DeliveryMode.PERSISTENT, **properties)


def url(address):
    return "amqp://guest:guest@{}:{}/".format(*address)


async def connect(addresses, deadline):
    while True:
        for address in addresses:
            try:
                return await aio_pika.connect(url(address), timeout=5)
            except (*LOST, OSError):
                if time.monotonic() > deadline:
                    raise
        await asyncio.sleep(RECONNECT_PAUSE_SECONDS)


async def round_trip(story, detail):
    async with await connect(story.addresses, story.deadline()) as connection:
        channel = await connection.channel(on_return_raises=True)
        exchange = await channel.declare_exchange("clients.aio-pika", ExchangeType.DIRECT, durable=True)
        queue = await channel.declare_queue("clients.aio-pika.round", durable=True)
        await queue.bind(exchange, "round")
        await asyncio.gather(
            *(
                exchange.publish(persistent(number, headers={"number": number, "odd": number % 2 == 1}), "round")
                for number in numbers(story.round)
            )
        )
        try:
            await exchange.publish(persistent(-1), "nowhere", mandatory=True)
            raise AssertionError("an unroutable mandatory message was not returned")
        except DeliveryError:
            pass

        await channel.set_qos(prefetch_count=10)
        came = []
        async with queue.iterator(timeout=story.patience_seconds) as deliveries:
            async for message in deliveries:
                number = int(message.body)
                expect(message.headers == {"number": number, "odd": number % 2 == 1}, f"headers {message.headers}")
                came.append(number)
                await message.ack()
                if len(came) == story.round:
                    break
        expect(came == numbers(story.round), f"came as {came}")
        left = (await channel.declare_queue("clients.aio-pika.round", passive=True)).declaration_result.message_count
        expect(left == 0, f"{left} messages left after the acks")

        reply_to = await channel.declare_queue("", exclusive=True, auto_delete=True)
        await channel.default_exchange.publish(Message(story.reply, correlation_id="7"), reply_to.name)
        reply = await reply_to.get(no_ack=True)
        expect((reply.correlation_id, reply.body) == ("7", story.reply), f"the reply was {reply}")
    detail.append(f"{story.round} confirmed, consumed and acked")


async def relay(story, detail):
    async with await connect([story.backup], story.deadline()) as connection:
        channel = await connection.channel()
        queue = await channel.declare_queue("clients.aio-pika.relay", durable=True)
        await channel.default_exchange.publish(persistent("through"), queue.name)
        message = await queue.get()
        expect(message.body == b"through", f"got {message.body}")
        await message.ack()
        await queue.delete()
    detail.append("through {}:{}".format(*story.backup))


async def leave(story, detail):
    async with await connect(story.addresses, story.deadline()) as connection:
        channel = await connection.channel()
        queue = await channel.declare_queue("clients.aio-pika.left", durable=True)
        for number in numbers(story.left):
            await channel.default_exchange.publish(persistent(number), queue.name)
    detail.append(f"{story.left} confirmed, not consumed")


async def publish_on(story, ledger, deadline):
    while not ledger.resumed():
        connection = await connect(story.addresses, deadline)
        try:
            channel = await connection.channel()
            await channel.declare_queue("clients.aio-pika.live", durable=True)
            while not ledger.resumed():
                number = ledger.number()
                await channel.default_exchange.publish(persistent(number), "clients.aio-pika.live")
                ledger.confirm(number)
                await asyncio.sleep(0.01)
        except LOST:
            ledger.lose("publisher")


async def consume_on(story, ledger, deadline):
    while True:
        connection = await connect(story.from_backup(), deadline)
        try:
            channel = await connection.channel()
            await channel.set_qos(prefetch_count=10)
            queue = await channel.declare_queue("clients.aio-pika.live", durable=True)
            async with queue.iterator() as deliveries:
                async for message in deliveries:
                    ledger.receive(int(message.body), message.redelivered)
                    await message.ack()
            # The iterator ends, without an error, with its channel.
            ledger.lose("consumer")
        except LOST:
            ledger.lose("consumer")


async def robust_consume(story, came):
    """What most applications of aio-pika are: one address, and a library that comes back to it by itself."""
    connection = await aio_pika.connect_robust(url(story.addresses[0]), reconnect_interval=RECONNECT_PAUSE_SECONDS)
    channel = await connection.channel()
    queue = await channel.declare_queue("clients.aio-pika.robust", durable=True)

    async def received(message):
        async with message.process():
            came.append(message.body)

    await queue.consume(received)
    return connection


async def until(condition, deadline):
    while not condition() and time.monotonic() < deadline:
        await asyncio.sleep(0.01)


async def live(story, detail):
    """Publishes and consumes on two connections until both were lost and went on."""
    ledger, deadline = Ledger(story.resume), story.deadline()
    tasks = [asyncio.create_task(side(story, ledger, deadline)) for side in (publish_on, consume_on)]
    await until(lambda: ledger.done() or any(task.done() and task.exception() for task in tasks), deadline)
    for task in tasks:
        if task.done():
            await task
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    ledger.close(detail)


async def robust_goes_on(story, came, detail):
    deadline = story.deadline()
    async with await connect(story.addresses, deadline) as connection:
        channel = await connection.channel()
        await channel.default_exchange.publish(persistent("again"), "clients.aio-pika.robust")
    await until(lambda: b"again" in came, deadline)
    expect(came == [b"once", b"again"], f"its consumer saw {came}")
    detail.append("connect_robust restored its consumer by itself")


async def kept(story, detail):
    async with await connect(story.addresses, story.deadline()) as connection:
        channel = await connection.channel()
        queue = await channel.declare_queue("clients.aio-pika.left", durable=True)
        came = []
        while (message := await queue.get(fail=False)) is not None:
            came.append(int(message.body))
            await message.ack()
    expect(came == numbers(story.left), f"of {story.left} left before the failover there came {came}")
    detail.append(f"{len(came)} of {story.left}, each once")


async def main():
    story = Story()
    with story.step("round") as detail:
        await round_trip(story, detail)
    with story.step("relay") as detail:
        await relay(story, detail)
    with story.step("leave") as detail:
        await leave(story, detail)
    came = []
    with story.step("robust") as detail:
        robust = await robust_consume(story, came)
        channel = await robust.channel()
        await channel.default_exchange.publish(persistent("once"), "clients.aio-pika.robust")
        await until(lambda: came, story.deadline())
        expect(came == [b"once"], f"its consumer saw {came}")
        detail.append("connect_robust consumes")
    with story.step("resume") as detail:
        await live(story, detail)
    with story.step("robust again") as detail:
        await robust_goes_on(story, came, detail)
    with story.step("kept") as detail:
        await kept(story, detail)
    with story.step("round again") as detail:
        await round_trip(story, detail)
    await robust.close()


asyncio.run(main())
