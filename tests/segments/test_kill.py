"""Real processes: killed at random instants, or still running when somebody takes over."""

import asyncio
import random
import signal
import sys
from collections import defaultdict
from collections.abc import Callable, Iterable
from pathlib import Path

from scalable_topics.model.positions import Sentinel
from scalable_topics.segments.embedded import open_segments
from scalable_topics.segments.port import Entry, Shared
from scalable_topics.segments.store import Segments
from tests.segments.worker import PRODUCERS, SEGMENTS, TERMINATED
from tests.segments.worlds import address, message

ROOT = Path(__file__).parents[2]
ROUNDS = 7


class Told:
    """Everything that any process has acknowledged."""

    def __init__(self) -> None:
        self.stored: dict[tuple[int, str, int], int] = {}
        self.acked: dict[int, set[int]] = defaultdict(set)
        self.terminated: int | None = None
        self.fenced = False
        self._heard = asyncio.Event()

    async def wait_for(self, enough: Callable[[], bool]) -> None:
        async with asyncio.timeout(30):
            while not enough():
                self._heard.clear()
                await self._heard.wait()

    def hear(self, lines: Iterable[bytes]) -> None:
        for line in lines:
            match line.decode().split():
                case ["stored", segment, producer, sequence, entry]:
                    key = (int(segment), producer, int(sequence))
                    assert self.stored.setdefault(key, int(entry)) == int(entry), "a repeated sequence moved"
                case ["acked", segment, entry]:
                    self.acked[int(segment)].add(int(entry))
                case ["terminated", _, entry]:
                    assert self.terminated in {None, int(entry)}, "the final position moved"
                    self.terminated = int(entry)
                case ["fenced"]:
                    self.fenced = True
        self._heard.set()

    def next_sequence(self) -> int:
        """Where all producers may go on: those who were further repeat a few."""
        last = {(segment, producer): 0 for segment in SEGMENTS for producer in PRODUCERS}
        last |= {(segment, producer): sequence for segment, producer, sequence in sorted(self.stored)}
        return min(sequence for (segment, _), sequence in last.items() if segment != TERMINATED or not self.terminated)


async def start(directory: Path, owner_term: int, first: int) -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "tests.segments.worker",
        str(directory),
        str(owner_term),
        str(first),
        cwd=ROOT,
        stdout=asyncio.subprocess.PIPE,
    )


async def listen(process: asyncio.subprocess.Process, told: Told) -> None:
    """Whole lines only: of a half-written one nobody has heard."""
    assert process.stdout is not None
    async for line in process.stdout:
        if line.endswith(b"\n"):
            told.hear([line])


async def stored_in(store: Segments, segment: int, owner_term: int) -> list[Entry]:
    served = await store.serve(address(segment), owner_term=owner_term)
    return list(await served.read(Sentinel.EARLIEST, max_entries=1_000_000))


async def check(store: Segments, told: Told, owner_term: int) -> None:
    for segment in SEGMENTS:
        stored = await stored_in(store, segment, owner_term)
        for (where, producer, sequence), entry in told.stored.items():
            if where == segment:
                assert stored[entry].message == message(sequence, producer=producer, size=100)
        for producer in PRODUCERS:
            sequences = [one.message.sequence for one in stored if one.message.producer == producer]
            assert sequences == list(range(len(sequences))), "each sequence once, in order, none missing"
        attachment = await (await store.serve(address(segment), owner_term=owner_term)).attach("s", "c", Shared())
        attachment.permit(len(stored))
        backlog = (await store.describe(address(segment))).subscriptions["s"].backlog
        again: set[int] = set()
        async with asyncio.timeout(10):
            while len(again) < backlog:
                again |= {delivery.entry.position[1] for delivery in await attachment.receive(10_000)}
        assert not again & told.acked[segment], "an acknowledged message was delivered again"
        assert len(again) == backlog
        assert again | told.acked[segment] <= set(range(len(stored)))
    assert told.terminated is not None
    assert (await store.describe(address(TERMINATED))).terminated == (0, told.terminated)


async def test_kill_9_at_any_instant_loses_no_acknowledged_message(tmp_path: Path) -> None:
    told = Told()
    for round_number in range(1, ROUNDS + 1):
        process = await start(tmp_path, round_number, told.next_sequence())
        listening = asyncio.create_task(listen(process, told))
        before = len(told.stored)
        await told.wait_for(lambda: len(told.stored) > before and (round_number < 3 or told.terminated is not None))  # noqa: B023
        await asyncio.sleep(random.uniform(0, 0.15))
        process.send_signal(signal.SIGKILL)
        await process.wait()
        await listening

    assert len(told.stored) > 100
    assert all(told.acked[segment] for segment in SEGMENTS)
    store = await open_segments(tmp_path, shards=2)
    try:
        await check(store, told, ROUNDS + 1)
    finally:
        await store.close()


async def test_a_process_that_is_still_writing_is_fenced_by_whoever_takes_over(tmp_path: Path) -> None:
    told = Told()
    process = await start(tmp_path, 5, 0)
    listening = asyncio.create_task(listen(process, told))
    await told.wait_for(lambda: len(told.stored) > 20 and told.terminated is not None)

    store = await open_segments(tmp_path, shards=2)
    try:
        ends = {segment: len(await stored_in(store, segment, 6)) for segment in SEGMENTS}
        async with asyncio.timeout(10):
            await process.wait()
            await listening

        assert told.fenced
        assert {segment: len(await stored_in(store, segment, 7)) for segment in SEGMENTS} == ends
        await check(store, told, 8)
    finally:
        await store.close()
