"""The constructors of layout changes: what would take the place of what.

Each looks at a layout, refuses with the precise reason, or answers the replacements, children complete to the last
field. None changes anything: `SegmentLayout.apply` does. New ids rise in the order of the parents' ranges, then the
children's own.

`depth_window_seconds` is the policy's `dag_depth_window_seconds`: a parent that has stood for it hands on no depth.
"""

from collections.abc import Iterable, Mapping, Sequence
from itertools import count, pairwise

from scalable_topics.model.entry_buckets import (
    DEFAULT_BUDGET,
    DEFAULT_MAX_PER_SEGMENT,
    EntryBuckets,
    count_for_budget,
    equal_width_splits,
)
from scalable_topics.model.errors import CapReached, InvalidArgument, ScalableTopicsError, WrongState
from scalable_topics.model.hash_range import HashRange, equal_ranges
from scalable_topics.model.id_runs import canonical_runs
from scalable_topics.model.layout import Replacement, Replacements, SegmentLayout
from scalable_topics.model.segment import CreatedBy, SegmentInfo, handed_on_depth, new_segment


def split(
    layout: SegmentLayout,
    ways: Mapping[int, int],
    *,
    at_ms: int,
    max_segments: int | None = None,
    depth_window_seconds: float = 0,
) -> Replacements:
    """Cut segments into `ways[id]` equal parts each; the parts share the parent's buckets."""
    if not ways:
        raise InvalidArgument("there is nothing to split", remedy="name at least one active segment")
    parts = {segment_id: _cut(layout.active_segment(segment_id), number) for segment_id, number in ways.items()}
    active_after = len(layout.active) + sum(number - 1 for number in ways.values())
    if max_segments is not None and active_after > max_segments:
        raise CapReached(
            f"splitting {sorted(ways)} would make {active_after} active segments, above maxSegments {max_segments}",
            remedy="raise maxSegments in the policy, or force it",
        )
    ids = count(layout.next_segment_id)
    return tuple(
        Replacement(
            (parent.segment_id,),
            tuple(
                new_segment(
                    next(ids),
                    part,
                    created_by=CreatedBy.SPLIT,
                    epoch=layout.epoch + 1,
                    at_ms=at_ms,
                    buckets=max(1, parent.bucket_count // len(parts[parent.segment_id])),
                    parent_ids=(parent.segment_id,),
                    merge_depth=handed_on_depth(parent, at_ms=at_ms, depth_window_seconds=depth_window_seconds),
                )
                for part in parts[parent.segment_id]
            ),
        )
        for parent in _in_range_order(layout, parts)
    )


def merge(
    layout: SegmentLayout,
    segment_ids: Sequence[int],
    *,
    at_ms: int,
    max_buckets: int = DEFAULT_MAX_PER_SEGMENT,
    min_segments: int | None = None,
    buckets: int | None = None,
    depth_window_seconds: float = 0,
) -> Replacements:
    """Make one segment of two or more neighbours, named in any order.

    It has as many buckets as it is told; by default all that its parents have, up to the maximum.
    """
    parents = _different(layout, segment_ids, "merge", at_least=2)
    in_order = sorted(parents, key=lambda segment: segment.hash_range)
    for left, right in pairwise(in_order):
        if not left.hash_range.is_adjacent_to(right.hash_range):
            raise InvalidArgument(
                f"segment {left.segment_id} {left.hash_range} and {right.segment_id} {right.hash_range} do not touch",
                remedy="merge neighbours: one ends where the other starts",
            )
    active_after = len(layout.active) - len(parents) + 1
    if min_segments is not None and active_after < min_segments:
        raise CapReached(
            f"merging {list(segment_ids)} would leave {active_after} active segments, below minSegments {min_segments}",
            remedy="lower minSegments in the policy, or force it",
        )
    if buckets is not None:
        _ensure_bucket_count(buckets, max_buckets)
    merged = new_segment(
        layout.next_segment_id,
        HashRange(in_order[0].hash_range.start, in_order[-1].hash_range.end),
        created_by=CreatedBy.MERGE,
        epoch=layout.epoch + 1,
        at_ms=at_ms,
        buckets=min(sum(parent.bucket_count for parent in parents), max_buckets) if buckets is None else buckets,
        parent_ids=tuple(segment_ids),
        merge_depth=1
        + max(handed_on_depth(parent, at_ms=at_ms, depth_window_seconds=depth_window_seconds) for parent in parents),
    )
    return (Replacement(merged.parent_runs, (merged,)),)


def rebucket(
    layout: SegmentLayout,
    segment_ids: Sequence[int],
    bucket_count: int,
    *,
    at_ms: int,
    max_buckets: int = DEFAULT_MAX_PER_SEGMENT,
    depth_window_seconds: float = 0,
) -> Replacements:
    """Roll segments over to successors of the same range with another number of buckets."""
    parents = _different(layout, segment_ids, "rebucket", at_least=1)
    _ensure_bucket_count(bucket_count, max_buckets)
    for parent in parents:
        if parent.entry_bucket_splits == equal_width_splits(bucket_count):
            raise InvalidArgument(f"it has {bucket_count} buckets already", subject=f"segment {parent.segment_id}")
    return _successors(layout, parents, bucket_count, at_ms=at_ms, depth_window_seconds=depth_window_seconds)


def rollover(
    layout: SegmentLayout, segment_ids: Sequence[int], *, at_ms: int, depth_window_seconds: float = 0
) -> Replacements:
    """Roll segments over to successors of the same range with the same buckets: for segments that are ACTIVE, and yet
    were found terminated.

    A successor is of kind REBUCKET, as every only child of an only parent is.
    """
    parents = _different(layout, segment_ids, "roll over", at_least=1)
    for parent in parents:
        if parent.is_legacy:
            raise WrongState(
                "it is an old partition", subject=f"segment {parent.segment_id}", remedy="migrate the whole topic"
            )
    return _successors(layout, parents, None, at_ms=at_ms, depth_window_seconds=depth_window_seconds)


def migrate(layout: SegmentLayout, *, bucket_budget: int = DEFAULT_BUDGET, at_ms: int) -> Replacements:
    """Replace the old partitions (`legacy_layout`) by as many segments; each child follows all of them."""
    parents = canonical_runs(tuple(layout.segments))
    if not parents or not all(segment.is_legacy and segment.is_active for segment in layout.segments.values()):
        raise WrongState("this is not a layout of old partitions", remedy="only a regular topic can be migrated")
    buckets = count_for_budget(bucket_budget, len(layout.segments))
    ids = count(layout.next_segment_id)
    children = tuple(
        new_segment(
            next(ids),
            hash_range,
            created_by=CreatedBy.MIGRATION,
            epoch=layout.epoch + 1,
            at_ms=at_ms,
            buckets=buckets,
            parent_ids=parents,
        )
        for hash_range in equal_ranges(len(layout.segments))
    )
    return (Replacement(parents, children),)


def _successors(
    layout: SegmentLayout,
    parents: Iterable[SegmentInfo],
    buckets: EntryBuckets | None,
    *,
    at_ms: int,
    depth_window_seconds: float,
) -> Replacements:
    """One child of the same range for each; `buckets` None = the parent's own."""
    ids = count(layout.next_segment_id)
    return tuple(
        Replacement(
            (parent.segment_id,),
            (
                new_segment(
                    next(ids),
                    parent.hash_range,
                    created_by=CreatedBy.REBUCKET,
                    epoch=layout.epoch + 1,
                    at_ms=at_ms,
                    buckets=parent.entry_buckets if buckets is None else buckets,
                    parent_ids=(parent.segment_id,),
                    merge_depth=handed_on_depth(parent, at_ms=at_ms, depth_window_seconds=depth_window_seconds),
                ),
            ),
        )
        for parent in sorted(parents, key=lambda segment: segment.hash_range)
    )


def _different(layout: SegmentLayout, segment_ids: Sequence[int], what: str, *, at_least: int) -> list[SegmentInfo]:
    """The active segments of these ids, in the order given. An id nobody knows is told first, then one named twice,
    then one that is sealed.
    """
    for segment_id in segment_ids:
        layout.segment(segment_id)
    if len(segment_ids) < at_least or len(set(segment_ids)) != len(segment_ids):
        number = "two or more different segments" if at_least > 1 else "at least one segment, and none twice"
        raise InvalidArgument(f"cannot {what} {list(segment_ids)}", remedy=f"name {number}")
    return [layout.active_segment(segment_id) for segment_id in segment_ids]


def _ensure_bucket_count(bucket_count: int, max_buckets: int) -> None:
    if not 1 <= bucket_count <= max_buckets:
        raise InvalidArgument(f"cannot give a segment {bucket_count} buckets", remedy=f"give 1 to {max_buckets}")


def _cut(segment: SegmentInfo, ways: int) -> tuple[HashRange, ...]:
    try:
        return segment.hash_range.split(ways)
    except ScalableTopicsError as error:
        raise type(error)(
            error.what, subject=f"segment {segment.segment_id} {segment.hash_range}", remedy=error.remedy
        ) from None


def _in_range_order(layout: SegmentLayout, segment_ids: Iterable[int]) -> list[SegmentInfo]:
    return sorted((layout.segments[segment_id] for segment_id in segment_ids), key=lambda segment: segment.hash_range)
