"""How a record stores many old partitions: what they have in common is written once.

The partitions of a migrated topic are sealed together, follow nothing and are followed by the same children, and are
called after one topic. 1,000 of them, one by one, would be half of what a record may weigh. In memory they are ordinary
segments.
"""

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from itertools import zip_longest
from typing import Final

from msgspec import Struct
from msgspec.structs import astuple, replace

from scalable_topics.model.errors import InvalidArgument
from scalable_topics.model.hash_range import RING_SIZE
from scalable_topics.model.id_runs import SHORTEST_RUN
from scalable_topics.model.names import PARTITION_SUFFIX
from scalable_topics.model.positions import Position
from scalable_topics.model.segment import CreatedBy, SegmentInfo

_LEGACY: Final = CreatedBy.LEGACY
_RUN_ID: Final = re.compile(r"(0|[1-9][0-9]{0,18})-(0|[1-9][0-9]{0,18})")


class LegacyRun(Struct, frozen=True, rename="camel"):
    """Old partitions with consecutive ids: the first of them, and what the others are but for id and name."""

    id: str
    """`0-999`: first and last segment id, which are also the partitions' numbers."""
    first: SegmentInfo
    """Without the position it ends at, which is among `terminated_at`."""
    terminated_at: tuple[Position | None, ...] = ()
    """Where each of them ends; empty when that is recorded of none."""

    def __post_init__(self) -> None:
        ends = _RUN_ID.fullmatch(self.id)
        if ends is None:
            raise InvalidArgument(f"{self.id!r} is not a run of old partitions", remedy="write it as 0-999")
        first = self.first
        if not first.segment_id == int(ends[1]) <= int(ends[2]) or _base_name(first) is None:
            raise InvalidArgument(f"segment {first.segment_id} is not the first of the old partitions {self.id}")
        if first.terminated_at is not None or len(self.terminated_at) not in (0, self.size):
            raise InvalidArgument(
                f"{len(self.terminated_at)} ends of the old partitions {self.id}",
                remedy="give terminatedAt one per partition, or none",
            )

    @property
    def last_id(self) -> int:
        return int(self.id.partition("-")[2])

    @property
    def size(self) -> int:
        return self.last_id - self.first.segment_id + 1

    def partitions(self) -> Iterator[SegmentInfo]:
        base = _base_name(self.first)
        numbers = range(self.first.segment_id, self.last_id + 1)
        for number, end in zip_longest(numbers, self.terminated_at):
            name = f"{base}{PARTITION_SUFFIX}{number}"
            yield replace(self.first, segment_id=number, legacy_topic_name=name, terminated_at=end)


def fold(
    segments: Mapping[int, SegmentInfo], *, apart: Collection[int] = ()
) -> tuple[dict[int, SegmentInfo], tuple[LegacyRun, ...]]:
    """Segments in id order as a record stores them: the runs of old partitions, and all that are in none of them.

    `apart` stay by themselves: something is known of them that is not known of the others.
    """
    runs: list[list[SegmentInfo]] = []
    previous: tuple[object, ...] | None = None
    for segment in segments.values():
        if segment.created_by is _LEGACY and segment.segment_id not in apart:
            kind = _kind(segment)
            if runs and kind == previous and runs[-1][-1].segment_id + 1 == segment.segment_id:
                runs[-1].append(segment)
            else:
                runs.append([segment])
            previous = kind
    stored = [run for run in runs if len(run) >= SHORTEST_RUN and _base_name(run[0]) is not None]
    if not stored:
        return dict(segments), ()
    folded = {segment.segment_id for run in stored for segment in run}
    return (
        {key: segment for key, segment in segments.items() if key not in folded},
        tuple(map(_run_of, stored)),
    )


def unfold(segments: Mapping[int, SegmentInfo], runs: Iterable[LegacyRun]) -> dict[int, SegmentInfo]:
    """All segments again. A run is a few bytes: more partitions than any topic can have are refused before they are
    made.
    """
    every = dict(segments)
    number = 0
    for run in runs:
        number += run.size
        if number > RING_SIZE:
            raise InvalidArgument(f"a record of {number} old partitions", remedy=f"a topic has at most {RING_SIZE}")
        for partition in run.partitions():
            if every.setdefault(partition.segment_id, partition) is not partition:
                raise InvalidArgument("it is stored twice", subject=f"segment {partition.segment_id}")
    return every


def _run_of(partitions: Sequence[SegmentInfo]) -> LegacyRun:
    first, last = partitions[0], partitions[-1]
    ends = tuple(partition.terminated_at for partition in partitions)
    return LegacyRun(
        f"{first.segment_id}-{last.segment_id}", replace(first, terminated_at=None), ends if any(ends) else ()
    )


def _base_name(segment: SegmentInfo) -> str | None:
    """The topic whose partition this is, if it has the partition's name."""
    suffix = f"{PARTITION_SUFFIX}{segment.segment_id}"
    name = segment.legacy_topic_name
    return name.removesuffix(suffix) if name and name.endswith(suffix) else None


def _kind(segment: SegmentInfo) -> tuple[object, ...]:
    """All that two partitions of one topic have in common: every field but id, name and end."""
    base = _base_name(segment)
    _, *common, name, _ = astuple(segment)
    return (base, None if base is not None else name, *common)
