"""The algebra of layouts: whatever valid operations do, what must hold, holds."""

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from msgspec.structs import replace

from scalable_topics.model.errors import (
    CapReached,
    InvalidArgument,
    InvalidLayout,
    NotFound,
    ScalableTopicsError,
    WrongState,
)
from scalable_topics.model.hash_range import RING_SIZE, HashRange
from scalable_topics.model.layout import Replacement, SegmentLayout, initial_layout, legacy_layout
from scalable_topics.model.record import TopicRecord, decode_record, encode_record
from scalable_topics.model.replacements import merge, migrate, rebucket, rollover, split
from scalable_topics.model.segment import CreatedBy, SegmentState
from tests.strategies import INCARNATION, layouts, next_layouts


class LayoutLife(RuleBasedStateMachine):
    """One topic, changed again and again, beside a model that forgets nothing."""

    @initialize(layout=layouts(max_ops=0), window_ms=st.sampled_from([0, 0, 1, 2, 5]))
    def begin(self, layout: SegmentLayout, window_ms: int) -> None:
        self.window_ms = window_ms
        self.before = self.layout = layout
        self.ever = dict(layout.segments)
        self.depth = dict.fromkeys(layout.segments, 0)
        self.steps = 1

    @rule(data=st.data())
    def change(self, data: st.DataObject) -> None:
        self.steps += 1
        self.before = self.layout
        window = self.window_ms / 1000
        self.layout = data.draw(next_layouts(self.layout, at_ms=self.steps, depth_window_seconds=window))
        for segment_id, segment in self.layout.segments.items():
            if segment_id not in self.before.segments:
                assert segment_id not in self.ever, "an id was reused"
                merged = len(segment.parent_ids) > 1 and segment.created_by is not CreatedBy.MIGRATION
                self.depth[segment_id] = max(map(self.handed_on, segment.parent_ids)) + merged
                self.ever[segment_id] = segment

    def handed_on(self, parent_id: int) -> int:
        stood_ms = self.steps - self.ever[parent_id].created_at_ms
        return 0 if 0 < self.window_ms <= stood_ms else self.depth[parent_id]

    @invariant()
    def nothing_is_broken(self) -> None:
        self.layout.check()
        self.layout.check_follows(self.before)
        assert sum(segment.hash_range.size for segment in self.layout.active) == RING_SIZE

    @invariant()
    def epochs_rise_by_one(self) -> None:
        assert self.layout.epoch == self.before.epoch + (self.layout is not self.before)

    @invariant()
    def depth_is_what_the_whole_history_says(self) -> None:
        assert {key: segment.merge_depth for key, segment in self.layout.segments.items()} == {
            key: self.depth[key] for key in self.layout.segments
        }

    @invariant()
    def the_record_is_the_same_bytes_again(self) -> None:
        data = encode_record(TopicRecord(incarnation=INCARNATION, layout=self.layout))
        assert decode_record(data).layout == self.layout
        assert encode_record(decode_record(data)) == data

    @invariant()
    def every_hash_has_one_segment(self) -> None:
        for segment in self.layout.active:
            for hash_value in (segment.hash_range.start, segment.hash_range.end):
                assert self.layout.find_active(hash_value) is segment


TestLayoutLife = LayoutLife.TestCase
TestLayoutLife.settings = settings(max_examples=60, stateful_step_count=20)


@given(layouts(), st.data())
def test_splitting_and_merging_the_parts_restores_the_ranges(layout: SegmentLayout, data: st.DataObject) -> None:
    divisible = [segment for segment in layout.active if segment.hash_range.size > 1]
    if not divisible:
        return
    parent = data.draw(st.sampled_from(divisible))
    ways = data.draw(st.integers(2, min(9, parent.hash_range.size)))

    apart = layout.apply(split(layout, {parent.segment_id: ways}, at_ms=5), at_ms=5)
    children = apart.segments[parent.segment_id].child_ids
    together = apart.apply(merge(apart, children, at_ms=6), at_ms=6)

    assert len(children) == ways
    assert [s.hash_range for s in together.active] == [s.hash_range for s in layout.active]
    widths = [apart.segments[child].hash_range.size for child in children]
    assert widths == sorted(widths, reverse=True)
    assert max(widths) - min(widths) <= 1


def test_a_split_of_several_numbers_its_children_in_range_order() -> None:
    layout = initial_layout(3, bucket_budget=12)

    changed = layout.apply(split(layout, {2: 2, 0: 3}, at_ms=7), at_ms=9)

    assert [segment.segment_id for segment in changed.active] == [3, 4, 5, 1, 6, 7]
    assert [changed.segments[i].bucket_count for i in (3, 6)] == [1, 2]
    assert (changed.segments[0].sealed_at_ms, changed.segments[3].created_at_ms) == (9, 7)
    assert changed.epoch == 1


def test_rebucketing_several_is_one_step_in_range_order() -> None:
    layout = initial_layout(3, bucket_budget=3)

    changed = layout.apply(rebucket(layout, [2, 0], 4, at_ms=7), at_ms=7)

    assert [(s.segment_id, s.bucket_count) for s in changed.active] == [(3, 4), (1, 1), (4, 4)]
    assert changed.epoch == 1
    assert changed.segments[3].created_by is CreatedBy.REBUCKET


@given(layouts(max_ops=5), st.data())
def test_a_rollover_changes_nothing_but_the_id(layout: SegmentLayout, data: st.DataObject) -> None:
    """PROTOCOL 3: an ACTIVE segment that was found terminated is followed by another of the same range."""
    chosen = data.draw(st.lists(st.sampled_from(layout.active), min_size=1, unique=True))
    ends = {segment.segment_id: (segment.segment_id, 5) for segment in chosen}

    change = rollover(layout, [segment.segment_id for segment in chosen], at_ms=77)
    after = layout.apply(change, at_ms=78, terminated=ends)

    after.check()
    after.check_follows(layout)
    assert after.epoch == layout.epoch + 1
    parents = sorted(chosen, key=lambda segment: segment.hash_range)
    assert [replacement.parents for replacement in change] == [(parent.segment_id,) for parent in parents]
    for number, (parent, replacement) in enumerate(zip(parents, change, strict=True)):
        (child,) = replacement.children
        assert child == replace(
            parent,
            segment_id=layout.next_segment_id + number,
            parent_runs=(parent.segment_id,),
            created_at_epoch=after.epoch,
            created_at_ms=77,
            created_by=CreatedBy.REBUCKET,
        )
        sealed = after.segments[parent.segment_id]
        assert (sealed.state, sealed.terminated_at) == (SegmentState.SEALED, ends[parent.segment_id])
    with pytest.raises(WrongState, match="sealed at epoch"):
        rollover(after, [parents[0].segment_id], at_ms=79)


def test_a_rollover_keeps_buckets_of_any_width_and_forgives_depth() -> None:
    odd = replace(initial_layout(1).segments[0], entry_buckets=(5, 60_000))
    layout = SegmentLayout(0, 1, {0: odd})
    assert rollover(layout, [0], at_ms=1)[0].children[0].entry_buckets == (5, 60_000)

    merged = initial_layout(2).apply(merge(initial_layout(2), [0, 1], at_ms=1_000), at_ms=1_000)
    deep, forgiven = (rollover(merged, [2], at_ms=at_ms, depth_window_seconds=10) for at_ms in (10_999, 11_000))
    assert (deep[0].children[0].merge_depth, forgiven[0].children[0].merge_depth) == (1, 0)


def test_an_old_partition_is_not_rolled_over() -> None:
    with pytest.raises(WrongState, match=r"segment 0: it is an old partition \(migrate"):
        rollover(legacy_layout(["a"]), [0], at_ms=1)


def test_where_a_segment_ended_is_kept_and_never_changes() -> None:
    layout = initial_layout(2)
    change = split(layout, {0: 2}, at_ms=1)

    after = layout.apply(change, at_ms=1, terminated={0: (84, -1)})

    assert after.segments[0].terminated_at == (84, -1)
    assert layout.apply(change, at_ms=1).segments[0].terminated_at is None
    later = after.apply(merge(after, [2, 3], at_ms=2), at_ms=2)
    later.check_follows(after)
    moved = replace(later.segments[0], terminated_at=(84, 0))
    for other in (moved, replace(moved, terminated_at=None)):
        with pytest.raises(InvalidLayout, match=r"segment 0 ended at \(84, -1\) and now"):
            replace(later, segments={**later.segments, 0: other}).check_follows(after)
    with pytest.raises(InvalidArgument, match=r"segments \[1\] are not sealed by this change"):
        layout.apply(change, at_ms=1, terminated={0: (1, 1), 1: (1, 1)})


def test_migration_replaces_overlapping_partitions_by_one_apply() -> None:
    before = legacy_layout(["persistent://t/n/x-partition-0", "persistent://t/n/x-partition-1"], at_ms=3)
    before.check()

    after = before.apply(migrate(before, bucket_budget=8, at_ms=4), at_ms=5)

    after.check()
    assert after.epoch == 0
    assert [s.state for s in after.segments.values()] == ["SEALED", "SEALED", "ACTIVE", "ACTIVE"]
    assert after.segments[2].parent_ids == after.segments[3].parent_ids == (0, 1)
    assert after.segments[2].bucket_count == 4
    assert after.segments[0].sealed_at_ms == 5


def test_old_partitions_are_replaced_all_together() -> None:
    both = legacy_layout(["a", "b"])
    (whole,) = migrate(both, at_ms=1)
    half = Replacement((0,), tuple(replace(child, parent_runs=(0,)) for child in whole.children))

    with pytest.raises(InvalidArgument, match="all together"):
        both.apply((half,), at_ms=1)


def test_only_old_partitions_can_be_migrated() -> None:
    with pytest.raises(WrongState):
        migrate(initial_layout(2), at_ms=1)
    with pytest.raises(WrongState):
        migrate(SegmentLayout(-1), at_ms=1)
    migrated = legacy_layout(["a"]).apply(migrate(legacy_layout(["a"]), at_ms=1), at_ms=1)
    with pytest.raises(WrongState):
        migrate(migrated, at_ms=1)


def test_announced_ids_are_burnt_even_if_nothing_comes_of_them() -> None:
    layout = initial_layout(2)
    first = split(layout, {0: 2}, at_ms=1)

    announced = layout.announce(first)
    again = split(announced, {0: 2}, at_ms=2)

    assert announced.next_segment_id == 4
    assert announced.epoch == layout.epoch
    assert [child.segment_id for child in again[0].children] == [4, 5]
    assert announced.announce(first) == announced
    with pytest.raises(InvalidArgument, match="no children to announce"):
        layout.announce(())


def test_announced_children_are_applied_verbatim_whatever_was_pruned_meanwhile() -> None:
    """Pitfall 1: what was created is what the record will name, down to the last field."""
    layout = initial_layout(1).apply(split(initial_layout(1), {0: 2}, at_ms=1), at_ms=1)
    change = split(layout, {1: 2}, at_ms=2)
    meanwhile = layout.announce(change).prune([0])

    after = meanwhile.apply(change, at_ms=3)

    after.check()
    after.check_follows(meanwhile)
    assert tuple(after.segments[child.segment_id] for child in change[0].children) == change[0].children


def test_pitfall_01_a_change_that_does_not_fit_any_more_is_refused_whole() -> None:
    layout = initial_layout(2)
    change = split(layout, {0: 2}, at_ms=1)
    elsewhere = layout.apply(merge(layout, [0, 1], at_ms=1), at_ms=1)

    with pytest.raises(WrongState, match="sealed at epoch 1"):
        elsewhere.apply(change, at_ms=2)


def child_of(replacement: Replacement, **fields: Any) -> Replacement:
    first, *others = replacement.children
    return Replacement(replacement.parent_runs, (replace(first, **fields), *others))


@pytest.mark.parametrize(
    ("fields", "error"),
    [
        ({"segment_id": 1}, WrongState),
        ({"segment_id": 3}, WrongState),
        ({"hash_range": HashRange(0, 100)}, InvalidArgument),
        ({"hash_range": HashRange(0, 20_000)}, InvalidArgument),
        ({"parent_runs": (1,)}, InvalidArgument),
        ({"created_at_epoch": 2}, InvalidArgument),
        ({"created_by": CreatedBy.INITIAL}, InvalidArgument),
        ({"created_by": CreatedBy.REBUCKET}, InvalidArgument),
        ({"merge_depth": 7}, InvalidArgument),
        ({"segment_id": 2**63 - 1}, CapReached),
        ({"state": SegmentState.SEALED, "sealed_at_epoch": 1}, InvalidArgument),
    ],
)
def test_apply_refuses_children_that_are_not_what_they_should_be(
    fields: dict[str, object], error: type[Exception]
) -> None:
    layout = initial_layout(2)
    (replacement,) = split(layout, {0: 2}, at_ms=1)

    with pytest.raises(error):
        layout.apply((child_of(replacement, **fields),), at_ms=1)


def test_apply_refuses_empty_and_doubled_changes() -> None:
    layout = initial_layout(2)
    change = split(layout, {0: 2}, at_ms=1)
    other = split(layout.announce(change), {0: 2}, at_ms=1)

    for broken in ((), (Replacement((), change[0].children),), (Replacement((0,), ()),)):
        with pytest.raises(InvalidArgument):
            layout.apply(broken, at_ms=1)
    with pytest.raises(WrongState):
        layout.apply((*change, *other), at_ms=1)


def test_apply_refuses_parents_that_are_not_neighbours() -> None:
    layout = initial_layout(3)
    apart = tuple(replace(child, parent_runs=(0, 2)) for child in split(layout, {0: 2}, at_ms=1)[0].children)

    with pytest.raises(InvalidArgument, match=r"the parents \[0, 2\] do not tile"):
        layout.apply((Replacement((0, 2), apart),), at_ms=1)


def test_refusals_name_the_segment_and_a_way_out() -> None:
    layout = initial_layout(4, bucket_budget=4)
    layout = layout.apply(split(layout, {0: 2}, at_ms=1), at_ms=1)

    with pytest.raises(NotFound, match=r"segment 99: .*active segments: \[4, 5, 1, 2, 3\]"):
        split(layout, {99: 2}, at_ms=2)
    with pytest.raises(WrongState, match=r"segment 0: .*sealed at epoch 1 .*\[4, 5\]"):
        split(layout, {0: 2}, at_ms=2)
    with pytest.raises(InvalidArgument, match=r"segment 1 \[4000, 7fff\]: cannot split a range 1 ways"):
        split(layout, {1: 1}, at_ms=2)
    with pytest.raises(CapReached, match="6 active segments, above maxSegments 5"):
        split(layout, {1: 2}, at_ms=2, max_segments=5)
    with pytest.raises(InvalidArgument, match="two or more"):
        merge(layout, [1], at_ms=2)
    with pytest.raises(CapReached, match="4 active segments, below minSegments 5"):
        merge(layout, [1, 2], at_ms=2, min_segments=5)
    with pytest.raises(InvalidArgument, match=r"segment 5 .* do not touch"):
        merge(layout, [5, 2], at_ms=2)
    with pytest.raises(InvalidArgument, match="segment 1: it has 1 buckets already"):
        rebucket(layout, [1], 1, at_ms=2)
    with pytest.raises(InvalidArgument, match="give 1 to 8"):
        rebucket(layout, [1], 9, at_ms=2, max_buckets=8)
    with pytest.raises(InvalidArgument, match="nothing to prune"):
        layout.prune([])
    assert merge(layout, [1, 2], at_ms=2, min_segments=4)
    assert split(layout, {1: 2}, at_ms=2, max_segments=6)
    assert rebucket(layout, [1], 8, at_ms=2, max_buckets=8)


def test_a_single_hash_value_stays_one_segment() -> None:
    layout = initial_layout(1)
    layout = layout.apply(split(layout, {0: RING_SIZE}, at_ms=1), at_ms=1)

    with pytest.raises(WrongState, match="1 hash value"):
        split(layout, {1: 2}, at_ms=2)
    assert layout.find_active(77).hash_range == HashRange(77, 77)


def test_find_active_in_a_layout_with_a_hole() -> None:
    layout = initial_layout(4)
    holed = SegmentLayout(0, 4, {key: layout.segments[key] for key in (1, 3)})

    assert holed.find_active(16_384).segment_id == 1
    for nowhere in (0, 40_000, 70_000):
        with pytest.raises(WrongState, match=str(nowhere)):
            holed.find_active(nowhere)


@pytest.mark.parametrize("segments", [0, -1, RING_SIZE + 1])
def test_impossible_numbers_of_segments(segments: int) -> None:
    with pytest.raises(InvalidArgument):
        initial_layout(segments)


def test_layouts_cannot_be_changed() -> None:
    layout = initial_layout(2)

    with pytest.raises(TypeError):
        layout.segments[5] = layout.segments[0]  # type: ignore[index]
    with pytest.raises(AttributeError):
        layout.epoch = 5  # type: ignore[misc]


def test_segments_are_kept_in_id_order_however_they_come() -> None:
    layout = initial_layout(3)

    shuffled = SegmentLayout(0, 3, {key: layout.segments[key] for key in (2, 0, 1)})

    assert list(shuffled.segments) == [0, 1, 2]
    assert shuffled == layout


def test_the_last_id_there_is() -> None:
    layout = initial_layout(1)
    (replacement,) = rebucket(layout, [0], 2, at_ms=1)

    last = layout.apply((child_of(replacement, segment_id=2**63 - 2),), at_ms=1)

    assert last.next_segment_id == 2**63 - 1
    last.check()


def test_pruning_from_the_middle_mends_both_ends() -> None:
    layout = initial_layout(1)
    layout = layout.apply(split(layout, {0: 2}, at_ms=1), at_ms=1)
    layout = layout.apply(split(layout, {1: 2}, at_ms=2), at_ms=2).prune([1])

    assert layout.segments[0].child_ids == (2,)
    assert layout.segments[3].parent_ids == ()
    assert legacy_layout(["a"]).segments[0].created_at_ms == 0


@pytest.mark.parametrize(
    ("refused", "kind"),
    [
        (lambda layout: split(layout, {99: 2}, at_ms=1), "not-found"),
        (lambda layout: split(layout, {0: 2}, at_ms=1), "wrong-state"),
        (lambda layout: split(layout, {1: 1}, at_ms=1), "invalid-argument"),
        (lambda layout: split(layout, {1: 2}, at_ms=1, max_segments=2), "cap-reached"),
        (lambda layout: merge(layout, [1, 99], at_ms=1), "not-found"),
        (lambda layout: merge(layout, [1, 1], at_ms=1), "invalid-argument"),
        (lambda layout: merge(layout, [0, 1], at_ms=1), "wrong-state"),
        (lambda layout: rebucket(layout, [99], 3, at_ms=1), "not-found"),
        (lambda layout: rebucket(layout, [0], 3, at_ms=1), "wrong-state"),
        (lambda layout: rebucket(layout, [1, 1], 3, at_ms=1), "invalid-argument"),
        (lambda layout: rebucket(layout, [], 3, at_ms=1), "invalid-argument"),
        (lambda layout: rollover(layout, [99], at_ms=1), "not-found"),
        (lambda layout: rollover(layout, [1, 1], at_ms=1), "invalid-argument"),
        (lambda layout: rollover(layout, [], at_ms=1), "invalid-argument"),
        (lambda layout: rollover(layout, [0], at_ms=1), "wrong-state"),
        (lambda layout: split(layout, {}, at_ms=1), "invalid-argument"),
        (lambda layout: merge(layout, [1, 2], at_ms=1, buckets=0), "invalid-argument"),
        (lambda layout: merge(layout, [1, 2], at_ms=1, buckets=9, max_buckets=8), "invalid-argument"),
        (lambda layout: layout.prune([99]), "not-found"),
        (lambda layout: layout.prune([1]), "wrong-state"),
    ],
)
def test_pitfall_92_a_bad_id_is_told_for_what_it_is(refused: Callable[[SegmentLayout], object], kind: str) -> None:
    layout = initial_layout(1)

    with pytest.raises(ScalableTopicsError) as caught:
        refused(layout.apply(split(layout, {0: 2}, at_ms=1), at_ms=1))

    assert caught.value.kind == kind
