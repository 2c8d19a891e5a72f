"""Stores to test against: what holds of one adapter holds of all."""

from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest
import pytest_asyncio

from scalable_topics.segments.embedded import open_segments
from scalable_topics.segments.memory import MemoryDisk, memory_segments
from scalable_topics.segments.store import Segments

Open = Callable[[], Awaitable[Segments]]


@pytest.fixture
def clock_ms() -> list[int]:
    """The wall clock of every store that `reopen` opens."""
    return [1_000_000]


@pytest_asyncio.fixture(params=["memory", "embedded"])
async def reopen(request: pytest.FixtureRequest, clock_ms: list[int], tmp_path: Path) -> AsyncIterator[Open]:
    """Opens one more daemon's store on the same storage."""
    disk = MemoryDisk()
    opened: list[Segments] = []

    async def open_one() -> Segments:
        def now_ms() -> int:
            return clock_ms[0]

        if request.param == "memory":
            opened.append(memory_segments(disk, now_ms=now_ms))
        else:
            opened.append(await open_segments(tmp_path, shards=2, now_ms=now_ms))
        return opened[-1]

    yield open_one
    for store in opened:
        await store.close()


@pytest_asyncio.fixture
async def store(reopen: Open) -> Segments:
    return await reopen()
