"""The rules of `tests/conformance/README.md`, written down a second time as plainly as possible.

No heaps, no laziness, no sharing with the product: the text, sentence by sentence. Slow, and only there to disagree.
"""
# ruff: noqa: SIM102, RUF007, PLW3301, C420 - as plain as the text it follows

import math
from collections.abc import Callable, Collection, Mapping, Sequence

from scalable_topics.model.autoscale_policy import AutoScalePolicy
from scalable_topics.model.layout import SegmentLayout
from scalable_topics.model.segment import SegmentInfo
from scalable_topics.policy.assignment import Assignment, Unit
from scalable_topics.policy.autoscale import Decision, Merge, NoAction, Reason, Rebucket, Split, TopicView

METRIC_REASONS = [Reason.MSG_RATE_IN, Reason.BYTES_RATE_IN, Reason.MSG_RATE_OUT, Reason.BYTES_RATE_OUT]


def decide(view: TopicView, policy: AutoScalePolicy) -> Decision:
    """Autoscale, rules 1 to 6."""
    active = list(view.layout.active)
    load = view.load
    ordered = [count for count in view.consumers.values() if count.type != "QUEUE"]
    c = max((count.connected for count in ordered), default=0)
    cs = max((count.connected for count in ordered if count.type == "STREAM"), default=0)
    p = max((count.connected + count.restored for count in ordered), default=0)
    a = len(active)
    buckets = sum(segment.bucket_count for segment in active)
    n = policy.max_new_segments_per_evaluation

    def cooling(since: float | None, seconds: float) -> bool:
        return since is not None and since < seconds * 1000

    splitting_cools = cooling(view.since_last_split_ms, policy.split_cooldown_seconds)
    if not policy.enabled or view.record_bytes >= 524288:
        return NoAction()
    given: dict[int, int] = {}
    if c > a:
        by_rate = {s.segment_id: load[s.segment_id].rates[0] for s in active if s.segment_id in load}
        floor = policy.split_vs_rebucket_min_msg_rate_in_threshold
        given = give(active, by_rate, min(n, c - a, policy.max_segments - a), lambda share: share >= floor)
        if given and not splitting_cools:
            return Split(given, Reason.CONSUMER_COUNT)
    if c > a and not given and cs > buckets:
        if not cooling(view.since_last_rebucket_ms, policy.rebucket_cooldown_seconds):
            target = min(next_power_of_two(math.ceil(cs / a)), policy.entry_bucket_max_per_segment)
            below = sorted(s.segment_id for s in active if s.bucket_count < target)
            if below:
                at_cap = a >= policy.max_segments
                return Rebucket(
                    tuple(below), target, Reason.AT_MAX_SEGMENTS if at_cap else Reason.BELOW_SPLIT_RATE_FLOOR
                )
    if not splitting_cools:
        ratios = {
            s.segment_id: [r / t for r, t in zip(load[s.segment_id].rates, policy.split_thresholds, strict=True)]
            for s in active
            if s.segment_id in load
        }
        scores = {segment_id: max(of) for segment_id, of in ratios.items()}
        given = give(active, scores, min(n, policy.max_segments - a), lambda share: share > 1)
        if given:
            first = next(iter(given))
            return Split(given, METRIC_REASONS[ratios[first].index(scores[first])])
    if a > policy.min_segments and a > p and not cooling(view.since_last_merge_ms, policy.merge_cooldown_seconds):
        pairs = [
            (coldness(view, policy, pair), sorted(s.segment_id for s in pair), pair)
            for pair in zip(active, active[1:], strict=False)
            if may_merge(view, policy, pair, cs=cs, buckets=buckets)
        ]
        if pairs:
            *_, (left, right) = min(pairs, key=lambda entry: entry[:2])
            return Merge((left.segment_id, right.segment_id), Reason.COLD)
    window_ms = policy.rebucket_down_window_seconds * 1000
    if window_ms > 0 and view.demand_low_ms is not None and view.demand_low_ms >= window_ms:
        target = max(max(1, policy.entry_bucket_budget // a), next_power_of_two(math.ceil(cs / a)), 1)
        above = sorted(s.segment_id for s in active if s.bucket_count > target)
        if above:
            return Rebucket(tuple(above), target, Reason.IDLE_BUCKETS)
    return NoAction()


def give(
    active: Sequence[SegmentInfo], values: Mapping[int, float], limit: int, enough: Callable[[float], bool]
) -> dict[int, int]:
    ways: dict[int, int] = {}
    for _ in range(max(0, limit)):
        candidates = [
            (values[s.segment_id] / ways.get(s.segment_id, 1), s)
            for s in active
            if s.segment_id in values and ways.get(s.segment_id, 1) < s.hash_range.size
        ]
        if not candidates:
            break
        share, best = min(
            candidates,
            key=lambda entry: (
                -entry[0],
                ways.get(entry[1].segment_id, 1),
                -entry[1].hash_range.size,
                entry[1].segment_id,
            ),
        )
        if not enough(share):
            break
        ways[best.segment_id] = ways.get(best.segment_id, 1) + 1
    return ways


def next_power_of_two(number: int) -> int:
    power = 1
    while power < number:
        power *= 2
    return power


def may_merge(
    view: TopicView, policy: AutoScalePolicy, pair: tuple[SegmentInfo, SegmentInfo], *, cs: int, buckets: int
) -> bool:
    for segment in pair:
        load = view.load.get(segment.segment_id)
        if load is None or load.cold_ms < policy.merge_window_seconds * 1000:
            return False
        if any(rate >= limit for rate, limit in zip(load.rates, policy.merge_thresholds, strict=True)):
            return False
        stood = view.standing_ms.get(segment.segment_id)
        depth = segment.merge_depth
        if policy.dag_depth_window_seconds > 0:
            if stood is not None and stood >= policy.dag_depth_window_seconds * 1000:
                depth = 0
        if depth >= policy.max_dag_depth:
            return False
    left, right = (view.load[segment.segment_id].rates for segment in pair)
    if any(x + y > limit for x, y, limit in zip(left, right, policy.split_thresholds, strict=True)):
        return False
    together = sum(segment.bucket_count for segment in pair)
    share = max(1, policy.entry_bucket_budget // (len(view.layout.active) - 1))
    after = buckets - together + min(together, share, policy.entry_bucket_max_per_segment)
    return after >= min(cs, buckets)


def coldness(view: TopicView, policy: AutoScalePolicy, pair: tuple[SegmentInfo, SegmentInfo]) -> float:
    of = [
        [rate / limit for rate, limit in zip(view.load[s.segment_id].rates, policy.merge_thresholds, strict=True)]
        for s in pair
    ]
    return sum(of[0]) + sum(of[1])


def assign(
    layout: SegmentLayout, consumers: Collection[str], *, drained: Collection[int], previous: Assignment
) -> Assignment:
    """Assignment (STREAM)."""
    names = sorted(consumers)

    def assignable(segment: SegmentInfo) -> bool:
        if not segment.is_active and segment.segment_id in drained:
            return False
        return all(ancestor in drained for ancestor in layout.ancestors(segment.segment_id))

    segments = sorted(
        (segment for segment in layout.segments.values() if assignable(segment)),
        key=lambda s: (s.hash_range.start, s.hash_range.end, s.segment_id),
    )

    def holds(name: str, segment_id: int) -> bool:
        return any(unit.segment_id == segment_id for unit in previous.get(name, ()))

    def in_previous(segment_id: int) -> bool:
        return any(holds(name, segment_id) for name in previous)

    def all_holders(segment_id: int) -> list[str]:
        if in_previous(segment_id):
            by_bucket = [
                (unit.buckets[0] if unit.buckets else 0, name)
                for name, units in previous.items()
                for unit in units
                if unit.segment_id == segment_id
            ]
            return [name for _, name in sorted(by_bucket)]
        heirs: list[str] = []
        for parent in layout.segments[segment_id].parent_ids:
            heirs += [name for name in all_holders(parent) if name not in heirs]
        return heirs

    def holders(segment: SegmentInfo) -> list[str]:
        return [name for name in all_holders(segment.segment_id) if name in names]

    if not names:
        return {}
    if len(names) <= len(segments):
        return _whole(segments, names, holders, holds)
    return _shared(segments, names, holders, holds, in_previous)


Holders = Callable[[SegmentInfo], list[str]]
Holds = Callable[[str, int], bool]


def _whole(segments: list[SegmentInfo], names: list[str], holders: Holders, holds: Holds) -> Assignment:
    owner: dict[int, str] = {}
    by_id = {segment.segment_id: segment for segment in segments}

    def load(name: str) -> int:
        return sum(who == name for who in owner.values())

    for segment in segments:
        if holders(segment):
            owner[segment.segment_id] = holders(segment)[0]
    for segment in segments:
        if segment.segment_id not in owner:
            owner[segment.segment_id] = min(names, key=lambda name: (load(name), name))
    while max(map(load, names)) - min(map(load, names)) > 1:
        most = max(map(load, names))
        movable = [segment_id for segment_id, name in owner.items() if load(name) == most]
        moved = min(movable, key=lambda i: (holds(owner[i], i), -by_id[i].hash_range.start, -i))
        owner[moved] = min(names, key=lambda name: (load(name), name))
    return {name: tuple(Unit(s.segment_id) for s in segments if owner[s.segment_id] == name) for name in names}


def _shared(
    segments: list[SegmentInfo],
    names: list[str],
    holders: Holders,
    holds: Holds,
    in_previous: Callable[[int], bool],
) -> Assignment:
    sharers: dict[int, list[str]] = {segment.segment_id: [] for segment in segments}
    placed: list[str] = []
    order = {segment.segment_id: index for index, segment in enumerate(segments)}
    size = {segment.segment_id: segment.bucket_count for segment in segments}
    start = {segment.segment_id: segment.hash_range.start for segment in segments}

    def place(segment_id: int, name: str) -> None:
        if name not in placed and len(sharers[segment_id]) < size[segment_id]:
            sharers[segment_id].append(name)
            placed.append(name)

    for wanted in (True, False):
        for segment in segments:
            if in_previous(segment.segment_id) is wanted:
                for name in holders(segment):
                    place(segment.segment_id, name)
    for name in names:
        open_ones = [i for i in sharers if len(sharers[i]) < size[i]]
        if name not in placed and open_ones:
            place(min(open_ones, key=lambda i: (len(sharers[i]), order[i])), name)
    while True:
        open_ones = [i for i in sharers if len(sharers[i]) < size[i]]
        most = max((len(here) for here in sharers.values()), default=0)
        if not open_ones or most - min(len(sharers[i]) for i in open_ones) < 2:
            break
        givers = [i for i in sharers if len(sharers[i]) == most]
        giver = min(givers, key=lambda i: (holds(sharers[i][-1], i), -start[i], -i))
        taker = min(open_ones, key=lambda i: (len(sharers[i]), order[i]))
        sharers[taker].append(sharers[giver].pop())
    assigned: dict[str, tuple[Unit, ...]] = {name: () for name in names}
    for segment_id, here in sharers.items():
        first = 0
        for index, name in enumerate(here):
            width = size[segment_id] // len(here) + (index < size[segment_id] % len(here))
            assigned[name] = (Unit(segment_id, None if len(here) == 1 else (first, first + width - 1)),)
            first += width
    return assigned
