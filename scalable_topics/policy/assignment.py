"""Who consumes what: segments, or slices of their buckets, to the consumers of one ordered subscription.

Sticky: what a consumer holds it keeps, as far as balance allows; what is new goes to whoever held its parents. A
segment is handed out only when everything before it is drained, through all generations. From nothing it is
PIP-468's round-robin.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from heapq import heapify, heappop, heappush, heapreplace

from msgspec import Struct

from scalable_topics.model.hash_range import HashRange
from scalable_topics.model.layout import SegmentLayout
from scalable_topics.model.segment import SegmentInfo, SegmentState


class Unit(Struct, frozen=True, order=True):
    """What is assigned: a segment, whole, or the buckets `first` to `last` (inclusive) of it."""

    segment_id: int
    buckets: tuple[int, int] | None = None


Assignment = Mapping[str, tuple[Unit, ...]]
"""Consumer -> its units, in segment order. Every consumer has an entry; an idle one has an empty one."""


def assign(
    layout: SegmentLayout, consumers: Iterable[str], *, drained: Collection[int], previous: Assignment
) -> Assignment:
    """The next assignment. Depends on nothing but its arguments, and not on their order."""
    names = sorted(set(consumers))
    segments = assignable(layout, drained)
    if not names:
        return {}
    holders = _Holders(layout, names, previous)
    if len(names) <= len(segments):
        return _whole(segments, names, holders)
    return _shared(segments, names, holders)


def changed(before: Assignment, after: Assignment) -> list[str]:
    """The consumers that have to be told."""
    return sorted(name for name, units in after.items() if name not in before or before[name] != units)


def assignable(layout: SegmentLayout, drained: Collection[int]) -> list[SegmentInfo]:
    """What may be consumed now, in segment order: not drained itself, and nothing undrained before it."""
    done = set(drained)
    waiting: set[int] = set()
    free = []
    # Parents have lower ids, so one pass in id order sees every ancestor first.
    for segment_id, segment in layout.segments.items():
        if any(parent in waiting or parent not in done for parent in segment.parent_ids):
            waiting.add(segment_id)
        elif segment.state is SegmentState.ACTIVE or segment_id not in done:
            free.append(segment)
    return sorted(free, key=_segment_order)


def slices(bucket_count: int, sharers: Sequence[str]) -> list[tuple[str, tuple[int, int]]]:
    """Contiguous slices in the order of the sharers; the first `bucket_count mod sharers` get one more. Sharers beyond
    the buckets get none.
    """
    if not sharers:
        return []
    width, wider = divmod(bucket_count, len(sharers))

    def start(index: int) -> int:
        return index * width + min(index, wider)

    return [
        (name, (start(index), start(index + 1) - 1))
        for index, name in enumerate(sharers)
        if start(index) < start(index + 1)
    ]


def bucket_owners(bucket_count: int, sharers: Sequence[str]) -> Sequence[str | None]:
    """The owner of each bucket; None when there is nobody."""
    if not sharers:
        return [None] * bucket_count
    return [name for name, (first, last) in slices(bucket_count, sharers) for _ in range(first, last + 1)]


def sharer_ranges(bucket_ranges: Sequence[HashRange], sharers: Sequence[str]) -> dict[str, HashRange | None]:
    """The part of the bucket ring that each sharer receives; None for one beyond the buckets."""
    ranges: dict[str, HashRange | None] = dict.fromkeys(sharers)
    for name, (first, last) in slices(len(bucket_ranges), sharers):
        ranges[name] = HashRange(bucket_ranges[first].start, bucket_ranges[last].end)
    return ranges


class Handoff(Struct, frozen=True):
    """Buckets that change hands, and those of them that wait for their old owner's acknowledgements."""

    moved: tuple[int, ...]
    withheld: tuple[int, ...]


def handoff(bucket_count: int, *, before: Sequence[str], after: Sequence[str], unacked: Mapping[int, int]) -> Handoff:
    old, new = bucket_owners(bucket_count, before), bucket_owners(bucket_count, after)
    moved = [bucket for bucket in range(bucket_count) if old[bucket] != new[bucket]]
    still_there = set(after)
    withheld = (bucket for bucket in moved if old[bucket] in still_there and unacked.get(bucket, 0) > 0)
    return Handoff(tuple(moved), tuple(withheld))


def _segment_order(segment: SegmentInfo) -> tuple[int, int, int]:
    return segment.hash_range.start, segment.hash_range.end, segment.segment_id


class _Holders:
    """Who held what before, and who inherits what is new."""

    def __init__(self, layout: SegmentLayout, names: Sequence[str], previous: Assignment) -> None:
        present = set(names)
        by_bucket: dict[int, list[tuple[int, str]]] = {}
        for name, units in previous.items():
            for unit in units:
                by_bucket.setdefault(unit.segment_id, []).append((unit.buckets[0] if unit.buckets else 0, name))
        self._held = {segment_id: [name for _, name in sorted(held)] for segment_id, held in by_bucket.items()}
        self._heirs: dict[int, list[str]] = {}
        for segment_id, segment in layout.segments.items():
            heirs = self._held.get(segment_id)
            if heirs is None:
                heirs = list(dict.fromkeys(name for parent in segment.parent_ids for name in self._heirs[parent]))
            self._heirs[segment_id] = heirs
        self._present = present

    def of(self, segment: SegmentInfo) -> list[str]:
        """In order: those who held it, by bucket, or who held its parents. Consumers that left are passed over."""
        return [name for name in self._heirs[segment.segment_id] if name in self._present]

    def was_assigned(self, segment: SegmentInfo) -> bool:
        return segment.segment_id in self._held

    def held(self, name: str, segment: SegmentInfo) -> bool:
        return name in self._held.get(segment.segment_id, ())


def _whole(segments: list[SegmentInfo], names: list[str], holders: _Holders) -> Assignment:
    """At least as many segments as consumers: each segment goes to one."""
    given: dict[str, dict[int, SegmentInfo]] = {name: {} for name in names}
    rest = []
    for segment in segments:
        heirs = holders.of(segment)
        if heirs:
            given[heirs[0]][segment.segment_id] = segment
        else:
            rest.append(segment)
    least = [(len(given[name]), name) for name in names]
    heapify(least)
    for segment in rest:
        load, name = least[0]
        given[name][segment.segment_id] = segment
        heapreplace(least, (load + 1, name))
    _level(given, holders)
    return {
        name: tuple(Unit(segment.segment_id) for segment in sorted(held.values(), key=_segment_order))
        for name, held in given.items()
    }


def _level(given: dict[str, dict[int, SegmentInfo]], holders: _Holders) -> None:
    """Move segments from the most to the least loaded until nobody has two more than another.

    Goes down level by level: everybody at the highest load gives one segment, the cheapest to move among all of
    theirs first. A taker never becomes a giver, because the levels stop one above the lowest load; so the entries
    of givers in `least` may go stale.
    """
    least = [(len(held), name) for name, held in given.items()]
    heapify(least)
    by_load: dict[int, list[str]] = {}
    for name, held in given.items():
        by_load.setdefault(len(held), []).append(name)
    movable: dict[str, list[tuple[bool, int, int]]] = {}
    level = max(by_load)
    while level - least[0][0] > 1:
        for name in by_load[level]:
            if name not in movable:
                costs = ((holders.held(name, s), -s.hash_range.start, -s.segment_id) for s in given[name].values())
                movable[name] = sorted(costs, reverse=True)
        givers = [(movable[name][-1], name) for name in by_load[level]]
        heapify(givers)
        while givers and level - least[0][0] > 1:
            (*_, negative_id), giver = heappop(givers)
            movable[giver].pop()
            by_load.setdefault(level - 1, []).append(giver)
            load, taker = least[0]
            given[taker][-negative_id] = given[giver].pop(-negative_id)
            heapreplace(least, (load + 1, taker))
        level -= 1


def _shared(segments: list[SegmentInfo], names: list[str], holders: _Holders) -> Assignment:
    """More consumers than segments: each consumer gets one segment or a slice of one, or waits."""
    sharers: dict[int, list[str]] = {segment.segment_id: [] for segment in segments}
    placed: set[str] = set()

    def place(segment: SegmentInfo, candidates: Iterable[str]) -> None:
        taken = sharers[segment.segment_id]
        for name in candidates:
            if name not in placed and len(taken) < segment.bucket_count:
                taken.append(name)
                placed.add(name)

    for inherited in (False, True):
        for segment in segments:
            if holders.was_assigned(segment) is not inherited:
                place(segment, holders.of(segment))
    room = _with_room(segments, sharers)
    for name in names:
        if name not in placed and room:
            fewest, order = heappop(room)
            place(segments[order], (name,))
            if fewest + 1 < segments[order].bucket_count:
                heappush(room, (fewest + 1, order))
    _even_out(segments, sharers, holders)
    units: dict[str, tuple[Unit, ...]] = dict.fromkeys(names, ())
    for segment in segments:
        for name, (first, last) in slices(segment.bucket_count, sharers[segment.segment_id]):
            whole = len(sharers[segment.segment_id]) == 1
            units[name] = (Unit(segment.segment_id, None if whole else (first, last)),)
    return units


def _even_out(segments: list[SegmentInfo], sharers: dict[int, list[str]], holders: _Holders) -> None:
    """Move last sharers from the fullest segments to those with room, until no such segment has two fewer.

    As above, a segment that took never gives and one that gave never takes, so their entries in the other heap may
    go stale.
    """

    def giver(order: int) -> tuple[int, bool, int, int, int]:
        segment = segments[order]
        held = sharers[segment.segment_id]
        keeps = bool(held) and holders.held(held[-1], segment)
        return -len(held), keeps, -segment.hash_range.start, -segment.segment_id, order

    most = [giver(order) for order in range(len(segments))]
    heapify(most)
    room = _with_room(segments, sharers)
    while room and -most[0][0] - room[0][0] >= 2:
        source = most[0][-1]
        fewest, target = heappop(room)
        moved = sharers[segments[source].segment_id].pop()
        sharers[segments[target].segment_id].append(moved)
        heapreplace(most, giver(source))
        if fewest + 1 < segments[target].bucket_count:
            heappush(room, (fewest + 1, target))


def _with_room(segments: list[SegmentInfo], sharers: dict[int, list[str]]) -> list[tuple[int, int]]:
    """A heap of (number of sharers, position) of the segments that can take one more."""
    room = [
        (len(sharers[segment.segment_id]), order)
        for order, segment in enumerate(segments)
        if len(sharers[segment.segment_id]) < segment.bucket_count
    ]
    heapify(room)
    return room
