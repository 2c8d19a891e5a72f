"""A topic under load, without a cluster: the real rules on a clock that only moves when asked to.

`step` is one evaluation: load becomes reports by the material-change rule, reports become a view, the view a
decision, and the decision the next layout, all by the functions that run in production. What it leaves out is the
time an operation takes, and failure.
"""

from collections.abc import Callable, Mapping

from msgspec import Struct
from msgspec.structs import replace

from scalable_topics.model.autoscale_policy import AutoScalePolicy
from scalable_topics.model.hash_range import RING_SIZE
from scalable_topics.model.layout import SegmentLayout, initial_layout
from scalable_topics.model.load import Rates
from scalable_topics.model.record import TopicRecord, encode_record
from scalable_topics.model.segment import SegmentInfo
from scalable_topics.policy.autoscale import (
    ConsumerCount,
    Decision,
    KnownLoad,
    LowDemand,
    Merge,
    NoAction,
    Rebucket,
    Split,
    TopicView,
    decide,
    follow_demand,
    replacements_of,
    standing_times,
)
from scalable_topics.policy.cooldowns import LastOperations
from scalable_topics.policy.load_reports import DEFAULT_CHANGE_THRESHOLD, Sample, Spell, continue_spell, report
from scalable_topics.policy.retention import sweep

_REPORTER = "rehearsal"
_SESSION = 1
_INCARNATION = "0" * 16

LoadOf = Callable[[SegmentInfo], Rates]
"""The load that lands on a segment right now."""


class Rehearsal(Struct, frozen=True, kw_only=True):
    """Where a rehearsed topic stands."""

    layout: SegmentLayout
    loads: Mapping[int, Spell] = {}
    last: LastOperations = LastOperations()
    demand: LowDemand | None = None


class Step(Struct, frozen=True, kw_only=True):
    """One evaluation: what was seen, what was decided, and what came of it."""

    view: TopicView
    decision: Decision
    after: Rehearsal


def begin(*, segments: int, policy: AutoScalePolicy, now_ms: int) -> Rehearsal:
    return Rehearsal(layout=initial_layout(segments, bucket_budget=policy.entry_bucket_budget, at_ms=now_ms))


def step(
    before: Rehearsal, *, now_ms: int, load_of: LoadOf, consumers: Mapping[str, ConsumerCount], policy: AutoScalePolicy
) -> Step:
    """Measure, decide, apply and sweep, at `now_ms`."""
    loads = _measure(before, load_of, policy, now_ms)
    view = _view(before, loads, consumers, now_ms)
    demand = follow_demand(before.demand, view, policy, now_ms=now_ms)
    view = replace(view, demand_low_ms=None if demand is None else now_ms - demand.since_ms)
    decision = decide(view, policy)
    change = replacements_of(decision, before.layout, policy, at_ms=now_ms)
    layout = before.layout.apply(change, at_ms=now_ms) if change else before.layout
    swept = sweep(layout, now_ms=now_ms, retention_minutes=0, drained={})
    after = Rehearsal(
        layout=layout.prune(swept.prune) if swept.prune else layout,
        loads=loads,
        last=_last(before.last, decision, now_ms),
        demand=demand,
    )
    return Step(view=view, decision=decision, after=after)


def density_load(density: Callable[[int, int], float], per_unit: Rates) -> LoadOf:
    """Load spread over the ring: `density(start, end)` is the share of a range, inclusive, `per_unit` the topic's
    whole load.
    """

    def load_of(segment: SegmentInfo) -> Rates:
        share = density(segment.hash_range.start, segment.hash_range.end)
        a, b, c, d = per_unit
        return a * share, b * share, c * share, d * share

    return load_of


def even(start: int, end: int) -> float:
    return (end - start + 1) / RING_SIZE


def _measure(before: Rehearsal, load_of: LoadOf, policy: AutoScalePolicy, now_ms: int) -> dict[int, Spell]:
    loads = {}
    for segment in before.layout.active:
        known = before.loads.get(segment.segment_id)
        written = report(
            known.load if known else None,
            Sample(rates=load_of(segment), at_ms=now_ms, reporter=_REPORTER, reporter_session=_SESSION),
            in_record=True,
            change_threshold=DEFAULT_CHANGE_THRESHOLD,
            thresholds=policy.thresholds,
        )
        if written is not None:
            loads[segment.segment_id] = continue_spell(
                known, written, seen_at_ms=now_ms, merge_thresholds=policy.merge_thresholds
            )
    return loads


def _view(
    before: Rehearsal, loads: Mapping[int, Spell], consumers: Mapping[str, ConsumerCount], now_ms: int
) -> TopicView:
    return TopicView(
        layout=before.layout,
        load={
            segment_id: KnownLoad(
                spell.load.rates,
                spell.cold_ms(now_ms=now_ms, monotonic_ms=now_ms),
            )
            for segment_id, spell in loads.items()
        },
        consumers=consumers,
        record_bytes=len(encode_record(TopicRecord(incarnation=_INCARNATION, layout=before.layout))),
        since_last_split_ms=_since(before.last.split_at_ms, now_ms),
        since_last_merge_ms=_since(before.last.merge_at_ms, now_ms),
        since_last_rebucket_ms=_since(before.last.rebucket_at_ms, now_ms),
        standing_ms=standing_times(before.layout, now_ms=now_ms),
    )


def _since(at_ms: int | None, now_ms: int) -> int | None:
    return None if at_ms is None else now_ms - at_ms


def _last(last: LastOperations, decision: Decision, now_ms: int) -> LastOperations:
    match decision:
        case Split():
            return replace(last, split_at_ms=now_ms)
        case Merge():
            return replace(last, merge_at_ms=now_ms)
        case Rebucket():
            return replace(last, rebucket_at_ms=now_ms)
        case NoAction():
            return last
