"""A process that appends, acknowledges and says so, until it is killed. What it said must be true afterwards.

Lines on stdout, written at once: `stored <segment> <producer> <sequence> <entry>`, `acked <segment> <entry>`,
`terminated <segment> <entry>`, `fenced`. Arguments: directory, owner term, first sequence.
"""

import asyncio
import os
import random
import sys
from pathlib import Path

from scalable_topics.segments.embedded import open_segments
from scalable_topics.segments.errors import Fenced, Terminated
from scalable_topics.segments.port import Attachment, ServedSegment, Shared
from scalable_topics.segments.store import Segments
from tests.segments.worlds import address, call, message, stamp

SEGMENTS = (1, 2, 3)
TERMINATED = 3
PRODUCERS = ("p", "q")


def say(*words: object) -> None:
    os.write(1, (" ".join(map(str, words)) + "\n").encode())


async def produce(segment: int, served: ServedSegment, producer: str, first: int) -> None:
    for sequence in range(first, 1_000_000):
        # Two at a time, the first a repetition of the one before: it must not be stored twice.
        batch = [message(number, producer=producer, size=100) for number in (max(0, sequence - 1), sequence)]
        try:
            answers = await served.append(batch)
        except Terminated:
            return
        for number, answer in zip((max(0, sequence - 1), sequence), answers, strict=True):
            assert answer.position is not None
            say("stored", segment, producer, number, answer.position[1])


async def consume(segment: int, attachment: Attachment) -> None:
    while True:
        attachment.permit(20)
        deliveries = await attachment.receive()
        if not deliveries:
            return
        positions = [delivery.entry.position for delivery in deliveries]
        chosen = random.sample(positions, k=random.randint(1, len(positions)))
        await attachment.ack(chosen)
        for _, entry in chosen:
            say("acked", segment, entry)
        attachment.nack([position for position in positions if position not in chosen])


async def terminate(store: Segments, after_seconds: float) -> None:
    await asyncio.sleep(after_seconds)
    _, entry = await store.terminate(address(TERMINATED), call())
    say("terminated", TERMINATED, entry)


async def main(directory: Path, owner_term: int, first: int) -> None:
    store = await open_segments(directory, shards=2)
    try:
        async with asyncio.TaskGroup() as tasks:
            for segment in SEGMENTS:
                served = await _serve(store, segment, owner_term)
                for producer in PRODUCERS:
                    tasks.create_task(produce(segment, served, producer, first))
                tasks.create_task(consume(segment, await served.attach("s", "c", Shared())))
            if owner_term >= 3:
                tasks.create_task(terminate(store, 0.05))
    except* Fenced:
        say("fenced")
    finally:
        await store.close()


async def _serve(store: Segments, segment: int, owner_term: int) -> ServedSegment:
    if not any(one.physical == address(segment).physical for one in await store.list()):
        await store.create(address(segment), stamp(segment), ["s"], call())
    return await store.serve(address(segment), owner_term=owner_term)


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])))
