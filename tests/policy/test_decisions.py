"""The smaller decisions: retention, load reports, cool-downs, routing, migration, seeking, selection."""

from collections import Counter
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from scalable_topics.model.autoscale_policy import AutoScalePolicy
from scalable_topics.model.errors import CapReached, InvalidArgument, InvalidLayout, NotFound, Unsupported, WrongState
from scalable_topics.model.hashing import raw_hash, segment_hash
from scalable_topics.model.layout import SegmentLayout, initial_layout
from scalable_topics.model.load import SegmentLoadStats, SweepHeartbeat, decode_heartbeat, encode_heartbeat
from scalable_topics.model.names import TopicName, outer_producer_name
from scalable_topics.model.record import RECORD_LIMIT_BYTES, TopicRecord, encode_record
from scalable_topics.model.replacements import merge, migrate, rebucket, split
from scalable_topics.model.subscription import SubscriptionType
from scalable_topics.policy.auto_create import may_create_on_connect
from scalable_topics.policy.cooldowns import LastOperations, last_operations
from scalable_topics.policy.frame_order import AssignmentAge, LayoutAge, is_current
from scalable_topics.policy.load_reports import (
    Sample,
    cold_ms,
    continue_spell,
    is_clock_trusted,
    is_known,
    is_material,
    report,
)
from scalable_topics.policy.migration import Connection, OldClients, plan_migration, precheck, synthetic_layout
from scalable_topics.policy.property_index import topics_with
from scalable_topics.policy.ranking import ranked
from scalable_topics.policy.retention import is_drained, retention_minutes, sweep
from scalable_topics.policy.routing import Route, Router, bucket_batches, message_bucket_hash
from scalable_topics.policy.seek import SeekAction, plan_seek
from scalable_topics.policy.stats import ProducerTotals, SegmentTotals, TopicTotals, fold_producers, shown_type, total
from tests.strategies import layouts

MINUTE_MS = 60_000
LINES = AutoScalePolicy().thresholds


def chain() -> SegmentLayout:
    """0 -> 1, 2 at 1 s; 1 -> 3, 4 at 2 s."""
    layout = initial_layout(1)
    layout = layout.apply(split(layout, {0: 2}, at_ms=1_000), at_ms=1_000)
    return layout.apply(split(layout, {1: 2}, at_ms=2_000), at_ms=2_000)


def test_a_sweep_says_why_it_keeps_what_it_keeps() -> None:
    swept = sweep(chain(), now_ms=61_500, retention_minutes=1, drained={"b": {0, 1}, "a": {0}})

    assert swept.prune == (0,)
    assert swept.kept == {1: "retention lapses in 0 s"}
    long = sweep(chain(), now_ms=2_000, retention_minutes=1_000, drained={})
    assert long.kept == {0: "retention lapses in 59999 s", 1: "retention lapses in 60000 s"}
    later = sweep(chain(), now_ms=62_000, retention_minutes=1, drained={"b": {0}, "a": {0}})
    assert later.kept == {1: "not drained for a, b"}
    assert sweep(chain(), now_ms=1, retention_minutes=-1, drained={}).kept == dict.fromkeys(
        (0, 1), "retention is unlimited"
    )
    first_kept = sweep(chain(), now_ms=10**9, retention_minutes=0, drained={"s": {1}})
    assert first_kept.kept == {0: "not drained for s", 1: "its ancestor 0 is kept"}
    untimed = initial_layout(1).apply(split(initial_layout(1), {0: 2}, at_ms=0), at_ms=0)
    assert sweep(untimed, now_ms=10**9, retention_minutes=0, drained={}).kept == {
        0: "it is not known when it was sealed"
    }


@given(layouts(), st.dictionaries(st.sampled_from("ab"), st.sets(st.integers(0, 30)), max_size=2), st.integers(-1, 3))
def test_only_drained_history_goes_oldest_first(
    layout: SegmentLayout, drained: dict[str, set[int]], retention: int
) -> None:
    swept = sweep(layout, now_ms=2 * MINUTE_MS, retention_minutes=retention, drained=drained)

    for segment_id in swept.prune:
        segment = layout.segments[segment_id]
        assert not segment.is_active
        assert retention >= 0
        assert all(segment_id in markers for markers in drained.values())
        assert layout.ancestors(segment_id) <= set(swept.prune)
        assert 2 * MINUTE_MS - segment.sealed_at_ms >= retention * MINUTE_MS
    sealed = {key for key, segment in layout.segments.items() if not segment.is_active}
    assert set(swept.prune) | swept.kept.keys() == sealed
    assert not set(swept.prune) & swept.kept.keys()
    if swept.prune:
        after = layout.prune(swept.prune)
        after.check()
        assert after.epoch == layout.epoch + 1


def test_nothing_is_pruned_on_the_word_of_a_broker_with_a_wrong_clock() -> None:
    swept = sweep(chain(), now_ms=10**9, retention_minutes=0, drained={"s": {0, 1}}, distrusted={0})

    assert swept.prune == ()
    assert swept.kept == {0: "its owner's clock is not trusted", 1: "its ancestor 0 is kept"}
    assert sweep(chain(), now_ms=10**9, retention_minutes=0, drained={"s": {0, 1}}, distrusted={2}).prune == (0, 1)


def test_pitfall_13_one_epoch_step_however_many_are_pruned() -> None:
    layout = chain()

    assert layout.prune([0, 1]).epoch == layout.epoch + 1


def test_pitfall_65_all_that_can_go_goes_in_one_sweep() -> None:
    assert sweep(chain(), now_ms=10**9, retention_minutes=0, drained={"s": {0, 1}}).prune == (0, 1)


def test_pitfall_64_a_checkpoint_group_counts_like_the_others() -> None:
    assert sweep(chain(), now_ms=10**9, retention_minutes=0, drained={"checkpoints": {0}}).prune == (0,)


def test_pitfall_67_what_is_not_known_is_not_drained() -> None:
    assert not is_drained(terminated_at=(1, 5), mark_delete=None, empty=False)
    assert not is_drained(terminated_at=(1, 5), mark_delete=None, empty=True)
    assert not is_drained(terminated_at=None, mark_delete=(9, 9), empty=True)
    assert not is_drained(terminated_at=(1, 5), mark_delete=(1, 4), empty=False)
    assert not is_drained(terminated_at=(2, 0), mark_delete=(1, 99), empty=False)
    assert is_drained(terminated_at=(1, 5), mark_delete=(1, 5), empty=False)
    assert is_drained(terminated_at=(1, 5), mark_delete=(2, -1), empty=False)
    assert is_drained(terminated_at=(1, -1), mark_delete=(0, -1), empty=True)


@pytest.mark.parametrize("nonsense", [float("nan"), float("inf")])
def test_a_retention_that_is_no_number_prunes_nothing(nonsense: float) -> None:
    with pytest.raises(InvalidArgument, match="is not a retention"):
        sweep(chain(), now_ms=10**9, retention_minutes=nonsense, drained={})


def test_zero_retention_is_a_setting() -> None:
    assert retention_minutes(topic=0, namespace=5, broker=9) == 0
    assert retention_minutes(topic=None, namespace=0, broker=9) == 0
    assert retention_minutes(topic=None, namespace=None, broker=9) == 9


def stats(rate: float, at_ms: int = 1_000, reporter: str = "b1", session: int = 7) -> SegmentLoadStats:
    return SegmentLoadStats(
        msg_rate_in=rate,
        bytes_rate_in=0.0,
        msg_rate_out=0.0,
        bytes_rate_out=0.0,
        changed_at_ms=at_ms,
        reporter=reporter,
        reporter_session=session,
    )


def reported(stored: SegmentLoadStats | None, rate: float, **fields: Any) -> SegmentLoadStats | None:
    sample = Sample(rates=(rate, 0.0, 0.0, 0.0), at_ms=9_000, reporter="b1", reporter_session=7)
    in_record = fields.pop("in_record", True)
    return report(stored, replace(sample, **fields), in_record=in_record, change_threshold=0.25, thresholds=LINES)


@pytest.mark.parametrize("metric", range(4))
def test_every_metric_has_its_own_lines(metric: int) -> None:
    def at(value: float) -> tuple[float, float, float, float]:
        rates = [0.0] * 4
        rates[metric] = value
        return tuple(rates)  # type: ignore[return-value]

    def news(before: float, now: float) -> bool:
        return is_material(at(before), at(now), change_threshold=0.25, thresholds=LINES)

    split_line, merge_line = LINES.split[metric], LINES.merge[metric]
    assert news(split_line, split_line * 1.0001)
    assert not news(split_line, split_line)
    assert news(merge_line, merge_line * 0.9999)
    assert not news(merge_line * 1.1, merge_line)
    assert news(merge_line * 2, merge_line * 2.51)
    assert not news(merge_line * 2, merge_line * 2.5)
    assert news(merge_line * 4, merge_line * 2.99)
    assert not news(merge_line * 4, merge_line * 3)
    assert news(0, 1e-9)


def test_pitfall_50_a_new_owner_or_an_equal_value_does_not_touch_the_clock() -> None:
    stored = stats(4_000)

    assert reported(stored, 4_000) is stored
    taken_over = reported(stored, 4_400, reporter="b2", reporter_session=8)
    assert taken_over == stats(4_000, reporter="b2", session=8)
    restarted = reported(stored, 4_400, reporter_session=9)
    assert restarted == stats(4_000, session=9)
    assert reported(stored, 8_000) == stats(8_000, at_ms=9_000)
    assert reported(None, 0) == stats(0, at_ms=9_000)


def test_pitfall_53_a_segment_that_left_the_record_is_never_written_again() -> None:
    assert reported(None, 5_000, in_record=False) is None
    stored = stats(1)
    assert reported(stored, 5_000, in_record=False) is stored


def test_pitfall_54_crossing_a_threshold_is_news_inside_the_band() -> None:
    assert reported(stats(9_000), 10_001) == stats(10_001, at_ms=9_000)
    assert reported(stats(9_000), 10_000) == stats(9_000)


def test_pitfall_55_cold_time_needs_both_clocks() -> None:
    assert cold_ms(now_ms=10_000, changed_at_ms=4_000, seen_for_ms=9_000) == 6_000
    assert cold_ms(now_ms=10_000, changed_at_ms=4_000, seen_for_ms=5_000) == 5_000
    assert cold_ms(now_ms=10_000, changed_at_ms=99_000, seen_for_ms=5_000) == 0


@pytest.mark.parametrize(
    ("swept_at_ms", "trusted"), [(95_000, True), (94_999, False), (105_000, True), (105_001, False), (0, False)]
)
def test_a_broker_whose_clock_is_off_by_more_than_five_seconds_proves_no_coldness(
    swept_at_ms: int, trusted: bool
) -> None:
    """PROTOCOL 8: skewed by more than 5 s is not merged on; its rates are still rates."""
    heartbeat = SweepHeartbeat(swept_at_ms=swept_at_ms, interval_ms=60_000)
    spell = continue_spell(None, stats(10, 1), seen_at_ms=5, merge_thresholds=LINES.merge)

    clock_trusted = is_clock_trusted(heartbeat, arrived_at_ms=100_000)

    assert clock_trusted is trusted
    assert spell.cold_ms(now_ms=400_000, monotonic_ms=400_000, clock_trusted=clock_trusted) == (
        399_995 if trusted else 0
    )
    assert not is_clock_trusted(None, arrived_at_ms=100_000)
    assert decode_heartbeat(encode_heartbeat(heartbeat)) == heartbeat


@pytest.mark.parametrize(("swept_at_ms", "interval_ms"), [(-1, 1), (1, 0), (1, -5), (2**63, 1)])
def test_a_heartbeat_is_a_time_and_an_interval(swept_at_ms: int, interval_ms: int) -> None:
    with pytest.raises(InvalidArgument, match="a sweep at"):
        SweepHeartbeat(swept_at_ms=swept_at_ms, interval_ms=interval_ms)


def test_a_cold_spell_goes_on_over_cold_reports_only() -> None:
    def after(*reports: SegmentLoadStats) -> tuple[int, float]:
        spell = None
        for load in reports:
            spell = continue_spell(spell, load, seen_at_ms=load.changed_at_ms + 1_000, merge_thresholds=LINES.merge)
        assert spell is not None
        assert spell.load == reports[-1]
        return spell.since_ms, spell.seen_at_ms

    assert after(stats(100, 1), stats(300, 2), stats(0, 3)) == (1, 1_001)
    assert after(stats(100, 1), stats(1_000, 2), stats(0, 3)) == (3, 1_003)
    assert after(stats(5_000, 1), stats(0, 2)) == (2, 1_002)
    assert after(stats(0, 1), stats(5_000, 2)) == (2, 1_002)
    assert after(stats(5_000, 1), stats(5_000, 1)) == (1, 1_001)
    strict = (50.0, *LINES.merge[1:])
    spell = continue_spell(None, stats(10, 1), seen_at_ms=5, merge_thresholds=LINES.merge)
    assert continue_spell(spell, stats(10, 1), seen_at_ms=6, merge_thresholds=LINES.merge) is spell
    assert continue_spell(spell, stats(10, 1), seen_at_ms=6, merge_thresholds=strict).seen_at_ms == 6
    assert continue_spell(spell, stats(20, 2), seen_at_ms=7, merge_thresholds=strict).since_ms == 2
    assert spell.cold_ms(now_ms=100, monotonic_ms=50) == 45
    assert spell.cold_ms(now_ms=10, monotonic_ms=50) == 9


def test_only_a_living_sweeping_reporter_is_believed() -> None:
    def known(sessions: dict[str, int], ages: dict[str, float]) -> bool:
        return is_known(stats(1), broker_sessions=sessions, sweep_age_ms=ages, interval_ms=10_000)

    assert known({"b1": 7}, {"b1": 29_999})
    assert not known({"b1": 7}, {"b1": 30_000})
    assert not known({"b1": 7}, {})
    assert not known({"b1": 8}, {"b1": 0})
    assert not known({"b2": 7}, {"b1": 0})


def test_pitfall_12_what_a_migration_made_starts_no_cool_down() -> None:
    migrated = plan_migration(TopicName.parse("x"), 2, bucket_budget=4, subscriptions=(), now_ms=50).after

    assert last_operations(migrated) == LastOperations()


def test_pitfall_18_a_new_leader_reads_the_cool_downs_off_the_layout() -> None:
    layout = initial_layout(2, at_ms=5)
    assert last_operations(layout) == LastOperations()
    layout = layout.apply(split(layout, {0: 2}, at_ms=10), at_ms=10)
    layout = layout.apply(split(layout, {1: 2}, at_ms=25), at_ms=25)
    layout = layout.apply(merge(layout, [2, 3], at_ms=30), at_ms=30)

    assert last_operations(layout) == LastOperations(25, 30, None)


def test_pitfall_19_a_rebucket_is_not_a_split() -> None:
    layout = initial_layout(2)
    layout = layout.apply(rebucket(layout, [1], 7, at_ms=20), at_ms=20)

    assert last_operations(layout) == LastOperations(None, None, 20)


def test_the_newest_operation_counts_also_when_a_clock_went_back() -> None:
    layout = initial_layout(2)
    layout = layout.apply(split(layout, {0: 2}, at_ms=25), at_ms=25)
    layout = layout.apply(split(layout, {1: 2}, at_ms=10), at_ms=10)
    assert last_operations(layout).split_at_ms == 25
    untimed = initial_layout(1).apply(split(initial_layout(1), {0: 2}, at_ms=0), at_ms=0)
    assert last_operations(untimed).split_at_ms == 0


@given(layouts(prune=False), st.text(st.characters(codec="utf-8")))
def test_routing_agrees_with_the_layout(layout: SegmentLayout, key: str) -> None:
    assert Router.of(layout.active).route(key) == layout.find_active(segment_hash(raw_hash(key))).segment_id


def test_keyless_messages_take_turns_in_range_order() -> None:
    router = Router([Route(32768, 65535, 4), Route(0, 32767, 9)])

    assert [router.route_keyless(turn) for turn in range(4)] == [9, 4, 9, 4]
    for lost in (Router([]), Router([Route(0, 5, 1)])):
        with pytest.raises(WrongState):
            lost.route("key1")
    with pytest.raises(WrongState, match="no active segments"):
        Router([]).route_keyless(0)
    exactly = segment_hash(raw_hash("a"))
    assert Router([Route(exactly, exactly, 7), Route(0, exactly - 1, 8)]).route("a") == 7
    above = Router([Route(65_000, 65_535, 1)])
    with pytest.raises(WrongState, match="holds the hash 9b97"):
        above.route("key1")


def test_routing_of_old_partitions_is_by_modulo_over_ids() -> None:
    layout = synthetic_layout(TopicName.parse("persistent://t/n/x"), 4)

    assert [Router.of(layout.active).route(key) for key in ("a", "customer-2", b"a")] == [2, 3, 2]


def test_bucket_hashes_and_batches() -> None:
    assert message_bucket_hash(None) == 0
    assert message_bucket_hash("a") == message_bucket_hash(b"zzz", "a") == 27058
    assert message_bucket_hash("a", "") == 0
    assert [(b.bucket, b.hash_min, b.hash_max) for b in bucket_batches((100,), [7, 300, 3, 100])] == [
        (0, 3, 7),
        (1, 100, 300),
    ]
    assert bucket_batches((100,), []) == []


def test_pitfall_77_every_partitions_subscriptions_come_along() -> None:
    plan = plan_migration(
        TopicName.parse("persistent://t/n/x"), 3, bucket_budget=6, subscriptions=[["b"], [], ["a", "b"]], now_ms=9
    )

    assert plan.subscriptions == ("a", "b")
    assert str(plan.topic) == "topic://t/n/x"
    plan.before.check()
    plan.after.check()
    plan.after.check_follows(plan.before)
    assert plan.before.segments[0].created_at_ms == 9
    assert [segment.legacy_topic_name for segment in plan.after.segments.values()][:3] == [
        f"persistent://t/n/x-partition-{number}" for number in range(3)
    ]


def test_what_cannot_be_migrated_or_served() -> None:
    for build in (
        lambda name: plan_migration(name, 1, bucket_budget=4, subscriptions=(), now_ms=1),
        lambda name: synthetic_layout(name, 1),
    ):
        with pytest.raises(Unsupported, match="only a persistent:// topic"):
            build(TopicName.parse("topic://t/n/x"))
        with pytest.raises(Unsupported, match="only a persistent:// topic"):
            build(TopicName.parse("non-persistent://t/n/x"))
        with pytest.raises(InvalidArgument, match="one partition of 'x'"):
            build(TopicName.parse("x-partition-0"))
    for partitions in (-1, 65_537):
        with pytest.raises(InvalidArgument, match=f"cannot have {partitions} partitions"):
            synthetic_layout(TopicName.parse("x"), partitions)
    layout = synthetic_layout(TopicName.parse("x"), 3)
    with pytest.raises(InvalidLayout, match="an old partition, and still ACTIVE"):
        layout.check()
    assert (layout.epoch, layout.next_segment_id, len(layout.active)) == (0, 3, 3)
    first = layout.segments[0]
    assert (first.created_at_epoch, first.created_at_ms, first.bucket_count) == (0, 0, 1)
    assert len(synthetic_layout(TopicName.parse("x"), 65_536).active) == 65_536


def test_pitfall_79_each_connection_is_looked_at() -> None:
    connections = [Connection(0, v5=True), Connection(2, v5=False), Connection(1, v5=False), Connection(2, v5=False)]

    with pytest.raises(OldClients) as caught:
        precheck(record_exists=False, topic_exists=True, connections=connections, force=False)

    assert caught.value.connections == tuple(connections[1:])
    assert str(caught.value) == "3 connection(s) of old clients on partitions [1, 2] (upgrade them, or force it)"
    precheck(record_exists=False, topic_exists=True, connections=connections, force=True)
    with pytest.raises(WrongState, match="the topic is scalable already"):
        precheck(record_exists=True, topic_exists=False, connections=(), force=True)
    with pytest.raises(NotFound, match="there is no such topic"):
        precheck(record_exists=False, topic_exists=False, connections=(), force=True)


def test_a_migration_whose_record_could_never_be_written_is_refused() -> None:
    topic = TopicName.parse("x")

    plan = plan_migration(topic, 3_000, bucket_budget=4, subscriptions=(), now_ms=1_790_000_000_000)
    with pytest.raises(CapReached, match=r"3100 partitions would be \d+ bytes, above 1048576"):
        plan_migration(topic, 3_100, bucket_budget=4, subscriptions=(), now_ms=1_790_000_000_000)

    ends = dict.fromkeys(plan.before.segments, (2**63 - 1, 2**63 - 1))
    after = plan.before.apply(migrate(plan.before, at_ms=1_790_000_000_000), at_ms=1_790_000_000_000, terminated=ends)
    assert len(encode_record(TopicRecord(incarnation="0" * 16, layout=after))) <= RECORD_LIMIT_BYTES


def test_a_topic_of_1000_partitions_can_migrate() -> None:
    plan = plan_migration(TopicName.parse("x"), 1_000, bucket_budget=4, subscriptions=(), now_ms=1)

    plan.after.check()
    assert plan.after.segments[0].child_ids == tuple(range(1_000, 2_000))
    assert plan.after.segments[1_999].parent_ids == tuple(range(1_000))


def test_seeking_a_segment() -> None:
    assert plan_seek(created_at_ms=1, sealed_at_ms=0, timestamp_ms=5).action is SeekAction.SEEK
    assert str(plan_seek(created_at_ms=5, sealed_at_ms=None, timestamp_ms=5)) == "seek 0"
    assert str(plan_seek(created_at_ms=4, sealed_at_ms=6, timestamp_ms=5)) == "seek 5"
    assert str(plan_seek(created_at_ms=4, sealed_at_ms=5, timestamp_ms=5)) == "skip-all"


def test_pitfall_08_sealed_segments_never_come_back() -> None:
    layout = chain()

    assert [may_create_on_connect(layout, segment_id) for segment_id in range(6)] == [
        False,
        False,
        True,
        True,
        True,
        False,
    ]
    assert not may_create_on_connect(None, 0)


def test_pitfall_30_assignments_have_an_order_across_leaders() -> None:
    assert is_current(AssignmentAge(8, 1), AssignmentAge(7, 9))
    assert not is_current(AssignmentAge(7, 9), AssignmentAge(8, 1))
    assert not is_current(AssignmentAge(7, 1), AssignmentAge(7, 2))


def test_pitfall_70_layouts_have_an_order() -> None:
    assert is_current(LayoutAge(2, 1), LayoutAge(1, 900))
    assert not is_current(LayoutAge(1, 8), LayoutAge(1, 9))
    assert is_current(LayoutAge(1, 9), LayoutAge(1, 9))


def test_pitfall_26_the_exact_type_of_a_subscription() -> None:
    assert [SubscriptionType.parse(text) for text in ("STREAM", "CHECKPOINT", "QUEUE")] == list(SubscriptionType)
    with pytest.raises(InvalidArgument, match=r"'stream' is not a subscription type .*STREAM, CHECKPOINT, QUEUE"):
        SubscriptionType.parse("stream")


def test_totals() -> None:
    assert total([]) == TopicTotals(0, 0, 0, 0, 0)
    assert total([SegmentTotals(3, 10)]).average_msg_size == 3.333
    assert total([SegmentTotals(0.0004, 4)]) == TopicTotals(0, 4, 0, 0, 10_000)
    assert total([SegmentTotals(1.00049, 2), SegmentTotals(1, 2, 3, 4)]) == TopicTotals(2.0, 4, 3, 4, 2.0)
    assert fold_producers({1: {"-seg-1": ProducerTotals(1, 2)}}) == {"-seg-1": ProducerTotals(1, 2)}
    assert outer_producer_name("p-seg-1-seg-1", 1) == "p-seg-1"
    assert shown_type(SubscriptionType.CHECKPOINT) is SubscriptionType.CHECKPOINT
    assert topics_with({"b": {"x": "1"}, "a": {"x": "1", "y": "2"}}, {"x": "1"}) == ["a", "b"]


def test_ranks_are_the_same_for_everybody_for_ever() -> None:
    """Pinned: two versions side by side must agree on who campaigns first."""
    assert ranked("topic://t/n/x", ["a", "b", "c"]) == ranked("topic://t/n/x", ["c", "a", "b"]) == ["c", "b", "a"]
    firsts = Counter(ranked(f"topic://t/n/{number}", "abcd")[0] for number in range(400))
    assert min(firsts.values()) > 60
    assert ranked("x", []) == []
