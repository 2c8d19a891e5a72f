"""The memory adapter: segments in one process, for simulation on virtual time. No threads, nothing durable.

A `MemoryDisk` is what all daemons of a simulation share and what outlives each of them; `memory_segments` is one
daemon's way to it. The rules are the very ones that the embedded store runs inside its transactions.
"""

import asyncio
from bisect import bisect_right, insort
from collections.abc import Callable, Iterable, Sequence
from itertools import count
from operator import attrgetter
from typing import TypeVar

from msgspec.structs import replace

from scalable_topics.model.errors import Unavailable
from scalable_topics.segments.lifecycle import position_of
from scalable_topics.segments.log import size_of
from scalable_topics.segments.port import Entry, Message
from scalable_topics.segments.rows import CursorRow, ProducerRow, Rows, SegmentRow
from scalable_topics.segments.store import Segments

T = TypeVar("T")


class MemoryDisk:
    """What is stored, and who wants to hear of changes."""

    def __init__(self) -> None:
        self.rows = MemoryRows()
        self.listeners: dict[str, list[Callable[[], None]]] = {}

    def tell(self, name: str) -> None:
        for told in tuple(self.listeners.get(name, ())):
            told()


def memory_segments(disk: MemoryDisk, *, now_ms: Callable[[], int] | None = None) -> Segments:
    """One daemon's store on a disk. Without a clock of its own the wall clock is the loop's."""
    return Segments(MemoryBackend(disk, now_ms or _loop_ms))


def _loop_ms() -> int:
    return round(asyncio.get_running_loop().time() * 1_000)


class MemoryBackend:
    def __init__(self, disk: MemoryDisk, now_ms: Callable[[], int]) -> None:
        self._disk = disk
        self._now_ms = now_ms
        self._closed = False

    def now_ms(self) -> int:
        return self._now_ms()

    async def write(
        self, name: str, work: Callable[[Rows], T], *, deadline: float | None = None, quiet: bool = False
    ) -> T:
        self._check_open()
        if deadline is not None and asyncio.get_running_loop().time() >= deadline:
            raise Unavailable("its deadline has passed, so it was not begun", subject=name)
        result = work(self._disk.rows)
        if not quiet:
            self._disk.tell(name)
        return result

    async def read(self, name: str, work: Callable[[Rows], T]) -> T:  # noqa: ARG002 - one place for all names
        self._check_open()
        return work(self._disk.rows)

    async def read_all(self, work: Callable[[Rows], T]) -> list[T]:
        self._check_open()
        return [work(self._disk.rows)]

    async def write_all(self, work: Callable[[Rows], T]) -> list[T]:
        return await self.read_all(work)

    def listen(self, name: str, told: Callable[[], None]) -> Callable[[], None]:
        listeners = self._disk.listeners
        listeners.setdefault(name, []).append(told)

        def stop() -> None:
            listeners[name].remove(told)
            if not listeners[name]:
                del listeners[name]

        return stop

    async def close(self) -> None:
        self._closed = True

    def _check_open(self) -> None:
        if self._closed:
            raise Unavailable("this store is closed")


class MemoryRows:
    """`Rows` in dictionaries."""

    def __init__(self) -> None:
        self._ids = count(1)
        self._segments: dict[str, SegmentRow] = {}
        self._cursors: dict[int, dict[str, CursorRow]] = {}
        self._acked: dict[int, set[int]] = {}
        self._messages: dict[int, dict[int, Entry]] = {}
        self._producers: dict[int, dict[str, ProducerRow]] = {}
        self._sequences: dict[int, dict[str, list[tuple[int, int]]]] = {}
        self._partitions: dict[str, int] = {}

    def segment(self, name: str) -> SegmentRow | None:
        return self._segments.get(name)

    def segments(self, prefix: str) -> Iterable[SegmentRow]:
        return [row for name, row in sorted(self._segments.items()) if name.startswith(prefix)]

    def add_segment(self, row: SegmentRow) -> SegmentRow:
        row = replace(row, id=next(self._ids))
        self._segments[row.name] = row
        self._contents(row.id)
        return row

    def put_segment(self, row: SegmentRow) -> None:
        self._segments[row.name] = row

    def erase_contents(self, segment: int) -> None:
        for cursor in self._cursors[segment].values():
            del self._acked[cursor.id]
        self._contents(segment)

    def forget_segment(self, segment: int) -> None:
        self.erase_contents(segment)
        for contents in (self._cursors, self._messages, self._producers, self._sequences):
            del contents[segment]
        self._segments = {name: row for name, row in self._segments.items() if row.id != segment}

    def cursor(self, segment: int, name: str) -> CursorRow | None:
        return self._cursors[segment].get(name)

    def cursors(self, segment: int) -> Sequence[CursorRow]:
        return sorted(self._cursors[segment].values(), key=attrgetter("name"))

    def add_cursor(self, row: CursorRow) -> None:
        row = replace(row, id=next(self._ids))
        self._cursors[row.segment][row.name] = row
        self._acked[row.id] = set()

    def put_cursor(self, row: CursorRow) -> None:
        self._cursors[row.segment][row.name] = row

    def delete_cursor(self, row: CursorRow) -> None:
        del self._cursors[row.segment][row.name]
        del self._acked[row.id]

    def acked(self, cursor: int) -> Sequence[int]:
        return sorted(self._acked[cursor])

    def is_acked(self, cursor: int, entry: int) -> bool:
        return entry in self._acked[cursor]

    def add_acked(self, cursor: int, entries: Iterable[int]) -> int:
        acked = self._acked[cursor]
        before = len(acked)
        acked.update(entries)
        return len(acked) - before

    def drop_acked(self, cursor: int, through: int) -> int:
        gone = {entry for entry in self._acked[cursor] if entry <= through}
        self._acked[cursor] -= gone
        return len(gone)

    def producer(self, segment: int, name: str) -> ProducerRow | None:
        return self._producers[segment].get(name)

    def put_producer(self, row: ProducerRow) -> None:
        self._producers[row.segment][row.name] = row

    def find_sequence(self, segment: int, producer: str, sequence: int) -> tuple[int, int] | None:
        placed = self._sequences[segment].get(producer, [])
        index = bisect_right(placed, sequence, key=lambda one: one[0]) - 1
        return placed[index] if index >= 0 and placed[index][1] in self._messages[segment] else None

    def add_message(self, segment: int, entry: int, published_at_ms: int, message: Message) -> None:
        self._messages[segment][entry] = Entry(position_of(entry), published_at_ms, message)
        if message.sequence is not None:
            insort(self._sequences[segment].setdefault(message.producer, []), (message.sequence, entry))

    def messages(self, segment: int, entries: Sequence[int]) -> Sequence[Entry]:
        stored = self._messages[segment]
        return [stored[entry] for entry in entries if entry in stored]

    def messages_from(self, segment: int, first: int, max_entries: int) -> Sequence[Entry]:
        return self.messages(segment, range(first, first + max_entries))

    def published_at(self, segment: int, entry: int) -> int:
        return self._messages[segment][entry].published_at_ms

    def drop_messages(self, segment: int, below: int) -> int:
        stored = self._messages[segment]
        return sum(size_of(stored.pop(entry).message) for entry in sorted(stored) if entry < below)

    def partitions(self, name: str) -> int | None:
        return self._partitions.get(name)

    def put_partitions(self, name: str, partitions: int | None) -> None:
        if partitions is None:
            self._partitions.pop(name, None)
        else:
            self._partitions[name] = partitions

    def partitioned(self, prefix: str) -> Iterable[tuple[str, int]]:
        return [(name, number) for name, number in sorted(self._partitions.items()) if name.startswith(prefix)]

    def _contents(self, segment: int) -> None:
        self._cursors[segment] = {}
        self._messages[segment] = {}
        self._producers[segment] = {}
        self._sequences[segment] = {}
