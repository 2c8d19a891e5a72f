"""When a load report is worth writing, and when one is worth believing (PROTOCOL 8).

Steady silence, a dead reporter and an unknown segment are three different things: a report is written only on a
material change, so its age proves how long the load has been what it is; and it counts only while its reporter is
alive and sweeping.
"""

from collections.abc import Iterable, Mapping
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from scalable_topics.model.load import Rates, SegmentLoadStats, SweepHeartbeat, Thresholds, by_metric
from scalable_topics.model.names import Domain

DEFAULT_CHANGE_THRESHOLD: Final = 0.25
MAX_CLOCK_SKEW_MS: Final = 5_000
"""A broker whose clock is further off than this proves nothing by its time stamps."""


def is_material(last: Rates | None, current: Rates, *, change_threshold: float, thresholds: Thresholds) -> bool:
    """Is this news? Nothing was written yet; a rate left its band, or zero; or it crossed a line at which somebody
    would act.
    """
    if last is None:
        return True
    return any(
        abs(now - before) > change_threshold * before
        or (now > split) is not (before > split)
        or (now < merge) is not (before < merge)
        for _, before, now, split, merge in by_metric(last, current, thresholds.split, thresholds.merge)
    )


class Sample(Struct, frozen=True, kw_only=True):
    """What a reporter measured."""

    rates: Rates
    at_ms: int
    reporter: str
    reporter_session: int


def report(
    stored: SegmentLoadStats | None,
    sample: Sample,
    *,
    in_record: bool,
    change_threshold: float,
    thresholds: Thresholds,
) -> SegmentLoadStats | None:
    """What to keep in the store after a sample: the same object when there is nothing to write.

    A change of owner is not a change of load: another reporter takes the record over and leaves its clock alone. A
    segment that has left the topic's record is never written again.
    """
    if not in_record:
        return stored
    if stored is None or is_material(
        stored.rates, sample.rates, change_threshold=change_threshold, thresholds=thresholds
    ):
        msg_rate_in, bytes_rate_in, msg_rate_out, bytes_rate_out = sample.rates
        return SegmentLoadStats(
            msg_rate_in=msg_rate_in,
            bytes_rate_in=bytes_rate_in,
            msg_rate_out=msg_rate_out,
            bytes_rate_out=bytes_rate_out,
            changed_at_ms=sample.at_ms,
            reporter=sample.reporter,
            reporter_session=sample.reporter_session,
        )
    if (stored.reporter, stored.reporter_session) == (sample.reporter, sample.reporter_session):
        return stored
    return replace(stored, reporter=sample.reporter, reporter_session=sample.reporter_session)


class Spell(Struct, frozen=True):
    """A run of reports that all say the same: below every merge threshold. Anything else is a run of one."""

    load: SegmentLoadStats
    since_ms: int
    """Wall clock: when the first of them was written."""
    seen_at_ms: float
    """The leader's own monotonic clock: when it saw the first of them."""
    merge_thresholds: Rates

    def cold_ms(self, *, now_ms: int, monotonic_ms: float, clock_trusted: bool = True) -> float:
        """How long it has lasted, as evidence for a merge. The stamps of a clock that is not trusted are none; the
        rates are what they are, and may still split.
        """
        if not clock_trusted:
            return 0
        return cold_ms(now_ms=now_ms, changed_at_ms=self.since_ms, seen_for_ms=monotonic_ms - self.seen_at_ms)


def continue_spell(
    before: Spell | None, load: SegmentLoadStats, *, seen_at_ms: float, merge_thresholds: Rates
) -> Spell:
    """What a leader knows after one more report.

    A load that wobbles between two cold values is as cold as a steady one, so such a report does not start the clock
    anew. A change of policy does: what was below the old lines proves nothing about the new ones.
    """
    if before is not None and before.load == load and before.merge_thresholds == merge_thresholds:
        return before
    if (
        before is not None
        and before.merge_thresholds == merge_thresholds
        and _is_cold(before.load, merge_thresholds)
        and _is_cold(load, merge_thresholds)
    ):
        return replace(before, load=load)
    return Spell(load, load.changed_at_ms, seen_at_ms, merge_thresholds)


def _is_cold(load: SegmentLoadStats, merge_thresholds: Rates) -> bool:
    return all(rate < limit for _, rate, limit in by_metric(load.rates, merge_thresholds))


def cold_ms(*, now_ms: int, changed_at_ms: int, seen_for_ms: float) -> float:
    """How long a load is proven to have been what it is: by the wall clock, and by the leader's own patience."""
    return min(max(0, now_ms - changed_at_ms), seen_for_ms)


def is_clock_trusted(heartbeat: SweepHeartbeat | None, *, arrived_at_ms: int) -> bool:
    """Does the clock of the broker that swept agree with the leader's, on which the heartbeat arrived at
    `arrived_at_ms`, to within `MAX_CLOCK_SKEW_MS`?

    A heartbeat that was long on its way looks like a slow clock and is not trusted either: the next one is. Without a
    heartbeat nothing is known of a clock.
    """
    return heartbeat is not None and abs(heartbeat.swept_at_ms - arrived_at_ms) <= MAX_CLOCK_SKEW_MS


def is_known(
    load: SegmentLoadStats, *, broker_sessions: Mapping[str, int], sweep_age_ms: Mapping[str, float], interval_ms: float
) -> bool:
    """Is the reporter still the one that wrote this, alive and sweeping?"""
    age_ms = sweep_age_ms.get(load.reporter)
    alive = broker_sessions.get(load.reporter) == load.reporter_session
    return alive and age_ms is not None and age_ms < 3 * interval_ms


def reportable(topic_names: Iterable[str]) -> list[str]:
    """Of all topics an owner has open, those whose load it reports."""
    return [name for name in topic_names if name.startswith(f"{Domain.SEGMENT}://")]
