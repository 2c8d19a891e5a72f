"""The rules of `tests/conformance/README.md`, "Autoscale", in the order in which they are asked; the first that fires
wins.

Every rule answers with the guards that hold it back, in order, as an iterator: for the topic as a whole, and, where
it looks at segments or at pairs of them, for each of those. It fires where nothing holds it back. So a decision
costs no more than the first guard of each question, and an explanation is the same questions asked to the end.

The README's letters: `consumers` is C, `stream_consumers` Cs, `protected` P, `segments` A, `buckets` ΣN, and
`max_new_segments_per_evaluation` n.
"""

from collections.abc import Callable, Iterable, Iterator
from enum import StrEnum
from functools import cached_property
from heapq import heapreplace, nsmallest
from itertools import pairwise
from math import inf
from typing import Final

from scalable_topics.model.autoscale_policy import AutoScalePolicy
from scalable_topics.model.entry_buckets import count_for_budget
from scalable_topics.model.load import METRICS, Rates, by_metric
from scalable_topics.model.record import AUTOSCALE_RECORD_LIMIT_BYTES
from scalable_topics.model.segment import SegmentInfo
from scalable_topics.model.subscription import SubscriptionType
from scalable_topics.policy.autoscale.view import Decision, Merge, NoAction, Reason, Rebucket, Split, TopicView


class Rule(StrEnum):
    SWITCH = "SWITCH"
    CONSUMER_SPLIT = "CONSUMER_SPLIT"
    REBUCKET_UP = "REBUCKET_UP"
    LOAD_SPLIT = "LOAD_SPLIT"
    MERGE = "MERGE"
    REBUCKET_DOWN = "REBUCKET_DOWN"


class Guard(StrEnum):
    """What holds a rule back."""

    DISABLED = "DISABLED"
    RECORD_TOO_LARGE = "RECORD_TOO_LARGE"
    EARLIER_RULE = "EARLIER_RULE"
    NO_SURPLUS = "NO_SURPLUS"
    MAX_SEGMENTS = "MAX_SEGMENTS"
    NOTHING_TO_SPLIT = "NOTHING_TO_SPLIT"
    BELOW_SPLIT_RATE_FLOOR = "BELOW_SPLIT_RATE_FLOOR"
    SPLIT_COOLDOWN = "SPLIT_COOLDOWN"
    SPLIT_PREFERRED = "SPLIT_PREFERRED"
    ENOUGH_BUCKETS = "ENOUGH_BUCKETS"
    MAX_BUCKETS = "MAX_BUCKETS"
    REBUCKET_COOLDOWN = "REBUCKET_COOLDOWN"
    LOAD_UNKNOWN = "LOAD_UNKNOWN"
    RANGE_TOO_SMALL = "RANGE_TOO_SMALL"
    BELOW_THRESHOLD = "BELOW_THRESHOLD"
    HOTTER_SEGMENT = "HOTTER_SEGMENT"
    MIN_SEGMENTS = "MIN_SEGMENTS"
    CONSUMERS_NEED_SEGMENTS = "CONSUMERS_NEED_SEGMENTS"
    MERGE_COOLDOWN = "MERGE_COOLDOWN"
    MERGE_WINDOW = "MERGE_WINDOW"
    NOT_COLD = "NOT_COLD"
    MAX_DAG_DEPTH = "MAX_DAG_DEPTH"
    WOULD_SPLIT_AGAIN = "WOULD_SPLIT_AGAIN"
    COLDER_PAIR = "COLDER_PAIR"
    SWITCHED_OFF = "SWITCHED_OFF"
    DEMAND_WINDOW = "DEMAND_WINDOW"
    NOTHING_TO_LOWER = "NOTHING_TO_LOWER"


def decide(view: TopicView, policy: AutoScalePolicy) -> Decision:
    return Evaluation(view, policy).decision


class Evaluation:
    """One look at one topic. Facts are worked out when a rule first asks for them, and once."""

    def __init__(self, view: TopicView, policy: AutoScalePolicy) -> None:
        self.view = view
        self.policy = policy
        self.active = view.layout.active
        self.segments = len(self.active)
        self.max_new = min(policy.max_new_segments_per_evaluation, policy.max_segments - self.segments)
        consumers = stream_consumers = protected = 0
        for count in view.consumers.values():
            if count.type is not SubscriptionType.QUEUE:
                consumers = max(consumers, count.connected)
                protected = max(protected, count.connected + count.restored)
                if count.type is SubscriptionType.STREAM:
                    stream_consumers = max(stream_consumers, count.connected)
        self.consumers = consumers
        """The most that any ordered subscription has."""
        self.stream_consumers = stream_consumers
        self.protected = protected
        """The same with those that may still come back after a failover."""

    @cached_property
    def verdict(self) -> tuple[Rule | None, Decision]:
        """The first rule that fires, and what it wants."""
        if any(self.switch_guards()):
            return Rule.SWITCH, NoAction()
        for rule, fire in RULES:
            decision = fire(self)
            if decision is not None:
                return rule, decision
        return None, NoAction()

    @property
    def decision(self) -> Decision:
        return self.verdict[1]

    def switch_guards(self) -> Iterator[Guard]:
        """Rule 1."""
        if not self.policy.enabled:
            yield Guard.DISABLED
        if self.view.record_bytes >= AUTOSCALE_RECORD_LIMIT_BYTES:
            yield Guard.RECORD_TOO_LARGE

    def consumer_split(self) -> Decision | None:
        """Rule 2."""
        if any(self.consumer_split_guards()):
            return None
        return Split(dict(sorted(self.consumer_ways.items())), Reason.CONSUMER_COUNT)

    def consumer_split_guards(self) -> Iterator[Guard]:
        if self.consumers <= self.segments:
            yield Guard.NO_SURPLUS
        if self.max_new < 1:
            yield Guard.MAX_SEGMENTS
        if self.busiest is None:
            yield Guard.NOTHING_TO_SPLIT
        elif not self._may_split_for_consumers(self.busiest):
            yield Guard.BELOW_SPLIT_RATE_FLOOR
        if _cooling(self.view.since_last_split_ms, self.policy.split_cooldown_seconds):
            yield Guard.SPLIT_COOLDOWN

    @cached_property
    def consumer_ways(self) -> dict[int, int]:
        floor = self.policy.split_vs_rebucket_min_msg_rate_in_threshold
        values = (
            (self.view.load[s.segment_id].rates[0], s)
            for s in self._known_segments()
            if self._may_split_for_consumers(s)
        )
        limit = min(self.max_new, self.consumers - self.segments)
        return give(values, limit=limit, enough=lambda share: share >= floor)

    @cached_property
    def busiest(self) -> SegmentInfo | None:
        """The known segment that a consumer in surplus would split. There is a share above the floor iff it has one."""
        divisible = [segment for segment in self._known_segments() if segment.hash_range.size > 1]
        return min(divisible, key=lambda s: (-self.view.load[s.segment_id].rates[0], *_tie_break(s)), default=None)

    def _may_split_for_consumers(self, segment: SegmentInfo) -> bool:
        rate = self.view.load[segment.segment_id].rates[0]
        return rate >= self.policy.split_vs_rebucket_min_msg_rate_in_threshold

    def _known_segments(self) -> list[SegmentInfo]:
        load = self.view.load
        return [segment for segment in self.active if segment.segment_id in load]

    def rebucket_up(self) -> Decision | None:
        """Rule 3."""
        if any(self.rebucket_up_guards()):
            return None
        target = min(
            _power_of_two(-(-self.stream_consumers // self.segments)), self.policy.entry_bucket_max_per_segment
        )
        below = sorted(segment.segment_id for segment in self.active if segment.bucket_count < target)
        reason = Reason.AT_MAX_SEGMENTS if self.segments >= self.policy.max_segments else Reason.BELOW_SPLIT_RATE_FLOOR
        return Rebucket(tuple(below), target, reason)

    def rebucket_up_guards(self) -> Iterator[Guard]:
        # More STREAM consumers than buckets are always more than segments: nothing else needs asking about the surplus.
        if self.stream_consumers <= self.buckets:
            yield Guard.ENOUGH_BUCKETS
        if self.max_new >= 1 and self.busiest is not None and self._may_split_for_consumers(self.busiest):
            yield Guard.SPLIT_PREFERRED
        if _cooling(self.view.since_last_rebucket_ms, self.policy.rebucket_cooldown_seconds):
            yield Guard.REBUCKET_COOLDOWN
        if min(segment.bucket_count for segment in self.active) >= self.policy.entry_bucket_max_per_segment:
            yield Guard.MAX_BUCKETS

    @cached_property
    def buckets(self) -> int:
        return sum(segment.bucket_count for segment in self.active)

    def load_split(self) -> Decision | None:
        """Rule 4."""
        if any(self.load_split_guards()) or not self.load_ways:
            return None
        first = next(iter(self.load_ways))
        return Split(dict(sorted(self.load_ways.items())), Reason(METRICS[self.hottest_metric(first)]))

    def load_split_guards(self) -> Iterator[Guard]:
        if self.max_new < 1:
            yield Guard.MAX_SEGMENTS
        if _cooling(self.view.since_last_split_ms, self.policy.split_cooldown_seconds):
            yield Guard.SPLIT_COOLDOWN

    def segment_guards(self, segment: SegmentInfo) -> Iterator[Guard]:
        """What keeps one segment out of `load_ways`."""
        if segment.segment_id not in self.view.load:
            yield Guard.LOAD_UNKNOWN
        elif self.score(segment) <= 1:
            yield Guard.BELOW_THRESHOLD
        elif segment.hash_range.size > 1 and segment.segment_id not in self.load_ways:
            yield Guard.HOTTER_SEGMENT
        if segment.hash_range.size == 1:
            yield Guard.RANGE_TOO_SMALL

    @cached_property
    def load_ways(self) -> dict[int, int]:
        """Who gets how many children under load, in the order of the first gift, if the cap leaves room for one."""
        return self.give_to_hot(self.hot)

    def give_to_hot(self, hot: Iterable[tuple[float, SegmentInfo]]) -> dict[int, int]:
        return give(hot, limit=self.most_gifts, enough=lambda share: share > 1)

    @property
    def most_gifts(self) -> int:
        return max(1, self.max_new)

    @cached_property
    def hot(self) -> list[tuple[float, SegmentInfo]]:
        """Score and segment of everything above a split threshold."""
        load = self.view.load
        in_msgs, in_bytes, out_msgs, out_bytes = self.policy.split_thresholds
        found = []
        for segment in self.active:
            known = load.get(segment.segment_id)
            if known is not None:
                a, b, c, d = known.rates
                score = max(a / in_msgs, b / in_bytes, c / out_msgs, d / out_bytes)
                if score > 1:
                    found.append((score, segment))
        return found

    def score(self, segment: SegmentInfo) -> float:
        return max(self._ratios(segment.segment_id))

    def hottest_metric(self, segment_id: int) -> int:
        ratios = self._ratios(segment_id)
        return ratios.index(max(ratios))

    def _ratios(self, segment_id: int) -> Rates:
        a, b, c, d = self.view.load[segment_id].rates
        in_msgs, in_bytes, out_msgs, out_bytes = self.policy.split_thresholds
        return a / in_msgs, b / in_bytes, c / out_msgs, d / out_bytes

    def merge(self) -> Decision | None:
        """Rule 5."""
        pair = None if any(self.merge_guards()) else self.coldest_pair
        return None if pair is None else Merge((pair[0].segment_id, pair[1].segment_id), Reason.COLD)

    def merge_guards(self) -> Iterator[Guard]:
        if self.segments <= self.policy.min_segments:
            yield Guard.MIN_SEGMENTS
        if self.segments <= self.protected:
            yield Guard.CONSUMERS_NEED_SEGMENTS
        if _cooling(self.view.since_last_merge_ms, self.policy.merge_cooldown_seconds):
            yield Guard.MERGE_COOLDOWN

    def cold_guards(self, segment: SegmentInfo) -> Iterator[Guard]:
        """What keeps one segment from being proven cold."""
        known = self.view.load.get(segment.segment_id)
        if known is None:
            yield Guard.LOAD_UNKNOWN
            return
        if known.cold_ms < self.policy.merge_window_seconds * 1000:
            yield Guard.MERGE_WINDOW
        a, b, c, d = known.rates
        in_msgs, in_bytes, out_msgs, out_bytes = self.policy.merge_thresholds
        if not (a < in_msgs and b < in_bytes and c < out_msgs and d < out_bytes):
            yield Guard.NOT_COLD
        limit = self.policy.max_dag_depth
        if segment.merge_depth >= limit and self.counted_depth(segment) >= limit:
            yield Guard.MAX_DAG_DEPTH

    def counted_depth(self, segment: SegmentInfo) -> int:
        """The depth that the cap is held against: none of it once the segment is known to have stood for the window."""
        window_ms = self.policy.dag_depth_window_seconds * 1000
        standing_ms = self.view.standing_ms.get(segment.segment_id)
        forgiven = window_ms > 0 and standing_ms is not None and standing_ms >= window_ms
        return 0 if forgiven else segment.merge_depth

    def pair_guards(self, left: SegmentInfo, right: SegmentInfo) -> Iterator[Guard]:
        """What keeps two neighbours apart, whatever the other pairs do.

        The merged segment's buckets need no guard of their own: `merge_guards` has made sure that the segments left
        over, each with a bucket at least, are as many as the consumers.
        """
        yield from dict.fromkeys((*self.cold_guards(left), *self.cold_guards(right)))
        load = self.view.load
        if left.segment_id in load and right.segment_id in load and self._would_split_again(left, right):
            yield Guard.WOULD_SPLIT_AGAIN

    def _would_split_again(self, left: SegmentInfo, right: SegmentInfo) -> bool:
        a, b = self.view.load[left.segment_id].rates, self.view.load[right.segment_id].rates
        return any(x + y > limit for _, x, y, limit in by_metric(a, b, self.policy.split_thresholds))

    @cached_property
    def coldest_pair(self) -> tuple[SegmentInfo, SegmentInfo] | None:
        return next((pair for _, pair in self.free_pairs()), None)

    def free_pairs(self) -> Iterator[tuple[float, tuple[SegmentInfo, SegmentInfo]]]:
        """Pairs that nothing keeps apart, with their coldness, coldest first."""
        warmth = [
            None if any(self.cold_guards(segment)) else self._warmth(segment.segment_id) for segment in self.active
        ]
        candidates = [
            (left + right, sorted((self.active[i].segment_id, self.active[i + 1].segment_id)), i)
            for i, (left, right) in enumerate(pairwise(warmth))
            if left is not None and right is not None
        ]
        for coldness, _, i in sorted(candidates):
            pair = self.active[i], self.active[i + 1]
            if not self._would_split_again(*pair):
                yield coldness, pair

    def _warmth(self, segment_id: int) -> float:
        """A segment's rates in units of the merge thresholds; the lower, the colder."""
        a, b, c, d = self.view.load[segment_id].rates
        in_msgs, in_bytes, out_msgs, out_bytes = self.policy.merge_thresholds
        return a / in_msgs + b / in_bytes + c / out_msgs + d / out_bytes

    def rebucket_down(self) -> Decision | None:
        """Rule 6."""
        if any(self.rebucket_down_guards()):
            return None
        above = sorted(segment.segment_id for segment in self.active if segment.bucket_count > self.idle_target)
        return Rebucket(tuple(above), self.idle_target, Reason.IDLE_BUCKETS)

    def rebucket_down_guards(self) -> Iterator[Guard]:
        window_ms = self.policy.rebucket_down_window_seconds * 1000
        if window_ms <= 0:
            yield Guard.SWITCHED_OFF
        if self.view.demand_low_ms is None or self.view.demand_low_ms < window_ms:
            yield Guard.DEMAND_WINDOW
        if max(segment.bucket_count for segment in self.active) <= self.idle_target:
            yield Guard.NOTHING_TO_LOWER

    @cached_property
    def idle_target(self) -> int:
        """Buckets per segment that the consumers there are, or the budget, ask for."""
        share = count_for_budget(self.policy.entry_bucket_budget, self.segments)
        return max(share, _power_of_two(-(-self.stream_consumers // self.segments)))


RULES: Final[tuple[tuple[Rule, Callable[[Evaluation], Decision | None]], ...]] = (
    (Rule.CONSUMER_SPLIT, Evaluation.consumer_split),
    (Rule.REBUCKET_UP, Evaluation.rebucket_up),
    (Rule.LOAD_SPLIT, Evaluation.load_split),
    (Rule.MERGE, Evaluation.merge),
    (Rule.REBUCKET_DOWN, Evaluation.rebucket_down),
)


def give(values: Iterable[tuple[float, SegmentInfo]], *, limit: int, enough: Callable[[float], bool]) -> dict[int, int]:
    """Give up to `limit` new segments, one at a time, to whoever has the highest share (value / ways so far) while
    that is enough.

    Ties: fewer ways, wider range, lower id. Never more ways than hash values in the range. Keys in the order of the
    first gift.
    """
    # Whoever is not among the first `limit` now gets nothing: each of those would have to be given something first.
    shares = ((-value, 1, *_tie_break(segment), value) for value, segment in values if segment.hash_range.size > 1)
    heap = nsmallest(limit, shares)
    ways: dict[int, int] = {}
    while heap and limit > 0 and enough(-heap[0][0]):
        _, so_far, negative_size, segment_id, value = heap[0]
        ways[segment_id] = so_far + 1
        limit -= 1
        # A full segment stays in the heap with no share left, so that one replacement is all a gift costs.
        share = value / (so_far + 1) if so_far + 1 < -negative_size else -inf
        heapreplace(heap, (-share, so_far + 1, negative_size, segment_id, value))
    return ways


def _tie_break(segment: SegmentInfo) -> tuple[int, int]:
    return -segment.hash_range.size, segment.segment_id


def _cooling(since_ms: float | None, cooldown_seconds: float) -> bool:
    """A cool-down is over when exactly elapsed."""
    return since_ms is not None and since_ms < cooldown_seconds * 1000


def _power_of_two(number: int) -> int:
    """The next power of two at or above it."""
    return 1 << max(0, number - 1).bit_length()
