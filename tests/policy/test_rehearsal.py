"""Autoscaling over time: on a constant load it comes to rest, whatever the policy, the load and the consumers."""

from bisect import bisect_right
from collections.abc import Callable
from itertools import pairwise
from math import cos, pi
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from scalable_topics.model.autoscale_policy import AutoScalePolicy
from scalable_topics.model.subscription import SubscriptionType
from scalable_topics.policy.autoscale import ConsumerCount, Merge, NoAction, Rebucket, Split
from scalable_topics.policy.rehearsal import Rehearsal, Step, begin, density_load, even, step
from tests.strategies import policies, rates

DAY_MS = 86_400_000


@st.composite
def densities(draw: st.DrawFn) -> Callable[[int, int], float]:
    """Load on the ring: something everywhere, and a few hot keys."""
    keys = sorted(draw(st.lists(st.integers(0, 65535), max_size=4)))
    weights = [draw(st.floats(0, 3)) for _ in keys]

    def density(start: int, end: int) -> float:
        hot = slice(bisect_right(keys, start - 1), bisect_right(keys, end))
        return even(start, end) + sum(weights[hot])

    return density


consumer_groups = st.dictionaries(
    st.sampled_from("ab"),
    st.builds(ConsumerCount, st.sampled_from(SubscriptionType), st.integers(0, 20), st.integers(0, 2)),
    max_size=2,
)


def quiet_ms(policy: AutoScalePolicy) -> int:
    """After this long without a change every clock has run out: nothing that a rule looks at will change any more."""
    return int(
        1000
        * max(
            policy.split_cooldown_seconds,
            policy.merge_cooldown_seconds,
            policy.merge_window_seconds,
            policy.rebucket_cooldown_seconds,
            policy.rebucket_down_window_seconds,
        )
    )


@settings(max_examples=100)
@given(
    policies(enabled=True, max_depth=10**6),
    densities(),
    rates(12.0),
    consumer_groups,
    st.integers(1, 8),
    st.sampled_from([1, 60, 3_600]),
    st.sampled_from([20, 60, 400]),
)
def test_a_constant_load_comes_to_rest(
    policy: AutoScalePolicy,
    density: Callable[[int, int], float],
    load: tuple[float, float, float, float],
    consumers: dict[str, ConsumerCount],
    segments: int,
    stretch: int,
    tick_seconds: int,
) -> None:
    """No depth cap to hide behind; cool-downs and windows from half a second to days; ticks of any length."""
    policy = stretched(policy, stretch)
    topic = begin(segments=segments, policy=policy, now_ms=1)
    tick_ms = tick_seconds * 1000 * stretch
    now_ms, quiet_since_ms, changes = 1, 1, 0
    while now_ms - quiet_since_ms <= quiet_ms(policy) + 2 * tick_ms:
        now_ms += tick_ms
        done = step(topic, now_ms=now_ms, load_of=density_load(density, load), consumers=consumers, policy=policy)
        topic = done.after
        if not isinstance(done.decision, NoAction):
            changes += 1
            quiet_since_ms = now_ms
            assert changes < 150, f"still changing after {changes} changes: {done.decision}"
    topic.layout.check()
    # Every clock has run out and nothing moved: it never will. Look again days later, to be shown rather than told.
    for days in (1, 3, 30):
        later = step(
            topic,
            now_ms=now_ms + days * DAY_MS,
            load_of=density_load(density, load),
            consumers=consumers,
            policy=policy,
        )
        assert later.decision == NoAction()
        topic = later.after


def stretched(policy: AutoScalePolicy, factor: int) -> AutoScalePolicy:
    names = [field for field in policy.__struct_fields__ if field.endswith("_seconds")]
    return replace(policy, **{name: getattr(policy, name) * factor for name in names})


def test_buckets_are_not_lowered_below_what_was_asked_for_during_the_window() -> None:
    """15 consumers for nine minutes, then none: that four buckets would be enough is known for one minute only."""
    policy = AutoScalePolicy(rebucket_down_window_seconds=600)
    topic = begin(segments=1, policy=policy, now_ms=1)
    lowered = []
    for minute in range(40):
        count = 30 if minute < 2 else 15 if minute < 11 else 0
        done = step(
            topic,
            now_ms=1 + minute * 60_000,
            load_of=density_load(even, (10.0, 0.0, 0.0, 0.0)),
            consumers={"sub": ConsumerCount(SubscriptionType.STREAM, count)},
            policy=policy,
        )
        topic = done.after
        if isinstance(done.decision, Rebucket) and minute > 2:
            lowered.append((minute, done.decision.bucket_count))
    assert lowered == [(21, 4)]


def run(
    rates_by_minute: list[float], policy: AutoScalePolicy, consumers: int = 0, segments: int = 1
) -> tuple[list[Step], Rehearsal]:
    topic = begin(segments=segments, policy=policy, now_ms=1)
    steps = []
    for minute, rate in enumerate(rates_by_minute):
        done = step(
            topic,
            now_ms=1 + minute * 60_000,
            load_of=density_load(even, (rate, 0.0, 0.0, 0.0)),
            consumers={"sub": ConsumerCount(SubscriptionType.STREAM, consumers)},
            policy=policy,
        )
        topic = done.after
        steps.append(done)
    return steps, topic


def test_a_topic_grows_with_its_load_and_shrinks_after_it() -> None:
    steps, topic = run([35_000.0] * 10 + [100.0] * 60, AutoScalePolicy())

    most = max(len(done.after.layout.active) for done in steps)
    assert most == 4
    assert len(topic.layout.active) == 1
    assert [type(done.decision) for done in steps if not isinstance(done.decision, NoAction)][:3] == [Split] * 3
    assert all(segment.is_active for segment in topic.layout.segments.values()), "drained history is swept"


def test_a_wobble_between_cold_values_is_cold() -> None:
    """Each minute brings a material change, none of which is warm: docs/adr/0002."""
    steps, topic = run([35_000.0] * 10 + [100.0, 200.0] * 40, AutoScalePolicy())

    assert len(topic.layout.active) == 1
    assert any(isinstance(done.decision, Merge) for done in steps)


def test_a_burst_in_between_starts_the_window_anew() -> None:
    steps, _ = run([35_000.0] * 10 + ([100.0] * 4 + [9_000.0]) * 12, AutoScalePolicy())

    assert not any(isinstance(done.decision, Merge) for done in steps)


def day_and_night(days: int) -> Callable[[int], float]:
    """Rates by minute: a tide from 300 at midnight to 36,000 at noon, noisy, and a crowd now and then."""
    draw = Random(7)
    noise = [draw.uniform(0.8, 1.2) for _ in range(days * 288)]
    crowds = {draw.randrange(days * 288): draw.uniform(1, 2) for _ in range(days)}

    def rate(minute: int) -> float:
        row = minute // 5
        tide = 18_000 * (1 - cos(2 * pi * minute / 1440))
        return (300 + tide * crowds.get(row, 1)) * noise[row]

    return rate


def segments_by_day(days: int, policy: AutoScalePolicy) -> tuple[list[tuple[int, int]], list[int], Rehearsal]:
    """Fewest and most active segments of each day, noon to noon; the minutes at which segments were merged."""
    rate = day_and_night(days + 1)
    topic = begin(segments=1, policy=policy, now_ms=1)
    counts: list[list[int]] = [[] for _ in range(days)]
    merges = []
    for minute in range(720, 720 + days * 1440, 5):
        done = step(
            topic,
            now_ms=minute * 60_000,
            load_of=density_load(even, (rate(minute), 0.0, 0.0, 0.0)),
            consumers={},
            policy=policy,
        )
        topic = done.after
        counts[(minute - 720) // 1440].append(len(topic.layout.active))
        if isinstance(done.decision, Merge):
            merges.append(minute)
    return [(min(day), max(day)) for day in counts], merges, topic


def test_a_topic_with_day_and_night_is_one_segment_every_night() -> None:
    days, _, topic = segments_by_day(30, AutoScalePolicy())

    assert [fewest for fewest, _ in days] == [1] * 30
    assert all(most >= 4 for _, most in days)
    topic.layout.check()


def test_by_the_pips_letter_the_same_topic_stops_merging_for_good() -> None:
    days, merges, _ = segments_by_day(30, AutoScalePolicy(dag_depth_window_seconds=0))

    assert max(merges) < 14 * 1440
    assert all(fewest > 1 for fewest, _ in days[14:])


@pytest.mark.parametrize("max_depth", [3, 10])
def test_a_topic_made_to_flap_is_stopped(max_depth: int) -> None:
    """Hot for two minutes, then cold for just long enough to be merged: what the cap is there for."""
    rates_by_minute = [15_000.0 if minute % 10 < 2 else 100.0 for minute in range(24 * 60)]

    steps, _ = run(rates_by_minute, AutoScalePolicy(max_dag_depth=max_depth))
    uncapped, _ = run(rates_by_minute, AutoScalePolicy(max_dag_depth=10**6))

    merges = minutes_of(steps, Merge)
    gaps = [later - earlier for earlier, later in pairwise(merges)]
    assert all(gap < 60 for gap in gaps[: max_depth - 1])
    assert gaps[max_depth - 1] >= 60, "after the last merge that the cap allows nothing moves for an hour"
    for first, last in zip(merges, merges[max_depth:], strict=False):
        assert last - first >= 60
    assert len(minutes_of(uncapped, Merge)) == 24 * 6
    assert len(merges) <= 24 * 60 // (60 + 10 * (max_depth - 1)) * max_depth + max_depth
    stopped, _ = run(rates_by_minute, AutoScalePolicy(max_dag_depth=max_depth, dag_depth_window_seconds=0))
    assert minutes_of(stopped, Merge) == merges[:max_depth]


def test_a_merge_leaves_nothing_to_be_rolled_over() -> None:
    steps, topic = run([100.0] * 120, AutoScalePolicy(min_segments=3), segments=4)

    assert len(minutes_of(steps, Merge)) == 1
    assert minutes_of(steps, Rebucket) == []
    assert [segment.bucket_count for segment in topic.layout.active] == [1, 1, 1]


def test_several_new_segments_at_once_are_faster() -> None:
    slow, _ = run([79_000.0] * 20, AutoScalePolicy())
    fast, _ = run([79_000.0] * 20, AutoScalePolicy(max_new_segments_per_evaluation=7))

    def minutes(steps: list[Step]) -> int:
        return next(minute for minute, done in enumerate(steps) if len(done.after.layout.active) == 8)

    assert minutes(slow) == 6
    assert minutes(fast) == 0


def test_buckets_rise_at_once_and_fall_lazily() -> None:
    policy = AutoScalePolicy(rebucket_down_window_seconds=600)
    topic = begin(segments=1, policy=policy, now_ms=1)
    seen = []
    for minute in range(30):
        count = 9 if minute < 5 else 0
        done = step(
            topic,
            now_ms=1 + minute * 60_000,
            load_of=density_load(even, (10.0, 0.0, 0.0, 0.0)),
            consumers={"sub": ConsumerCount(SubscriptionType.STREAM, count)},
            policy=policy,
        )
        topic = done.after
        if isinstance(done.decision, Rebucket):
            seen.append((minute, done.decision.bucket_count))
    assert seen == [(0, 16), (15, 4)]


@pytest.mark.parametrize("consumers", [2, 4, 7])
def test_pitfall_56_consumers_on_idle_segments_do_not_flap(consumers: int) -> None:
    steps, _ = run([5_000.0] * 10 + [0.0] * 120, AutoScalePolicy(), consumers=consumers)

    assert all(isinstance(done.decision, NoAction) for done in steps[30:])


def minutes_of(steps: list[Step], kind: type) -> list[int]:
    return [minute for minute, done in enumerate(steps) if isinstance(done.decision, kind)]


def test_cool_downs_are_kept_from_step_to_step() -> None:
    policy = AutoScalePolicy(split_cooldown_seconds=180, merge_cooldown_seconds=420)
    steps, _ = run([35_000.0] * 15 + [0.0] * 40, policy)

    assert minutes_of(steps, Split) == [0, 3, 6]
    assert minutes_of(steps, Merge) == [20, 27, 34]
    assert all(done.view.since_last_rebucket_ms is None for done in steps)


def test_a_rebucket_starts_its_own_cool_down() -> None:
    steps, _ = run([0.0] * 3, AutoScalePolicy(max_segments=1), consumers=9)

    assert minutes_of(steps, Rebucket) == [0]
    assert [done.view.since_last_rebucket_ms for done in steps] == [None, 60_000, 120_000]


def test_load_is_spread_over_the_ring() -> None:
    (whole,) = begin(segments=1, policy=AutoScalePolicy(), now_ms=1).layout.active
    quarter = begin(segments=4, policy=AutoScalePolicy(), now_ms=1).layout.active[1]

    assert density_load(even, (4.0, 8.0, 12.0, 16.0))(whole) == (4, 8, 12, 16)
    assert density_load(even, (4.0, 8.0, 12.0, 16.0))(quarter) == (1, 2, 3, 4)


def test_a_rehearsal_remembers_what_it_measured_and_forgets_what_is_drained() -> None:
    steps, _ = run([5_000.0] * 6 + [25_000.0] * 4, AutoScalePolicy())

    assert [done.view.load[0].cold_ms for done in steps[:6]] == [minute * 60_000 for minute in range(6)]
    for done in steps:
        assert all(segment.is_active for segment in done.after.layout.segments.values())
        assert done.view.record_bytes > 200


def test_a_rehearsal_begins_as_a_topic_does() -> None:
    (segment,) = begin(segments=1, policy=AutoScalePolicy(entry_bucket_budget=8), now_ms=77).layout.active

    assert (segment.bucket_count, segment.created_at_ms) == (8, 77)
