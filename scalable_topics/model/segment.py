"""A segment: one node of a topic's DAG."""

from collections.abc import Iterator
from enum import StrEnum
from typing import Final

from msgspec import Struct

from scalable_topics.model import entry_buckets
from scalable_topics.model.entry_buckets import EntryBuckets
from scalable_topics.model.errors import InvalidArgument
from scalable_topics.model.hash_range import HashRange
from scalable_topics.model.limits import MAX_LONG, is_long
from scalable_topics.model.names import SegmentName, TopicName


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
    deepest path that led here, fixed when the segment is made, so that pruning ancestors cannot lower it.
    """

    segment_id: int
    hash_range: HashRange
    state: SegmentState
    parent_ids: tuple[int, ...]
    child_ids: tuple[int, ...]
    created_at_epoch: int
    sealed_at_epoch: int
    created_at_ms: int
    sealed_at_ms: int
    created_by: CreatedBy
    merge_depth: int
    entry_buckets: EntryBuckets
    legacy_topic_name: str | None = None

    def __post_init__(self) -> None:
        # Runs for every segment of every record that is read, so the whole answer is one expression and the story
        # comes after.
        if not (
            0 <= self.segment_id <= MAX_LONG
            and 0 <= self.created_at_epoch <= MAX_LONG
            and 0 <= self.created_at_ms <= MAX_LONG
            and 0 <= self.merge_depth <= MAX_LONG
            and (
                not (self.sealed_at_epoch or self.sealed_at_ms or self.child_ids)
                if self.state is _ACTIVE
                else self.created_at_epoch <= self.sealed_at_epoch <= MAX_LONG and 0 <= self.sealed_at_ms <= MAX_LONG
            )
            and (self.created_by is _LEGACY) is bool(self.legacy_topic_name)
        ):
            raise InvalidArgument("; ".join(_problems(self)), subject=f"segment {self.segment_id}")
        if self.entry_buckets is not _ONE_BUCKET:
            entry_buckets.validate(self.entry_buckets)

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
    parent_ids: tuple[int, ...] = (),
    merge_depth: int = 0,
    legacy_topic_name: str | None = None,
) -> SegmentInfo:
    """A segment that accepts messages."""
    return SegmentInfo(
        segment_id=segment_id,
        hash_range=hash_range,
        state=SegmentState.ACTIVE,
        parent_ids=parent_ids,
        child_ids=(),
        created_at_epoch=epoch,
        sealed_at_epoch=0,
        created_at_ms=at_ms,
        sealed_at_ms=0,
        created_by=created_by,
        merge_depth=merge_depth,
        entry_buckets=buckets,
        legacy_topic_name=legacy_topic_name,
    )


def _problems(segment: SegmentInfo) -> Iterator[str]:
    """The story of a segment that cannot be."""
    longs = ("segment_id", "created_at_epoch", "created_at_ms", "sealed_at_epoch", "sealed_at_ms", "merge_depth")
    for name in longs:
        if not is_long(getattr(segment, name)):
            yield f"{name} {getattr(segment, name)} is not a long of 0 or more"
    if segment.is_active and (segment.sealed_at_epoch or segment.sealed_at_ms or segment.child_ids):
        yield "it is ACTIVE, and yet has children, a seal epoch or a seal time"
    if not segment.is_active and segment.sealed_at_epoch < segment.created_at_epoch:
        yield f"it was sealed at epoch {segment.sealed_at_epoch}, before it was created at {segment.created_at_epoch}"
    if segment.created_by is CreatedBy.LEGACY and not segment.legacy_topic_name:
        yield "it is LEGACY, and has no legacyTopicName"
    if segment.created_by is not CreatedBy.LEGACY and segment.legacy_topic_name:
        yield f"it is {segment.created_by}, and yet has a legacyTopicName"
