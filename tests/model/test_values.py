"""Small values: ranges, hashes, buckets, quantities, loads."""

import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scalable_topics.model import entry_buckets
from scalable_topics.model.errors import DecodeError, InvalidArgument, NotFound, WrongState
from scalable_topics.model.hash_range import RING_SIZE, HashRange, equal_ranges, tiling_problem
from scalable_topics.model.hashing import bucket_hash, legacy_partition, raw_hash, segment_hash
from scalable_topics.model.load import SegmentLoadStats, decode_load, encode_load, validate_rates
from scalable_topics.model.quantities import parse_amount, parse_seconds

hashes = st.integers(0, RING_SIZE - 1)
ranges = st.tuples(hashes, hashes).map(lambda pair: HashRange(min(pair), max(pair)))


@given(ranges, st.integers(2, 50))
def test_parts_of_a_range_tile_it(whole: HashRange, ways: int) -> None:
    if whole.size < ways:
        with pytest.raises(WrongState, match=f"split {ways} ways"):
            whole.split(ways)
        return
    parts = whole.split(ways)

    assert tiling_problem(parts, whole) is None
    assert [part.size for part in parts] == sorted((part.size for part in parts), reverse=True)
    assert parts[0].size - parts[-1].size <= 1
    assert all(whole.covers(part) for part in parts)


@given(st.integers(1, 2000))
def test_equal_ranges_tile_the_ring_and_the_last_takes_the_rest(count: int) -> None:
    parts = equal_ranges(count)

    assert tiling_problem(parts, HashRange(0, 65535)) is None
    assert {part.size for part in parts[:-1]} <= {RING_SIZE // count}
    assert len(parts) == count


@given(ranges, ranges)
def test_relations_of_two_ranges(a: HashRange, b: HashRange) -> None:
    inside = range(a.start, a.end + 1)

    assert a.covers(b) is (b.start in inside and b.end in inside)
    assert a.is_adjacent_to(b) is b.is_adjacent_to(a)
    assert HashRange.parse(a.hex) == a


def test_remedies_of_ranges() -> None:
    with pytest.raises(WrongState, match="a single hash value stays one segment"):
        HashRange(5, 5).split()
    with pytest.raises(WrongState, match="split at most 3 ways"):
        HashRange(5, 7).split(4)
    with pytest.raises(InvalidArgument, match=r"\[0000, ffff\]: cannot split a range 1 ways"):
        HashRange(0, 65535).split(1)
    assert equal_ranges(RING_SIZE)[-1] == HashRange(65535, 65535)


@pytest.mark.parametrize(
    ("parts", "problem"),
    [
        ([], "0000 to ffff is not covered"),
        ([(0, 5)], "0006 to ffff is not covered"),
        ([(0, 5), (5, 65535)], "an overlap at 0005: expected a range starting at 0006, found [0005, ffff]"),
        ([(0, 5), (7, 65535)], "a gap at 0006: expected a range starting at 0006, found [0007, ffff]"),
        ([(0, 65535)], None),
    ],
)
def test_stories_of_bad_tilings(parts: list[tuple[int, int]], problem: str | None) -> None:
    assert tiling_problem((HashRange(*part) for part in parts), HashRange(0, 65535)) == problem


@given(st.text() | st.binary(), st.integers(1, 100))
def test_the_two_halves_make_the_hash(key: str | bytes, partitions: int) -> None:
    try:
        raw = raw_hash(key)
    except InvalidArgument:
        assert isinstance(key, str)
        return
    assert (segment_hash(raw) << 16) | bucket_hash(raw) == raw
    assert 0 <= segment_hash(raw) < RING_SIZE
    assert legacy_partition(raw, partitions) == (raw % 2**31) % partitions


def test_hashing_refuses_the_impossible() -> None:
    with pytest.raises(InvalidArgument, match="pass bytes instead"):
        raw_hash("\ud800")
    with pytest.raises(InvalidArgument, match="0 partitions"):
        legacy_partition(5, 0)
    assert legacy_partition(5, 1) == 0


@given(st.integers(1, 300), hashes)
def test_a_bucket_is_where_its_range_says(count: int, hash_value: int) -> None:
    splits = entry_buckets.equal_width_splits(count)
    parts = entry_buckets.bucket_ranges(splits)

    assert hash_value in parts[entry_buckets.bucket_of(splits, hash_value)]
    assert tiling_problem(parts, HashRange(0, 65535)) is None
    assert entry_buckets.validate_splits(splits) == len(parts) == entry_buckets.bucket_count(splits) == count


@pytest.mark.parametrize("count", [-1, RING_SIZE + 1])
def test_impossible_bucket_counts(count: int) -> None:
    with pytest.raises(InvalidArgument, match=str(count)):
        entry_buckets.equal_width_splits(count)
    with pytest.raises(InvalidArgument, match=str(count)):
        entry_buckets.validate(count)


def test_bucket_edges() -> None:
    assert len(entry_buckets.equal_width_splits(RING_SIZE)) == RING_SIZE - 1
    assert entry_buckets.splits_of(2) == (32768,)
    assert entry_buckets.splits_of((9,)) == (9,)
    assert entry_buckets.count_for_budget(0, 1) == 1
    for budget, segments in ((-1, 1), (4, 0)):
        with pytest.raises(InvalidArgument, match="at least one segment"):
            entry_buckets.count_for_budget(budget, segments)
    with pytest.raises(InvalidArgument, match="split point 65536 after 5"):
        entry_buckets.validate((5, 65536))
    entry_buckets.validate((65535,))
    entry_buckets.validate(1)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("60s", 60),
        ("5m", 300),
        ("0.5s", 0.5),
        ("250ms", 0.25),
        ("2h", 7200),
        ("1d", 86400),
        (" 7 ", 7),
        (90, 90),
        (0.25, 0.25),
    ],
)
def test_durations(text: object, seconds: float) -> None:
    assert parse_seconds(text) == pytest.approx(seconds)


@pytest.mark.parametrize(
    ("text", "amount"),
    [
        ("50MB", 50_000_000),
        ("1.5GiB", 1.5 * 2**30),
        ("2KB", 2_000),
        ("2kB", 2_000),
        ("3KiB", 3_072),
        ("4MiB", 4 * 2**20),
        ("5GB", 5e9),
        ("6TB", 6e12),
        ("7TiB", 7 * 2**40),
        ("8B", 8),
        ("10000", 10_000),
        (12.5, 12.5),
    ],
)
def test_amounts(text: object, amount: float) -> None:
    assert parse_amount(text) == amount


@pytest.mark.parametrize(
    "wrong",
    ["", "s", "-1s", "1w", "1 s s", "1e3", "0x1", "५s", None, True, [], math.nan, math.inf, 10**400, "9" * 5_000],
)
def test_what_is_not_a_quantity(wrong: object) -> None:
    with pytest.raises(InvalidArgument, match=r"is not a duration .*write 60s"):
        parse_seconds(wrong)
    with pytest.raises(InvalidArgument, match=r"is not an amount .*write 50MB"):
        parse_amount(wrong)


def load(**fields: float) -> SegmentLoadStats:
    defaults = dict.fromkeys(("msg_rate_in", "bytes_rate_in", "msg_rate_out", "bytes_rate_out"), 1.0)
    return SegmentLoadStats(
        reporter="b1",
        **{**defaults, "changed_at_ms": 5, "reporter_session": 7, **fields},  # type: ignore[arg-type]
    )


@pytest.mark.parametrize("field", ["msg_rate_in", "bytes_rate_in", "msg_rate_out", "bytes_rate_out"])
@pytest.mark.parametrize("wrong", [-0.001, math.nan, math.inf])
def test_rates_are_finite_and_not_negative(field: str, wrong: float) -> None:
    with pytest.raises(InvalidArgument, match="is not a rate"):
        load(**{field: wrong})


def test_load_records() -> None:
    assert load(msg_rate_in=0).rates == (0, 1, 1, 1)
    for wrong in ({"changed_at_ms": -1}, {"reporter_session": -1}):
        with pytest.raises(InvalidArgument, match="must be longs of 0 or more"):
            load(**wrong)
    load(changed_at_ms=0, reporter_session=0)
    with pytest.raises(InvalidArgument, match="expected 4 rates, got 3"):
        validate_rates((1, 2, 3))  # type: ignore[arg-type]


def test_errors_read_as_a_sentence_with_a_way_out() -> None:
    error = NotFound("there is no such segment", subject="segment 4", remedy="active segments: [1]")

    assert str(error) == "segment 4: there is no such segment (active segments: [1])"
    assert str(NotFound("gone")) == "gone"
    assert (error.kind, error.what, error.subject, error.remedy) == (
        "not-found",
        "there is no such segment",
        "segment 4",
        "active segments: [1]",
    )


@given(st.builds(load, msg_rate_in=st.floats(0, 1e12), changed_at_ms=st.integers(0, 2**63 - 1)))
def test_load_records_survive_the_store(stats: SegmentLoadStats) -> None:
    assert decode_load(encode_load(stats)) == stats


@given(
    st.binary(max_size=40)
    | st.dictionaries(
        st.sampled_from(["msgRateIn", "bytesRateIn", "msgRateOut", "bytesRateOut", "changedAtMs", "reporter"]),
        st.none() | st.integers() | st.floats() | st.text(max_size=3),
    ).map(lambda document: json.dumps({"reporterSession": 1, **document}).encode())
)
def test_hostile_load_records_end_in_our_error(data: bytes) -> None:
    try:
        stats = decode_load(data, subject="segment 3")
    except DecodeError as error:
        assert str(error).startswith("segment 3: ")
    else:
        assert min(stats.rates) >= 0


@pytest.mark.parametrize("bounds", [(0.5, 3), (0, 3.5), (False, 3), (0, True)])
def test_a_range_is_made_of_whole_numbers(bounds: tuple[int, int]) -> None:
    with pytest.raises(InvalidArgument, match="is not a hash range"):
        HashRange(*bounds)
    with pytest.raises(InvalidArgument, match="entry buckets"):
        entry_buckets.validate(2.5)  # type: ignore[arg-type]
