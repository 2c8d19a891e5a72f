"""A segment: one node of a topic's DAG."""

from collections.abc import Iterator
from enum import StrEnum
from typing import Final

from msgspec import Struct, field
from msgspec.structs import force_setattr

from scalable_topics.model import entry_buckets
from scalable_topics.model.entry_buckets import EntryBuckets
from scalable_topics.model.errors import InvalidArgument
from scalable_topics.model.hash_range import HashRange
from scalable_topics.model.id_runs import IdRuns, canonical_runs, ids_of
from scalable_topics.model.limits import MAX_LONG, is_long
from scalable_topics.model.names import SegmentName, TopicName
from scalable_topics.model.positions import Position, is_position


class SegmentState(StrEnum):
    ACTIVE = "ACTIVE"
    SEALED = "SEALED"


class CreatedBy(StrEnum):
    """What made a segment. Stored, never guessed from the number of parents: pruning changes those."""

    INITIAL = "INITIAL"
    SPLIT = "SPLIT"
    MERGE = "MERGE"
    REBUCKET = "REBUCKET"
    MIGRATION = "MIGRATION"
    LEGACY = "LEGACY"


_ACTIVE: Final = SegmentState.ACTIVE
_LEGACY: Final = CreatedBy.LEGACY
_ONE_BUCKET: Final = 1


class SegmentInfo(Struct, frozen=True, rename="camel", gc=False, kw_only=True):
    """One segment as the record keeps it, under PIP-468's field names.

    An ACTIVE segment has no children and zero for both seal times. `merge_depth` is the number of merges on the
    deepest path that led here, fixed when the segment is made, so that pruning ancestors cannot lower it; what a
    parent that had stood for long enough went through is not counted (`handed_on_depth`).

    Parents and children are kept as runs (`model/id_runs.py`), in whatever spelling they are given; `parent_ids` and
    `child_ids` are the ids themselves.
    """

    segment_id: int
    hash_range: HashRange
    state: SegmentState
    parent_runs: IdRuns = field(name="parentIds")
    child_runs: IdRuns = field(name="childIds")
    created_at_epoch: int
    sealed_at_epoch: int
    created_at_ms: int
    sealed_at_ms: int
    created_by: CreatedBy
    merge_depth: int
    entry_buckets: EntryBuckets
    legacy_topic_name: str | None = None
    terminated_at: Position | None = None
    """The last entry that a SEALED segment will ever have, as its owner confirmed; None = not recorded."""

    def __post_init__(self) -> None:
        # Runs for every segment of every record that is read, so the whole answer is one expression and the story
        # comes after.
        if not (
            0 <= self.segment_id <= MAX_LONG
            and 0 <= self.created_at_epoch <= MAX_LONG
            and 0 <= self.created_at_ms <= MAX_LONG
            and 0 <= self.merge_depth <= MAX_LONG
            and (
                not (self.sealed_at_epoch or self.sealed_at_ms or self.child_runs)
                if self.state is _ACTIVE
                else self.created_at_epoch <= self.sealed_at_epoch <= MAX_LONG and 0 <= self.sealed_at_ms <= MAX_LONG
            )
            and (self.created_by is _LEGACY) is bool(self.legacy_topic_name)
        ):
            raise InvalidArgument("; ".join(_problems(self)), subject=f"segment {self.segment_id}")
        if self.terminated_at is not None and (self.state is _ACTIVE or not is_position(self.terminated_at)):
            raise InvalidArgument(
                f"it is {self.state} and ends at {self.terminated_at}",
                subject=f"segment {self.segment_id}",
                remedy="a SEALED segment ends at (ledger, entry), each -1 or more",
            )
        if self.entry_buckets is not _ONE_BUCKET:
            entry_buckets.validate(self.entry_buckets)
        runs = self.parent_runs
        if runs and (canonical := canonical_runs(runs)) is not runs:
            force_setattr(self, "parent_runs", canonical)
        runs = self.child_runs
        if runs and (canonical := canonical_runs(runs)) is not runs:
            force_setattr(self, "child_runs", canonical)

    @property
    def parent_ids(self) -> tuple[int, ...]:
        """In the order in which whoever made it named them."""
        return ids_of(self.parent_runs)

    @property
    def child_ids(self) -> tuple[int, ...]:
        return ids_of(self.child_runs)

    @property
    def is_active(self) -> bool:
        return self.state is SegmentState.ACTIVE

    @property
    def is_legacy(self) -> bool:
        """Is it an old topic under its old name?"""
        return bool(self.legacy_topic_name)

    @property
    def bucket_count(self) -> int:
        return entry_buckets.bucket_count(self.entry_buckets)

    @property
    def entry_bucket_splits(self) -> tuple[int, ...]:
        return entry_buckets.splits_of(self.entry_buckets)


class SegmentAddress(Struct, frozen=True):
    """Where a segment's messages are.

    `logical` is the PIP's name and what people see. `physical` adds the incarnation of the topic, so that a topic
    deleted and made again never meets a byte of its former life. A legacy segment is the old topic, under its old
    name.
    """

    logical: str
    physical: str


def segment_address(topic: TopicName, segment: SegmentInfo, *, incarnation: str) -> SegmentAddress:
    """The one function that turns a segment's record into the names by which it is reached."""
    if segment.legacy_topic_name:
        return SegmentAddress(segment.legacy_topic_name, segment.legacy_topic_name)
    logical = str(SegmentName(topic, segment.hash_range, segment.segment_id))
    return SegmentAddress(logical, f"{logical}@{incarnation}")


def new_segment(
    segment_id: int,
    hash_range: HashRange,
    *,
    created_by: CreatedBy,
    epoch: int,
    at_ms: int,
    buckets: EntryBuckets,
    parent_ids: IdRuns = (),
    merge_depth: int = 0,
    legacy_topic_name: str | None = None,
) -> SegmentInfo:
    """A segment that accepts messages. `parent_ids` may be ids, runs, or both."""
    return SegmentInfo(
        segment_id=segment_id,
        hash_range=hash_range,
        state=SegmentState.ACTIVE,
        parent_runs=parent_ids,
        child_runs=(),
        created_at_epoch=epoch,
        sealed_at_epoch=0,
        created_at_ms=at_ms,
        sealed_at_ms=0,
        created_by=created_by,
        merge_depth=merge_depth,
        entry_buckets=buckets,
        legacy_topic_name=legacy_topic_name,
    )


def handed_on_depth(parent: SegmentInfo, *, at_ms: int, depth_window_seconds: float) -> int:
    """The depth that a child made at `at_ms` takes over from this parent.

    Depth counts churn, and calm forgives it: whoever has stood for the window hands on 0. A window of 0 forgives
    nothing, which is PIP-483's letter.
    """
    stood = at_ms - parent.created_at_ms >= depth_window_seconds * 1000
    return 0 if depth_window_seconds > 0 and stood else parent.merge_depth


def _problems(segment: SegmentInfo) -> Iterator[str]:
    """The story of a segment that cannot be."""
    longs = ("segment_id", "created_at_epoch", "created_at_ms", "sealed_at_epoch", "sealed_at_ms", "merge_depth")
    for name in longs:
        if not is_long(getattr(segment, name)):
            yield f"{name} {getattr(segment, name)} is not a long of 0 or more"
    if segment.is_active and (segment.sealed_at_epoch or segment.sealed_at_ms or segment.child_runs):
        yield "it is ACTIVE, and yet has children, a seal epoch or a seal time"
    if not segment.is_active and segment.sealed_at_epoch < segment.created_at_epoch:
        yield f"it was sealed at epoch {segment.sealed_at_epoch}, before it was created at {segment.created_at_epoch}"
    if segment.created_by is CreatedBy.LEGACY and not segment.legacy_topic_name:
        yield "it is LEGACY, and has no legacyTopicName"
    if segment.created_by is not CreatedBy.LEGACY and segment.legacy_topic_name:
        yield f"it is {segment.created_by}, and yet has a legacyTopicName"
