"""Which sealed segments may be forgotten, and what keeps the others.

Only proven drained is pruned: a marker of every subscription, whatever its type, and a retention that has lapsed. A
segment goes with or after all its ancestors, never before, so that nothing undrained is ever cut off from what
comes after it.
"""

from collections.abc import Collection, Mapping

from msgspec import Struct

from scalable_topics.model.errors import InvalidArgument
from scalable_topics.model.layout import SegmentLayout
from scalable_topics.model.positions import Position
from scalable_topics.model.quantities import is_finite
from scalable_topics.model.segment import SegmentInfo, SegmentState


class Sweep(Struct, frozen=True):
    """What to prune, ascending, and for every other sealed segment why not."""

    prune: tuple[int, ...]
    kept: Mapping[int, str]


def sweep(
    layout: SegmentLayout,
    *,
    now_ms: int,
    retention_minutes: float,
    drained: Mapping[str, Collection[int]],
    distrusted: Collection[int] = (),
) -> Sweep:
    """`drained`: for every recorded subscription, the segments with its drained marker. `distrusted`: segments whose
    owner's clock is not to be trusted (`load_reports.is_clock_trusted`); nothing is pruned on such a broker's word.
    """
    if not is_finite(retention_minutes):
        raise InvalidArgument(f"{retention_minutes} is not a retention", remedy="give minutes; negative = for ever")
    prune: set[int] = set()
    kept: dict[int, str] = {}
    # Parents have lower ids: when a segment is looked at, its ancestors have been.
    for segment_id, segment in layout.segments.items():
        if segment.state is SegmentState.SEALED:
            why = "its owner's clock is not trusted" if segment_id in distrusted else None
            why = why or _kept_because(
                segment, prune, now_ms=now_ms, retention_minutes=retention_minutes, drained=drained
            )
            if why is None:
                prune.add(segment_id)
            else:
                kept[segment_id] = why
    return Sweep(tuple(sorted(prune)), kept)


def _kept_because(
    segment: SegmentInfo,
    pruned: set[int],
    *,
    now_ms: int,
    retention_minutes: float,
    drained: Mapping[str, Collection[int]],
) -> str | None:
    if retention_minutes < 0:
        return "retention is unlimited"
    if segment.sealed_at_ms <= 0:
        return "it is not known when it was sealed"
    left_ms = segment.sealed_at_ms + retention_minutes * 60_000 - now_ms
    if left_ms > 0:
        return f"retention lapses in {left_ms / 1000:.0f} s"
    behind = sorted(name for name, markers in drained.items() if segment.segment_id not in markers)
    if behind:
        return f"not drained for {', '.join(behind)}"
    waiting = [parent for parent in segment.parent_ids if parent not in pruned]
    return f"its ancestor {waiting[0]} is kept" if waiting else None


def is_drained(*, terminated_at: Position | None, mark_delete: Position | None, empty: bool) -> bool:
    """Has a subscription consumed all there will ever be? What is not known (no cursor, no owner) is never drained."""
    if terminated_at is None or mark_delete is None:
        return False
    return empty or mark_delete >= terminated_at


def retention_minutes(*, topic: float | None, namespace: float | None, broker: float) -> float:
    """The most specific setting; 0 is a setting, negative means for ever."""
    return next(minutes for minutes in (topic, namespace, broker) if minutes is not None)
