"""What the tests of this layer share: names, calls, messages, and stores to hold against each other."""

import asyncio
from collections.abc import Sequence

from scalable_topics.model.hash_range import FULL_RANGE
from scalable_topics.model.hashing import raw_hash
from scalable_topics.model.names import SegmentName, TopicName
from scalable_topics.model.positions import Position
from scalable_topics.model.segment import SegmentAddress
from scalable_topics.segments.port import Attachment, Call, Delivery, Message, Stamp

INCARNATION = "0123456789abcdef"
TOPIC = TopicName.parse("topic://tenant/ns/orders")


def address(segment_id: int = 1, *, incarnation: str = INCARNATION, topic: TopicName = TOPIC) -> SegmentAddress:
    logical = str(SegmentName(topic, FULL_RANGE, segment_id))
    return SegmentAddress(logical, f"{logical}@{incarnation}")


def call(
    operation: str = "op-1", *, term: int = 1, incarnation: str = INCARNATION, seconds: float = 5, deadline: float = 0
) -> Call:
    at = deadline or asyncio.get_running_loop().time() + seconds
    return Call(incarnation=incarnation, operation_id=operation, term=term, deadline=at)


def stamp(segment_id: int = 1, operation: str = "op-1", *, incarnation: str = INCARNATION) -> Stamp:
    return Stamp(incarnation, segment_id, operation)


def message(number: int, *, producer: str = "p", key: str | None = None, size: int = 0) -> Message:
    """The `number`-th of a producer."""
    payload = str(number).encode().ljust(size, b".")
    key_hash = None if key is None else raw_hash(key)
    return Message(payload=payload, producer=producer, sequence=number, key=key, key_hash=key_hash)


def messages(count: int, *, start: int = 0, producer: str = "p") -> list[Message]:
    return [message(number, producer=producer, key=f"key-{number}") for number in range(start, start + count)]


def entries_of(deliveries: Sequence[Delivery]) -> list[int]:
    return [delivery.entry.position[1] for delivery in deliveries]


def at(*entries: int) -> list[Position]:
    return [(0, entry) for entry in entries]


async def receive_all(attachment: Attachment, count: int) -> list[Delivery]:
    got: list[Delivery] = []
    async with asyncio.timeout(10):
        while len(got) < count:
            batch = await attachment.receive()
            assert batch, "the segment ended early"
            got += batch
    return got


async def nothing_comes(attachment: Attachment) -> bool:
    try:
        async with asyncio.timeout(0.05):
            return not await attachment.receive() and False
    except TimeoutError:
        return True
