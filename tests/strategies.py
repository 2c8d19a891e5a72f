"""What hypothesis draws: layouts as operations leave them, valid policies, loads and consumers around thresholds."""

from hypothesis import strategies as st

from scalable_topics.model.autoscale_policy import AutoScalePolicy
from scalable_topics.model.layout import SegmentLayout, initial_layout
from scalable_topics.model.load import Rates
from scalable_topics.model.names import TopicName
from scalable_topics.model.replacements import merge, rebucket, rollover, split
from scalable_topics.model.segment import SegmentState
from scalable_topics.model.subscription import SubscriptionType
from scalable_topics.policy.autoscale import ConsumerCount, KnownLoad, TopicView
from scalable_topics.policy.migration import plan_migration

INCARNATION = "0123456789abcdef"
TOPIC = TopicName.parse("topic://tenant/ns/orders")

Draw = st.DrawFn


@st.composite
def layouts(draw: Draw, *, max_ops: int = 8, max_initial: int = 5, prune: bool = True) -> SegmentLayout:
    """A layout with a history, of operations a millisecond apart."""
    budget = draw(st.integers(0, 16))
    window = draw(st.sampled_from([0, 0, 0.001, 0.003]))
    if draw(st.integers(0, 4)):
        layout = initial_layout(draw(st.integers(1, max_initial)), bucket_budget=budget, at_ms=1)
    else:
        topic = TopicName.parse("persistent://tenant/ns/orders")
        partitions = draw(st.integers(0, max_initial))
        layout = plan_migration(topic, partitions, bucket_budget=budget, subscriptions=(), now_ms=1).after
    for number in range(draw(st.integers(0, max_ops))):
        layout = draw(next_layouts(layout, at_ms=number + 2, prune=prune, depth_window_seconds=window))
    return layout


@st.composite
def next_layouts(
    draw: Draw, layout: SegmentLayout, *, at_ms: int, prune: bool = True, depth_window_seconds: float = 0
) -> SegmentLayout:
    """One valid operation later."""
    active = layout.active
    sealed = [key for key, segment in layout.segments.items() if segment.state is SegmentState.SEALED]
    kinds = ["rebucket", "rollover"]
    if any(segment.hash_range.size > 1 for segment in active):
        kinds += ["split", "split"]
    if len(active) > 1:
        kinds += ["merge", "merge"]
    if prune and sealed:
        kinds.append("prune")
    match draw(st.sampled_from(kinds)):
        case "split":
            divisible = [segment for segment in active if segment.hash_range.size > 1]
            chosen = draw(st.lists(st.sampled_from(divisible), min_size=1, max_size=2, unique=True))
            ways = {s.segment_id: draw(st.integers(2, min(4, s.hash_range.size))) for s in chosen}
            change = split(layout, ways, at_ms=at_ms, depth_window_seconds=depth_window_seconds)
        case "merge":
            first = draw(st.integers(0, len(active) - 2))
            several = draw(st.permutations(active[first : first + draw(st.integers(2, 3))]))
            ids = [s.segment_id for s in several]
            change = merge(layout, ids, at_ms=at_ms, depth_window_seconds=depth_window_seconds)
        case "rebucket":
            segment = draw(st.sampled_from(active))
            count = draw(st.integers(1, 16).filter(lambda number: number != segment.bucket_count))
            ids = [segment.segment_id]
            change = rebucket(layout, ids, count, at_ms=at_ms, depth_window_seconds=depth_window_seconds)
        case "rollover":
            ids = [draw(st.sampled_from(active)).segment_id]
            change = rollover(layout, ids, at_ms=at_ms, depth_window_seconds=depth_window_seconds)
        case _:
            gone = draw(st.lists(st.sampled_from(sealed), min_size=1, max_size=3))
            ancestors = {ancestor for segment_id in gone for ancestor in layout.ancestors(segment_id)}
            return layout.prune({*gone, *ancestors})
    ends = st.none() | st.tuples(st.integers(-1, 9), st.integers(-1, 9))
    parents = [parent for replacement in change for parent in replacement.parents]
    terminated = {parent: end for parent in parents if (end := draw(ends)) is not None}
    return layout.apply(change, at_ms=at_ms, terminated=terminated)


def rates(limit: float = 3.0) -> st.SearchStrategy[Rates]:
    """Rates in units of 1,000, often exactly on a line or at zero."""
    rate = st.one_of(st.sampled_from([0.0, 0.5, 1.0, 2.0]), st.floats(0, limit)).map(lambda unit: unit * 1_000)
    return st.tuples(rate, rate, rate, rate)


@st.composite
def policies(draw: Draw, *, enabled: bool | None = None, max_depth: int | None = None) -> AutoScalePolicy:
    """Valid policies, with thresholds that `rates` fall on both sides of."""
    never = draw(st.integers(0, 40))
    merges = [0.0 if metric == never else draw(st.sampled_from([500.0, 1_000.0, 1_400.0])) for metric in range(4)]
    splits = [merge + draw(st.sampled_from([1.0, 600.0, 1_000.0])) for merge in merges]
    minimum = draw(st.sampled_from([1, 1, 1, 2, 4]))
    seconds = st.sampled_from([0, 0, 0, 0.5, 60, 300])
    return AutoScalePolicy(
        enabled=draw(st.sampled_from([True] * 19 + [False])) if enabled is None else enabled,
        min_segments=minimum,
        max_segments=minimum + draw(st.integers(0, 16)),
        max_dag_depth=draw(st.sampled_from([0, 1, 2, 10])) if max_depth is None else max_depth,
        dag_depth_window_seconds=draw(st.sampled_from([0, 0, 0.5, 3_600])),
        max_new_segments_per_evaluation=draw(st.sampled_from([1, 1, 2, 4])),
        split_cooldown_seconds=draw(seconds),
        merge_cooldown_seconds=draw(seconds),
        merge_window_seconds=draw(seconds),
        rebucket_cooldown_seconds=draw(seconds),
        rebucket_down_window_seconds=draw(st.sampled_from([0, 0.5, 60, 300, 300])),
        split_msg_rate_in_threshold=splits[0],
        split_bytes_rate_in_threshold=splits[1],
        split_msg_rate_out_threshold=splits[2],
        split_bytes_rate_out_threshold=splits[3],
        merge_msg_rate_in_threshold=merges[0],
        merge_bytes_rate_in_threshold=merges[1],
        merge_msg_rate_out_threshold=merges[2],
        merge_bytes_rate_out_threshold=merges[3],
        split_vs_rebucket_min_msg_rate_in_threshold=draw(st.sampled_from([0.0, 500.0, 2_500.0, 2_500.0])),
        entry_bucket_budget=draw(st.sampled_from([0, 4, 8])),
        entry_bucket_max_per_segment=draw(st.sampled_from([2, 16, 1024, 1024])),
    )


@st.composite
def views(draw: Draw) -> TopicView:
    """A topic that is all cold, one that is hot, or one with too many consumers; each with a few things out of line."""
    layout = draw(layouts(max_ops=5))
    active = layout.active
    mood = draw(st.sampled_from(["cold", "cold", "hot", "crowded", "crowded"]))
    tick = st.sampled_from([0.0, 50.0, 100.0, 450.0])
    cold = st.builds(KnownLoad, st.tuples(tick, tick, tick, tick), st.sampled_from([300_000, 400_000]))
    wild = st.builds(KnownLoad, rates(), st.sampled_from([0, 300_000, 400_000]))
    busy = st.builds(KnownLoad, st.tuples(st.sampled_from([0.0, 400.0, 500.0, 900.0]), tick, tick, tick))
    usual = {"cold": cold, "hot": wild, "crowded": busy}[mood]
    odd = draw(st.sets(st.sampled_from(active), max_size=2)) if draw(st.booleans()) else set()
    load = {segment.segment_id: draw(wild if segment in odd else usual) for segment in active}
    for segment in odd:
        if draw(st.booleans()):
            del load[segment.segment_id]
    standing = st.sampled_from([0, 499, 500, 3_599_999, 3_600_000])
    few = st.integers(0, max(1, len(active) - 1))
    buckets = sum(segment.bucket_count for segment in active)
    many = st.integers(len(active), len(active) + 3) | st.integers(buckets, buckets + 4)
    kinds = st.sampled_from([*SubscriptionType, *[SubscriptionType.STREAM] * 3])
    connected = many if mood == "crowded" else few
    consumers = st.builds(ConsumerCount, kinds, connected, st.sampled_from([0, 0, 0, 1]))
    since = st.sampled_from([None, None, None, 0, 499, 500, 60_000, 300_000, 300_000])
    return TopicView(
        layout=layout,
        load=load,
        consumers=draw(st.dictionaries(st.sampled_from("abc"), consumers, min_size=mood == "crowded", max_size=2)),
        record_bytes=draw(st.sampled_from([0] * 18 + [524_287, 524_288])),
        since_last_split_ms=draw(since),
        since_last_merge_ms=draw(since),
        since_last_rebucket_ms=draw(since),
        demand_low_ms=draw(st.sampled_from([None, 499, 300_000, 300_000, 300_000])),
        standing_ms={segment.segment_id: draw(standing) for segment in active if draw(st.integers(0, 3))},
    )
