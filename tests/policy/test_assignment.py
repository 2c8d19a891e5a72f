"""Assignment: everything assignable exactly once, balanced, sticky, and never a child before its parents."""

from collections import Counter
from collections.abc import Collection

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scalable_topics.model.entry_buckets import bucket_ranges, equal_width_splits
from scalable_topics.model.layout import SegmentLayout, initial_layout
from scalable_topics.model.replacements import merge, rebucket, split
from scalable_topics.policy.assignment import (
    Assignment,
    Unit,
    assign,
    assignable,
    bucket_owners,
    changed,
    handoff,
    sharer_ranges,
    slices,
)
from tests.policy import reference
from tests.strategies import layouts, next_layouts

NAMES = [f"c{number:02}" for number in range(12)]


@st.composite
def situations(draw: st.DrawFn) -> tuple[SegmentLayout, list[str], set[int], Assignment]:
    """A group that has lived: layouts and members changed, and each time it was assigned anew."""
    layout = draw(layouts(max_ops=3))
    previous: Assignment = {}
    drained: set[int] = set()
    for number in range(draw(st.integers(0, 3))):
        members = draw(st.lists(st.sampled_from(NAMES), unique=True, max_size=10))
        previous = assign(layout, members, drained=drained, previous=previous)
        sealed = [key for key, segment in layout.segments.items() if not segment.is_active]
        drained |= set(draw(st.lists(st.sampled_from(sealed), max_size=4))) if sealed else set()
        if draw(st.booleans()):
            layout = draw(next_layouts(layout, at_ms=50 + number))
    return layout, draw(st.lists(st.sampled_from(NAMES), unique=True, max_size=12)), drained, previous


@settings(max_examples=400)
@given(situations())
def test_the_rule_is_the_written_one(situation: tuple[SegmentLayout, list[str], set[int], Assignment]) -> None:
    layout, members, drained, previous = situation

    assert assign(layout, members, drained=drained, previous=previous) == reference.assign(
        layout, members, drained=drained, previous=previous
    )


@settings(max_examples=200)
@given(situations())
def test_everything_assignable_has_one_owner_and_nothing_else_has_any(
    situation: tuple[SegmentLayout, list[str], set[int], Assignment],
) -> None:
    layout, members, drained, previous = situation
    assigned = assign(layout, members, drained=drained, previous=previous)
    free = {segment.segment_id: segment.bucket_count for segment in assignable(layout, drained)}

    owned: Counter[tuple[int, int]] = Counter()
    for units in assigned.values():
        for unit in units:
            first, last = unit.buckets or (0, free[unit.segment_id] - 1)
            owned.update((unit.segment_id, bucket) for bucket in range(first, last + 1))
    everything = [(segment_id, bucket) for segment_id, count in free.items() for bucket in range(count)]
    assert owned == Counter(everything if members else [])
    assert assigned.keys() == set(members)


@settings(max_examples=200)
@given(situations())
def test_nothing_is_handed_out_before_its_parents_are_drained(
    situation: tuple[SegmentLayout, list[str], set[int], Assignment],
) -> None:
    layout, members, drained, previous = situation

    for units in assign(layout, members, drained=drained, previous=previous).values():
        for unit in units:
            assert layout.ancestors(unit.segment_id) <= drained
            assert layout.segments[unit.segment_id].is_active or unit.segment_id not in drained


@settings(max_examples=200)
@given(situations())
def test_balanced_within_one(situation: tuple[SegmentLayout, list[str], set[int], Assignment]) -> None:
    layout, members, drained, previous = situation
    assigned = assign(layout, members, drained=drained, previous=previous)
    free = assignable(layout, drained)
    if not members:
        return
    if len(members) <= len(free):
        loads = [len(units) for units in assigned.values()]
        assert max(loads) - min(loads) <= 1
        assert all(unit.buckets is None for units in assigned.values() for unit in units)
    else:
        sharers = Counter(unit.segment_id for units in assigned.values() for unit in units)
        room = [segment for segment in free if sharers[segment.segment_id] < segment.bucket_count]
        assert all(max(sharers.values()) - sharers[segment.segment_id] <= 1 for segment in room)
        assert sum(sharers.values()) == min(len(members), sum(segment.bucket_count for segment in free))


@settings(max_examples=200)
@given(
    st.integers(1, 14),
    st.lists(st.lists(st.sampled_from(NAMES), unique=True, min_size=1, max_size=10), min_size=2, max_size=4),
)
def test_the_fewest_whole_segments_move(segments: int, groups: list[list[str]]) -> None:
    """Of all assignments that are balanced, none lets the consumers keep more of what they held."""
    layout = initial_layout(segments)
    previous: Assignment = {}
    for group in groups:
        members = group[:segments]
        assigned = assign(layout, members, drained=(), previous=previous)
        held = {name: {unit.segment_id for unit in previous.get(name, ())} for name in members}
        kept = sum(unit.segment_id in held[name] for name, units in assigned.items() for unit in units)
        width, wider = divmod(segments, len(members))
        counts = sorted((len(of) for of in held.values()), reverse=True)
        assert kept == sum(min(count, width + (index < wider)) for index, count in enumerate(counts))
        previous = assigned


@given(situations())
def test_the_order_of_arguments_does_not_matter(
    situation: tuple[SegmentLayout, list[str], set[int], Assignment],
) -> None:
    layout, members, drained, previous = situation
    backwards = dict(reversed(list(previous.items())))

    assert assign(layout, reversed(members), drained=sorted(drained), previous=backwards) == assign(
        layout, members, drained=drained, previous=previous
    )


@settings(max_examples=150)
@given(situations())
def test_a_steady_group_is_left_alone(situation: tuple[SegmentLayout, list[str], set[int], Assignment]) -> None:
    layout, members, drained, previous = situation
    first = assign(layout, members, drained=drained, previous=previous)

    assert changed(first, assign(layout, members, drained=drained, previous=first)) == []


def ids(assigned: Assignment) -> dict[str, list[int]]:
    return {name: [unit.segment_id for unit in units] for name, units in assigned.items()}


def test_pitfall_23_sealed_backlog_is_assigned_until_drained() -> None:
    layout = initial_layout(2).apply(split(initial_layout(2), {0: 2}, at_ms=1), at_ms=1)

    assert ids(assign(layout, ["a"], drained=(), previous={})) == {"a": [0, 1]}
    assert ids(assign(layout, ["a"], drained={0}, previous={})) == {"a": [2, 3, 1]}


def test_pitfall_24_a_sealed_child_waits_for_its_sealed_parent() -> None:
    layout = initial_layout(1)
    for segment_id in (0, 1):
        layout = layout.apply(split(layout, {segment_id: 2}, at_ms=1), at_ms=1)

    def seen(drained: Collection[int]) -> list[int]:
        return [segment.segment_id for segment in assignable(layout, drained)]

    assert seen([]) == [0]
    assert seen([0]) == [1, 2]
    assert seen([1]) == [0], "an empty one in between lets nothing pass"
    assert seen([0, 1]) == [3, 4, 2]


def test_pitfall_25_a_drained_segment_takes_no_consumer() -> None:
    layout = initial_layout(1).apply(split(initial_layout(1), {0: 2}, at_ms=1), at_ms=1)

    assert ids(assign(layout, "abcde", drained={0}, previous={})) == {"a": [1], "b": [2], "c": [1], "d": [2], "e": []}


def test_pitfall_32_joining_moves_only_what_balance_needs() -> None:
    layout = initial_layout(64)
    before = assign(layout, NAMES[:8], drained=(), previous={})

    after = assign(layout, NAMES[:9], drained=(), previous=before)

    moved = sum(before[name] != after[name] for name in NAMES[:8])
    assert len(after[NAMES[8]]) == 7
    assert moved == 7


def test_pitfall_33_shared_segments_are_sliced_by_the_controller() -> None:
    assigned = assign(initial_layout(1, bucket_budget=4), "abc", drained=(), previous={})

    assert assigned == {"a": (Unit(0, (0, 1)),), "b": (Unit(0, (2, 2)),), "c": (Unit(0, (3, 3)),)}


def test_long_histories_are_no_problem() -> None:
    """A thousand rollovers of one segment: no recursion, and the holder of the first inherits the last."""
    layout = initial_layout(1, bucket_budget=1)
    for number in range(1_200):
        layout = layout.apply(rebucket(layout, [number], 2 - number % 2, at_ms=1), at_ms=1)

    assert ids(assign(layout, "ab", drained=range(1_200), previous={"b": (Unit(0),)}))["b"] == [1_200]


def test_uneven_starts_are_levelled_in_one_go() -> None:
    layout = initial_layout(100)
    hoard = {"a": tuple(Unit(segment_id) for segment_id in range(100))}

    after = assign(layout, "abcdefg", drained=(), previous=hoard)

    assert sorted(len(units) for units in after.values()) == [14, 14, 14, 14, 14, 15, 15]
    assert [unit.segment_id for unit in after["a"]] == list(range(15))


@given(st.integers(0, 40), st.lists(st.sampled_from(NAMES), unique=True, max_size=12))
def test_slices_tile_the_buckets(bucket_count: int, sharers: list[str]) -> None:
    owners = bucket_owners(bucket_count, sharers)
    ranges = sharer_ranges(bucket_ranges(equal_width_splits(bucket_count)), sharers)

    widths = [last - first + 1 for _, (first, last) in slices(bucket_count, sharers)]
    assert len(owners) == bucket_count
    assert sum(widths) == (bucket_count if sharers else 0)
    assert widths == sorted(widths, reverse=True)
    assert not widths or widths[0] - widths[-1] <= 1
    assert ranges.keys() == set(sharers)
    assert [name for name in sharers if ranges[name]] == [name for name, _ in slices(max(1, bucket_count), sharers)]


def test_a_handoff_waits_only_for_those_who_can_still_acknowledge() -> None:
    moving = handoff(4, before=["a", "b"], after=["b", "c"], unacked={0: 1, 1: 0, 2: 3})

    assert moving.moved == (0, 1, 2, 3)
    assert moving.withheld == (2,)
    assert handoff(2, before=["a"], after=["a"], unacked={0: 1}).moved == ()


@pytest.mark.parametrize("members", [[], ["a"]])
def test_nothing_to_assign(members: list[str]) -> None:
    layout = initial_layout(2).apply(merge(initial_layout(2), [0, 1], at_ms=1), at_ms=1)

    assert assign(layout, members, drained=(), previous={"z": (Unit(0),)}).keys() == set(members)


def test_a_segment_never_has_more_sharers_than_buckets() -> None:
    """A rollover to fewer buckets inherits more holders than it has room for: the first by bucket stay."""
    layout = initial_layout(1, bucket_budget=4)
    before = assign(layout, "abcd", drained=(), previous={})
    layout = layout.apply(rebucket(layout, [0], 2, at_ms=1), at_ms=1)

    after = assign(layout, "abcd", drained={0}, previous=before)

    assert after == {"a": (Unit(1, (0, 0)),), "b": (Unit(1, (1, 1)),), "c": (), "d": ()}


def test_the_last_sharer_of_the_highest_full_segment_moves() -> None:
    layout = initial_layout(3, bucket_budget=12)
    before = {
        name: (Unit(segment_id, (bucket, bucket)),)
        for segment_id, sharers in ((0, "abc"), (2, "def"), (1, "g"))
        for bucket, name in enumerate(sharers)
    }

    after = assign(layout, "abcdefg", drained=(), previous=before)

    assert ids(after) == {"a": [0], "b": [0], "c": [0], "d": [2], "e": [2], "f": [1], "g": [1]}
    assert after["g"] == (Unit(1, (0, 1)),)
    assert after["f"] == (Unit(1, (2, 3)),)


def test_a_newcomer_moves_on_before_a_holder_does() -> None:
    layout = initial_layout(2, bucket_budget=16)
    before = {"a": (Unit(0, (0, 3)),), "b": (Unit(0, (4, 7)),), "z": (Unit(1),)}

    after = assign(layout, "abcd", drained=(), previous=before)

    assert ids(after) == {"a": [0], "b": [0], "c": [1], "d": [1]}


def test_of_equals_the_segment_not_held_before_moves_then_the_highest() -> None:
    layout = initial_layout(6)
    before = {"a": (Unit(0), Unit(1), Unit(5)), "b": (Unit(2), Unit(3), Unit(4))}
    layout = layout.apply(split(layout, {1: 2}, at_ms=1), at_ms=1)

    after = assign(layout, "abc", drained={1}, previous=before)

    assert ids(after) == {"a": [0, 5], "b": [2, 3, 4], "c": [6, 7]}


def test_as_many_consumers_as_segments_share_nothing() -> None:
    """The first by bucket keeps the segment; the others get what is new, by name."""
    previous = {name: (Unit(0, (number, number)),) for number, name in enumerate("abc")}

    assert ids(assign(initial_layout(3, bucket_budget=12), "abc", drained=(), previous=previous)) == {
        "a": [0],
        "b": [1],
        "c": [2],
    }


def test_a_holder_without_room_goes_where_there_is_some() -> None:
    layout = initial_layout(2, bucket_budget=8)
    before = {"a": (Unit(0, (0, 0)),), "b": (Unit(0, (1, 1)),), "c": (Unit(0, (2, 3)),), "d": (Unit(1),)}
    layout = layout.apply(rebucket(layout, [0], 2, at_ms=1), at_ms=1)

    after = assign(layout, "abcd", drained={0}, previous=before)

    assert ids(after) == {"a": [2], "b": [2], "c": [1], "d": [1]}
    crowded = {**before, "d": (Unit(1, (0, 1)),), "e": (Unit(1, (2, 3)),)}
    assert ids(assign(layout, "abcde", drained={0}, previous=crowded))["c"] == [1]


def test_one_that_only_inherited_moves_before_one_that_held() -> None:
    layout = initial_layout(3, bucket_budget=12)
    before = {
        name: (Unit(segment_id, (bucket, bucket)),)
        for segment_id, sharers in ((0, "abc"), (2, "def"), (1, "z"))
        for bucket, name in enumerate(sharers)
    }
    layout = layout.apply(rebucket(layout, [0], 8, at_ms=1), at_ms=1)

    after = assign(layout, "abcdef", drained={0}, previous=before)

    assert ids(after) == {"a": [3], "b": [3], "c": [1], "d": [2], "e": [2], "f": [1]}
    assert (after["c"], after["f"]) == ((Unit(1, (0, 1)),), (Unit(1, (2, 3)),))


@pytest.mark.parametrize(("sharers", "room", "moved"), [("abcd", 1, "d"), ("abcde", 2, "de"), ("abcdefg", 3, "efg")])
def test_a_segment_takes_as_many_as_it_has_room_for(sharers: str, room: int, moved: str) -> None:
    layout = initial_layout(2, bucket_budget=32)
    layout = layout.apply(rebucket(layout, [1], room, at_ms=1), at_ms=1)
    before = {name: (Unit(0, (number, number)),) for number, name in enumerate(sharers)}

    after = assign(layout, sharers, drained={1}, previous={**before, "left": (Unit(2),)})

    assert "".join(name for name, held in ids(after).items() if held == [2]) == moved
    assert all(after.values())


def test_one_unacknowledged_message_is_enough_to_wait_for() -> None:
    assert handoff(2, before=["a"], after=["a", "b"], unacked={1: 1}).withheld == (1,)
