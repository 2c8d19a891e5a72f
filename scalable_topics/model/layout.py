"""The layout of a topic: an immutable, versioned DAG of segments, and the one way to change it.

Every change is a set of *replacements*: parents that are sealed, children that tile exactly the same hash range.
Split, merge, rebucket and migration only differ in how they make their replacements (`model/replacements.py`);
applying them is one function. Forgetting drained history (`prune`) changes no routing and is the only other step.
"""

from bisect import bisect_right
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property
from types import MappingProxyType

from msgspec import Struct, field
from msgspec.structs import force_setattr, replace

from scalable_topics.model.entry_buckets import DEFAULT_BUDGET, count_for_budget
from scalable_topics.model.errors import CapReached, InvalidArgument, InvalidLayout, NotFound, WrongState
from scalable_topics.model.hash_range import FULL_RANGE, HashRange, equal_ranges, tiling_problem
from scalable_topics.model.id_runs import IdRuns, canonical_runs, ids_of
from scalable_topics.model.layout_rules import UNBORN_EPOCH, descent_problems, kinds_of, layout_problems
from scalable_topics.model.limits import MAX_LONG
from scalable_topics.model.positions import Position
from scalable_topics.model.segment import CreatedBy, SegmentInfo, SegmentState, new_segment


class Replacement(Struct, frozen=True, rename="camel"):
    """Parents to be sealed, in the order the caller named them, and the children that take their place, verbatim."""

    parent_runs: IdRuns = field(name="parents")
    children: tuple[SegmentInfo, ...]

    def __post_init__(self) -> None:
        force_setattr(self, "parent_runs", canonical_runs(self.parent_runs))

    @property
    def parents(self) -> tuple[int, ...]:
        return ids_of(self.parent_runs)


Replacements = tuple[Replacement, ...]


class SegmentLayout(Struct, frozen=True, dict=True):
    """All segments of a topic at one epoch. Safe to share: nothing about it can change."""

    epoch: int = 0
    next_segment_id: int = 0
    segments: Mapping[int, SegmentInfo] = MappingProxyType({})

    def __post_init__(self) -> None:
        segments = dict(self.segments)
        if list(segments) != (in_order := sorted(segments)):
            segments = {segment_id: segments[segment_id] for segment_id in in_order}
        force_setattr(self, "segments", MappingProxyType(segments))

    @cached_property
    def active(self) -> tuple[SegmentInfo, ...]:
        """The segments that accept messages, in range order."""
        active = [segment for segment in self.segments.values() if segment.state is SegmentState.ACTIVE]
        active.sort(key=lambda segment: segment.hash_range.start)
        return tuple(active)

    @cached_property
    def _active_starts(self) -> list[int]:
        return [segment.hash_range.start for segment in self.active]

    def find_active(self, hash_value: int) -> SegmentInfo:
        """The segment that a message with this segment hash goes to."""
        if self.epoch == UNBORN_EPOCH:
            raise WrongState("old partitions are found by modulo, not by range", remedy="use policy.routing")
        index = bisect_right(self._active_starts, hash_value) - 1
        if index >= 0 and hash_value in (segment := self.active[index]).hash_range:
            return segment
        raise WrongState(f"no active segment holds the hash {hash_value}")

    def segment(self, segment_id: int) -> SegmentInfo:
        try:
            return self.segments[segment_id]
        except KeyError:
            raise NotFound(
                "there is no such segment",
                subject=f"segment {segment_id}",
                remedy=f"active segments: {self._active_ids()}",
            ) from None

    def active_segment(self, segment_id: int) -> SegmentInfo:
        segment = self.segment(segment_id)
        if segment.state is not SegmentState.ACTIVE:
            heirs = f"its children are {list(segment.child_ids)}" if segment.child_ids else "it has no children left"
            raise WrongState(
                f"it was sealed at epoch {segment.sealed_at_epoch}", subject=f"segment {segment_id}", remedy=heirs
            )
        return segment

    def ancestors(self, segment_id: int) -> set[int]:
        return self._reachable(segment_id, lambda segment: segment.parent_ids)

    def lineage(self, segment_id: int) -> list[int]:
        """Ancestors, the segment itself and descendants, ascending."""
        descendants = self._reachable(segment_id, lambda segment: segment.child_ids)
        return sorted(self.ancestors(segment_id) | {segment_id} | descendants)

    def apply(
        self, replacements: Replacements, *, at_ms: int, terminated: Mapping[int, Position] = MappingProxyType({})
    ) -> "SegmentLayout":
        """The next layout: parents sealed now, children as they were announced, one epoch later.

        Children are never recomputed: they exist already, with their names and cursors. `terminated` is where parents
        ended, as far as their owners said. A change that does not fit this layout any more is refused whole.
        """
        epoch = self.epoch + 1
        segments = dict(self.segments)
        next_segment_id = self.next_segment_id
        if not replacements:
            raise InvalidArgument("a change without replacements changes nothing")
        for replacement in replacements:
            self._ensure_fits(replacement)
            child_runs = canonical_runs(tuple(child.segment_id for child in replacement.children))
            sealed: list[SegmentInfo] = []
            for parent_id in replacement.parents:
                parent = segments[parent_id]
                if parent.state is not SegmentState.ACTIVE:
                    raise WrongState("it is replaced twice or sealed already", subject=f"segment {parent_id}")
                segments[parent_id] = replace(
                    parent,
                    state=SegmentState.SEALED,
                    child_runs=child_runs,
                    sealed_at_epoch=epoch,
                    sealed_at_ms=at_ms,
                    terminated_at=terminated.get(parent_id),
                )
                sealed.append(segments[parent_id])
            parents = kinds_of(sealed)
            for child in replacement.children:
                if child.segment_id in segments:
                    raise WrongState(
                        "this id is taken, and ids are never reused", subject=f"segment {child.segment_id}"
                    )
                problem = next(descent_problems(parents, child), None)
                if problem:
                    raise InvalidArgument(problem)
                segments[child.segment_id] = child
                next_segment_id = max(next_segment_id, child.segment_id + 1)
        strangers = terminated.keys() - {key for replacement in replacements for key in replacement.parents}
        if strangers:
            raise InvalidArgument(f"segments {sorted(strangers)} are not sealed by this change, and yet have an end")
        if next_segment_id > MAX_LONG:
            raise CapReached("the topic has used up all segment ids", remedy="create it anew")
        return SegmentLayout(epoch, next_segment_id, segments)

    def announce(self, replacements: Replacements) -> "SegmentLayout":
        """Burn the children's ids: from here on they are never given to anybody else, even if the change is aborted."""
        ids = [child.segment_id for replacement in replacements for child in replacement.children]
        if not ids:
            raise InvalidArgument("there are no children to announce")
        highest = max(ids)
        return replace(self, next_segment_id=max(self.next_segment_id, highest + 1))

    def prune(self, segment_ids: Iterable[int]) -> "SegmentLayout":
        """Forget sealed segments, all or none, one epoch later. Whether they may be forgotten is `policy.retention`'s
        word.
        """
        gone = set(segment_ids)
        if not gone:
            raise InvalidArgument("nothing to prune", remedy="name at least one sealed segment")
        for segment_id in sorted(gone):
            self.segment(segment_id)
        for segment_id in sorted(gone):
            if self.segments[segment_id].state is not SegmentState.SEALED:
                raise WrongState(
                    "it is ACTIVE", subject=f"segment {segment_id}", remedy="only sealed segments are pruned"
                )
        edges = {runs for key in gone for runs in (self.segments[key].parent_runs, self.segments[key].child_runs)}
        neighbours = {neighbour for runs in edges for neighbour in ids_of(runs)}
        segments = {segment_id: segment for segment_id, segment in self.segments.items() if segment_id not in gone}
        # Siblings have the same relatives: what is left of those is worked out once for all of them.
        left: dict[IdRuns, IdRuns] = {}
        for segment_id in neighbours - gone:
            segment = segments[segment_id]
            for runs in (segment.parent_runs, segment.child_runs):
                if runs not in left:
                    left[runs] = canonical_runs(tuple(other for other in ids_of(runs) if other not in gone))
            segments[segment_id] = replace(
                segment, parent_runs=left[segment.parent_runs], child_runs=left[segment.child_runs]
            )
        return SegmentLayout(self.epoch + 1, self.next_segment_id, segments)

    def check(self, *, subject: str | None = None) -> None:
        """Raise `InvalidLayout` with the whole story of what is wrong. Called on every layout read from a store."""
        problems = layout_problems(self.epoch, self.next_segment_id, self.segments)
        if problems:
            raise InvalidLayout(problems, subject=subject)

    def check_follows(self, before: "SegmentLayout", *, subject: str | None = None) -> None:
        """Raise unless this may come after `before` in one life of a topic (PROTOCOL 12: monotone)."""
        problems = []
        if self.epoch < before.epoch or self.next_segment_id < before.next_segment_id:
            problems.append(
                f"epoch went from {before.epoch} to {self.epoch},"
                f" nextSegmentId from {before.next_segment_id} to {self.next_segment_id}"
            )
        if self.epoch == before.epoch and self.segments != before.segments:
            problems.append(f"two different layouts claim epoch {self.epoch}")
        for segment_id in self.segments.keys() & before.segments.keys():
            earlier, now = before.segments[segment_id], self.segments[segment_id]
            if earlier.state is SegmentState.SEALED and now.state is SegmentState.ACTIVE:
                problems.append(f"segment {segment_id} was SEALED and is ACTIVE again")
            if _nature(earlier) != _nature(now):
                problems.append(f"segment {segment_id} is not what it was: {_nature(earlier)} became {_nature(now)}")
            if earlier.terminated_at not in (None, now.terminated_at):
                problems.append(f"segment {segment_id} ended at {earlier.terminated_at} and now {now.terminated_at}")
        if problems:
            raise InvalidLayout(tuple(sorted(problems)), subject=subject)

    def _ensure_fits(self, replacement: Replacement) -> None:
        parents = sorted((self.active_segment(parent) for parent in replacement.parents), key=lambda s: s.hash_range)
        children = sorted(replacement.children, key=lambda s: s.hash_range)
        if not parents or not children:
            raise InvalidArgument("a replacement needs parents and children")
        if any(parent.created_by is CreatedBy.LEGACY for parent in parents):
            # Old partitions share every key by modulo: there is no range that some of them could leave to others.
            if len(parents) != len(self.active):
                raise InvalidArgument("old partitions are replaced all together", remedy="migrate the whole topic")
            whole = FULL_RANGE
        else:
            whole = HashRange(parents[0].hash_range.start, parents[-1].hash_range.end)
            _ensure_tiled(parents, whole, "the parents")
        _ensure_tiled(children, whole, "the children")
        for child in children:
            if (
                child.parent_runs != replacement.parent_runs
                or child.created_at_epoch > self.epoch + 1
                or not child.is_active
            ):
                raise InvalidArgument(
                    f"it is not a new child of {list(replacement.parents)} at epoch {self.epoch + 1}",
                    subject=f"segment {child.segment_id}",
                )

    def _reachable(self, segment_id: int, edges: Callable[[SegmentInfo], tuple[int, ...]]) -> set[int]:
        found = set(edges(self.segment(segment_id)))
        frontier = [*found]
        while frontier:
            new = [edge for edge in edges(self.segments[frontier.pop()]) if edge not in found]
            found.update(new)
            frontier.extend(new)
        return found

    def _active_ids(self) -> list[int]:
        return [segment.segment_id for segment in self.active]


def initial_layout(segments: int, *, bucket_budget: int = DEFAULT_BUDGET, at_ms: int = 0) -> SegmentLayout:
    """The layout of a new topic: equal ranges, the bucket budget shared out."""
    ranges = equal_ranges(segments)
    buckets = count_for_budget(bucket_budget, segments)
    made = (
        new_segment(index, hash_range, created_by=CreatedBy.INITIAL, epoch=0, at_ms=at_ms, buckets=buckets)
        for index, hash_range in enumerate(ranges)
    )
    return SegmentLayout(0, segments, {segment.segment_id: segment for segment in made})


def legacy_layout(topic_names: Sequence[str], *, at_ms: int = 0) -> SegmentLayout:
    """What a migration replaces: the old partitions, each holding keys from the whole ring, before the first epoch."""
    made = (
        new_segment(
            index, FULL_RANGE, created_by=CreatedBy.LEGACY, epoch=0, at_ms=at_ms, buckets=1, legacy_topic_name=name
        )
        for index, name in enumerate(topic_names)
    )
    return SegmentLayout(UNBORN_EPOCH, len(topic_names), {segment.segment_id: segment for segment in made})


def _ensure_tiled(parts: list[SegmentInfo], whole: HashRange, what: str) -> None:
    problem = tiling_problem((part.hash_range for part in parts), whole)
    if problem:
        ids = [part.segment_id for part in parts]
        raise InvalidArgument(
            f"{what} {ids} do not tile {whole}: {problem}", remedy="replace neighbours by the same range"
        )


def _nature(segment: SegmentInfo) -> tuple[object, ...]:
    """What a segment stays from its first to its last epoch."""
    return (
        segment.hash_range,
        segment.created_by,
        segment.created_at_epoch,
        segment.merge_depth,
        segment.entry_bucket_splits,
        segment.legacy_topic_name,
    )
