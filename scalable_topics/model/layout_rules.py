"""What must hold of a layout (PROTOCOL 12: coverage, and what one state can show of monotony).

A layout read from a store is checked before anybody acts on it. The rules are written as findings, each a sentence,
so that whoever has to mend a record reads the whole story at once.

The one exception: the LEGACY parents of a migration. Old partitions share all keys by modulo, so each covers the
whole ring and they overlap. They are ACTIVE only while the migration has not been committed, in a layout of their
own at epoch -1.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import accumulate, chain, islice
from operator import attrgetter
from typing import Final

from scalable_topics.model.hash_range import FULL_RANGE, tiling_problem
from scalable_topics.model.id_runs import SHORTEST_RUN, IdRuns, count_ids, ids_of
from scalable_topics.model.limits import MAX_LONG
from scalable_topics.model.segment import CreatedBy, SegmentInfo, SegmentState

UNBORN_EPOCH: Final = -1
"""Epoch of the layout that a migration replaces; its first commit makes epoch 0."""
_MOST_DISAGREEMENTS: Final = 1_000
"""As many pairs that do not agree are told; a few bytes of runs can name millions."""

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
    by_parents: dict[IdRuns, list[int]] = {}
    by_children: dict[IdRuns, list[int]] = {}
    for key, segment in segments.items():
        if segment.parent_runs:
            by_parents.setdefault(segment.parent_runs, []).append(key)
        if segment.child_runs:
            by_children.setdefault(segment.child_runs, []).append(key)
    # A run is a few bytes and can name anything. But a segment is a parent in one family and a child in one, so all
    # lists together have no more to name; what is far longer is not followed.
    lists: list[IdRuns] = [*by_parents, *by_children]
    named = sum(map(count_ids, lists))
    if named > 2 * len(segments) + _MOST_DISAGREEMENTS:
        longest: IdRuns = max(lists, key=count_ids)
        yield (
            f"{len(segments)} segments name {named} parents and children, more than can agree with each other; the"
            f" longest list is {list(longest[:8])}"
        )
        return
    if any(len(set(ids_of(runs))) != count_ids(runs) for runs in lists if len(runs) > 1 or type(runs[0]) is not int):
        yield "a segment names a parent or a child twice"
    from_child = _one_sided(by_parents, segments, lambda parent: parent.child_runs)
    from_parent = ((key, child) for child, key in _one_sided(by_children, segments, lambda child: child.parent_runs))
    for parent_id, child_id in sorted(set(islice(chain(from_child, from_parent), _MOST_DISAGREEMENTS))):
        yield f"segments {parent_id} and {child_id} do not agree on being parent and child, or one of them is missing"
    for runs, children in by_parents.items():
        parents = kinds_of([segments[parent_id] for parent_id in ids_of(runs) if parent_id in segments])
        for child_id in children:
            child = segments[child_id]
            if len(parents) == 1 and child.created_by is not _MERGE and descends(parents[0], child):
                continue
            yield from descent_problems(parents, child)


def _one_sided(
    named: Mapping[IdRuns, list[int]],
    segments: Mapping[int, SegmentInfo],
    names_back: Callable[[SegmentInfo], IdRuns],
) -> Iterator[tuple[int, int]]:
    """Every (named, naming) of which the named one does not name the other back, or is not there. `named`: who names
    the same others.

    Segments with the same relatives are asked about together, which is what makes a migration of 1,000 partitions two
    questions instead of a million.
    """
    for runs, naming in named.items():
        forgotten: dict[IdRuns, list[int]] = {tuple(naming): []}  # whoever names just these back forgets none
        for other in ids_of(runs):
            back = names_back(segments[other]) if other in segments else ()
            if back not in forgotten:
                known = frozenset(ids_of(back))
                forgotten[back] = [one for one in naming if one not in known]
            for one in forgotten[back]:
                yield other, one


def kinds_of(parents: Sequence[SegmentInfo]) -> Sequence[SegmentInfo]:
    """One of each kind as far as descent is concerned: of parents that only differ in their ids, the one with the
    highest.
    """
    if len(parents) < SHORTEST_RUN:
        return parents
    kinds = {
        (p.state, p.created_by, p.hash_range, p.created_at_epoch, p.sealed_at_epoch, p.created_at_ms, p.merge_depth): p
        for p in sorted(parents, key=attrgetter("segment_id"))
    }
    return tuple(kinds.values())


def descent_problems(parents: Sequence[SegmentInfo], child: SegmentInfo) -> Iterator[str]:
    """Why these, all that are left of its parents, cannot be what this child comes from."""
    for parent in parents:
        if not descends(parent, child):
            yield impossible_descent(parent, child)
    # Ranges of a merge's parents are parts of the child's: when they make up all of it, none has been pruned.
    if child.created_by is _MERGE and sum(parent.hash_range.size for parent in parents) == child.hash_range.size:
        possible = merge_depths(parents, at_ms=child.created_at_ms)
        if child.merge_depth not in possible:
            yield (
                f"segment {child.segment_id}, merged from {[parent.segment_id for parent in parents]},"
                f" has merge depth {child.merge_depth}, not one of {sorted(possible)}"
            )


def merge_depths(parents: Sequence[SegmentInfo], *, at_ms: int) -> set[int]:
    """The depths that a merge of these at `at_ms` can have, whatever the window was that forgave some of them.

    Whoever is forgiven is older than whoever is not, so the deepest parent that counted is the deepest of the k
    youngest. A parent made at `at_ms` or later has not stood at all.
    """
    by_age: dict[int, int] = {}
    for parent in parents:
        made_at_ms = min(parent.created_at_ms, at_ms)
        by_age[made_at_ms] = max(parent.merge_depth, by_age.get(made_at_ms, 0))
    deepest = by_age.pop(at_ms, 0)
    youngest_first = (by_age[made_at_ms] for made_at_ms in sorted(by_age, reverse=True))
    return {depth + 1 for depth in accumulate(youngest_first, max, initial=deepest)}


def descends(parent: SegmentInfo, child: SegmentInfo) -> bool:
    """Can this be one of its parents? Ids only rise from parent to child, which is also what forbids a cycle."""
    older, younger, made_by = parent.hash_range, child.hash_range, child.created_by
    if (
        parent.segment_id >= child.segment_id
        or not parent.created_at_epoch <= child.created_at_epoch <= parent.sealed_at_epoch
        or parent.state is _ACTIVE
    ):
        return False
    if made_by is _SPLIT:
        inside = older.start <= younger.start and younger.end <= older.end and older != younger
        return inside and _hands_on(parent, child)
    if made_by is _MERGE:
        around = younger.start <= older.start and older.end <= younger.end and older != younger
        return around and (child.merge_depth > parent.merge_depth or _may_be_forgiven(parent, child))
    if made_by is _REBUCKET:
        return older == younger and _hands_on(parent, child)
    return made_by is _MIGRATION and parent.created_by is CreatedBy.LEGACY and older == FULL_RANGE


def _hands_on(parent: SegmentInfo, child: SegmentInfo) -> bool:
    """A single parent's depth is the child's, or forgiven."""
    return child.merge_depth == parent.merge_depth or (child.merge_depth == 0 and _may_be_forgiven(parent, child))


def _may_be_forgiven(parent: SegmentInfo, child: SegmentInfo) -> bool:
    """The record does not say which window was in force; but no window forgives what has not stood at all."""
    return parent.created_at_ms < child.created_at_ms


def impossible_descent(parent: SegmentInfo, child: SegmentInfo) -> str:
    return (
        f"segment {child.segment_id} ({child.created_by}, {child.hash_range}, epoch {child.created_at_epoch},"
        f" depth {child.merge_depth}) cannot come from segment {parent.segment_id} ({parent.state},"
        f" {parent.hash_range}, epochs {parent.created_at_epoch} to {parent.sealed_at_epoch},"
        f" depth {parent.merge_depth})"
    )
