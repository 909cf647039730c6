"""aio-pika against a real broker: robust connections, confirms, RPC by direct reply, many tasks at once."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import aio_pika
import pytest
from aio_pika.exceptions import ChannelPreconditionFailed, DeliveryError
from aio_pika.patterns import RPC

from tests.interop.brokers import Broker


@pytest.fixture
async def connection(broker: Broker) -> AsyncIterator[Any]:
    async with await aio_pika.connect_robust(broker.url, timeout=10, reconnect_interval=0.1) as opened:
        yield opened


async def count(broker: Broker, name: str) -> int:
    """Ready messages, asked on a connection of its own: robust channels remember their first declare."""
    async with await aio_pika.connect(broker.url) as other:
        queue = await (await other.channel()).declare_queue(name, passive=True)
        return int(queue.declaration_result.message_count)


async def test_messages_come_in_order_through_an_iterator(connection: Any) -> None:
    channel = await connection.channel()
    await channel.set_qos(prefetch_count=10)
    queue = await channel.declare_queue("q")
    for number in range(50):
        await channel.default_exchange.publish(aio_pika.Message(b"%d" % number), "q")
    got = []
    async with asyncio.timeout(15), queue.iterator() as messages:
        async for message in messages:
            async with message.process():
                got.append(int(message.body))
            if len(got) == 50:
                break
    assert got == list(range(50))


async def test_many_publishers_share_a_channel_and_all_are_confirmed(connection: Any, broker: Broker) -> None:
    channel = await connection.channel()
    await channel.declare_queue("q")
    message = aio_pika.Message(b"x" * 100, delivery_mode=aio_pika.DeliveryMode.PERSISTENT)
    async with asyncio.timeout(30):
        await asyncio.gather(*(channel.default_exchange.publish(message, "q") for _ in range(500)))
    assert await count(broker, "q") == 500


async def test_an_unroutable_mandatory_publish_fails(connection: Any) -> None:
    channel = await connection.channel(on_return_raises=True)
    with pytest.raises(DeliveryError):
        await channel.default_exchange.publish(aio_pika.Message(b""), "missing", mandatory=True)


async def test_a_refused_publish_fails(connection: Any) -> None:
    channel = await connection.channel()
    await channel.declare_queue("full", arguments={"x-max-length": 0, "x-overflow": "reject-publish"})
    with pytest.raises(DeliveryError):
        await channel.default_exchange.publish(aio_pika.Message(b"m"), "full")


async def test_exchanges_bindings_and_rejection_with_dead_letters(connection: Any) -> None:
    channel = await connection.channel()
    topic = await channel.declare_exchange("events", aio_pika.ExchangeType.TOPIC)
    graves = await channel.declare_exchange("graves", aio_pika.ExchangeType.FANOUT)
    queue = await channel.declare_queue("q", arguments={"x-dead-letter-exchange": "graves"})
    dead = await channel.declare_queue("dead")
    await queue.bind(topic, "user.*")
    await dead.bind(graves)
    await topic.publish(aio_pika.Message(b"m", headers={"n": 1}), "user.created")
    message = await queue.get(timeout=10)
    await message.reject(requeue=False)
    async with asyncio.timeout(10):
        while (letter := await dead.get(fail=False)) is None:
            await asyncio.wait({asyncio.ensure_future(channel.declare_queue("dead", passive=True))})
    await letter.ack()
    assert (letter.body, letter.headers["n"]) == (b"m", 1)
    assert letter.headers["x-death"][0]["queue"] == "q"


async def test_rpc_pattern_answers(connection: Any, broker: Broker) -> None:
    channel = await connection.channel()

    async def multiply(*, x: int, y: int) -> int:
        return x * y

    rpc = await RPC.create(channel)
    await rpc.register("multiply", multiply, auto_delete=True)
    async with await aio_pika.connect(broker.url) as other:
        caller = await RPC.create(await other.channel())
        async with asyncio.timeout(10):
            answers = await asyncio.gather(
                *(caller.call("multiply", kwargs={"x": n, "y": 2}) for n in range(5))
            )
        await caller.close()
    await rpc.close()
    assert answers == [0, 2, 4, 6, 8]


async def test_a_channel_error_names_itself_and_the_connection_lives_on(connection: Any) -> None:
    channel = await connection.channel()
    await channel.declare_queue("fixed")
    with pytest.raises(ChannelPreconditionFailed):
        await channel.declare_queue("fixed", durable=True)
    again = await connection.channel()
    await again.declare_queue("fixed")


async def test_transactions_commit_and_roll_back(connection: Any, broker: Broker) -> None:
    channel = await connection.channel(publisher_confirms=False)
    await channel.declare_queue("q")
    async with channel.transaction():
        await channel.default_exchange.publish(aio_pika.Message(b"kept"), "q")

    async def fail_within() -> None:
        async with channel.transaction():
            await channel.default_exchange.publish(aio_pika.Message(b"lost"), "q")
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await fail_within()
    assert await count(broker, "q") == 1


async def test_a_robust_connection_comes_back_with_its_consumers(broker: Broker, connection: Any) -> None:
    channel = await connection.channel()
    queue = await channel.declare_queue("q")
    got: asyncio.Queue[bytes] = asyncio.Queue()

    async def keep(message: Any) -> None:
        await got.put(message.body)
        await message.ack()

    await queue.consume(keep)
    restored = asyncio.Event()
    connection.reconnect_callbacks.add(lambda *_: restored.set())
    transport = connection.transport.connection
    await transport.close(ConnectionResetError("cut by the test"))
    async with asyncio.timeout(15), await aio_pika.connect(broker.url) as other:
        await restored.wait()
        sender = await other.channel()
        await sender.default_exchange.publish(aio_pika.Message(b"after"), "q")
        assert await got.get() == b"after"
