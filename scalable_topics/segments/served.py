"""A segment as its owner serves it: the shell around the rules, and what its consumers share.

It starts no tasks: whoever waits for something looks again at the segment after somebody else may have changed it.
"""

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Collection, Sequence
from functools import partial
from itertools import count
from typing import Final, TypeVar

from msgspec.structs import replace

from scalable_topics.model.errors import InvalidArgument, NotFound, ScalableTopicsError
from scalable_topics.model.positions import Position
from scalable_topics.segments import cursors, lifecycle, log
from scalable_topics.segments.attachments import ConsumerAttachment, ServedSubscription
from scalable_topics.segments.backend import Backend
from scalable_topics.segments.dispatch import Grown
from scalable_topics.segments.errors import Detached, Fenced, again
from scalable_topics.segments.lifecycle import entry_of
from scalable_topics.segments.port import (
    Appended,
    AttachMode,
    ConnectedProducer,
    Entry,
    Message,
    SegmentStats,
    Slice,
    StartAt,
)
from scalable_topics.segments.rates import RollingRates
from scalable_topics.segments.rows import Rows, SegmentRow

T = TypeVar("T")

TAIL_BYTES: Final = 1 << 20
"""Of the newest messages of a segment that are kept in memory, so that consumers who keep up never wait for a read."""
_ENTRY_BYTES: Final = 256
"""What an entry takes in memory beside its message."""


class Served:
    """See `ServedSegment`."""

    def __init__(self, backend: Backend, row: SegmentRow, owner_term: int, *, clock: Callable[[], float]) -> None:
        self.name = row.name
        self._backend = backend
        self.owner_term = owner_term
        self._clock = clock
        self._rates = RollingRates(now=clock())
        self._next_entry = row.next_entry
        self._terminated = row.terminated
        self._ended: ScalableTopicsError | None = None
        self._stale = False
        self._subscriptions: dict[str, ServedSubscription] = {}
        self._attaching = asyncio.Lock()
        self._producers: list[ConnectedProducer] = []
        self._numbers = count(1)
        self._tail: OrderedDict[int, Entry] = OrderedDict()
        self._tail_bytes = 0
        self._news = asyncio.Event()
        self._stop_listening = backend.listen(row.name, self._told)

    async def append(self, messages: Sequence[Message]) -> tuple[Appended, ...]:
        for message in messages:
            log.check(message)
        work = partial(
            log.append, name=self.name, owner_term=self.owner_term, messages=messages, now_ms=self._backend.now_ms()
        )
        row, answers = await self.write(work)
        fresh = [
            (answer.position, message)
            for answer, message in zip(answers, messages, strict=True)
            if answer.position is not None and not answer.duplicate
        ]
        self._rates.record_in(len(fresh), sum(log.size_of(message) for _, message in fresh), now=self._clock())
        for position, message in fresh:
            self._keep(Entry(position, row.last_published_ms, message))
        self._grow(row)
        return answers

    async def read(self, start: StartAt, *, max_entries: int = 100) -> tuple[Entry, ...]:
        entries = await self._read(
            partial(log.read, name=self.name, owner_term=self.owner_term, start=start, max_entries=max_entries)
        )
        self._count_out(entries)
        return tuple(entries)

    async def wait_beyond(self, position: Position) -> bool:
        entry = entry_of(position)
        while True:
            self._news.clear()
            await self.look_again()
            if self._next_entry > entry + 1:
                return True
            if self._terminated:
                return False
            await self._news.wait()

    async def attach(
        self, subscription: str, consumer: str, mode: AttachMode, *, generation: int = 0
    ) -> ConsumerAttachment:
        if generation < 0:
            raise InvalidArgument(f"{generation} is not a generation", remedy="give 0 or more")
        buckets = mode.buckets if isinstance(mode, Slice) else None
        # One after the other: the order in which the store noted the generations is the order in which they count.
        async with self._attaching:
            await self.look_again()
            there = self._subscriptions.get(subscription)
            if there is not None:
                there.dispatcher.check(consumer, buckets, generation)
            state = await self.write(
                partial(
                    cursors.attach,
                    name=self.name,
                    owner_term=self.owner_term,
                    subscription=subscription,
                    consumer=consumer,
                    buckets=buckets,
                    generation=generation,
                )
            )
            there = self._subscriptions.get(subscription)
            if there is None or there.life != state.life:
                if there is not None:
                    there.end(Detached("the cursor was moved", remedy="attach again"))
                there = ServedSubscription(self, subscription, state, self._next_entry, terminated=self._terminated)
                self._subscriptions[subscription] = there
            return there.attach(next(self._numbers), consumer, buckets, generation)

    def connect_producer(self, producer: ConnectedProducer) -> None:
        self._producers.append(producer)

    def disconnect_producer(self, producer: ConnectedProducer) -> None:
        if producer in self._producers:
            self._producers.remove(producer)

    async def prune(self, *, retention_seconds: float, max_entries: int = 1_000) -> int:
        before_ms = self._backend.now_ms() - round(retention_seconds * 1_000) + 1
        return await self.write(
            partial(
                log.prune,
                name=self.name,
                owner_term=self.owner_term,
                before_ms=before_ms,
                max_entries=max_entries,
            )
        )

    async def close(self) -> None:
        self.end(Detached("the segment is served here no more", subject=self.name, remedy="ask who owns it now"))

    def add_to(self, stats: SegmentStats) -> SegmentStats:
        """What only the owner knows."""
        subscriptions = dict(stats.subscriptions)
        for name in subscriptions.keys() & self._subscriptions.keys():
            dispatcher = self._subscriptions[name].dispatcher
            subscriptions[name] = replace(
                subscriptions[name], unacked=dispatcher.unacked, consumers=dispatcher.consumers
            )
        return replace(
            stats,
            rates=self._rates.rates(now=self._clock()),
            subscriptions=subscriptions,
            producers=tuple(self._producers),
        )

    def end(self, why: ScalableTopicsError) -> None:
        """Nothing is served any more; everybody who waits is told why."""
        if self._ended is None:
            self._ended = why
            self._stop_listening()
            for subscription in self._subscriptions.values():
                subscription.end(why)
            self._subscriptions.clear()
            self._tail.clear()
            self._news.set()

    @property
    def has_ended(self) -> bool:
        return self._ended is not None

    async def look_again(self) -> None:
        """See what others have changed, if they may have."""
        if self._ended is not None:
            raise again(self._ended)
        if not self._stale:
            return
        self._stale = False
        try:
            row, now = await self._read(partial(_look, name=self.name, owner_term=self.owner_term))
        except ScalableTopicsError:
            self._stale = True
            raise
        for name, subscription in list(self._subscriptions.items()):
            cursor = now.get(name)
            if cursor is None or cursor.life != subscription.life:
                del self._subscriptions[name]
                subscription.end(
                    NotFound("the subscription was deleted", subject=f"{name} on {self.name}")
                    if cursor is None
                    else Detached("the cursor was moved", remedy="attach again")
                )
            else:
                subscription.marked(cursor.mark_delete)
        self._grow(row)

    async def entries(self, wanted: Sequence[int]) -> Sequence[Entry]:
        """Those of the entries that are still stored."""
        found = {entry: kept for entry in wanted if (kept := self._tail.get(entry)) is not None}
        missing = sorted(entry for entry in wanted if entry not in found)
        if missing:
            work = partial(log.read_entries, name=self.name, owner_term=self.owner_term, entries=missing)
            found |= {entry.position[1]: entry for entry in await self._read(work)}
        entries = [found[entry] for entry in wanted if entry in found]
        self._count_out(entries)
        return entries

    async def load(self, first: int, max_entries: int) -> Sequence[Entry]:
        in_tail: list[Entry] = []
        while len(in_tail) < max_entries and (entry := self._tail.get(first + len(in_tail))) is not None:
            in_tail.append(entry)
        if in_tail:
            return in_tail
        start = lifecycle.position_of(first)
        return await self._read(
            partial(log.read, name=self.name, owner_term=self.owner_term, start=start, max_entries=max_entries)
        )

    async def write(self, work: Callable[[Rows], T]) -> T:
        """As the owner. Our own changes are no news to us."""
        if self._ended is not None:
            raise again(self._ended)
        try:
            return await self._backend.write(self.name, work, quiet=True)
        except (Fenced, NotFound) as error:
            self._end_if_lost(error)
            raise

    async def _read(self, work: Callable[[Rows], T]) -> T:
        if self._ended is not None:
            raise again(self._ended)
        try:
            return await self._backend.read(self.name, work)
        except (Fenced, NotFound) as error:
            self._end_if_lost(error)
            raise

    def _end_if_lost(self, error: ScalableTopicsError) -> None:
        if error.subject == self.name:
            self.end(error)

    def _told(self) -> None:
        self._stale = True
        self._tell()

    def _grow(self, row: SegmentRow) -> None:
        """Rows may be seen out of order: what is known of a segment only grows."""
        self._next_entry = max(self._next_entry, row.next_entry)
        self._terminated = self._terminated or row.terminated
        for subscription in self._subscriptions.values():
            subscription.handle(Grown(self._next_entry, self._terminated))
        self._news.set()

    def _tell(self) -> None:
        self._news.set()
        for subscription in self._subscriptions.values():
            subscription.tell()

    def _keep(self, entry: Entry) -> None:
        self._tail[entry.position[1]] = entry
        self._tail_bytes += log.size_of(entry.message) + _ENTRY_BYTES
        while self._tail_bytes > TAIL_BYTES:
            _, oldest = self._tail.popitem(last=False)
            self._tail_bytes -= log.size_of(oldest.message) + _ENTRY_BYTES

    def _count_out(self, entries: Collection[Entry]) -> None:
        self._rates.record_out(len(entries), sum(log.size_of(entry.message) for entry in entries), now=self._clock())


def _look(rows: Rows, name: str, owner_term: int) -> tuple[SegmentRow, dict[str, cursors.CursorState]]:
    row = lifecycle.owned(rows, name, owner_term)
    return row, {cursor.name: cursors.state_of(cursor) for cursor in rows.cursors(row.id)}
