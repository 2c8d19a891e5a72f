"""What hypothesis draws: layouts as operations leave them, valid policies, loads and consumers around thresholds."""

from hypothesis import strategies as st

from scalable_topics.model.autoscale_policy import AutoScalePolicy
from scalable_topics.model.layout import SegmentLayout, initial_layout
from scalable_topics.model.load import Rates
from scalable_topics.model.names import TopicName
from scalable_topics.model.replacements import merge, rebucket, split
from scalable_topics.model.segment import SegmentState
from scalable_topics.model.subscription import SubscriptionType
from scalable_topics.policy.autoscale import ConsumerCount, KnownLoad, TopicView
from scalable_topics.policy.migration import plan_migration

TOPIC = TopicName.parse("topic://tenant/ns/orders")

Draw = st.DrawFn


@st.composite
def layouts(draw: Draw, *, max_ops: int = 8, max_initial: int = 5, prune: bool = True) -> SegmentLayout:
    """A layout with a history."""
    budget = draw(st.integers(0, 16))
    if draw(st.integers(0, 4)):
        layout = initial_layout(draw(st.integers(1, max_initial)), bucket_budget=budget, at_ms=1)
    else:
        topic = TopicName.parse("persistent://tenant/ns/orders")
        partitions = draw(st.integers(0, max_initial))
        layout = plan_migration(topic, partitions, bucket_budget=budget, subscriptions=(), now_ms=1).after
    for number in range(draw(st.integers(0, max_ops))):
        layout = draw(next_layouts(layout, at_ms=number + 2, prune=prune))
    return layout


@st.composite
def next_layouts(draw: Draw, layout: SegmentLayout, *, at_ms: int, prune: bool = True) -> SegmentLayout:
    """One valid operation later."""
    active = layout.active
    sealed = [key for key, segment in layout.segments.items() if segment.state is SegmentState.SEALED]
    kinds = ["rebucket"]
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
            return layout.apply(split(layout, ways, at_ms=at_ms), at_ms=at_ms)
        case "merge":
            first = draw(st.integers(0, len(active) - 2))
            several = draw(st.permutations(active[first : first + draw(st.integers(2, 3))]))
            return layout.apply(merge(layout, [s.segment_id for s in several], at_ms=at_ms), at_ms=at_ms)
        case "rebucket":
            segment = draw(st.sampled_from(active))
            count = draw(st.integers(1, 16).filter(lambda number: number != segment.bucket_count))
            return layout.apply(rebucket(layout, [segment.segment_id], count, at_ms=at_ms), at_ms=at_ms)
        case _:
            gone = draw(st.lists(st.sampled_from(sealed), min_size=1, max_size=3))
            ancestors = {ancestor for segment_id in gone for ancestor in layout.ancestors(segment_id)}
            return layout.prune({*gone, *ancestors})


def rates(limit: float = 3.0) -> st.SearchStrategy[Rates]:
    """Rates in units of 1,000, often exactly on a line or at zero."""
    rate = st.one_of(st.sampled_from([0.0, 0.5, 1.0, 2.0]), st.floats(0, limit)).map(lambda unit: unit * 1_000)
    return st.tuples(rate, rate, rate, rate)


@st.composite
def policies(draw: Draw, *, enabled: bool | None = None) -> AutoScalePolicy:
    """Valid policies, with thresholds that `rates` fall on both sides of."""
    merges = [draw(st.sampled_from([0.0, 500.0, 1_000.0, 1_400.0])) for _ in range(4)]
    splits = [merge + draw(st.sampled_from([1.0, 600.0, 1_000.0])) for merge in merges]
    minimum = draw(st.integers(1, 4))
    seconds = st.sampled_from([0, 0.5, 60, 300])
    return AutoScalePolicy(
        enabled=draw(st.sampled_from([True, True, True, False])) if enabled is None else enabled,
        min_segments=minimum,
        max_segments=minimum + draw(st.integers(0, 12)),
        max_dag_depth=draw(st.integers(0, 4)),
        max_new_segments_per_evaluation=draw(st.integers(1, 4)),
        split_cooldown_seconds=draw(seconds),
        merge_cooldown_seconds=draw(seconds),
        merge_window_seconds=draw(seconds),
        rebucket_cooldown_seconds=draw(seconds),
        rebucket_down_window_seconds=draw(seconds),
        split_msg_rate_in_threshold=splits[0],
        split_bytes_rate_in_threshold=splits[1],
        split_msg_rate_out_threshold=splits[2],
        split_bytes_rate_out_threshold=splits[3],
        merge_msg_rate_in_threshold=merges[0],
        merge_bytes_rate_in_threshold=merges[1],
        merge_msg_rate_out_threshold=merges[2],
        merge_bytes_rate_out_threshold=merges[3],
        split_vs_rebucket_min_msg_rate_in_threshold=draw(st.sampled_from([0.0, 500.0, 2_500.0])),
        entry_bucket_budget=draw(st.integers(0, 8)),
        entry_bucket_max_per_segment=draw(st.sampled_from([1, 2, 8, 1024])),
    )


@st.composite
def views(draw: Draw) -> TopicView:
    layout = draw(layouts(max_ops=6))
    since = st.one_of(st.none(), st.sampled_from([0, 499, 500, 59_999, 60_000, 300_000]))
    consumers = st.builds(
        ConsumerCount, st.sampled_from(SubscriptionType), st.integers(0, 2 * len(layout.active) + 2), st.integers(0, 2)
    )
    # Mostly alike and mostly cold, so that merges and ties are not a rarity.
    usual = draw(rates(0.6))
    known = st.builds(KnownLoad, st.one_of(st.just(usual), rates()), st.sampled_from([0, 300_000, 300_000, 400_000]))
    loads = {segment.segment_id: draw(st.one_of(known, known, known, st.none())) for segment in layout.active}
    return TopicView(
        layout=layout,
        load={segment_id: load for segment_id, load in loads.items() if load is not None},
        consumers=draw(st.dictionaries(st.sampled_from("abc"), consumers, max_size=2)),
        record_bytes=draw(st.sampled_from([0, 0, 0, 524_287, 524_288])),
        since_last_split_ms=draw(since),
        since_last_merge_ms=draw(since),
        since_last_rebucket_ms=draw(since),
        demand_low_ms=draw(since),
    )
