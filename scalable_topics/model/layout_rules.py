"""What must hold of a layout (PROTOCOL 12: coverage, and what one state can show of monotony).

A layout read from a store is checked before anybody acts on it. The rules are written as findings, each a sentence,
so that whoever has to mend a record reads the whole story at once.

The one exception: the LEGACY parents of a migration. Old partitions share all keys by modulo, so each covers the
whole ring and they overlap. They are ACTIVE only while the migration has not been committed, in a layout of their
own at epoch -1.
"""

from collections.abc import Iterator, Mapping
from operator import attrgetter
from typing import Final

from scalable_topics.model.hash_range import FULL_RANGE, tiling_problem
from scalable_topics.model.limits import MAX_LONG
from scalable_topics.model.segment import CreatedBy, SegmentInfo, SegmentState

UNBORN_EPOCH: Final = -1
"""Epoch of the layout that a migration replaces; its first commit makes epoch 0."""


_ACTIVE: Final = SegmentState.ACTIVE
_BY_START: Final = attrgetter("start")
_SPLIT: Final = CreatedBy.SPLIT
_MERGE: Final = CreatedBy.MERGE
_REBUCKET: Final = CreatedBy.REBUCKET
_MIGRATION: Final = CreatedBy.MIGRATION
_STARTS_AT_DEPTH_0: Final = frozenset({CreatedBy.INITIAL, CreatedBy.LEGACY, CreatedBy.MIGRATION})


def layout_problems(epoch: int, next_segment_id: int, segments: Mapping[int, SegmentInfo]) -> tuple[str, ...]:
    """Every way in which this is not a layout; empty when it is one."""
    return (
        *_counter_problems(epoch, next_segment_id, segments),
        *_coverage_problems(epoch, segments),
        *_edge_problems(segments),
    )


def _counter_problems(epoch: int, next_segment_id: int, segments: Mapping[int, SegmentInfo]) -> Iterator[str]:
    if not UNBORN_EPOCH <= epoch <= MAX_LONG:
        yield f"epoch {epoch} is not a long of 0 or more"
    if not 0 <= next_segment_id <= MAX_LONG:
        yield f"nextSegmentId {next_segment_id} is not a long of 0 or more"
    born = max(epoch, 0)
    for key, segment in segments.items():
        if segment.segment_id != key:
            yield f"segment {segment.segment_id} is filed under {key}"
        if key >= next_segment_id:
            yield f"segment {key} is not below nextSegmentId {next_segment_id}"
        if segment.created_at_epoch > born or segment.sealed_at_epoch > born:
            yield f"segment {key} was created or sealed after epoch {epoch}"
        if (segment.created_by in _STARTS_AT_DEPTH_0) if segment.merge_depth else (segment.created_by is _MERGE):
            yield f"segment {key}, made by {segment.created_by}, has merge depth {segment.merge_depth}"


def _coverage_problems(epoch: int, segments: Mapping[int, SegmentInfo]) -> Iterator[str]:
    active = [segment for segment in segments.values() if segment.state is _ACTIVE]
    if epoch == UNBORN_EPOCH:
        legacy = [s for s in active if s.created_by is CreatedBy.LEGACY and s.hash_range == FULL_RANGE]
        if not segments or len(legacy) != len(segments):
            yield "a layout at epoch -1 holds the whole-ring LEGACY segments of a coming migration, and nothing else"
        return
    for segment in active:
        if segment.created_by is CreatedBy.LEGACY:
            yield f"segment {segment.segment_id} is an old partition, and still ACTIVE after the migration"
    gap = tiling_problem(sorted((segment.hash_range for segment in active), key=_BY_START), FULL_RANGE)
    if gap:
        yield f"the ACTIVE segments {sorted(segment.segment_id for segment in active)} do not tile the ring: {gap}"


def _edge_problems(segments: Mapping[int, SegmentInfo]) -> Iterator[str]:
    from_child = [(parent_id, key) for key, segment in segments.items() for parent_id in segment.parent_ids]
    from_parent = [(key, child_id) for key, segment in segments.items() for child_id in segment.child_ids]
    both = set(from_child)
    if len(both) != len(from_child) or len(set(from_parent)) != len(from_parent):
        yield "a segment names a parent or a child twice"
    for parent_id, child_id in sorted(both.symmetric_difference(from_parent)):
        yield f"segments {parent_id} and {child_id} do not agree on being parent and child, or one of them is missing"
    for parent_id, child_id in from_child:
        if parent_id in segments and not descends(segments[parent_id], segments[child_id]):
            yield impossible_descent(segments[parent_id], segments[child_id])


def descends(parent: SegmentInfo, child: SegmentInfo) -> bool:
    """Can this be its parent? Ids only rise from parent to child, which is also what forbids a cycle."""
    older, younger, made_by = parent.hash_range, child.hash_range, child.created_by
    if (
        parent.segment_id >= child.segment_id
        or not parent.created_at_epoch <= child.created_at_epoch <= parent.sealed_at_epoch
        or parent.state is _ACTIVE
    ):
        return False
    if made_by is _SPLIT:
        inside = older.start <= younger.start and younger.end <= older.end and older != younger
        return inside and child.merge_depth == parent.merge_depth
    if made_by is _MERGE:
        around = younger.start <= older.start and older.end <= younger.end and older != younger
        return around and child.merge_depth > parent.merge_depth
    if made_by is _REBUCKET:
        return older == younger and child.merge_depth == parent.merge_depth
    return made_by is _MIGRATION and parent.created_by is CreatedBy.LEGACY and older == FULL_RANGE


def impossible_descent(parent: SegmentInfo, child: SegmentInfo) -> str:
    return (
        f"segment {child.segment_id} ({child.created_by}, {child.hash_range}, epoch {child.created_at_epoch},"
        f" depth {child.merge_depth}) cannot come from segment {parent.segment_id} ({parent.state},"
        f" {parent.hash_range}, epochs {parent.created_at_epoch} to {parent.sealed_at_epoch},"
        f" depth {parent.merge_depth})"
    )
