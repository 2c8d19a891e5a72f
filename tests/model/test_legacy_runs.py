"""Old partitions written once, and all there again when they are read."""

import json
import time
import tracemalloc
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from scalable_topics.model.errors import DecodeError, InvalidArgument
from scalable_topics.model.hash_range import RING_SIZE
from scalable_topics.model.layout import SegmentLayout, legacy_layout
from scalable_topics.model.legacy_runs import LegacyRun, fold, unfold
from scalable_topics.model.operation import Operation, OperationKind, Phase
from scalable_topics.model.record import (
    AUTOSCALE_RECORD_LIMIT_BYTES,
    RECORD_LIMIT_BYTES,
    TopicRecord,
    TopicState,
    decode_record,
    encode_record,
)
from scalable_topics.model.replacements import merge, migrate, split
from tests.strategies import INCARNATION, layouts, next_layouts

positions = st.tuples(st.integers(-1, 9), st.integers(-1, 9))


def partition_names(number: int) -> list[str]:
    return [f"persistent://t/n/x-partition-{index}" for index in range(number)]


def migrated(number: int, ends: dict[int, tuple[int, int]] | None = None) -> SegmentLayout:
    before = legacy_layout(partition_names(number), at_ms=1_790_000_000_000)
    return before.apply(
        migrate(before, at_ms=1_790_000_000_000), at_ms=1_790_000_000_001, terminated={} if ends is None else ends
    )


@st.composite
def migrated_layouts(draw: st.DrawFn) -> SegmentLayout:
    """Old partitions of which some have other names, some ends are known, and some are gone."""
    names = partition_names(draw(st.integers(1, 9)))
    for index in draw(st.sets(st.integers(0, len(names) - 1), max_size=2)):
        names[index] = draw(st.sampled_from(["persistent://t/n/y", f"persistent://t/n/y-partition-{index}"]))
    layout = legacy_layout(names, at_ms=1)
    if not draw(st.integers(0, 4)):
        return layout
    ends = draw(st.dictionaries(st.integers(0, len(names) - 1), positions))
    layout = layout.apply(migrate(layout, at_ms=1), at_ms=1, terminated=ends)
    for number in range(draw(st.integers(0, 5))):
        layout = draw(next_layouts(layout, at_ms=number + 2))
    return layout


@given(migrated_layouts() | layouts(), st.sets(st.integers(0, 9)))
def test_what_is_folded_unfolds_to_the_same(layout: SegmentLayout, apart: set[int]) -> None:
    segments, runs = fold(layout.segments, apart=apart)

    assert unfold(segments, runs) == dict(layout.segments)
    assert not apart & {partition.segment_id for run in runs for partition in run.partitions()}
    assert all(run.size >= 3 for run in runs)


@given(migrated_layouts())
def test_a_record_of_old_partitions_is_the_same_bytes_again(layout: SegmentLayout) -> None:
    state = TopicState.MIGRATING if layout.epoch < 0 else TopicState.ACTIVE
    record = TopicRecord(incarnation=INCARNATION, layout=layout, state=state)
    data = encode_record(record)

    assert decode_record(data) == record
    assert encode_record(decode_record(data)) == data


@given(migrated_layouts())
def test_a_record_that_spells_everything_out_is_the_same_record(layout: SegmentLayout) -> None:
    """What a person, or a version that knows no runs, would write."""
    state = TopicState.MIGRATING if layout.epoch < 0 else TopicState.ACTIVE
    record = TopicRecord(incarnation=INCARNATION, layout=layout, state=state)
    document = json.loads(encode_record(record))
    del document["legacyPartitions"]
    for key, segment in layout.segments.items():
        alone = TopicRecord(incarnation=INCARNATION, layout=SegmentLayout(0, 10, {key: segment}))
        document["segments"][str(key)] = {
            **json.loads(encode_record(alone))["segments"][str(key)],
            "parentIds": segment.parent_ids,
            "childIds": segment.child_ids,
        }

    assert decode_record(json.dumps(document).encode()) == record


def test_a_migration_of_1000_partitions_is_a_small_record_and_a_fast_one() -> None:
    before = legacy_layout(partition_names(1_000), at_ms=1_790_000_000_000)
    change = migrate(before, at_ms=1_790_000_000_000)
    operation = Operation(
        id="0" * 16,
        kind=OperationKind.MIGRATION,
        phase=Phase.SEALING,
        replacements=change,
        reason="manual",
        by="alice",
        started_at_ms=1,
    )
    layout = migrated(1_000, {number: (123_456, number) for number in range(1_000)})
    for record in (
        TopicRecord(incarnation=INCARNATION, layout=layout),
        TopicRecord(
            incarnation=INCARNATION, layout=before.announce(change), state=TopicState.MIGRATING, operation=operation
        ),
    ):
        data = encode_record(record)
        started = time.process_time()
        read = decode_record(data)
        took = time.process_time() - started

        assert read == record
        assert len(data) < AUTOSCALE_RECORD_LIMIT_BYTES < RECORD_LIMIT_BYTES
        assert took < 0.5, "a million edges took their time one by one"


def test_lookups_in_a_migrated_layout_of_1000_partitions() -> None:
    layout = migrated(1_000, {7: (5, 6)})
    started = time.process_time()

    assert layout.find_active(0).segment_id == 1_000
    assert layout.find_active(65_535).segment_id == 1_999
    assert layout.segment(7).terminated_at == (5, 6)
    assert layout.segments[7].child_ids is layout.segments[8].child_ids
    assert layout.segments[1_000].parent_ids == tuple(range(1_000))
    assert layout.ancestors(1_500) == set(range(1_000))
    assert layout.lineage(7) == [7, *range(1_000, 2_000)]
    split_once = layout.apply(split(layout, {1_500: 2}, at_ms=9), at_ms=9)
    split_once.check()
    assert split_once.lineage(2_001) == [*range(1_000), 1_500, 2_001]
    merged = split_once.apply(merge(split_once, [2_000, 2_001], at_ms=10), at_ms=10).prune([3, 5])
    merged.check()
    assert merged.segments[1_000].parent_runs == ((0, 2), 4, (6, 999))
    assert time.process_time() - started < 2


def test_partitions_that_are_not_called_after_one_topic_are_written_one_by_one() -> None:
    layout = legacy_layout(["persistent://t/n/a", *partition_names(3)], at_ms=1)

    segments, runs = fold(layout.segments)

    assert (set(segments), runs) == ({0, 1, 2, 3}, ())


def test_a_run_is_written_under_its_first_and_last_number() -> None:
    layout = migrated(5, {1: (9, 9)})

    segments, (run,) = fold(layout.segments)

    assert sorted(segments) == [5, 6, 7, 8, 9]
    assert (run.id, run.first.legacy_topic_name, run.size) == ("0-4", "persistent://t/n/x-partition-0", 5)
    assert run.terminated_at == (None, (9, 9), None, None, None)
    assert fold(migrated(5).segments)[1][0].terminated_at == ()
    assert fold(migrated(2).segments)[1] == ()
    (rest,) = fold(layout.prune([2]).segments, apart={0})[1:]
    assert rest == (), "2 is gone, 0 apart: neither side is long enough"


def test_what_a_later_version_says_of_one_partition_stays_with_it() -> None:
    layout = migrated(6)
    document = json.loads(encode_record(TopicRecord(incarnation=INCARNATION, layout=layout)))
    alone = json.loads(encode_record(TopicRecord(incarnation=INCARNATION, layout=migrated(1))))["segments"]["0"]
    (run,) = document["legacyPartitions"]
    run["id"], run["first"] = (
        "1-5",
        {**run["first"], "segmentId": 1, "legacyTopicName": "persistent://t/n/x-partition-1"},
    )
    document["segments"]["0"] = {**alone, "childIds": run["first"]["childIds"], "colour": "red"}
    for segment_id in range(6, 12):
        document["segments"][str(segment_id)]["parentIds"] = [[0, 5]]
    document["segments"]["0"]["legacyTopicName"] = "persistent://t/n/x-partition-0"

    read = decode_record(json.dumps(document).encode())

    assert read.layout == layout
    assert json.loads(encode_record(read)) == document
    gone = json.loads(encode_record(replace(read, layout=read.layout.prune([0]))))
    assert "red" not in str(gone)


def run_of(run_id: str, **fields: Any) -> LegacyRun:
    return LegacyRun(run_id, replace(migrated(3).segments[0], **fields))


@pytest.mark.parametrize(
    ("made", "story"),
    [
        (lambda: run_of("0-"), "is not a run of old partitions"),
        (lambda: run_of("00-2"), "is not a run of old partitions"),
        (lambda: run_of("1-2"), "is not the first of the old partitions 1-2"),
        (lambda: run_of("0-2", legacy_topic_name="a"), "is not the first of the old partitions 0-2"),
        (lambda: run_of("1-0", segment_id=1), "is not the first of the old partitions"),
        (lambda: run_of("0-2", terminated_at=(1, 1)), "0 ends of the old partitions 0-2"),
        (lambda: LegacyRun("0-2", migrated(3).segments[0], ((1, 1),)), "1 ends of the old partitions 0-2"),
        (lambda: unfold({}, [run_of("0-2"), run_of("0-1")]), "segment 0: it is stored twice"),
        (lambda: unfold(migrated(3).segments, [run_of("0-2")]), "segment 0: it is stored twice"),
        (lambda: unfold({}, [run_of(f"0-{RING_SIZE}")]), f"a record of {RING_SIZE + 1} old partitions"),
        (lambda: unfold({}, [run_of("0-40000"), run_of("0-40000")]), "stored twice|a record of 80002"),
    ],
)
def test_runs_that_cannot_be(made: Any, story: str) -> None:
    with pytest.raises(InvalidArgument, match=story):
        made()


@pytest.mark.parametrize(
    "change",
    [
        {"legacyPartitions": "0-9000000000000000000"},
        {"legacyPartitions": "0-65536"},
        {"childIds": [[0, 9_000_000_000_000_000_000]]},
        {"childIds": [[0, 65_536]]},
        {"childIds": [[0, 40_000], [0, 40_000]]},
        {"parentIds": [[0, 60_000]]},
    ],
)
def test_a_hostile_record_is_refused_before_memory_is_spent(change: dict[str, Any]) -> None:
    document = json.loads(encode_record(TopicRecord(incarnation=INCARNATION, layout=migrated(3))))
    if "legacyPartitions" in change:
        document["legacyPartitions"][0]["id"] = change["legacyPartitions"]
    else:
        document["legacyPartitions"][0]["first"].update(change)
    data = json.dumps(document).encode()

    tracemalloc.start()
    try:
        with pytest.raises(DecodeError):
            decode_record(data)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()

    assert peak < 1_000_000


def test_many_long_lists_are_refused_before_time_is_spent() -> None:
    """Each a few bytes, each different, and each as long as the layout: together more than any layout can agree on."""
    document = json.loads(encode_record(TopicRecord(incarnation=INCARNATION, layout=migrated(2_000))))
    for number, segment_id in enumerate(range(2_000, 4_000)):
        document["segments"][str(segment_id)]["parentIds"] = [[0, number], [number + 2, 2_001]]
    data = json.dumps(document).encode()
    started = time.process_time()

    with pytest.raises(DecodeError, match="more than can agree with each other; the longest list is"):
        decode_record(data)

    assert time.process_time() - started < 1
