"""Why autoscaling did what it did, and what would have changed its mind.

An explanation lists what every rule saw, in the order of the rules; its last line is the decision. Each finding has
the number that was observed, the number it was held against, everything that held the rule back, and the flip
(`flips`): the smallest change that would make a silent rule fire, or take the subject of a firing one out of the
decision. It is worked out as if that rule were asked alone.
"""

from collections.abc import Iterator
from itertools import pairwise
from math import inf

from msgspec import Struct

from scalable_topics.model.autoscale_policy import AutoScalePolicy
from scalable_topics.model.load import METRICS
from scalable_topics.model.record import AUTOSCALE_RECORD_LIMIT_BYTES
from scalable_topics.model.segment import SegmentInfo
from scalable_topics.policy.autoscale.flips import Bound, Change, Flips
from scalable_topics.policy.autoscale.rules import RULES, Evaluation, Guard, Rule
from scalable_topics.policy.autoscale.view import Decision, Merge, NoAction, Rebucket, Split, TopicView


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
    """All of these together, and none of them alone. None = nobody can say, or it takes more than this subject."""

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

    @property
    def _free(self) -> str:
        return "open" if self.rule is Rule.SWITCH else "acts"

    def __str__(self) -> str:
        where = f" {list(self.subject)}" if self.subject else ""
        seen = "unknown" if self.observed is None else f"{self.observed:.10g}"
        verdict = "held back by " + ", ".join(self.guards) if self.guards else self._free
        unless = "" if not self.flip else f"; flips with {' and '.join(map(str, self.flip))}"
        return f"{self.rule}{where}: {self.measure} {seen} against {self.threshold:.10g}: {verdict}{unless}"


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
        self.flips = Flips(evaluation)

    def findings(self) -> Iterator[Finding]:
        yield from self._switch()
        fired = self.evaluation.verdict[0]
        passed_over: tuple[Guard, ...] = (Guard.EARLIER_RULE,) if fired is Rule.SWITCH else ()
        tell = {
            Rule.CONSUMER_SPLIT: self._consumer_split,
            Rule.REBUCKET_UP: self._rebucket_up,
            Rule.LOAD_SPLIT: self._load_split,
            Rule.MERGE: self._merge,
            Rule.REBUCKET_DOWN: self._rebucket_down,
        }
        for rule, _ in RULES:
            yield from tell[rule](passed_over)
            if rule is fired:
                passed_over = (Guard.EARLIER_RULE,)

    def _switch(self) -> Iterator[Finding]:
        guards = tuple(self.evaluation.switch_guards())
        enabled, size, limit = self.policy.enabled, self.view.record_bytes, AUTOSCALE_RECORD_LIMIT_BYTES
        disabled = tuple(guard for guard in guards if guard is Guard.DISABLED)
        full = tuple(guard for guard in guards if guard is Guard.RECORD_TOO_LARGE)
        on_off = Change("enabled", Bound.AT_LEAST if disabled else Bound.BELOW, 1)
        more_less = Change("recordBytes", Bound.BELOW if full else Bound.AT_LEAST, limit)
        yield Finding(Rule.SWITCH, (), "enabled", float(enabled), 1, disabled, (on_off,))
        yield Finding(Rule.SWITCH, (), "recordBytes", size, limit, full, (more_less,))

    def _consumer_split(self, passed_over: tuple[Guard, ...]) -> Iterator[Finding]:
        e = self.evaluation
        guards = (*e.consumer_split_guards(), *passed_over)
        flip = self.flips.lift(guards) if guards else (Change("consumers", Bound.AT_MOST, e.segments),)
        yield Finding(Rule.CONSUMER_SPLIT, (), "consumers", e.consumers, e.segments, guards, flip)

    def _rebucket_up(self, passed_over: tuple[Guard, ...]) -> Iterator[Finding]:
        e = self.evaluation
        guards = (*e.rebucket_up_guards(), *passed_over)
        flip = self.flips.lift(guards) if guards else (Change("streamConsumers", Bound.AT_MOST, e.buckets),)
        yield Finding(Rule.REBUCKET_UP, (), "streamConsumers", e.stream_consumers, e.buckets, guards, flip)

    def _load_split(self, passed_over: tuple[Guard, ...]) -> Iterator[Finding]:
        e = self.evaluation
        topic_guards = (*e.load_split_guards(), *passed_over)
        for segment in e.active:
            guards = (*e.segment_guards(segment), *topic_guards)
            known = self.view.load.get(segment.segment_id)
            metric = e.hottest_metric(segment.segment_id) if known else 0
            yield Finding(
                Rule.LOAD_SPLIT,
                (segment.segment_id,),
                METRICS[metric],
                known.rates[metric] if known else None,
                self.policy.split_thresholds[metric],
                guards,
                self.flips.lift(guards, segment) if guards else self.flips.cool(segment),
            )

    def _merge(self, passed_over: tuple[Guard, ...]) -> Iterator[Finding]:
        e = self.evaluation
        topic_guards = (*e.merge_guards(), *passed_over)
        for pair in pairwise(e.active):
            colder = (Guard.COLDER_PAIR,) if e.coldest_pair not in (None, pair) else ()
            guards = (*e.pair_guards(*pair), *topic_guards, *colder)
            metric, observed = self._warmest(pair)
            yield Finding(
                Rule.MERGE,
                (pair[0].segment_id, pair[1].segment_id),
                METRICS[metric],
                observed,
                self.policy.merge_thresholds[metric],
                guards,
                self.flips.lift(guards, *pair) if guards else self.flips.warm(pair),
            )

    def _warmest(self, pair: tuple[SegmentInfo, SegmentInfo]) -> tuple[int, float | None]:
        """The rate of the two that is nearest to its merge threshold, or furthest past it."""
        if any(segment.segment_id not in self.view.load for segment in pair):
            return 0, None
        rates = (
            (rate / limit if limit else inf, -metric, rate)
            for metric, limit in enumerate(self.policy.merge_thresholds)
            for rate in (self.view.load[segment.segment_id].rates[metric] for segment in pair)
        )
        _, negative_metric, rate = max(rates)
        return -negative_metric, rate

    def _rebucket_down(self, passed_over: tuple[Guard, ...]) -> Iterator[Finding]:
        guards = (*self.evaluation.rebucket_down_guards(), *passed_over)
        window_ms = self.policy.rebucket_down_window_seconds * 1000
        flip = self.flips.lift(guards) if guards else (Change("demandLowMs", Bound.BELOW, window_ms),)
        yield Finding(Rule.REBUCKET_DOWN, (), "demandLowMs", self.view.demand_low_ms, window_ms, guards, flip)
