"""The consumers of one subscription of a served segment: the shell around its dispatcher.

It starts no tasks: a consumer that receives does the loading that its subscription needs next.
"""

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterable, Sequence
from functools import partial
from typing import Protocol, TypeVar

from scalable_topics.model.errors import InvalidArgument, ScalableTopicsError
from scalable_topics.model.hash_range import FULL_RANGE, HashRange
from scalable_topics.model.hashing import bucket_hash
from scalable_topics.model.positions import Position
from scalable_topics.policy.routing import KEYLESS_BUCKET_HASH
from scalable_topics.segments import cursors
from scalable_topics.segments.dispatch import (
    Acked,
    AckedThrough,
    Attached,
    Deliver,
    Dispatcher,
    End,
    Event,
    Evict,
    Gone,
    Load,
    Loaded,
    LoadFailed,
    Nacked,
    Permitted,
)
from scalable_topics.segments.errors import Detached, StaleGeneration, again
from scalable_topics.segments.lifecycle import entry_of
from scalable_topics.segments.port import Delivery, Entry, Message
from scalable_topics.segments.rows import Rows

T = TypeVar("T")


class Source(Protocol):
    """The segment, as its subscriptions need it."""

    name: str
    owner_term: int

    async def look_again(self) -> None:
        """See what others have changed, if they may have."""

    async def load(self, first: int, max_entries: int) -> Sequence[Entry]:
        """Stored entries from one on."""

    async def entries(self, wanted: Sequence[int]) -> Sequence[Entry]:
        """Those of the entries that are still stored."""

    async def write(self, work: Callable[[Rows], T]) -> T:
        """As the owner."""


class ServedSubscription:
    """The consumers of one subscription, and who of them gets what."""

    def __init__(
        self, served: Source, name: str, state: cursors.CursorState, next_entry: int, *, terminated: bool
    ) -> None:
        self.served = served
        self.name = name
        self.life = state.life
        self._mark_delete = state.mark_delete
        self.dispatcher = Dispatcher(
            mark_delete=state.mark_delete, acked=state.acked, next_entry=next_entry, terminated=terminated
        )
        self._attachments: dict[int, ConsumerAttachment] = {}
        self._due: Load | None = None
        self._over = False

    def attach(self, number: int, consumer: str, buckets: HashRange | None, generation: int) -> "ConsumerAttachment":
        attachment = ConsumerAttachment(self, number, buckets)
        self._attachments[number] = attachment
        try:
            self.handle(Attached(number, consumer, buckets, generation))
        except ScalableTopicsError:
            del self._attachments[number]
            raise
        return attachment

    def handle(self, event: Event) -> None:
        if self._over:
            return  # a write that was under way at the end: it counts, and there is nobody left to be told
        for instruction in self.dispatcher.handle(event):
            match instruction:
                case Deliver(attachment=number, entries=entries):
                    self._attachments[number].assign(entries)
                case End(attachment=number):
                    self._attachments[number].finish()
                case Evict(attachment=number, generation=generation):
                    self._attachments.pop(number).end(
                        StaleGeneration(
                            f"generation {generation} has taken over",
                            subject=f"{self.name} on {self.served.name}",
                            remedy="drop what was prefetched; the assignment says who goes on",
                        )
                    )
                case Load():
                    self._due = instruction
                    self.tell()

    async def load(self) -> None:
        """Do the loading that is due, if nobody does it yet."""
        due, self._due = self._due, None
        if due is None:
            return
        try:
            entries = await self.served.load(due.first, due.count)
        except BaseException:
            self.handle(LoadFailed())
            raise
        through = entries[-1].position[1] if entries else due.first - 1
        self.handle(Loaded([(entry.position[1], _bucket_hash(entry.message)) for entry in entries], through))

    async def acknowledge(self, entries: Collection[int]) -> None:
        await self.served.write(
            partial(
                cursors.acknowledge,
                name=self.served.name,
                owner_term=self.served.owner_term,
                subscription=self.name,
                life=self.life,
                entries=entries,
            )
        )
        self.handle(Acked(entries))

    async def acknowledge_through(self, entry: int) -> None:
        await self.served.write(
            partial(
                cursors.acknowledge_through,
                name=self.served.name,
                owner_term=self.served.owner_term,
                subscription=self.name,
                life=self.life,
                through=entry,
            )
        )
        self.handle(AckedThrough(entry))

    def marked(self, mark_delete: int) -> None:
        """The cursor was found to have advanced; perhaps the leader did it."""
        if mark_delete > self._mark_delete:
            self._mark_delete = mark_delete
            self.handle(AckedThrough(mark_delete))

    def leave(self, number: int) -> None:
        if self._attachments.pop(number, None) is not None:
            self.handle(Gone(number))

    def end(self, why: ScalableTopicsError) -> None:
        self._over = True
        for attachment in self._attachments.values():
            attachment.end(why)
        self._attachments.clear()

    def tell(self) -> None:
        for attachment in self._attachments.values():
            attachment.news.set()


class ConsumerAttachment:
    """See `Attachment`."""

    def __init__(self, subscription: ServedSubscription, number: int, buckets: HashRange | None) -> None:
        self.news = asyncio.Event()
        self._subscription = subscription
        self._number = number
        self._buckets = buckets
        self._assigned: OrderedDict[int, int] = OrderedDict()
        """Entries to be received, and how often they were delivered before."""
        self._finished = False
        self._ended: ScalableTopicsError | None = None

    def permit(self, count: int) -> None:
        self._check()
        self._subscription.handle(Permitted(self._number, count))

    async def receive(self, max_entries: int = 100) -> Sequence[Delivery]:
        while True:
            self._check()
            self.news.clear()
            await self._subscription.served.look_again()
            self._check()
            if self._assigned:
                deliveries = await self._take(max_entries)
                if deliveries:
                    return deliveries
                continue
            if self._finished:
                return ()
            await self._subscription.load()
            await self.news.wait()

    async def _take(self, max_entries: int) -> Sequence[Delivery]:
        chosen = list(self._assigned)[:max_entries]
        entries = await self._subscription.served.entries(chosen)
        self._check()
        deliveries = [
            Delivery(entry, self._assigned[entry.position[1]])
            for entry in entries
            if entry.position[1] in self._assigned
        ]
        for entry in chosen:
            self._assigned.pop(entry, None)
        return deliveries

    async def ack(self, positions: Collection[Position]) -> None:
        self._check()
        entries = sorted({entry_of(position) for position in positions})
        await self._subscription.acknowledge(entries)
        for entry in entries:
            self._assigned.pop(entry, None)

    async def ack_through(self, position: Position) -> None:
        self._check()
        if self._buckets != FULL_RANGE:
            raise InvalidArgument(
                "only an exclusive consumer may acknowledge everything up to a position",
                remedy="acknowledge one by one",
            )
        through = entry_of(position)
        await self._subscription.acknowledge_through(through)
        for entry in [entry for entry in self._assigned if entry <= through]:
            del self._assigned[entry]

    def nack(self, positions: Collection[Position]) -> None:
        self._check()
        entries = [entry for position in positions if (entry := entry_of(position)) not in self._assigned]
        self._subscription.handle(Nacked(self._number, entries))

    async def close(self) -> None:
        if self._ended is None:
            self.end(Detached("this attachment was closed", remedy="attach again"))
            self._subscription.leave(self._number)

    def assign(self, entries: Iterable[tuple[int, int]]) -> None:
        self._assigned.update(entries)
        self.news.set()

    def finish(self) -> None:
        self._finished = True
        self.news.set()

    def end(self, why: ScalableTopicsError) -> None:
        if self._ended is None:
            self._ended = why
            self._assigned.clear()
            self.news.set()

    def _check(self) -> None:
        if self._ended is not None:
            raise again(self._ended)


def _bucket_hash(message: Message) -> int:
    return KEYLESS_BUCKET_HASH if message.key_hash is None else bucket_hash(message.key_hash)
