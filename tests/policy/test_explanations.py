"""Explanations, word for word: every guard, and the change that lifts it.

`test_autoscale.py` proves that flips flip; this shows what an operator reads.
"""

from collections.abc import Callable

import pytest

from scalable_topics.model.autoscale_policy import AutoScalePolicy
from scalable_topics.model.hash_range import HashRange
from scalable_topics.model.layout import SegmentLayout, initial_layout
from scalable_topics.model.replacements import merge, rebucket, split
from scalable_topics.model.segment import CreatedBy, new_segment
from scalable_topics.model.subscription import SubscriptionType
from scalable_topics.policy.autoscale import ConsumerCount, Explanation, KnownLoad, TopicView, explain

WINDOW_MS = 300_000


def load(*rates: float, cold_ms: float = WINDOW_MS) -> KnownLoad:
    a, b, c, d = (*rates, *(0.0,) * (4 - len(rates)))
    return KnownLoad((a, b, c, d), cold_ms)


def streams(connected: int, restored: int = 0) -> dict[str, ConsumerCount]:
    return {"s": ConsumerCount(SubscriptionType.STREAM, connected, restored)}


def deep() -> SegmentLayout:
    """Two active segments that have been merged once."""
    layout = initial_layout(2)
    layout = layout.apply(merge(layout, [0, 1], at_ms=1), at_ms=1)
    return layout.apply(split(layout, {2: 2}, at_ms=2), at_ms=2)


def single_value() -> SegmentLayout:
    """Segment 1 holds the one hash value 65535."""
    return two_segments(HashRange(0, 65534), HashRange(65535, 65535))


def two_values() -> SegmentLayout:
    return two_segments(HashRange(0, 65533), HashRange(65534, 65535))


def two_segments(*ranges: HashRange) -> SegmentLayout:
    made = (
        new_segment(n, part, created_by=CreatedBy.INITIAL, epoch=0, at_ms=0, buckets=1) for n, part in enumerate(ranges)
    )
    return SegmentLayout(0, 2, {segment.segment_id: segment for segment in made})


def many_buckets(count: int) -> SegmentLayout:
    layout = initial_layout(2)
    return layout.apply(rebucket(layout, [0, 1], count, at_ms=1), at_ms=1)


EXPLANATIONS: dict[str, tuple[Callable[[], Explanation], list[str]]] = {
    "at the cap and cooling": (
        lambda: explain(
            TopicView(
                layout=initial_layout(3),
                load={0: load(12_000, cold_ms=0), 1: load(9_000, cold_ms=0)},
                consumers=streams(1),
                since_last_split_ms=10_000,
            ),
            AutoScalePolicy(max_segments=3),
        ),
        [
            "SWITCH: enabled 1 against 1: open; flips with enabled below 1",
            "SWITCH: recordBytes 0 against 524288: open; flips with recordBytes at least 524288",
            (
                "CONSUMER_SPLIT: consumers 1 against 3: held back by NO_SURPLUS, MAX_SEGMENTS, "
                "SPLIT_COOLDOWN; flips with consumers at least 4 and maxSegments at least 4 and "
                "sinceLastSplitMs at least 60000"
            ),
            (
                "REBUCKET_UP: streamConsumers 1 against 3: held back by ENOUGH_BUCKETS; flips with "
                "streamConsumers at least 4"
            ),
            (
                "LOAD_SPLIT [0]: msgRateIn 12000 against 10000: held back by MAX_SEGMENTS, "
                "SPLIT_COOLDOWN; flips with maxSegments at least 4 and sinceLastSplitMs at least 60000"
            ),
            (
                "LOAD_SPLIT [1]: msgRateIn 9000 against 10000: held back by BELOW_THRESHOLD, "
                "MAX_SEGMENTS, SPLIT_COOLDOWN; flips with msgRateIn of segment 1 above 12000 and "
                "maxSegments at least 4 and sinceLastSplitMs at least 60000"
            ),
            (
                "LOAD_SPLIT [2]: msgRateIn unknown against 10000: held back by LOAD_UNKNOWN, "
                "MAX_SEGMENTS, SPLIT_COOLDOWN"
            ),
            (
                "MERGE [0, 1]: msgRateIn 12000 against 1000: held back by MERGE_WINDOW, NOT_COLD, "
                "WOULD_SPLIT_AGAIN; flips with coldMs of segment 0 at least 300000 and coldMs of segment "
                "1 at least 300000 and msgRateIn of segment 0 below 1000 and msgRateIn of segment 1 below "
                "1000"
            ),
            ("MERGE [1, 2]: msgRateIn unknown against 1000: held back by MERGE_WINDOW, NOT_COLD, LOAD_UNKNOWN"),
            ("REBUCKET_DOWN: demandLowMs unknown against 1800000: held back by DEMAND_WINDOW, NOTHING_TO_LOWER"),
            "decision: leave it as it is",
        ],
    ),
    "switched off and too large": (
        lambda: explain(
            TopicView(layout=initial_layout(1), load={0: load(20_000)}, record_bytes=600_000),
            AutoScalePolicy(enabled=False),
        ),
        [
            "SWITCH: enabled 0 against 1: held back by DISABLED; flips with enabled at least 1",
            (
                "SWITCH: recordBytes 600000 against 524288: held back by RECORD_TOO_LARGE; flips with "
                "recordBytes below 524288"
            ),
            (
                "CONSUMER_SPLIT: consumers 0 against 1: held back by NO_SURPLUS, EARLIER_RULE; flips with "
                "consumers at least 2"
            ),
            (
                "REBUCKET_UP: streamConsumers 0 against 4: held back by ENOUGH_BUCKETS, SPLIT_PREFERRED, "
                "EARLIER_RULE; flips with streamConsumers at least 5 and "
                "splitVsRebucketMinMsgRateInThreshold above 20000"
            ),
            "LOAD_SPLIT [0]: msgRateIn 20000 against 10000: held back by EARLIER_RULE",
            (
                "REBUCKET_DOWN: demandLowMs unknown against 1800000: held back by DEMAND_WINDOW, "
                "NOTHING_TO_LOWER, EARLIER_RULE"
            ),
            "decision: leave it as it is",
        ],
    ),
    "more consumers than segments, enough load": (
        lambda: explain(
            TopicView(layout=initial_layout(2), load={0: load(4_000), 1: load(900)}, consumers=streams(4)),
            AutoScalePolicy(),
        ),
        [
            "SWITCH: enabled 1 against 1: open; flips with enabled below 1",
            "SWITCH: recordBytes 0 against 524288: open; flips with recordBytes at least 524288",
            "CONSUMER_SPLIT: consumers 4 against 2: acts; flips with consumers at most 2",
            (
                "REBUCKET_UP: streamConsumers 4 against 4: held back by ENOUGH_BUCKETS, SPLIT_PREFERRED, "
                "EARLIER_RULE; flips with streamConsumers at least 5 and "
                "splitVsRebucketMinMsgRateInThreshold above 4000"
            ),
            (
                "LOAD_SPLIT [0]: msgRateIn 4000 against 10000: held back by BELOW_THRESHOLD, "
                "EARLIER_RULE; flips with msgRateIn of segment 0 above 10000"
            ),
            (
                "LOAD_SPLIT [1]: msgRateIn 900 against 10000: held back by BELOW_THRESHOLD, EARLIER_RULE; "
                "flips with msgRateIn of segment 1 above 10000"
            ),
            (
                "MERGE [0, 1]: msgRateIn 4000 against 1000: held back by NOT_COLD, "
                "CONSUMERS_NEED_SEGMENTS, EARLIER_RULE; flips with msgRateIn of segment 0 below 1000 and "
                "consumersWithRestored at most 1"
            ),
            (
                "REBUCKET_DOWN: demandLowMs unknown against 1800000: held back by DEMAND_WINDOW, "
                "NOTHING_TO_LOWER, EARLIER_RULE"
            ),
            "decision: split segment 0 into 2 (consumer-count)",
        ],
    ),
    "more consumers than segments, little load": (
        lambda: explain(
            TopicView(
                layout=initial_layout(2, bucket_budget=2), load={0: load(400), 1: load(300)}, consumers=streams(3)
            ),
            AutoScalePolicy(),
        ),
        [
            "SWITCH: enabled 1 against 1: open; flips with enabled below 1",
            "SWITCH: recordBytes 0 against 524288: open; flips with recordBytes at least 524288",
            (
                "CONSUMER_SPLIT: consumers 3 against 2: held back by BELOW_SPLIT_RATE_FLOOR; flips with "
                "msgRateIn of segment 0 at least 1000"
            ),
            "REBUCKET_UP: streamConsumers 3 against 2: acts; flips with streamConsumers at most 2",
            (
                "LOAD_SPLIT [0]: msgRateIn 400 against 10000: held back by BELOW_THRESHOLD, EARLIER_RULE; "
                "flips with msgRateIn of segment 0 above 10000"
            ),
            (
                "LOAD_SPLIT [1]: msgRateIn 300 against 10000: held back by BELOW_THRESHOLD, EARLIER_RULE; "
                "flips with msgRateIn of segment 1 above 10000"
            ),
            (
                "MERGE [0, 1]: msgRateIn 400 against 1000: held back by CONSUMERS_NEED_SEGMENTS, "
                "EARLIER_RULE; flips with consumersWithRestored at most 1"
            ),
            (
                "REBUCKET_DOWN: demandLowMs unknown against 1800000: held back by DEMAND_WINDOW, "
                "NOTHING_TO_LOWER, EARLIER_RULE"
            ),
            "decision: give segments [0, 1] 2 buckets (below-split-rate-floor)",
        ],
    ),
    "more consumers, nobody reports": (
        lambda: explain(
            TopicView(layout=initial_layout(1, bucket_budget=1), consumers=streams(2), since_last_rebucket_ms=5),
            AutoScalePolicy(),
        ),
        [
            "SWITCH: enabled 1 against 1: open; flips with enabled below 1",
            "SWITCH: recordBytes 0 against 524288: open; flips with recordBytes at least 524288",
            "CONSUMER_SPLIT: consumers 2 against 1: held back by NOTHING_TO_SPLIT",
            (
                "REBUCKET_UP: streamConsumers 2 against 1: held back by REBUCKET_COOLDOWN; flips with "
                "sinceLastRebucketMs at least 60000"
            ),
            "LOAD_SPLIT [0]: msgRateIn unknown against 10000: held back by LOAD_UNKNOWN",
            ("REBUCKET_DOWN: demandLowMs unknown against 1800000: held back by DEMAND_WINDOW, NOTHING_TO_LOWER"),
            "decision: leave it as it is",
        ],
    ),
    "buckets at their maximum": (
        lambda: explain(
            TopicView(layout=initial_layout(1, bucket_budget=2), load={0: load(10)}, consumers=streams(9)),
            AutoScalePolicy(entry_bucket_max_per_segment=2, max_segments=1),
        ),
        [
            "SWITCH: enabled 1 against 1: open; flips with enabled below 1",
            "SWITCH: recordBytes 0 against 524288: open; flips with recordBytes at least 524288",
            (
                "CONSUMER_SPLIT: consumers 9 against 1: held back by MAX_SEGMENTS, "
                "BELOW_SPLIT_RATE_FLOOR; flips with maxSegments at least 2 and msgRateIn of segment 0 at "
                "least 1000"
            ),
            (
                "REBUCKET_UP: streamConsumers 9 against 2: held back by MAX_BUCKETS; flips with "
                "entryBucketMaxPerSegment at least 3"
            ),
            (
                "LOAD_SPLIT [0]: msgRateIn 10 against 10000: held back by BELOW_THRESHOLD, MAX_SEGMENTS; "
                "flips with msgRateIn of segment 0 above 10000 and maxSegments at least 2"
            ),
            ("REBUCKET_DOWN: demandLowMs unknown against 1800000: held back by DEMAND_WINDOW, NOTHING_TO_LOWER"),
            "decision: leave it as it is",
        ],
    ),
    "the hotter of two, and a third on the line": (
        lambda: explain(
            TopicView(
                layout=initial_layout(3), load={0: load(15_000, 50_000_000.0), 1: load(0, 0, 60_000), 2: load(10_000)}
            ),
            AutoScalePolicy(),
        ),
        [
            "SWITCH: enabled 1 against 1: open; flips with enabled below 1",
            "SWITCH: recordBytes 0 against 524288: open; flips with recordBytes at least 524288",
            ("CONSUMER_SPLIT: consumers 0 against 3: held back by NO_SURPLUS; flips with consumers at least 4"),
            (
                "REBUCKET_UP: streamConsumers 0 against 3: held back by ENOUGH_BUCKETS, SPLIT_PREFERRED; "
                "flips with streamConsumers at least 4 and splitVsRebucketMinMsgRateInThreshold above "
                "15000"
            ),
            ("LOAD_SPLIT [0]: msgRateIn 15000 against 10000: acts; flips with msgRateIn of segment 0 below 12000"),
            (
                "LOAD_SPLIT [1]: msgRateOut 60000 against 50000: held back by HOTTER_SEGMENT; flips with "
                "msgRateOut of segment 1 above 75000"
            ),
            (
                "LOAD_SPLIT [2]: msgRateIn 10000 against 10000: held back by BELOW_THRESHOLD; flips with "
                "msgRateIn of segment 2 above 15000"
            ),
            (
                "MERGE [0, 1]: msgRateIn 15000 against 1000: held back by NOT_COLD, WOULD_SPLIT_AGAIN, "
                "EARLIER_RULE; flips with msgRateIn of segment 0 below 1000 and bytesRateIn of segment 0 "
                "below 5000000 and msgRateOut of segment 1 below 5000"
            ),
            (
                "MERGE [1, 2]: msgRateOut 60000 against 5000: held back by NOT_COLD, WOULD_SPLIT_AGAIN, "
                "EARLIER_RULE; flips with msgRateOut of segment 1 below 5000 and msgRateIn of segment 2 "
                "below 1000"
            ),
            (
                "REBUCKET_DOWN: demandLowMs unknown against 1800000: held back by DEMAND_WINDOW, "
                "NOTHING_TO_LOWER, EARLIER_RULE"
            ),
            "decision: split segment 0 into 2 (msgRateIn)",
        ],
    ),
    "a hot single value": (
        lambda: explain(
            TopicView(layout=single_value(), load={0: load(11_000), 1: load(20_000)}, since_last_split_ms=0),
            AutoScalePolicy(max_segments=2),
        ),
        [
            "SWITCH: enabled 1 against 1: open; flips with enabled below 1",
            "SWITCH: recordBytes 0 against 524288: open; flips with recordBytes at least 524288",
            (
                "CONSUMER_SPLIT: consumers 0 against 2: held back by NO_SURPLUS, MAX_SEGMENTS, "
                "SPLIT_COOLDOWN; flips with consumers at least 3 and maxSegments at least 3 and "
                "sinceLastSplitMs at least 60000"
            ),
            (
                "REBUCKET_UP: streamConsumers 0 against 2: held back by ENOUGH_BUCKETS; flips with "
                "streamConsumers at least 3"
            ),
            (
                "LOAD_SPLIT [0]: msgRateIn 11000 against 10000: held back by MAX_SEGMENTS, "
                "SPLIT_COOLDOWN; flips with maxSegments at least 3 and sinceLastSplitMs at least 60000"
            ),
            (
                "LOAD_SPLIT [1]: msgRateIn 20000 against 10000: held back by RANGE_TOO_SMALL, "
                "MAX_SEGMENTS, SPLIT_COOLDOWN"
            ),
            (
                "MERGE [0, 1]: msgRateIn 20000 against 1000: held back by NOT_COLD, WOULD_SPLIT_AGAIN; "
                "flips with msgRateIn of segment 0 below 1000 and msgRateIn of segment 1 below 1000"
            ),
            ("REBUCKET_DOWN: demandLowMs unknown against 1800000: held back by DEMAND_WINDOW, NOTHING_TO_LOWER"),
            "decision: leave it as it is",
        ],
    ),
    "one hot segment": (
        lambda: explain(TopicView(layout=initial_layout(1), load={0: load(15_000, 50_000_000.0)}), AutoScalePolicy()),
        [
            "SWITCH: enabled 1 against 1: open; flips with enabled below 1",
            "SWITCH: recordBytes 0 against 524288: open; flips with recordBytes at least 524288",
            ("CONSUMER_SPLIT: consumers 0 against 1: held back by NO_SURPLUS; flips with consumers at least 2"),
            (
                "REBUCKET_UP: streamConsumers 0 against 4: held back by ENOUGH_BUCKETS, SPLIT_PREFERRED; "
                "flips with streamConsumers at least 5 and splitVsRebucketMinMsgRateInThreshold above "
                "15000"
            ),
            ("LOAD_SPLIT [0]: msgRateIn 15000 against 10000: acts; flips with msgRateIn of segment 0 at most 10000"),
            (
                "REBUCKET_DOWN: demandLowMs unknown against 1800000: held back by DEMAND_WINDOW, "
                "NOTHING_TO_LOWER, EARLIER_RULE"
            ),
            "decision: split segment 0 into 2 (msgRateIn)",
        ],
    ),
    "two values, and something hotter": (
        lambda: explain(TopicView(layout=two_values(), load={0: load(30_000), 1: load(20_000)}), AutoScalePolicy()),
        [
            "SWITCH: enabled 1 against 1: open; flips with enabled below 1",
            "SWITCH: recordBytes 0 against 524288: open; flips with recordBytes at least 524288",
            ("CONSUMER_SPLIT: consumers 0 against 2: held back by NO_SURPLUS; flips with consumers at least 3"),
            (
                "REBUCKET_UP: streamConsumers 0 against 2: held back by ENOUGH_BUCKETS, SPLIT_PREFERRED; "
                "flips with streamConsumers at least 3 and splitVsRebucketMinMsgRateInThreshold above "
                "30000"
            ),
            ("LOAD_SPLIT [0]: msgRateIn 30000 against 10000: acts; flips with msgRateIn of segment 0 below 20000"),
            (
                "LOAD_SPLIT [1]: msgRateIn 20000 against 10000: held back by HOTTER_SEGMENT; flips with "
                "msgRateIn of segment 1 above 30000"
            ),
            (
                "MERGE [0, 1]: msgRateIn 30000 against 1000: held back by NOT_COLD, WOULD_SPLIT_AGAIN, "
                "EARLIER_RULE; flips with msgRateIn of segment 0 below 1000 and msgRateIn of segment 1 "
                "below 1000"
            ),
            (
                "REBUCKET_DOWN: demandLowMs unknown against 1800000: held back by DEMAND_WINDOW, "
                "NOTHING_TO_LOWER, EARLIER_RULE"
            ),
            "decision: split segment 0 into 2 (msgRateIn)",
        ],
    ),
    "nearest to its own threshold": (
        lambda: explain(
            TopicView(layout=initial_layout(2), load={0: load(500, 4_900_000.0), 1: load(0)}), AutoScalePolicy()
        ),
        [
            "SWITCH: enabled 1 against 1: open; flips with enabled below 1",
            "SWITCH: recordBytes 0 against 524288: open; flips with recordBytes at least 524288",
            (
                "CONSUMER_SPLIT: consumers 0 against 2: held back by NO_SURPLUS, BELOW_SPLIT_RATE_FLOOR; "
                "flips with consumers at least 3 and msgRateIn of segment 0 at least 1000"
            ),
            (
                "REBUCKET_UP: streamConsumers 0 against 4: held back by ENOUGH_BUCKETS; flips with "
                "streamConsumers at least 5"
            ),
            (
                "LOAD_SPLIT [0]: bytesRateIn 4900000 against 50000000: held back by BELOW_THRESHOLD; "
                "flips with bytesRateIn of segment 0 above 50000000"
            ),
            (
                "LOAD_SPLIT [1]: msgRateIn 0 against 10000: held back by BELOW_THRESHOLD; flips with "
                "msgRateIn of segment 1 above 10000"
            ),
            (
                "MERGE [0, 1]: bytesRateIn 4900000 against 5000000: acts; flips with bytesRateIn of "
                "segment 0 at least 5000000"
            ),
            (
                "REBUCKET_DOWN: demandLowMs unknown against 1800000: held back by DEMAND_WINDOW, "
                "NOTHING_TO_LOWER, EARLIER_RULE"
            ),
            "decision: merge segments 0 and 1 (cold)",
        ],
    ),
    "as many buckets as there can be": (
        lambda: explain(
            TopicView(layout=initial_layout(1, bucket_budget=65_536), consumers=streams(70_000)),
            AutoScalePolicy(entry_bucket_max_per_segment=65_536, max_segments=1),
        ),
        [
            "SWITCH: enabled 1 against 1: open; flips with enabled below 1",
            "SWITCH: recordBytes 0 against 524288: open; flips with recordBytes at least 524288",
            "CONSUMER_SPLIT: consumers 70000 against 1: held back by MAX_SEGMENTS, NOTHING_TO_SPLIT",
            "REBUCKET_UP: streamConsumers 70000 against 65536: held back by MAX_BUCKETS",
            "LOAD_SPLIT [0]: msgRateIn unknown against 10000: held back by LOAD_UNKNOWN, MAX_SEGMENTS",
            ("REBUCKET_DOWN: demandLowMs unknown against 1800000: held back by DEMAND_WINDOW, NOTHING_TO_LOWER"),
            "decision: leave it as it is",
        ],
    ),
    "a single value that is not hot": (
        lambda: explain(TopicView(layout=single_value(), load={1: load(2_000)}), AutoScalePolicy()),
        [
            "SWITCH: enabled 1 against 1: open; flips with enabled below 1",
            "SWITCH: recordBytes 0 against 524288: open; flips with recordBytes at least 524288",
            "CONSUMER_SPLIT: consumers 0 against 2: held back by NO_SURPLUS, NOTHING_TO_SPLIT",
            (
                "REBUCKET_UP: streamConsumers 0 against 2: held back by ENOUGH_BUCKETS; flips with "
                "streamConsumers at least 3"
            ),
            "LOAD_SPLIT [0]: msgRateIn unknown against 10000: held back by LOAD_UNKNOWN",
            ("LOAD_SPLIT [1]: msgRateIn 2000 against 10000: held back by BELOW_THRESHOLD, RANGE_TOO_SMALL"),
            "MERGE [0, 1]: msgRateIn unknown against 1000: held back by LOAD_UNKNOWN, NOT_COLD",
            ("REBUCKET_DOWN: demandLowMs unknown against 1800000: held back by DEMAND_WINDOW, NOTHING_TO_LOWER"),
            "decision: leave it as it is",
        ],
    ),
    "a cold pair and a colder one": (
        lambda: explain(
            TopicView(layout=initial_layout(4), load={0: load(500), 1: load(400), 2: load(0), 3: load(0, 0, 0, 100.0)}),
            AutoScalePolicy(),
        ),
        [
            "SWITCH: enabled 1 against 1: open; flips with enabled below 1",
            "SWITCH: recordBytes 0 against 524288: open; flips with recordBytes at least 524288",
            (
                "CONSUMER_SPLIT: consumers 0 against 4: held back by NO_SURPLUS, BELOW_SPLIT_RATE_FLOOR; "
                "flips with consumers at least 5 and msgRateIn of segment 0 at least 1000"
            ),
            (
                "REBUCKET_UP: streamConsumers 0 against 4: held back by ENOUGH_BUCKETS; flips with "
                "streamConsumers at least 5"
            ),
            (
                "LOAD_SPLIT [0]: msgRateIn 500 against 10000: held back by BELOW_THRESHOLD; flips with "
                "msgRateIn of segment 0 above 10000"
            ),
            (
                "LOAD_SPLIT [1]: msgRateIn 400 against 10000: held back by BELOW_THRESHOLD; flips with "
                "msgRateIn of segment 1 above 10000"
            ),
            (
                "LOAD_SPLIT [2]: msgRateIn 0 against 10000: held back by BELOW_THRESHOLD; flips with "
                "msgRateIn of segment 2 above 10000"
            ),
            (
                "LOAD_SPLIT [3]: bytesRateOut 100 against 250000000: held back by BELOW_THRESHOLD; flips "
                "with bytesRateOut of segment 3 above 250000000"
            ),
            "MERGE [0, 1]: msgRateIn 500 against 1000: held back by COLDER_PAIR",
            "MERGE [1, 2]: msgRateIn 400 against 1000: held back by COLDER_PAIR",
            ("MERGE [2, 3]: bytesRateOut 100 against 25000000: acts; flips with msgRateIn of segment 3 above 399.996"),
            (
                "REBUCKET_DOWN: demandLowMs unknown against 1800000: held back by DEMAND_WINDOW, "
                "NOTHING_TO_LOWER, EARLIER_RULE"
            ),
            "decision: merge segments 2 and 3 (cold)",
        ],
    ),
    "cold, but for everything else": (
        lambda: explain(
            TopicView(
                layout=deep(),
                load={3: load(0, cold_ms=1), 4: load(0, 6_000_000.0)},
                consumers=streams(1, 1),
                since_last_merge_ms=7,
            ),
            AutoScalePolicy(max_dag_depth=1, min_segments=2, dag_depth_window_seconds=0),
        ),
        [
            "SWITCH: enabled 1 against 1: open; flips with enabled below 1",
            "SWITCH: recordBytes 0 against 524288: open; flips with recordBytes at least 524288",
            (
                "CONSUMER_SPLIT: consumers 1 against 2: held back by NO_SURPLUS, BELOW_SPLIT_RATE_FLOOR; "
                "flips with consumers at least 3 and msgRateIn of segment 3 at least 1000"
            ),
            (
                "REBUCKET_UP: streamConsumers 1 against 4: held back by ENOUGH_BUCKETS; flips with "
                "streamConsumers at least 5"
            ),
            (
                "LOAD_SPLIT [3]: msgRateIn 0 against 10000: held back by BELOW_THRESHOLD; flips with "
                "msgRateIn of segment 3 above 10000"
            ),
            (
                "LOAD_SPLIT [4]: bytesRateIn 6000000 against 50000000: held back by BELOW_THRESHOLD; "
                "flips with bytesRateIn of segment 4 above 50000000"
            ),
            (
                "MERGE [3, 4]: bytesRateIn 6000000 against 5000000: held back by MERGE_WINDOW, "
                "MAX_DAG_DEPTH, NOT_COLD, MIN_SEGMENTS, CONSUMERS_NEED_SEGMENTS, MERGE_COOLDOWN; flips "
                "with coldMs of segment 3 at least 300000 and maxDagDepth at least 2 and bytesRateIn of "
                "segment 4 below 5000000 and minSegments at most 1 and consumersWithRestored at most 1 "
                "and sinceLastMergeMs at least 300000"
            ),
            ("REBUCKET_DOWN: demandLowMs unknown against 1800000: held back by DEMAND_WINDOW, NOTHING_TO_LOWER"),
            "decision: leave it as it is",
        ],
    ),
    "too deep, until it has stood for the window": (
        lambda: explain(
            TopicView(
                layout=deep(),
                load={3: load(0, cold_ms=300_000), 4: load(0, cold_ms=300_000)},
                standing_ms={3: 3_600_000, 4: 3_599_999},
            ),
            AutoScalePolicy(max_dag_depth=1),
        ),
        [
            "SWITCH: enabled 1 against 1: open; flips with enabled below 1",
            "SWITCH: recordBytes 0 against 524288: open; flips with recordBytes at least 524288",
            (
                "CONSUMER_SPLIT: consumers 0 against 2: held back by NO_SURPLUS, BELOW_SPLIT_RATE_FLOOR; "
                "flips with consumers at least 3 and msgRateIn of segment 3 at least 1000"
            ),
            (
                "REBUCKET_UP: streamConsumers 0 against 4: held back by ENOUGH_BUCKETS; flips with "
                "streamConsumers at least 5"
            ),
            (
                "LOAD_SPLIT [3]: msgRateIn 0 against 10000: held back by BELOW_THRESHOLD; flips with "
                "msgRateIn of segment 3 above 10000"
            ),
            (
                "LOAD_SPLIT [4]: msgRateIn 0 against 10000: held back by BELOW_THRESHOLD; flips with "
                "msgRateIn of segment 4 above 10000"
            ),
            (
                "MERGE [3, 4]: msgRateIn 0 against 1000: held back by MAX_DAG_DEPTH; flips with "
                "standingMs of segment 4 at least 3600000"
            ),
            "REBUCKET_DOWN: demandLowMs unknown against 1800000: held back by DEMAND_WINDOW, NOTHING_TO_LOWER",
            "decision: leave it as it is",
        ],
    ),
    "together too hot": (
        lambda: explain(
            TopicView(layout=initial_layout(3), load={0: load(700), 1: load(500), 2: load(501)}),
            AutoScalePolicy(split_msg_rate_in_threshold=1_001),
        ),
        [
            "SWITCH: enabled 1 against 1: open; flips with enabled below 1",
            "SWITCH: recordBytes 0 against 524288: open; flips with recordBytes at least 524288",
            (
                "CONSUMER_SPLIT: consumers 0 against 3: held back by NO_SURPLUS, BELOW_SPLIT_RATE_FLOOR; "
                "flips with consumers at least 4 and msgRateIn of segment 0 at least 1000"
            ),
            (
                "REBUCKET_UP: streamConsumers 0 against 3: held back by ENOUGH_BUCKETS; flips with "
                "streamConsumers at least 4"
            ),
            (
                "LOAD_SPLIT [0]: msgRateIn 700 against 1001: held back by BELOW_THRESHOLD; flips with "
                "msgRateIn of segment 0 above 1001"
            ),
            (
                "LOAD_SPLIT [1]: msgRateIn 500 against 1001: held back by BELOW_THRESHOLD; flips with "
                "msgRateIn of segment 1 above 1001"
            ),
            (
                "LOAD_SPLIT [2]: msgRateIn 501 against 1001: held back by BELOW_THRESHOLD; flips with "
                "msgRateIn of segment 2 above 1001"
            ),
            "MERGE [0, 1]: msgRateIn 700 against 1000: held back by WOULD_SPLIT_AGAIN, COLDER_PAIR",
            ("MERGE [1, 2]: msgRateIn 501 against 1000: acts; flips with msgRateIn of segment 1 above 500"),
            (
                "REBUCKET_DOWN: demandLowMs unknown against 1800000: held back by DEMAND_WINDOW, "
                "NOTHING_TO_LOWER, EARLIER_RULE"
            ),
            "decision: merge segments 1 and 2 (cold)",
        ],
    ),
    "merging switched off": (
        lambda: explain(
            TopicView(layout=initial_layout(2), load={0: load(0), 1: load(0)}),
            AutoScalePolicy(merge_msg_rate_out_threshold=0),
        ),
        [
            "SWITCH: enabled 1 against 1: open; flips with enabled below 1",
            "SWITCH: recordBytes 0 against 524288: open; flips with recordBytes at least 524288",
            (
                "CONSUMER_SPLIT: consumers 0 against 2: held back by NO_SURPLUS, BELOW_SPLIT_RATE_FLOOR; "
                "flips with consumers at least 3 and msgRateIn of segment 0 at least 1000"
            ),
            (
                "REBUCKET_UP: streamConsumers 0 against 4: held back by ENOUGH_BUCKETS; flips with "
                "streamConsumers at least 5"
            ),
            (
                "LOAD_SPLIT [0]: msgRateIn 0 against 10000: held back by BELOW_THRESHOLD; flips with "
                "msgRateIn of segment 0 above 10000"
            ),
            (
                "LOAD_SPLIT [1]: msgRateIn 0 against 10000: held back by BELOW_THRESHOLD; flips with "
                "msgRateIn of segment 1 above 10000"
            ),
            "MERGE [0, 1]: msgRateOut 0 against 0: held back by NOT_COLD",
            ("REBUCKET_DOWN: demandLowMs unknown against 1800000: held back by DEMAND_WINDOW, NOTHING_TO_LOWER"),
            "decision: leave it as it is",
        ],
    ),
    "idle buckets": (
        lambda: explain(
            TopicView(
                layout=many_buckets(16),
                load={2: load(500), 3: load(500)},
                consumers=streams(5),
                demand_low_ms=1_800_000,
            ),
            AutoScalePolicy(),
        ),
        [
            "SWITCH: enabled 1 against 1: open; flips with enabled below 1",
            "SWITCH: recordBytes 0 against 524288: open; flips with recordBytes at least 524288",
            (
                "CONSUMER_SPLIT: consumers 5 against 2: held back by BELOW_SPLIT_RATE_FLOOR; flips with "
                "msgRateIn of segment 2 at least 1000"
            ),
            (
                "REBUCKET_UP: streamConsumers 5 against 32: held back by ENOUGH_BUCKETS; flips with "
                "streamConsumers at least 33"
            ),
            (
                "LOAD_SPLIT [2]: msgRateIn 500 against 10000: held back by BELOW_THRESHOLD; flips with "
                "msgRateIn of segment 2 above 10000"
            ),
            (
                "LOAD_SPLIT [3]: msgRateIn 500 against 10000: held back by BELOW_THRESHOLD; flips with "
                "msgRateIn of segment 3 above 10000"
            ),
            (
                "MERGE [2, 3]: msgRateIn 500 against 1000: held back by CONSUMERS_NEED_SEGMENTS; flips "
                "with consumersWithRestored at most 1"
            ),
            ("REBUCKET_DOWN: demandLowMs 1800000 against 1800000: acts; flips with demandLowMs below 1800000"),
            "decision: give segments [2, 3] 4 buckets (idle-buckets)",
        ],
    ),
    "idle buckets, not for long enough": (
        lambda: explain(
            TopicView(layout=many_buckets(16), load={2: load(5_000), 3: load(5_000)}, demand_low_ms=5),
            AutoScalePolicy(),
        ),
        [
            "SWITCH: enabled 1 against 1: open; flips with enabled below 1",
            "SWITCH: recordBytes 0 against 524288: open; flips with recordBytes at least 524288",
            ("CONSUMER_SPLIT: consumers 0 against 2: held back by NO_SURPLUS; flips with consumers at least 3"),
            (
                "REBUCKET_UP: streamConsumers 0 against 32: held back by ENOUGH_BUCKETS, SPLIT_PREFERRED; "
                "flips with streamConsumers at least 33 and splitVsRebucketMinMsgRateInThreshold above "
                "5000"
            ),
            (
                "LOAD_SPLIT [2]: msgRateIn 5000 against 10000: held back by BELOW_THRESHOLD; flips with "
                "msgRateIn of segment 2 above 10000"
            ),
            (
                "LOAD_SPLIT [3]: msgRateIn 5000 against 10000: held back by BELOW_THRESHOLD; flips with "
                "msgRateIn of segment 3 above 10000"
            ),
            (
                "MERGE [2, 3]: msgRateIn 5000 against 1000: held back by NOT_COLD; flips with msgRateIn "
                "of segment 2 below 1000 and msgRateIn of segment 3 below 1000"
            ),
            (
                "REBUCKET_DOWN: demandLowMs 5 against 1800000: held back by DEMAND_WINDOW; flips with "
                "demandLowMs at least 1800000"
            ),
            "decision: leave it as it is",
        ],
    ),
    "idle buckets, nobody minds": (
        lambda: explain(
            TopicView(layout=many_buckets(16), load={2: load(5_000)}, demand_low_ms=5),
            AutoScalePolicy(rebucket_down_window_seconds=0),
        ),
        [
            "SWITCH: enabled 1 against 1: open; flips with enabled below 1",
            "SWITCH: recordBytes 0 against 524288: open; flips with recordBytes at least 524288",
            ("CONSUMER_SPLIT: consumers 0 against 2: held back by NO_SURPLUS; flips with consumers at least 3"),
            (
                "REBUCKET_UP: streamConsumers 0 against 32: held back by ENOUGH_BUCKETS, SPLIT_PREFERRED; "
                "flips with streamConsumers at least 33 and splitVsRebucketMinMsgRateInThreshold above "
                "5000"
            ),
            (
                "LOAD_SPLIT [2]: msgRateIn 5000 against 10000: held back by BELOW_THRESHOLD; flips with "
                "msgRateIn of segment 2 above 10000"
            ),
            "LOAD_SPLIT [3]: msgRateIn unknown against 10000: held back by LOAD_UNKNOWN",
            "MERGE [2, 3]: msgRateIn unknown against 1000: held back by NOT_COLD, LOAD_UNKNOWN",
            (
                "REBUCKET_DOWN: demandLowMs 5 against 0: held back by SWITCHED_OFF; flips with "
                "rebucketDownWindowSeconds above 0"
            ),
            "decision: leave it as it is",
        ],
    ),
    "idle buckets, nobody minds or knows": (
        lambda: explain(
            TopicView(layout=many_buckets(16), load={2: load(5_000)}), AutoScalePolicy(rebucket_down_window_seconds=0)
        ),
        [
            "SWITCH: enabled 1 against 1: open; flips with enabled below 1",
            "SWITCH: recordBytes 0 against 524288: open; flips with recordBytes at least 524288",
            ("CONSUMER_SPLIT: consumers 0 against 2: held back by NO_SURPLUS; flips with consumers at least 3"),
            (
                "REBUCKET_UP: streamConsumers 0 against 32: held back by ENOUGH_BUCKETS, SPLIT_PREFERRED; "
                "flips with streamConsumers at least 33 and splitVsRebucketMinMsgRateInThreshold above "
                "5000"
            ),
            (
                "LOAD_SPLIT [2]: msgRateIn 5000 against 10000: held back by BELOW_THRESHOLD; flips with "
                "msgRateIn of segment 2 above 10000"
            ),
            "LOAD_SPLIT [3]: msgRateIn unknown against 10000: held back by LOAD_UNKNOWN",
            "MERGE [2, 3]: msgRateIn unknown against 1000: held back by NOT_COLD, LOAD_UNKNOWN",
            "REBUCKET_DOWN: demandLowMs unknown against 0: held back by SWITCHED_OFF, DEMAND_WINDOW",
            "decision: leave it as it is",
        ],
    ),
}


@pytest.mark.parametrize("name", EXPLANATIONS)
def test_explanation(name: str) -> None:
    told, words = EXPLANATIONS[name]

    assert str(told()).splitlines() == words
