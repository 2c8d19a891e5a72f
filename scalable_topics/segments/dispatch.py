"""Who gets which message of one subscription on one segment.

Pure: events in, instructions out. It knows entries by their numbers and bucket hashes only; the shell fetches what
it asks for and hands over what it decides. A slice has one consumer, a shared subscription many. Every entry from
the cursor on is, at any moment, in one of these places: not loaded, waiting in the queue of whoever may have it,
delivered to one attachment, or acknowledged.
"""

from bisect import bisect_right
from collections.abc import Collection, Iterable, Sequence
from heapq import heapify, heappop, heappush
from typing import Final

from msgspec import Struct

from scalable_topics.model.errors import InvalidArgument, WrongState
from scalable_topics.model.hash_range import HashRange
from scalable_topics.segments.errors import StaleGeneration

MAX_LOADED: Final = 50_000
"""Entries that wait or are unacknowledged. With that many, nothing more is looked at until some are acknowledged, so
a slice that nobody reads can in the end hold up the others."""
MAX_LOAD: Final = 500


class Attached(Struct, frozen=True):
    attachment: int
    consumer: str
    buckets: HashRange | None
    """None = shared."""
    generation: int


class Gone(Struct, frozen=True):
    """An attachment has ended; what it holds is for others."""

    attachment: int


class Permitted(Struct, frozen=True):
    attachment: int
    count: int


class Loaded(Struct, frozen=True):
    """The answer to `Load`: (entry, bucket hash), ascending. `through` is the last entry that was looked at."""

    entries: Sequence[tuple[int, int]]
    through: int


class LoadFailed(Struct, frozen=True):
    """It may be asked for again."""


class Acked(Struct, frozen=True):
    entries: Collection[int]


class AckedThrough(Struct, frozen=True):
    entry: int


class Nacked(Struct, frozen=True):
    attachment: int
    entries: Collection[int]


class Grown(Struct, frozen=True):
    """The segment has entries below `next_entry`; if terminated, it will never have more."""

    next_entry: int
    terminated: bool


Event = Attached | Gone | Permitted | Loaded | LoadFailed | Acked | AckedThrough | Nacked | Grown


class Load(Struct, frozen=True):
    """Tell me of up to `count` entries from `first` on. There is never more than one of these under way."""

    first: int
    count: int


class Deliver(Struct, frozen=True):
    """Hand these to the attachment, in this order: (entry, how often it was delivered before)."""

    attachment: int
    entries: tuple[tuple[int, int], ...]


class Evict(Struct, frozen=True):
    """A newer generation has taken over from this attachment."""

    attachment: int
    generation: int


class End(Struct, frozen=True):
    """Everything this attachment could ever get was acknowledged."""

    attachment: int


Instruction = Load | Deliver | Evict | End

_UNHELD: Final = 0
_SHARED: Final = -1


class _Attachment(Struct):
    consumer: str
    buckets: HashRange | None
    generation: int
    permits: int = 0
    ended: bool = False


class Dispatcher:
    def __init__(self, *, mark_delete: int, acked: Iterable[int], next_entry: int, terminated: bool) -> None:
        self._next = mark_delete + 1
        self._acked = set(acked)
        """Acknowledged before they were loaded."""
        self._end = next_entry
        self._terminated = terminated
        self._attachments: dict[int, _Attachment] = {}
        self._starts: list[tuple[int, int]] = []
        """(first bucket, attachment) of every slice, ascending."""
        self._hashes: dict[int, int] = {}
        """Of all entries that were loaded and are not acknowledged."""
        self._holders: dict[int, int] = {}
        """Which attachment an entry was delivered to; the others wait."""
        self._deliveries: dict[int, int] = {}
        self._queues: dict[int, list[int]] = {}
        """Heaps of waiting entries. One that is acknowledged meanwhile is passed over when it comes up."""
        self._open: dict[int, int] = {}
        """How many loaded, unacknowledged entries belong to each queue."""
        self._loading = False
        self._turn = 0

    @property
    def unacked(self) -> int:
        """Delivered and not acknowledged."""
        return len(self._holders)

    @property
    def consumers(self) -> tuple[str, ...]:
        return tuple(attachment.consumer for attachment in self._attachments.values())

    def check(self, consumer: str, buckets: HashRange | None, generation: int) -> None:
        """Refuse an attachment that those which are there do not allow."""
        for other in self._attachments.values():
            if (other.buckets is None) is not (buckets is None):
                raise WrongState(
                    f"{other.consumer!r} is attached in another mode", remedy="wait until everybody has detached"
                )
            if buckets is None or other.buckets is None or not _overlap(buckets, other.buckets):
                continue
            if (generation, consumer) == (other.generation, other.consumer) or generation > other.generation:
                continue
            if generation < other.generation:
                raise StaleGeneration(f"generation {other.generation} is attached", remedy="wait for an assignment")
            raise WrongState(f"{other.consumer!r} is attached already", remedy="wait until it has detached")

    def handle(self, event: Event) -> list[Instruction]:
        instructions: list[Instruction] = []
        match event:
            case Attached():
                instructions += self._attach(event)
            case Gone(attachment=attachment):
                self._remove([attachment])
            case Permitted(attachment=attachment, count=count):
                if count < 0:
                    raise InvalidArgument(f"{count} is not a number of permits", remedy="give 0 or more")
                if attachment in self._attachments:
                    self._attachments[attachment].permits += count
            case Loaded(entries=entries, through=through):
                self._loading = False
                self._load(entries, through)
            case LoadFailed():
                self._loading = False
            case Acked(entries=entries):
                self._acknowledge(entries)
            case AckedThrough(entry=entry):
                self._acknowledge([loaded for loaded in self._hashes if loaded <= entry])
                self._acked = {other for other in self._acked if other > entry}
                self._next = max(self._next, entry + 1)
            case Nacked(attachment=attachment, entries=entries):
                for entry in entries:
                    if self._holders.get(entry) == attachment:
                        del self._holders[entry]
                        heappush(self._queues.setdefault(self._queue_of(self._hashes[entry]), []), entry)
            case Grown(next_entry=next_entry, terminated=terminated):
                self._end = max(self._end, next_entry)
                self._terminated = self._terminated or terminated
        return [*instructions, *self._deliver(), *self._ends(), *self._next_load()]

    def _attach(self, new: Attached) -> Iterable[Instruction]:
        self.check(new.consumer, new.buckets, new.generation)
        replaced = [
            number
            for number, other in self._attachments.items()
            if new.buckets is not None and other.buckets is not None and _overlap(new.buckets, other.buckets)
        ]
        self._attachments[new.attachment] = _Attachment(new.consumer, new.buckets, new.generation)
        self._remove(replaced)
        return [Evict(number, new.generation) for number in replaced]

    def _remove(self, attachments: Collection[int]) -> None:
        for number in attachments:
            self._attachments.pop(number, None)
        for entry in [entry for entry, holder in self._holders.items() if holder in attachments]:
            del self._holders[entry]
        self._starts = sorted(
            (attachment.buckets.start, number)
            for number, attachment in self._attachments.items()
            if attachment.buckets is not None
        )
        self._queues, self._open = {}, {}
        for entry, bucket_hash in self._hashes.items():
            self._enqueue(entry, bucket_hash)
        for queue in self._queues.values():
            heapify(queue)

    def _enqueue(self, entry: int, bucket_hash: int) -> None:
        """Into the queue it belongs to, unless somebody holds it. Leaves the heap to be mended by the caller."""
        number = self._queue_of(bucket_hash)
        self._open[number] = self._open.get(number, 0) + 1
        if entry not in self._holders:
            self._queues.setdefault(number, []).append(entry)

    def _queue_of(self, bucket_hash: int) -> int:
        if not self._starts:
            return _SHARED if self._attachments else _UNHELD
        index = bisect_right(self._starts, bucket_hash, key=lambda start: start[0]) - 1
        if index < 0:
            return _UNHELD
        number = self._starts[index][1]
        buckets = self._attachments[number].buckets
        return number if buckets is not None and bucket_hash in buckets else _UNHELD

    def _load(self, entries: Sequence[tuple[int, int]], through: int) -> None:
        for entry, bucket_hash in entries:
            if entry < self._next:
                continue
            if entry in self._acked:
                self._acked.discard(entry)
                continue
            # They come in ascending order, after everything that waits: a heap stays one when a largest is appended.
            self._hashes[entry] = bucket_hash
            self._enqueue(entry, bucket_hash)
        self._next = max(self._next, through + 1)

    def _acknowledge(self, entries: Iterable[int]) -> None:
        for entry in entries:
            bucket_hash = self._hashes.pop(entry, None)
            if bucket_hash is None:
                if entry >= self._next:
                    self._acked.add(entry)
                continue
            self._open[self._queue_of(bucket_hash)] -= 1
            self._holders.pop(entry, None)
            self._deliveries.pop(entry, None)

    def _deliver(self) -> Iterable[Instruction]:
        chosen: dict[int, list[tuple[int, int]]] = {}
        if self._starts:
            for number, attachment in self._attachments.items():
                while attachment.permits and (entry := self._pop(number)) is not None:
                    self._hand(chosen, number, attachment, entry)
        elif self._attachments:
            numbers = list(self._attachments)
            while ready := [number for number in numbers if self._attachments[number].permits]:
                number = ready[self._turn % len(ready)]
                entry = self._pop(_SHARED)
                if entry is None:
                    break
                self._turn += 1
                self._hand(chosen, number, self._attachments[number], entry)
        return [Deliver(number, tuple(entries)) for number, entries in chosen.items()]

    def _hand(self, chosen: dict[int, list[tuple[int, int]]], number: int, attachment: _Attachment, entry: int) -> None:
        attachment.permits -= 1
        before = self._deliveries.get(entry, 0)
        self._deliveries[entry] = before + 1
        self._holders[entry] = number
        chosen.setdefault(number, []).append((entry, before))

    def _pop(self, number: int) -> int | None:
        queue = self._queues.get(number)
        while queue:
            entry = heappop(queue)
            if entry in self._hashes and entry not in self._holders:
                return entry
        return None

    def _ends(self) -> Iterable[Instruction]:
        if not (self._terminated and self._next >= self._end):
            return
        for number, attachment in self._attachments.items():
            queue = _SHARED if attachment.buckets is None else number
            if not attachment.ended and not self._open.get(queue):
                attachment.ended = True
                yield End(number)

    def _next_load(self) -> Iterable[Instruction]:
        if self._loading or self._next >= self._end or len(self._hashes) >= MAX_LOADED:
            return
        # Whoever still has permits after the delivery above has an empty queue.
        hungry = sum(attachment.permits for attachment in self._attachments.values())
        if hungry:
            self._loading = True
            yield Load(self._next, min(hungry, MAX_LOAD, self._end - self._next))


def _overlap(one: HashRange, other: HashRange) -> bool:
    return one.start <= other.end and other.start <= one.end
