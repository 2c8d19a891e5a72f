"""Decisions: the rules as written, the limits never broken, and an explanation that is the decision."""

import random
from collections import Counter
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import to_builtins
from msgspec.structs import replace

from scalable_topics.model.autoscale_policy import AutoScalePolicy, resolve_policy
from scalable_topics.model.errors import InvalidArgument
from scalable_topics.model.hash_range import RING_SIZE, HashRange
from scalable_topics.model.layout import SegmentLayout, initial_layout
from scalable_topics.model.load import METRICS
from scalable_topics.model.replacements import merge, rebucket, split
from scalable_topics.model.segment import CreatedBy, new_segment
from scalable_topics.model.subscription import SubscriptionType
from scalable_topics.policy.autoscale import (
    Bound,
    Change,
    ConsumerCount,
    Finding,
    Guard,
    KnownLoad,
    Merge,
    NoAction,
    Reason,
    Rebucket,
    Rule,
    Split,
    TopicView,
    decide,
    describe,
    explain,
    replacements_of,
    standing_times,
)
from scalable_topics.policy.autoscale.rules import RULES, Evaluation
from tests.policy import reference
from tests.strategies import policies, views

COLD = KnownLoad((0.0, 0.0, 0.0, 0.0), 600_000)


def msgs(rate: float, cold_ms: float = 0) -> KnownLoad:
    return KnownLoad((rate, 0.0, 0.0, 0.0), cold_ms)


def streams(count: int, restored: int = 0) -> dict[str, ConsumerCount]:
    return {"sub": ConsumerCount(SubscriptionType.STREAM, count, restored)}


@settings(max_examples=300)
@given(views(), policies())
def test_the_rules_are_the_written_ones(view: TopicView, policy: AutoScalePolicy) -> None:
    assert decide(view, policy) == reference.decide(view, policy)


@settings(max_examples=80)
@given(views(), policies(), st.randoms(use_true_random=False))
def test_the_order_of_dictionaries_does_not_matter(
    view: TopicView, policy: AutoScalePolicy, rng: random.Random
) -> None:
    def shuffled(mapping: Any) -> Any:
        items = list(mapping.items())
        rng.shuffle(items)
        return dict(items)

    layout = view.layout
    other = replace(
        view,
        load=shuffled(view.load),
        consumers=shuffled(view.consumers),
        layout=SegmentLayout(layout.epoch, layout.next_segment_id, shuffled(layout.segments)),
    )

    assert decide(other, policy) == decide(view, policy)
    assert explain(other, policy) == explain(view, policy)


@settings(max_examples=150)
@given(views(), policies(), st.sampled_from([99, 505, 3_600_010]))
def test_no_decision_breaks_a_cap_or_a_cool_down(view: TopicView, policy: AutoScalePolicy, now_ms: int) -> None:
    """Caps and cool-downs are checked on what the decision does, not on how it was reached."""
    view = replace(view, standing_ms=standing_times(view.layout, now_ms=now_ms))
    decision = decide(view, policy)
    change = replacements_of(decision, view.layout, policy, at_ms=now_ms)
    before = len(view.layout.active)
    if change is None:
        return
    after = view.layout.apply(change, at_ms=now_ms)
    after.check()

    def over(since_ms: float | None, cooldown_seconds: float) -> bool:
        return since_ms is None or since_ms >= cooldown_seconds * 1000

    assert policy.enabled
    match decision:
        case Split(ways=ways):
            assert before < len(after.active) <= policy.max_segments
            assert len(after.active) - before <= policy.max_new_segments_per_evaluation
            assert ways.keys() <= view.load.keys()
            assert over(view.since_last_split_ms, policy.split_cooldown_seconds)
        case Merge(segment_ids=(left, right)):
            assert len(after.active) >= policy.min_segments
            assert over(view.since_last_merge_ms, policy.merge_cooldown_seconds)
            busiest = max((c.connected + c.restored for c in view.consumers.values() if c.type != "QUEUE"), default=0)
            assert len(after.active) >= busiest
            assert {left, right} <= view.load.keys()
            child = after.segments[after.segments[left].child_ids[0]]
            assert child.merge_depth <= policy.max_dag_depth
        case Rebucket(segment_ids=segment_ids, bucket_count=count, reason=reason):
            assert len(after.active) == before
            counts = [view.layout.segments[segment_id].bucket_count for segment_id in segment_ids]
            if reason is Reason.IDLE_BUCKETS:
                assert min(counts) > count
                assert view.demand_low_ms is not None
                assert view.demand_low_ms >= policy.rebucket_down_window_seconds * 1000 > 0
            else:
                assert max(counts) < count <= policy.entry_bucket_max_per_segment
                assert over(view.since_last_rebucket_ms, policy.rebucket_cooldown_seconds)


def test_the_situations_drawn_are_worth_drawing() -> None:
    """A property says nothing about what is never drawn: every kind of decision has to be common."""
    seen: Counter[str] = Counter()

    @settings(max_examples=400, database=None, derandomize=True)
    @given(views(), policies())
    def draw(view: TopicView, policy: AutoScalePolicy) -> None:
        decision = decide(view, policy)
        seen[type(decision).__name__ if isinstance(decision, NoAction) else f"{decision.reason}"] += 1

    draw()
    loads = sum(seen[metric] for metric in METRICS)
    rebuckets = seen[Reason.AT_MAX_SEGMENTS] + seen[Reason.BELOW_SPLIT_RATE_FLOOR]
    counts = [
        seen["NoAction"],
        seen[Reason.CONSUMER_COUNT],
        loads,
        seen[Reason.COLD],
        rebuckets,
        seen[Reason.IDLE_BUCKETS],
    ]
    assert min(counts) >= 4, seen


@settings(max_examples=150)
@given(views(), policies())
def test_an_explanation_is_the_decision(view: TopicView, policy: AutoScalePolicy) -> None:
    explanation = explain(view, policy)
    decision = explanation.decision
    acting = [finding for finding in explanation.findings if finding.acts and finding.rule is not Rule.SWITCH]

    assert decision == decide(view, policy)
    assert str(explanation).splitlines()[-1] == f"decision: {describe(decision)}"
    assert {finding.rule for finding in explanation.findings} >= {rule for rule, _ in RULES} - {Rule.MERGE}
    subjects = {segment_id for finding in acting for segment_id in finding.subject}
    match decision:
        case NoAction():
            assert acting == []
        case Split(ways=ways, reason=reason):
            assert {finding.rule for finding in acting} == {explanation.rule}
            assert subjects == (set() if reason is Reason.CONSUMER_COUNT else set(ways))
        case Merge(segment_ids=segment_ids):
            assert [finding.subject for finding in acting] == [segment_ids]
        case Rebucket():
            assert [finding.rule for finding in acting] == [explanation.rule]
    for finding in explanation.findings:
        assert str(finding)
        assert finding.guard == (finding.guards[0] if finding.guards else None)
        assert len(set(finding.guards)) == len(finding.guards)


def rule_fires(view: TopicView, policy: AutoScalePolicy, rule: Rule) -> bool:
    evaluation = Evaluation(view, policy)
    if rule is Rule.SWITCH:
        return not any(evaluation.switch_guards())
    return dict(RULES)[rule](evaluation) is not None


def subject_acts(view: TopicView, policy: AutoScalePolicy, finding: Finding) -> bool:
    """Does the rule, asked by itself, act on this very subject?"""
    decision = dict(RULES)[finding.rule](Evaluation(view, policy))
    match decision:
        case Split(ways=ways):
            return not finding.subject or finding.subject[0] in ways
        case Merge(segment_ids=segment_ids):
            return finding.subject == segment_ids
        case _:
            return decision is not None


def applied(
    view: TopicView, policy: AutoScalePolicy, change: Change, short_of_it: bool = False
) -> tuple[TopicView, AutoScalePolicy]:
    """The inputs just across the line that a change draws; or, `short_of_it`, just before it."""
    fraction = change.input in METRICS or change.input.endswith(("Threshold", "Seconds"))
    step = max(abs(change.to) * 1e-6, 1e-6) if fraction else 1
    exact = (
        0 if fraction else 1
    )  # of a count the value before the line is the line itself; of a rate, ties are not told
    across = {
        Bound.AT_LEAST: (change.to, change.to - step),
        Bound.AT_MOST: (change.to, change.to + step),
        Bound.ABOVE: (change.to + step, change.to - step * (1 - exact)),
        Bound.BELOW: (change.to - step, change.to + step * (1 - exact)),
    }[change.bound]
    value = across[1] if short_of_it else across[0]
    if change.input == "standingMs":
        assert change.segment_id is not None
        return replace(view, standing_ms={**view.standing_ms, change.segment_id: value}), policy
    if change.segment_id is not None:
        load = view.load[change.segment_id]
        if change.input == "coldMs":
            load = KnownLoad(load.rates, max(0, value))
        else:
            index = [*map(str, METRICS)].index(change.input)
            rates = list(load.rates)
            rates[index] = max(0.0, value)
            load = KnownLoad((rates[0], rates[1], rates[2], rates[3]), load.cold_ms)
        return replace(view, load={**view.load, change.segment_id: load}), policy
    names = {
        "recordBytes": "record_bytes",
        "sinceLastSplitMs": "since_last_split_ms",
        "sinceLastMergeMs": "since_last_merge_ms",
        "sinceLastRebucketMs": "since_last_rebucket_ms",
        "demandLowMs": "demand_low_ms",
    }
    if change.input in names:
        return replace(view, **{names[change.input]: value}), policy
    if change.input in {"consumers", "streamConsumers", "consumersWithRestored"}:
        return replace(view, consumers=_with_consumers(change, int(value))), policy
    if change.input == "enabled":
        return view, replace(policy, enabled=value >= 1)
    fields = {**to_builtins(policy), change.input: max(0.0, value) if fraction else int(value)}
    if change.input == "entryBucketMaxPerSegment" and value < 1:
        return view, policy
    return view, resolve_policy(fields)


def _with_consumers(change: Change, value: int) -> dict[str, ConsumerCount]:
    if change.bound in {Bound.AT_LEAST, Bound.ABOVE}:
        return {"new": ConsumerCount(SubscriptionType.STREAM, max(0, value))}
    if change.input == "consumersWithRestored":
        return {"new": ConsumerCount(SubscriptionType.CHECKPOINT, 0, max(0, value))}
    return {"new": ConsumerCount(SubscriptionType.STREAM, max(0, value))}


@settings(max_examples=250)
@given(views(), policies())
def test_a_flip_flips(view: TopicView, policy: AutoScalePolicy) -> None:
    """Make the changes that a finding names, and the rule does the opposite; stop short of one, and it does not."""
    for finding in explain(view, policy).findings:
        if finding.flip is None:
            continue
        changed = view, policy
        for change in finding.flip:
            changed = applied(*changed, change)
        if finding.rule is Rule.SWITCH:
            guards = set(Evaluation(*changed).switch_guards())
            tripped = Guard.DISABLED if finding.measure == "enabled" else Guard.RECORD_TOO_LARGE
            assert (tripped in guards) is finding.acts, str(finding)
            continue
        assert flipped(*changed, finding), str(finding)
        inputs = Counter(change.input for change in finding.flip)
        for short in finding.flip:
            if short.input in METRICS and inputs[short.input] > 1:
                continue  # two rates of one metric share a line: how far one has to go depends on the other
            almost = view, policy
            for change in finding.flip:
                almost = applied(*almost, change, short_of_it=change is short)
            assert not flipped(*almost, finding), f"{short} is more than needed: {finding}"


def flipped(view: TopicView, policy: AutoScalePolicy, finding: Finding) -> bool:
    """Does the rule, asked by itself, now do the opposite of what was found?"""
    if finding.acts:
        return not subject_acts(view, policy, finding)
    if finding.rule is Rule.LOAD_SPLIT:
        return subject_acts(view, policy, finding)
    if finding.rule is Rule.MERGE:
        evaluation = Evaluation(view, policy)
        left, right = (view.layout.segments[segment_id] for segment_id in finding.subject)
        return not any((*evaluation.merge_guards(), *evaluation.pair_guards(left, right)))
    return rule_fires(view, policy, finding.rule)


DEEP = TopicView(
    layout=SegmentLayout(
        3,
        3,
        {
            key: replace(segment, created_by=CreatedBy.SPLIT, merge_depth=10)
            for key, segment in initial_layout(2).segments.items()
        },
    ),
    load={0: COLD, 1: COLD},
)


@pytest.mark.parametrize(
    ("standing_ms", "window_seconds", "limit", "merges"),
    [
        ({0: 3_600_000, 1: 3_600_000}, 3_600, 10, True),
        ({0: 3_600_000, 1: 3_599_999}, 3_600, 10, False),
        ({0: 3_600_000}, 3_600, 10, False),
        ({}, 3_600, 10, False),
        ({}, 3_600, 11, True),
        ({0: 10**15, 1: 10**15}, 0, 10, False),
        ({0: 10**15, 1: 10**15}, 0, 11, True),
        ({0: 10**15, 1: 10**15}, 3_600, 0, False),
        ({0: 500, 1: 500}, 0.5, 1, True),
    ],
)
def test_depth_is_forgiven_by_calm(
    standing_ms: dict[int, float], window_seconds: float, limit: int, merges: bool
) -> None:
    """A segment that has stood for the window counts as depth 0; a window of 0 is PIP-483's letter."""
    policy = AutoScalePolicy(dag_depth_window_seconds=window_seconds, max_dag_depth=limit)

    decision = decide(replace(DEEP, standing_ms=standing_ms), policy)

    assert isinstance(decision, Merge) is merges


def test_standing_times_are_those_of_active_segments_and_never_negative() -> None:
    layout = initial_layout(2, at_ms=100)
    layout = layout.apply(split(layout, {0: 2}, at_ms=500), at_ms=500)

    assert standing_times(layout, now_ms=400) == {2: 0, 3: 0, 1: 300}


@settings(max_examples=150)
@given(views(), policies(enabled=True), st.integers(0, 3))
def test_a_merged_segment_has_no_bucket_to_lower(view: TopicView, policy: AutoScalePolicy, extra: int) -> None:
    """What autoscaling merges it does not roll over half an hour later, and the consumers there are still fit."""
    view = replace(view, demand_low_ms=None, consumers={})
    policy = replace(policy, entry_bucket_budget=policy.entry_bucket_budget + extra)
    evaluation = Evaluation(view, policy)
    pair = evaluation.coldest_pair
    if pair is None:
        return
    decision = Merge((pair[0].segment_id, pair[1].segment_id), Reason.COLD)

    change = replacements_of(decision, view.layout, policy, at_ms=9)

    assert change is not None
    (merged,) = change[0].children
    after = replace(view, layout=view.layout.apply(change, at_ms=9))
    assert merged.bucket_count <= Evaluation(after, policy).idle_target
    assert 1 <= merged.bucket_count <= policy.entry_bucket_max_per_segment
    assert merged.bucket_count <= pair[0].bucket_count + pair[1].bucket_count
    others = [segment.bucket_count for segment in view.layout.active if segment not in pair]
    if max(others, default=0) <= evaluation.idle_target:
        assert Guard.NOTHING_TO_LOWER in Evaluation(after, policy).rebucket_down_guards()


def test_margins_are_in_units_of_the_threshold() -> None:
    view = TopicView(layout=initial_layout(2), load={0: msgs(12_000)})

    by_subject = {(f.rule, f.subject): f for f in explain(view, AutoScalePolicy()).findings}

    assert by_subject[Rule.LOAD_SPLIT, (0,)].margin == pytest.approx(0.2)
    assert by_subject[Rule.LOAD_SPLIT, (1,)].margin is None
    assert by_subject[Rule.MERGE, (0, 1)].observed is None


@pytest.mark.parametrize(
    ("decision", "text"),
    [
        (Split({1: 2, 4: 3}, Reason.MSG_RATE_IN), "split segment 1 into 2, segment 4 into 3 (msgRateIn)"),
        (Merge((4, 2), Reason.COLD), "merge segments 4 and 2 (cold)"),
        (Rebucket((1, 2), 8, Reason.IDLE_BUCKETS), "give segments [1, 2] 8 buckets (idle-buckets)"),
        (NoAction(), "leave it as it is"),
    ],
)
def test_decisions_in_words(decision: Any, text: str) -> None:
    assert describe(decision) == text


def test_views_refuse_the_impossible() -> None:
    with pytest.raises(InvalidArgument, match="without active segments"):
        TopicView(layout=SegmentLayout())
    with pytest.raises(InvalidArgument, match="is not a rate"):
        KnownLoad((-1.0, 0.0, 0.0, 0.0))
    with pytest.raises(InvalidArgument, match="cannot have lasted -1 ms"):
        KnownLoad((1.0, 0.0, 0.0, 0.0), -1)
    for connected, restored in ((-1, 0), (0, -1)):
        with pytest.raises(InvalidArgument, match="connected and"):
            ConsumerCount(SubscriptionType.STREAM, connected, restored)


def test_pitfall_56_idle_consumers_keep_their_segments() -> None:
    view = TopicView(layout=initial_layout(4), load=dict.fromkeys(range(4), COLD), consumers=streams(4))

    assert decide(view, AutoScalePolicy()) == NoAction()
    assert isinstance(decide(replace(view, consumers=streams(3)), AutoScalePolicy()), Merge)
    assert decide(replace(view, consumers=streams(2, restored=2)), AutoScalePolicy()) == NoAction()


def test_pitfall_57_no_merge_while_consumers_are_in_surplus() -> None:
    view = TopicView(
        layout=initial_layout(2),
        load={0: COLD, 1: COLD},
        consumers=streams(3),
        since_last_split_ms=0,
        since_last_rebucket_ms=0,
    )

    assert decide(view, AutoScalePolicy()) == NoAction()


def test_pitfall_58_ties_are_decided_by_range_and_id() -> None:
    layout = initial_layout(4).apply(split(initial_layout(4), {0: 2}, at_ms=1), at_ms=1)
    hot = TopicView(layout=layout, load={segment.segment_id: msgs(20_000) for segment in layout.active})
    cold = TopicView(layout=layout, load={segment.segment_id: COLD for segment in layout.active})

    assert decide(hot, AutoScalePolicy()) == Split({1: 2}, Reason.MSG_RATE_IN)
    assert decide(cold, AutoScalePolicy()) == Merge((1, 2), Reason.COLD)


def test_pitfall_59_all_segments_are_rebucketed_in_one_decision() -> None:
    view = TopicView(layout=initial_layout(2, bucket_budget=2), load={0: COLD, 1: COLD}, consumers=streams(7))

    assert decide(view, AutoScalePolicy()) == Rebucket((0, 1), 4, Reason.BELOW_SPLIT_RATE_FLOOR)


@given(views(), policies())
def test_pitfall_60_a_merge_never_takes_buckets_from_live_consumers(view: TopicView, policy: AutoScalePolicy) -> None:
    """Written as a rule of its own upstream; here it follows from never merging below the consumer count."""
    decision = decide(view, policy)
    if isinstance(decision, Merge):
        layout = view.layout.apply(
            merge(view.layout, decision.segment_ids, at_ms=1, max_buckets=policy.entry_bucket_max_per_segment), at_ms=1
        )
        connected = max((c.connected for c in view.consumers.values() if c.type is SubscriptionType.STREAM), default=0)
        assert sum(segment.bucket_count for segment in layout.active) >= connected


def test_pitfall_62_bytes_do_not_drown_messages_in_coldness() -> None:
    """Pair 0-1 has fewer bytes, pair 2-3 fewer messages: measured in thresholds the second is colder."""
    many_messages = KnownLoad((900.0, 0.0, 0.0, 0.0), 600_000)
    many_bytes = KnownLoad((0.0, 100_000.0, 0.0, 0.0), 600_000)
    view = TopicView(layout=initial_layout(4), load={0: many_messages, 1: many_messages, 2: many_bytes, 3: many_bytes})

    assert decide(view, AutoScalePolicy()) == Merge((2, 3), Reason.COLD)


def test_pitfall_11_the_depth_cap_does_not_leak_through_pruning() -> None:
    layout = initial_layout(2)
    layout = layout.apply(merge(layout, [0, 1], at_ms=1), at_ms=1)
    layout = layout.apply(split(layout, {2: 2}, at_ms=2), at_ms=2).prune([0, 1, 2])
    view = TopicView(layout=layout, load={3: COLD, 4: COLD})

    assert decide(view, AutoScalePolicy(max_dag_depth=1)) == NoAction()
    assert decide(view, AutoScalePolicy(max_dag_depth=2)) == Merge((3, 4), Reason.COLD)


def test_unknown_load_is_neither_hot_nor_cold_nor_zero() -> None:
    view = TopicView(layout=initial_layout(2), load={0: COLD}, consumers=streams(3))
    free = AutoScalePolicy(split_vs_rebucket_min_msg_rate_in_threshold=0)

    assert decide(view, free) == Split({0: 2}, Reason.CONSUMER_COUNT)
    assert decide(replace(view, consumers={}), free) == NoAction()
    assert Guard.NOTHING_TO_SPLIT in explain(replace(view, load={}), free).findings[2].guards


def test_buckets_are_lowered_only_after_the_window_and_to_what_is_asked_for() -> None:
    layout = initial_layout(2, bucket_budget=4)
    layout = layout.apply(rebucket(layout, [0, 1], 16, at_ms=1), at_ms=1)
    view = TopicView(layout=layout, consumers=streams(5), demand_low_ms=1_800_000)

    assert decide(view, AutoScalePolicy()) == Rebucket((2, 3), 4, Reason.IDLE_BUCKETS)
    assert decide(replace(view, consumers={}), AutoScalePolicy()) == Rebucket((2, 3), 2, Reason.IDLE_BUCKETS)
    assert decide(replace(view, demand_low_ms=1_799_999), AutoScalePolicy()) == NoAction()
    assert decide(replace(view, demand_low_ms=None), AutoScalePolicy()) == NoAction()
    assert decide(view, AutoScalePolicy(rebucket_down_window_seconds=0)) == NoAction()


def test_a_hot_single_hash_value_is_left_alone() -> None:
    layout = initial_layout(1)
    layout = layout.apply(split(layout, {0: RING_SIZE}, at_ms=1), at_ms=1)
    view = TopicView(layout=layout, load={5: msgs(10**9)})

    assert decide(view, AutoScalePolicy(max_segments=RING_SIZE)) == NoAction()


@pytest.mark.parametrize("metric", range(4))
@pytest.mark.parametrize("other", range(4))
def test_coldness_is_measured_in_merge_thresholds(metric: int, other: int) -> None:
    """Half a threshold of one metric is colder than six tenths of any other."""

    def at(index: int, share: float) -> KnownLoad:
        rates = [0.0] * 4
        rates[index] = share * AutoScalePolicy().merge_thresholds[index]
        return KnownLoad((rates[0], rates[1], rates[2], rates[3]), 600_000)

    view = TopicView(
        layout=initial_layout(4), load={0: at(other, 0.6), 1: at(other, 0.6), 2: at(metric, 0.5), 3: at(metric, 0.5)}
    )

    assert decide(view, AutoScalePolicy()) == Merge((2, 3), Reason.COLD)


@pytest.mark.parametrize("metric", range(4))
def test_every_metric_splits_just_above_its_threshold(metric: int) -> None:
    def at(factor: float) -> TopicView:
        rates = [0.0] * 4
        rates[metric] = AutoScalePolicy().split_thresholds[metric] * factor
        load = {0: KnownLoad((rates[0], rates[1], rates[2], rates[3]))}
        return TopicView(layout=initial_layout(1), load=load)

    assert decide(at(1.000001), AutoScalePolicy()) == Split({0: 2}, Reason(METRICS[metric]))
    assert decide(at(1), AutoScalePolicy()) == NoAction()


def test_a_small_range_is_given_no_more_ways_than_it_has_values() -> None:
    layout = initial_layout(1)
    layout = layout.apply(split(layout, {0: 21_845}, at_ms=1), at_ms=1)
    three = layout.active[-1]
    assert three.hash_range.size == 3
    view = TopicView(layout=layout, load={three.segment_id: msgs(10**6), 1: msgs(15_000)})
    policy = AutoScalePolicy(max_segments=RING_SIZE, max_new_segments_per_evaluation=9)

    assert decide(view, policy) == Split({1: 2, three.segment_id: 3}, Reason.MSG_RATE_IN)


def test_the_shortest_window_for_lowering_buckets() -> None:
    layout = initial_layout(1)
    layout = layout.apply(rebucket(layout, [0], 8, at_ms=1), at_ms=1)
    view = TopicView(layout=layout, demand_low_ms=1)

    assert decide(view, AutoScalePolicy(rebucket_down_window_seconds=0.001)) == Rebucket((1,), 4, Reason.IDLE_BUCKETS)


def test_checkpoint_consumers_drive_splits_and_never_buckets() -> None:
    layout = initial_layout(1, bucket_budget=1)
    consumers = {"c": ConsumerCount(SubscriptionType.CHECKPOINT, 5), "q": ConsumerCount(SubscriptionType.QUEUE, 99)}

    busy = TopicView(layout=layout, load={0: msgs(5_000)}, consumers=consumers)
    assert decide(busy, AutoScalePolicy()) == Split({0: 2}, Reason.CONSUMER_COUNT)
    assert decide(replace(busy, load={0: msgs(10)}), AutoScalePolicy()) == NoAction()


def test_a_full_record_stops_autoscaling_at_exactly_half_a_mebibyte() -> None:
    view = TopicView(layout=initial_layout(1), load={0: msgs(50_000)}, record_bytes=(1 << 19) - 1)

    assert isinstance(decide(view, AutoScalePolicy()), Split)
    assert decide(replace(view, record_bytes=1 << 19), AutoScalePolicy()) == NoAction()


def test_a_share_of_exactly_the_threshold_is_not_split_further() -> None:
    view = TopicView(layout=initial_layout(1), load={0: msgs(20_000)})

    assert decide(view, AutoScalePolicy(max_new_segments_per_evaluation=4)) == Split({0: 2}, Reason.MSG_RATE_IN)


def test_a_range_of_two_values_can_still_be_split_for_consumers() -> None:
    ranges = (HashRange(0, 65533), HashRange(65534, 65535))
    made = [
        new_segment(n, part, created_by=CreatedBy.INITIAL, epoch=0, at_ms=0, buckets=1) for n, part in enumerate(ranges)
    ]
    layout = SegmentLayout(0, 2, {segment.segment_id: segment for segment in made})
    view = TopicView(layout=layout, load={1: msgs(5_000)}, consumers=streams(3))

    assert decide(view, AutoScalePolicy()) == Split({1: 2}, Reason.CONSUMER_COUNT)


def test_what_a_merge_decision_becomes() -> None:
    layout = initial_layout(2, bucket_budget=16)
    policy = AutoScalePolicy(entry_bucket_max_per_segment=3)

    ((replacement,),) = (replacements_of(Merge((0, 1), Reason.COLD), layout, policy, at_ms=4),)  # type: ignore[misc]

    assert replacement.children[0].bucket_count == 3
    assert replacements_of(NoAction(), layout, policy, at_ms=4) is None
    down = replacements_of(Rebucket((0,), 5, Reason.IDLE_BUCKETS), layout, policy, at_ms=4)
    assert down is not None
    assert down[0].children[0].bucket_count == 5
    wide = replacements_of(Rebucket((0,), 2_048, Reason.IDLE_BUCKETS), layout, policy, at_ms=4)
    assert wide is not None
    assert wide[0].children[0].bucket_count == 2_048


def test_the_switch_is_about_the_whole_topic() -> None:
    findings = explain(TopicView(layout=initial_layout(1)), AutoScalePolicy()).findings

    assert [finding.subject for finding in findings if finding.rule is Rule.SWITCH] == [(), ()]
