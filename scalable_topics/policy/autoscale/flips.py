"""The smallest change that would flip a finding, ties aside.

Every guard names an input and the line it is on the wrong side of; crossing that line is the smallest change that
lifts it. With all of its guards lifted, nothing holds the finding back any more. A finding that acts is stopped by
the nearest of several lines.
"""

from collections.abc import Iterator
from enum import StrEnum
from functools import cached_property

from msgspec import Struct

from scalable_topics.model.hash_range import RING_SIZE
from scalable_topics.model.load import METRICS, by_metric
from scalable_topics.model.segment import SegmentInfo
from scalable_topics.policy.autoscale.rules import Evaluation, Guard


class Bound(StrEnum):
    AT_LEAST = "at least"
    AT_MOST = "at most"
    ABOVE = "above"
    BELOW = "below"


class Change(Struct, frozen=True):
    """One input of the decision on the other side of a line.

    `input` is a policy field, a metric, or one of `recordBytes`, `consumers` (connected, of the largest ordered
    subscription), `consumersWithRestored`, `streamConsumers`, `coldMs`, `standingMs`, `sinceLastSplitMs`,
    `sinceLastMergeMs`, `sinceLastRebucketMs`, `demandLowMs`.
    """

    input: str
    bound: Bound
    to: float
    segment_id: int | None = None

    def __str__(self) -> str:
        of = "" if self.segment_id is None else f" of segment {self.segment_id}"
        return f"{self.input}{of} {self.bound} {self.to:.10g}"


class Flips:
    """The changes that matter to one evaluation."""

    def __init__(self, evaluation: Evaluation) -> None:
        self.evaluation = evaluation
        self.view = evaluation.view
        self.policy = evaluation.policy

    def lift(self, guards: tuple[Guard, ...], *subject: SegmentInfo) -> tuple[Change, ...] | None:
        """What lifts all of these guards; None if one of them cannot be lifted by a change of the subject's own
        inputs.
        """
        own = [guard for guard in guards if guard is not Guard.EARLIER_RULE]
        if not own or Guard.LOAD_UNKNOWN in own:
            return None  # nothing to lift; or what is missing is a report, and nobody knows what it would say
        changes: dict[tuple[str, int | None], Change] = {}
        for guard in own:
            some = self._lift(guard, subject)
            if some is None:
                return None
            # Of two changes of one input the later is the further one: light enough to stay merged is below cold.
            changes.update({(change.input, change.segment_id): change for change in some})
        return tuple(changes.values())

    def cool(self, segment: SegmentInfo) -> tuple[Change, ...]:
        """What takes a segment out of a split by load: a score at the threshold, or below that of the next in line."""
        bar = self._bar(segment)
        rates = by_metric(self.view.load[segment.segment_id].rates, self.policy.split_thresholds)
        if bar > 1:
            return tuple(
                Change(metric, Bound.BELOW, limit * bar, segment.segment_id)
                for metric, rate, limit in rates
                if rate >= limit * bar
            )
        return tuple(
            Change(metric, Bound.AT_MOST, limit, segment.segment_id) for metric, rate, limit in rates if rate > limit
        )

    def _bar(self, segment: SegmentInfo) -> float:
        """The score to beat: 1, or that of whoever gets the last segment there is to give if this one wants none."""
        if segment.segment_id not in self.evaluation.load_ways:
            return self._last_share
        return self._share_of_the_last([entry for entry in self.evaluation.hot if entry[1] is not segment])

    @cached_property
    def _last_share(self) -> float:
        return self._share_of_the_last(self.evaluation.hot)

    def _share_of_the_last(self, hot: list[tuple[float, SegmentInfo]]) -> float:
        ways = self.evaluation.give_to_hot(hot)
        if sum(ways.values()) - len(ways) < self.evaluation.most_gifts:
            return 1
        scores = {segment.segment_id: score for score, segment in hot}
        return min(scores[segment_id] / (number - 1) for segment_id, number in ways.items())

    def warm(self, pair: tuple[SegmentInfo, SegmentInfo]) -> tuple[Change, ...]:
        """What keeps a pair from being merged: the nearest line above any of its rates."""
        *_, change = min(self._lines_above(pair))
        return (change,)

    def _lines_above(self, pair: tuple[SegmentInfo, SegmentInfo]) -> Iterator[tuple[float, int, int, Change]]:
        """For every rate of the pair: how far up the nearest line is, in merge thresholds, and the change across it."""
        e = self.evaluation
        own = next(coldness for coldness, free in e.free_pairs() if free == pair)
        for segment, other in (pair, pair[::-1]):
            # Another pair is next only if it does not get warmer together with this one.
            rivals = (coldness for coldness, free in e.free_pairs() if segment not in free)
            gap = next(rivals, None)
            a, b = self.view.load[segment.segment_id].rates, self.view.load[other.segment_id].rates
            limits = by_metric(a, b, self.policy.merge_thresholds, self.policy.split_thresholds)
            for index, (metric, x, y, merge, split) in enumerate(limits):
                lines = [(merge, Bound.AT_LEAST), (split - y, Bound.ABOVE)]
                if gap is not None:
                    lines.append((x + (gap - own) * merge, Bound.ABOVE))
                to, bound = min(lines)
                yield (to - x) / merge, index, segment.segment_id, Change(metric, bound, to, segment.segment_id)

    def _lift(self, guard: Guard, subject: tuple[SegmentInfo, ...]) -> tuple[Change, ...] | None:
        e, view, policy = self.evaluation, self.view, self.policy
        match guard:
            case Guard.NO_SURPLUS:
                return (Change("consumers", Bound.AT_LEAST, e.segments + 1),)
            case Guard.MAX_SEGMENTS:
                return (Change("maxSegments", Bound.AT_LEAST, e.segments + 1),)
            case Guard.BELOW_SPLIT_RATE_FLOOR if e.busiest is not None:
                floor = policy.split_vs_rebucket_min_msg_rate_in_threshold
                return (Change(METRICS[0], Bound.AT_LEAST, floor, e.busiest.segment_id),)
            case Guard.SPLIT_COOLDOWN:
                return (Change("sinceLastSplitMs", Bound.AT_LEAST, policy.split_cooldown_seconds * 1000),)
            case Guard.ENOUGH_BUCKETS:
                return (Change("streamConsumers", Bound.AT_LEAST, e.buckets + 1),)
            case Guard.SPLIT_PREFERRED if e.busiest is not None:
                rate = view.load[e.busiest.segment_id].rates[0]
                return (Change("splitVsRebucketMinMsgRateInThreshold", Bound.ABOVE, rate),)
            case Guard.REBUCKET_COOLDOWN:
                return (Change("sinceLastRebucketMs", Bound.AT_LEAST, policy.rebucket_cooldown_seconds * 1000),)
            case Guard.MAX_BUCKETS:
                fewest = min(segment.bucket_count for segment in e.active)
                return (Change("entryBucketMaxPerSegment", Bound.AT_LEAST, fewest + 1),) if fewest < RING_SIZE else None
            case Guard.BELOW_THRESHOLD | Guard.HOTTER_SEGMENT:
                metric = e.hottest_metric(subject[0].segment_id)
                to_beat = self._bar(subject[0]) * policy.split_thresholds[metric]
                return (Change(METRICS[metric], Bound.ABOVE, to_beat, subject[0].segment_id),)
            case Guard.MIN_SEGMENTS:
                return (Change("minSegments", Bound.AT_MOST, e.segments - 1),)
            case Guard.CONSUMERS_NEED_SEGMENTS:
                return (Change("consumersWithRestored", Bound.AT_MOST, e.segments - 1),)
            case Guard.MERGE_COOLDOWN:
                return (Change("sinceLastMergeMs", Bound.AT_LEAST, policy.merge_cooldown_seconds * 1000),)
            case Guard.MERGE_WINDOW:
                window_ms = policy.merge_window_seconds * 1000
                return tuple(
                    Change("coldMs", Bound.AT_LEAST, window_ms, segment.segment_id)
                    for segment in subject
                    if view.load[segment.segment_id].cold_ms < window_ms
                )
            case Guard.NOT_COLD:
                return self._cold_enough(subject)
            case Guard.MAX_DAG_DEPTH:
                return self._shallow_enough(subject)
            case Guard.WOULD_SPLIT_AGAIN:
                return self._light_enough(*subject)
            case Guard.SWITCHED_OFF if view.demand_low_ms:
                return (Change("rebucketDownWindowSeconds", Bound.ABOVE, 0),)
            case Guard.DEMAND_WINDOW:
                return (Change("demandLowMs", Bound.AT_LEAST, policy.rebucket_down_window_seconds * 1000),)
            case _:
                return None

    def _shallow_enough(self, subject: tuple[SegmentInfo, ...]) -> tuple[Change, ...]:
        """Time forgives depth, where the policy lets it; else the cap has to rise. A cap of 0 is not about depth."""
        counted, limit = self.evaluation.counted_depth, self.policy.max_dag_depth
        window_ms = self.policy.dag_depth_window_seconds * 1000
        if window_ms > 0 and limit > 0:
            return tuple(
                Change("standingMs", Bound.AT_LEAST, window_ms, segment.segment_id)
                for segment in subject
                if counted(segment) >= limit
            )
        return (Change("maxDagDepth", Bound.AT_LEAST, max(map(counted, subject)) + 1),)

    def _cold_enough(self, subject: tuple[SegmentInfo, ...]) -> tuple[Change, ...] | None:
        changes = []
        for segment in subject:
            rates = self.view.load[segment.segment_id].rates
            for metric, rate, limit in by_metric(rates, self.policy.merge_thresholds):
                if limit == 0:
                    return None  # a merge threshold of 0 means never
                if rate >= limit:
                    changes.append(Change(metric, Bound.BELOW, limit, segment.segment_id))
        return tuple(changes)

    def _light_enough(self, left: SegmentInfo, right: SegmentInfo) -> tuple[Change, ...]:
        """What the right one must come down to so that both together need no split, once each is cold by itself."""
        a, b = self.view.load[left.segment_id].rates, self.view.load[right.segment_id].rates
        limits = by_metric(a, b, self.policy.merge_thresholds, self.policy.split_thresholds)
        return tuple(
            Change(metric, Bound.AT_MOST, split - min(x, merge), right.segment_id)
            for metric, x, y, merge, split in limits
            if min(x, merge) + min(y, merge) > split
        )
