"""Why autoscaling did what it did, and what would have changed its mind.

An explanation lists what every rule saw, in the order of the rules; its last line is the decision. Each finding has
the number that was observed, the number it was held against, everything that held the rule back, and the smallest
change of the inputs that would flip it: that would make a silent rule fire, or take the subject of a firing one out
of the decision.
"""

from collections.abc import Iterator
from enum import StrEnum
from functools import cached_property
from itertools import pairwise
from math import inf

from msgspec import Struct

from scalable_topics.model.autoscale_policy import AutoScalePolicy
from scalable_topics.model.hash_range import RING_SIZE
from scalable_topics.model.load import METRICS
from scalable_topics.model.record import AUTOSCALE_RECORD_LIMIT_BYTES
from scalable_topics.model.segment import SegmentInfo
from scalable_topics.policy.autoscale.rules import Evaluation, Guard, Rule
from scalable_topics.policy.autoscale.view import Decision, Merge, NoAction, Rebucket, Split, TopicView


class Bound(StrEnum):
    AT_LEAST = "at least"
    AT_MOST = "at most"
    ABOVE = "above"
    BELOW = "below"


class Change(Struct, frozen=True):
    """One input of the decision on the other side of a line.

    `input` is a policy field, a metric, or one of `recordBytes`, `consumers` (connected, of the largest ordered
    subscription), `consumersWithRestored`, `streamConsumers`, `coldMs`, `sinceLastSplitMs`, `sinceLastMergeMs`,
    `sinceLastRebucketMs`, `demandLowMs`.
    """

    input: str
    bound: Bound
    to: float
    segment_id: int | None = None

    def __str__(self) -> str:
        of = "" if self.segment_id is None else f" of segment {self.segment_id}"
        return f"{self.input}{of} {self.bound} {self.to:.10g}"


class Finding(Struct, frozen=True):
    """What one rule saw when it looked at one subject."""

    rule: Rule
    subject: tuple[int, ...]
    """Segments; empty = the topic as a whole."""
    measure: str
    observed: float | None
    """None = unknown."""
    threshold: float
    guards: tuple[Guard, ...]
    """Everything that holds the rule back here, most telling first; empty = it acts."""
    flip: tuple[Change, ...] | None
    """All of these together, and nothing less, flip it. None = nothing about this subject alone would."""

    @property
    def acts(self) -> bool:
        return not self.guards

    @property
    def guard(self) -> Guard | None:
        return self.guards[0] if self.guards else None

    @property
    def margin(self) -> float | None:
        """How far past the threshold, in units of it; negative = short of it."""
        return None if self.observed is None or not self.threshold else self.observed / self.threshold - 1

    def __str__(self) -> str:
        where = f" {list(self.subject)}" if self.subject else ""
        seen = "unknown" if self.observed is None else f"{self.observed:.6g}"
        verdict = "acts" if self.acts else "held back by " + ", ".join(self.guards)
        unless = "" if not self.flip else f"; flips with {' and '.join(map(str, self.flip))}"
        return f"{self.rule}{where}: {self.measure} {seen} against {self.threshold:.6g}: {verdict}{unless}"


class Explanation(Struct, frozen=True):
    """Every rule's findings, and the decision they add up to."""

    findings: tuple[Finding, ...]
    rule: Rule | None
    """The rule that decided; None = none fired."""
    decision: Decision

    def __str__(self) -> str:
        return "\n".join([*map(str, self.findings), f"decision: {describe(self.decision)}"])


def describe(decision: Decision) -> str:
    match decision:
        case Split(ways=ways, reason=reason):
            what = ", ".join(f"segment {segment_id} into {count}" for segment_id, count in ways.items())
            return f"split {what} ({reason})"
        case Merge(segment_ids=(left, right), reason=reason):
            return f"merge segments {left} and {right} ({reason})"
        case Rebucket(segment_ids=segment_ids, bucket_count=count, reason=reason):
            return f"give segments {list(segment_ids)} {count} buckets ({reason})"
        case NoAction():
            return "leave it as it is"


def explain(view: TopicView, policy: AutoScalePolicy) -> Explanation:
    evaluation = Evaluation(view, policy)
    rule, decision = evaluation.verdict
    return Explanation(tuple(_Telling(evaluation).findings()), rule, decision)


class _Telling:
    """Turns what the rules answer into findings."""

    def __init__(self, evaluation: Evaluation) -> None:
        self.evaluation = evaluation
        self.view = evaluation.view
        self.policy = evaluation.policy

    def findings(self) -> Iterator[Finding]:
        e = self.evaluation
        switch = tuple(e.switch_guards())
        yield self._switch("enabled", float(self.policy.enabled), 1, Guard.DISABLED in switch, Guard.DISABLED)
        size = self.view.record_bytes
        limit = AUTOSCALE_RECORD_LIMIT_BYTES
        yield self._switch("recordBytes", size, limit, Guard.RECORD_TOO_LARGE in switch, Guard.RECORD_TOO_LARGE)
        fired = e.verdict[0]
        passed_over: tuple[Guard, ...] = (Guard.EARLIER_RULE,) if fired is Rule.SWITCH else ()
        for rule, tell in (
            (Rule.CONSUMER_SPLIT, self._consumer_split),
            (Rule.REBUCKET_UP, self._rebucket_up),
            (Rule.LOAD_SPLIT, self._load_split),
            (Rule.MERGE, self._merge),
            (Rule.REBUCKET_DOWN, self._rebucket_down),
        ):
            yield from tell(passed_over)
            if rule is fired:
                passed_over = (Guard.EARLIER_RULE,)

    def _switch(self, measure: str, observed: float, threshold: float, tripped: bool, guard: Guard) -> Finding:
        # `enabled` holds autoscaling back below its line, the size of the record from its line on.
        back = Bound.BELOW if (guard is Guard.DISABLED) is not tripped else Bound.AT_LEAST
        guards = (guard,) if tripped else ()
        return Finding(Rule.SWITCH, (), measure, observed, threshold, guards, (Change(measure, back, threshold),))

    def _consumer_split(self, passed_over: tuple[Guard, ...]) -> Iterator[Finding]:
        e = self.evaluation
        guards = (*e.consumer_split_guards(), *passed_over)
        stop = (Change("consumers", Bound.AT_MOST, e.segments),)
        flip = self._flip(guards) if guards else stop
        yield Finding(Rule.CONSUMER_SPLIT, (), "consumers", e.consumers, e.segments, guards, flip)

    def _rebucket_up(self, passed_over: tuple[Guard, ...]) -> Iterator[Finding]:
        e = self.evaluation
        guards = (*e.rebucket_up_guards(), *passed_over)
        stop = (Change("streamConsumers", Bound.AT_MOST, e.buckets),)
        flip = self._flip(guards) if guards else stop
        yield Finding(Rule.REBUCKET_UP, (), "streamConsumers", e.stream_consumers, e.buckets, guards, flip)

    def _load_split(self, passed_over: tuple[Guard, ...]) -> Iterator[Finding]:
        e = self.evaluation
        topic_guards = (*e.load_split_guards(), *passed_over)
        for segment in e.active:
            known = self.view.load.get(segment.segment_id)
            guards = topic_guards
            if segment.hash_range.size < 2:
                guards = (Guard.RANGE_TOO_SMALL, *guards)
            if known is None:
                guards = (Guard.LOAD_UNKNOWN, *guards)
            elif segment.segment_id not in self._load_ways:
                guards = (Guard.HOTTER_SEGMENT if e.score(segment) > 1 else Guard.BELOW_THRESHOLD, *guards)
            metric = e.hottest_metric(segment.segment_id) if known else 0
            yield Finding(
                Rule.LOAD_SPLIT,
                (segment.segment_id,),
                METRICS[metric],
                known.rates[metric] if known else None,
                self.policy.split_thresholds[metric],
                guards,
                self._flip(guards, segment) if guards else self._cooled(segment),
            )

    @cached_property
    def _load_ways(self) -> dict[int, int]:
        """Who would be split if the cap left room for at least one."""
        return self.evaluation.load_ways(max(1, self.evaluation.max_new))

    @cached_property
    def _bar(self) -> float:
        """The score to beat: 1, or that of the last one that was given a segment when there were no more to give."""
        ways, e = self._load_ways, self.evaluation
        if sum(ways.values()) - len(ways) < max(1, e.max_new):
            return 1
        return min(e.score(self.view.layout.segments[segment_id]) / (number - 1) for segment_id, number in ways.items())

    def _cooled(self, segment: SegmentInfo) -> tuple[Change, ...]:
        rates = self.view.load[segment.segment_id].rates
        return tuple(
            Change(metric, Bound.AT_MOST, limit, segment.segment_id)
            for metric, rate, limit in zip(METRICS, rates, self.policy.split_thresholds, strict=True)
            if rate > limit
        )

    def _merge(self, passed_over: tuple[Guard, ...]) -> Iterator[Finding]:
        e = self.evaluation
        topic_guards = (*e.merge_guards(), *passed_over)
        for pair in pairwise(e.active):
            colder = (Guard.COLDER_PAIR,) if e.coldest_pair not in (None, pair) else ()
            guards = (*e.pair_guards(*pair), *topic_guards, *colder)
            metric, warmest = self._warmest(pair)
            yield Finding(
                Rule.MERGE,
                (pair[0].segment_id, pair[1].segment_id),
                METRICS[metric],
                None if warmest is None else self.view.load[warmest.segment_id].rates[metric],
                self.policy.merge_thresholds[metric],
                guards,
                self._flip(guards, *pair) if guards or warmest is None else self._warmed(warmest, metric),
            )

    def _warmest(self, pair: tuple[SegmentInfo, SegmentInfo]) -> tuple[int, SegmentInfo | None]:
        """The rate that is nearest to its merge threshold, or furthest past it, and whose it is."""
        if any(segment.segment_id not in self.view.load for segment in pair):
            return 0, None
        candidates = (
            (self.view.load[segment.segment_id].rates[metric] / limit if limit else inf, metric, segment)
            for metric, limit in enumerate(self.policy.merge_thresholds)
            for segment in pair
        )
        _, metric, segment = max(candidates, key=lambda candidate: candidate[0])
        return metric, segment

    def _warmed(self, segment: SegmentInfo, metric: int) -> tuple[Change, ...]:
        return (Change(METRICS[metric], Bound.AT_LEAST, self.policy.merge_thresholds[metric], segment.segment_id),)

    def _rebucket_down(self, passed_over: tuple[Guard, ...]) -> Iterator[Finding]:
        guards = (*self.evaluation.rebucket_down_guards(), *passed_over)
        window_ms = self.policy.rebucket_down_window_seconds * 1000
        stop = (Change("demandLowMs", Bound.BELOW, window_ms),)
        flip = self._flip(guards) if guards else stop
        yield Finding(Rule.REBUCKET_DOWN, (), "demandLowMs", self.view.demand_low_ms, window_ms, guards, flip)

    def _flip(self, guards: tuple[Guard, ...], *subject: SegmentInfo) -> tuple[Change, ...] | None:
        """What lifts all of these guards; None if one of them cannot be lifted by a change of the subject's own
        inputs.
        """
        if Guard.LOAD_UNKNOWN in guards:
            return None  # what is missing is a report, and nobody knows what it would say
        changes: dict[tuple[str, int | None], Change] = {}
        for guard in guards:
            lift = self._lift(guard, subject)
            if lift is None:
                return None
            # Of two changes of one input the later is the further one: light enough to stay merged is below cold.
            changes.update({(change.input, change.segment_id): change for change in lift})
        return tuple(changes.values())

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
                to_beat = self._bar * policy.split_thresholds[metric]
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
                return (Change("maxDagDepth", Bound.AT_LEAST, max(segment.merge_depth for segment in subject) + 1),)
            case Guard.WOULD_SPLIT_AGAIN:
                return self._light_enough(*subject)
            case Guard.SWITCHED_OFF if view.demand_low_ms:
                return (Change("rebucketDownWindowSeconds", Bound.ABOVE, 0),)
            case Guard.DEMAND_WINDOW if policy.rebucket_down_window_seconds > 0:
                return (Change("demandLowMs", Bound.AT_LEAST, policy.rebucket_down_window_seconds * 1000),)
            case _:
                return None

    def _cold_enough(self, subject: tuple[SegmentInfo, ...]) -> tuple[Change, ...] | None:
        changes = []
        for segment in subject:
            rates = self.view.load[segment.segment_id].rates
            for metric, rate, limit in zip(METRICS, rates, self.policy.merge_thresholds, strict=True):
                if limit == 0:
                    return None  # a merge threshold of 0 means never
                if rate >= limit:
                    changes.append(Change(metric, Bound.BELOW, limit, segment.segment_id))
        return tuple(changes)

    def _light_enough(self, left: SegmentInfo, right: SegmentInfo) -> tuple[Change, ...]:
        """What the right one must come down to so that both together need no split, once each is cold by itself."""
        a, b = self.view.load[left.segment_id].rates, self.view.load[right.segment_id].rates
        limits = zip(METRICS, a, b, self.policy.merge_thresholds, self.policy.split_thresholds, strict=True)
        return tuple(
            Change(metric, Bound.AT_MOST, split - min(x, merge), right.segment_id)
            for metric, x, y, merge, split in limits
            if min(x, merge) + min(y, merge) > split
        )
