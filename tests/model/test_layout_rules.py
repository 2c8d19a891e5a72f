"""What is not a layout, and the story that says why."""

from collections.abc import Mapping
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from scalable_topics.model.errors import InvalidLayout
from scalable_topics.model.hash_range import HashRange
from scalable_topics.model.layout import SegmentLayout, initial_layout, legacy_layout
from scalable_topics.model.replacements import merge, migrate, rebucket, split
from scalable_topics.model.segment import CreatedBy, SegmentInfo, SegmentState


def family() -> SegmentLayout:
    """0 is split into 3 and 4, 1 rebucketed to 5, 4 and 5 merged to 6. Active: 3, 6, 2."""
    layout = initial_layout(3)
    layout = layout.apply(split(layout, {0: 2}, at_ms=1), at_ms=1)
    layout = layout.apply(rebucket(layout, [1], 4, at_ms=2), at_ms=2)
    return layout.apply(merge(layout, [4, 5], at_ms=3), at_ms=3)


def damaged(changes: Mapping[int, Mapping[str, Any]], layout: SegmentLayout | None = None) -> SegmentLayout:
    whole = family() if layout is None else layout
    segments = {
        key: msgspec.convert({**msgspec.to_builtins(segment), **changes.get(key, {})}, SegmentInfo)
        for key, segment in whole.segments.items()
    }
    return SegmentLayout(whole.epoch, whole.next_segment_id, segments)


def problems(layout: SegmentLayout) -> tuple[str, ...]:
    with pytest.raises(InvalidLayout) as caught:
        layout.check(subject="topic://t/n/x")
    assert str(caught.value).startswith("topic://t/n/x: ")
    return caught.value.problems


@pytest.mark.parametrize(
    ("segment_id", "change", "story"),
    [
        (2, {"segmentId": 1}, "segment 1 is filed under 2"),
        (
            3,
            {"hashRange": {"start": 1, "end": 10922}},
            "a gap at 0000: expected a range starting at 0000, found [0001, 2aaa]",
        ),
        (2, {"hashRange": {"start": 43000, "end": 65535}}, "an overlap at a7f8"),
        (2, {"hashRange": {"start": 43690, "end": 65534}}, "ffff to ffff is not covered"),
        (3, {"createdAtEpoch": 4}, "segment 3 was created or sealed after epoch 3"),
        (0, {"sealedAtEpoch": 4}, "segment 0 was created or sealed after epoch 3"),
        (3, {"parentIds": []}, "segments 0 and 3 do not agree"),
        (3, {"parentIds": [0, 0]}, "names a parent or a child twice"),
        (0, {"childIds": [3, 4, 4]}, "names a parent or a child twice"),
        (0, {"childIds": [3, 4, 77]}, "segments 0 and 77 do not agree"),
        (2, {"parentIds": [77]}, "segments 77 and 2 do not agree"),
        (0, {"parentIds": [3]}, "segments 3 and 0 do not agree"),
        (0, {"mergeDepth": 1}, "segment 0, made by INITIAL, has merge depth 1"),
        (6, {"mergeDepth": 0}, "segment 6, made by MERGE, has merge depth 0"),
        (3, {"mergeDepth": 1}, "segment 3 (SPLIT, [0000, 2aaa], epoch 1, depth 1) cannot come from segment 0"),
        (5, {"mergeDepth": 1}, "segment 5 (REBUCKET, [5555, aaa9], epoch 2, depth 1) cannot come from segment 1"),
        (6, {"mergeDepth": 3}, "segment 6, merged from [4, 5], has merge depth 3, not one of [1]"),
        (5, {"createdAtMs": 3, "mergeDepth": 1}, "segment 6, merged from [4, 5], has merge depth 1, not one of [2]"),
        (5, {"createdAtMs": 3, "mergeDepth": 1}, "segment 6 (MERGE"),
        (0, {"parentIds": [0], "childIds": [0, 3, 4]}, "segment 0 (INITIAL"),
        (
            5,
            {"parentIds": [1, 5], "childIds": [5, 6]},
            "segment 5 (REBUCKET, [5555, aaa9], epoch 2, depth 0) cannot come from segment 5",
        ),
        (3, {"createdBy": "INITIAL"}, "segment 3 (INITIAL"),
        (3, {"createdBy": "REBUCKET"}, "segment 3 (REBUCKET"),
        (3, {"createdBy": "MIGRATION"}, "segment 3 (MIGRATION"),
        (3, {"createdBy": "MERGE", "mergeDepth": 1}, "segment 3 (MERGE"),
        (5, {"createdBy": "SPLIT"}, "segment 5 (SPLIT"),
        (5, {"createdBy": "MERGE", "mergeDepth": 1}, "segment 5 (MERGE"),
        (6, {"createdBy": "SPLIT"}, "segment 6 (SPLIT"),
        (0, {"sealedAtEpoch": 0}, "epochs 0 to 0"),
        (4, {"createdAtEpoch": 2}, "segment 4 (SPLIT"),
        (5, {"createdAtEpoch": 3, "sealedAtEpoch": 3}, "segment 5 (REBUCKET"),
        (3, {"hashRange": {"start": 0, "end": 21845}}, "segment 3 (SPLIT, [0000, 5555]"),
        (4, {"hashRange": {"start": 0, "end": 100}}, "segment 6 (MERGE, [2aab, aaa9]"),
        (5, {"hashRange": {"start": 21846, "end": 43689}}, "segment 5 (REBUCKET, [5556, aaa9]"),
        (5, {"hashRange": {"start": 21845, "end": 43700}}, "segment 6 (MERGE, [2aab, aaa9]"),
    ],
)
def test_one_damaged_segment(segment_id: int, change: dict[str, Any], story: str) -> None:
    assert any(story in problem for problem in problems(damaged({segment_id: change}))), story


def test_the_family_is_sound_and_every_damage_above_starts_from_it() -> None:
    family().check()
    damaged({}).check()


@pytest.mark.parametrize(
    ("epoch", "next_segment_id", "story"),
    [
        (-2, 7, "epoch -2 is not"),
        (2**63, 7, "is not a long"),
        (3, 6, "segment 6 is not below nextSegmentId 6"),
        (3, -1, "nextSegmentId -1"),
        (3, 2**63, "nextSegmentId 9223372036854775808"),
        (-1, 7, "a layout at epoch -1 holds"),
    ],
)
def test_counters(epoch: int, next_segment_id: int, story: str) -> None:
    layout = SegmentLayout(epoch, next_segment_id, family().segments)

    assert any(story in problem for problem in problems(layout)), story


def test_nothing_is_older_than_the_layout() -> None:
    for layout in (initial_layout(1), legacy_layout(["a"])):
        young = {0: replace(layout.segments[0], created_at_epoch=1)}
        told = problems(SegmentLayout(layout.epoch, 1, young))
        assert any("created or sealed after epoch" in problem for problem in told)


def test_counters_at_their_limits_are_fine() -> None:
    SegmentLayout(2**63 - 1, 2**63 - 1, family().segments).check()
    SegmentLayout(3, 7, family().segments).check()


def test_a_cycle_is_told_as_a_parent_that_is_not_older() -> None:
    """Ids rise from parent to child, so no chain of parents can come back."""
    whole = family().segments
    cycle = {
        **whole,
        3: replace(whole[3], state=SegmentState.SEALED, sealed_at_epoch=3, child_runs=(0,)),
        0: replace(whole[0], parent_runs=(3,), created_by=CreatedBy.MERGE, merge_depth=1),
    }

    told = problems(SegmentLayout(3, 7, cycle))

    assert any("segment 0 (MERGE" in problem and "cannot come from segment 3" in problem for problem in told)


def test_an_active_parent_is_told() -> None:
    whole = family().segments
    with pytest.raises(ValueError, match="ACTIVE"):
        replace(whole[0], state=SegmentState.ACTIVE)


def test_nothing_at_all_does_not_cover_the_ring() -> None:
    assert problems(SegmentLayout()) == ("the ACTIVE segments [] do not tile the ring: 0000 to ffff is not covered",)
    assert "epoch -1" in problems(SegmentLayout(-1))[0]


def test_all_problems_are_told_and_the_first_eight_shown() -> None:
    layout = SegmentLayout(0, 0, initial_layout(12).segments)

    with pytest.raises(InvalidLayout) as caught:
        layout.check()

    assert len(caught.value.problems) == 12
    assert "and 4 more" in str(caught.value)
    assert "segment 7 is" in str(caught.value)
    assert "segment 8 is" not in str(caught.value)
    with pytest.raises(InvalidLayout) as caught:
        SegmentLayout(0, 4, initial_layout(12).segments).check()
    assert "more" not in str(caught.value)


def test_overlapping_legacy_parents_are_the_one_exception() -> None:
    before = legacy_layout(["a", "b"])
    before.check()
    after = before.apply(migrate(before, at_ms=1), at_ms=1)
    after.check()

    half = damaged({1: {"hashRange": {"start": 0, "end": 32767}}}, before)
    assert "epoch -1" in problems(half)[0]
    later = problems(SegmentLayout(0, 2, before.segments))
    assert later[0] == "segment 0 is an old partition, and still ACTIVE after the migration"
    assert "overlap" in later[2]
    not_whole = damaged({1: {"hashRange": {"start": 0, "end": 32767}}}, after)
    assert any("segment 3 (MIGRATION" in problem for problem in problems(not_whole))
    deep = damaged({2: {"mergeDepth": 1}}, after)
    assert any("MIGRATION, has merge depth 1" in problem for problem in problems(deep))
    mixed = SegmentLayout(-1, 3, {**before.segments, 2: replace(initial_layout(1).segments[0], segment_id=2)})
    assert "epoch -1" in problems(mixed)[0]


def test_what_may_follow_what() -> None:
    before = initial_layout(2)
    after = before.apply(split(before, {0: 2}, at_ms=1), at_ms=1)

    after.check_follows(before)
    after.check_follows(after)
    before.announce(split(before, {0: 2}, at_ms=1)).check_follows(before)
    with pytest.raises(InvalidLayout, match="epoch went from 1 to 0, nextSegmentId from 4 to 2"):
        before.check_follows(after)
    with pytest.raises(InvalidLayout, match="nextSegmentId from 4 to 3"):
        SegmentLayout(2, 3, before.segments).check_follows(after)
    with pytest.raises(InvalidLayout, match="two different layouts claim epoch 1"):
        SegmentLayout(1, 4, before.segments).check_follows(after)
    with pytest.raises(InvalidLayout, match="segment 0 was SEALED and is ACTIVE again"):
        SegmentLayout(2, 4, {**after.segments, 0: before.segments[0]}).check_follows(after)


@pytest.mark.parametrize(
    "change",
    [
        {"hash_range": HashRange(5, 6)},
        {"created_by": CreatedBy.SPLIT},
        {"created_at_epoch": 1},
        {"merge_depth": 1},
        {"entry_buckets": 3},
    ],
)
def test_what_a_segment_is_never_changes(change: dict[str, Any]) -> None:
    before = initial_layout(2)
    changed = {**before.segments, 1: replace(before.segments[1], **change)}

    with pytest.raises(InvalidLayout, match="segment 1 is not what it was"):
        SegmentLayout(1, 2, changed).check_follows(before)


@pytest.mark.parametrize(
    "change",
    [
        {"segment_id": -1},
        {"segment_id": 2**63},
        {"created_at_epoch": -1},
        {"created_at_epoch": 2**63},
        {"created_at_ms": -1},
        {"created_at_ms": 2**63},
        {"merge_depth": -1},
        {"merge_depth": 2**63},
        {"sealed_at_epoch": 1},
        {"sealed_at_ms": 1},
        {"child_runs": (3,)},
        {"terminated_at": (1, 1)},
        {"state": SegmentState.SEALED, "terminated_at": (-2, 1)},
        {"state": SegmentState.SEALED, "terminated_at": (1, 2**63)},
        {"state": SegmentState.SEALED, "created_at_epoch": 5, "sealed_at_epoch": 4},
        {"state": SegmentState.SEALED, "sealed_at_epoch": 2**63},
        {"state": SegmentState.SEALED, "sealed_at_ms": -1},
        {"state": SegmentState.SEALED, "sealed_at_ms": 2**63},
        {"legacy_topic_name": "persistent://t/n/x"},
        {"created_by": CreatedBy.LEGACY},
        {"entry_buckets": 0},
        {"entry_buckets": 65_537},
        {"entry_buckets": (5, 5)},
    ],
)
def test_segments_that_cannot_be(change: dict[str, Any]) -> None:
    segment = initial_layout(1).segments[0]

    with pytest.raises(ValueError, match=r"segment|bucket"):
        replace(segment, **change)


def test_segments_at_their_limits() -> None:
    segment = initial_layout(1).segments[0]
    longest = 2**63 - 1

    replace(segment, segment_id=longest, created_at_epoch=longest, created_at_ms=longest, merge_depth=longest)
    sealed = replace(segment, state=SegmentState.SEALED, sealed_at_epoch=longest, sealed_at_ms=longest, child_runs=(1,))
    assert not sealed.is_active
    assert replace(segment, entry_buckets=65_536).bucket_count == 65_536
    odd = replace(segment, entry_buckets=(5, 60_000))
    assert (odd.bucket_count, odd.entry_bucket_splits) == (3, (5, 60_000))
