"""The life of a segment: made once, terminated for ever, deleted to a tombstone. Runs inside a transaction."""

from collections.abc import Collection
from typing import Final

from msgspec.structs import replace

from scalable_topics.model.errors import InvalidArgument, NotFound, WrongState
from scalable_topics.model.positions import Position
from scalable_topics.segments.errors import Fenced, ForeignStamp, StaleTerm, Tombstoned, Unusable
from scalable_topics.segments.port import (
    NOTHING,
    Call,
    ListedSegment,
    SegmentFacts,
    SegmentStats,
    Stamp,
    SubscriptionFacts,
    SubscriptionStats,
)
from scalable_topics.segments.rows import CursorRow, Rows, SegmentRow

LEDGER: Final = 0
"""Our segments have one ledger, so that positions compare by their entries."""


def position_of(entry: int) -> Position:
    return (LEDGER, entry) if entry >= 0 else NOTHING


def entry_of(position: Position) -> int:
    if position == NOTHING:
        return -1
    ledger, entry = position
    if ledger != LEDGER or entry < 0:
        raise InvalidArgument(f"{position} is not a position here", remedy="give one that this store has answered")
    return entry


def current(rows: Rows, name: str) -> SegmentRow:
    """It exists and is no tombstone."""
    row = rows.segment(name)
    if row is None or row.deleted_at_ms is not None:
        raise NotFound("there is no such segment", subject=name, remedy="not there is not drained: ask the record")
    return row


def entered(rows: Rows, name: str, call: Call) -> SegmentRow:
    """The segment as a leader finds it, the leader's term already noted in what the caller will put."""
    return _fenced(current(rows, name), call)


def owned(rows: Rows, name: str, owner_term: int) -> SegmentRow:
    """The fence of everything an owner does."""
    row = current(rows, name)
    if row.owner_term != owner_term:
        raise Fenced(
            f"owner term {owner_term} was followed by {row.owner_term}", subject=name, remedy="ask who owns it now"
        )
    return row


def _fenced(row: SegmentRow, call: Call) -> SegmentRow:
    if row.stamp is not None and row.stamp.incarnation != call.incarnation:
        raise ForeignStamp(
            f"it belongs to incarnation {row.stamp.incarnation}, not {call.incarnation}", subject=row.name
        )
    if call.term < row.term:
        raise StaleTerm(
            f"term {call.term} is over: {row.term} has been here",
            subject=row.name,
            remedy="stop; the leader of that term goes on",
        )
    return replace(row, term=call.term)


def create(
    rows: Rows,
    name: str,
    stamp: Stamp,
    subscriptions: Collection[str],
    call: Call,
    *,
    must_be_empty: bool,
    now_ms: int,
) -> SegmentFacts:
    if stamp.incarnation != call.incarnation:
        raise InvalidArgument(f"{stamp} is not of incarnation {call.incarnation}", subject=name)
    row = rows.segment(name)
    if row is None:
        row = rows.add_segment(SegmentRow(name=name, stamp=stamp, term=call.term, created_at_ms=now_ms))
    else:
        row = _accepted(_fenced(row, call), stamp, must_be_empty=must_be_empty)
        rows.put_segment(row)
    for subscription in subscriptions:
        if rows.cursor(row.id, subscription) is None:
            rows.add_cursor(CursorRow(segment=row.id, name=subscription, mark_delete=row.first_entry - 1))
    return facts(rows, row)


def _accepted(row: SegmentRow, stamp: Stamp, *, must_be_empty: bool) -> SegmentRow:
    burn = "burn the id and take the next one"
    if row.deleted_at_ms is not None:
        raise Tombstoned("it was deleted, and stays deleted", subject=row.name, remedy=burn)
    if row.stamp != stamp:
        raise ForeignStamp(f"it was made as {row.stamp}, not as {stamp}", subject=row.name, remedy=burn)
    if row.terminated:
        raise Unusable("it exists, and is terminated", subject=row.name, remedy=burn)
    if must_be_empty and row.next_entry:
        raise Unusable(f"it exists, and holds {row.next_entry} message(s)", subject=row.name, remedy=burn)
    return row


def terminate(rows: Rows, name: str, call: Call) -> Position:
    row = entered(rows, name, call)
    rows.put_segment(replace(row, terminated=True))
    return position_of(row.next_entry - 1)


def delete(rows: Rows, name: str, call: Call, *, now_ms: int, made_by: str | None = None) -> None:
    row = rows.segment(name)
    if row is None:
        # A create that was sent earlier may still be on its way.
        unborn = Stamp(call.incarnation, 0, "")
        tombstone = SegmentRow(name=name, stamp=unborn, term=call.term, created_at_ms=now_ms, deleted_at_ms=now_ms)
        rows.add_segment(tombstone)
        return
    if row.stamp is None:
        raise WrongState("a regular topic is never deleted as a segment", subject=name)
    if made_by is not None and row.deleted_at_ms is None and row.stamp.operation_id != made_by:
        raise ForeignStamp(f"operation {row.stamp.operation_id!r} made it, not {made_by!r}", subject=name)
    row = _fenced(row, call)
    if row.deleted_at_ms is None:
        rows.erase_contents(row.id)
        row = replace(row, deleted_at_ms=now_ms)
    rows.put_segment(row)


def serve(rows: Rows, name: str, owner_term: int) -> SegmentRow:
    """Take over: from this transaction on a lower owner term changes nothing."""
    row = current(rows, name)
    if owner_term < max(1, row.owner_term):
        raise Fenced(f"owner term {owner_term} does not reach {row.owner_term}", subject=name, remedy="take the next")
    row = replace(row, owner_term=owner_term)
    rows.put_segment(row)
    return row


def describe(rows: Rows, name: str) -> SegmentFacts:
    return facts(rows, current(rows, name))


def facts(rows: Rows, row: SegmentRow) -> SegmentFacts:
    last = position_of(row.next_entry - 1)
    return SegmentFacts(
        stamp=row.stamp,
        terminated=last if row.terminated else None,
        last=last,
        subscriptions={cursor.name: subscription_facts(row, cursor) for cursor in rows.cursors(row.id)},
    )


def subscription_facts(row: SegmentRow, cursor: CursorRow) -> SubscriptionFacts:
    return SubscriptionFacts(position_of(cursor.mark_delete), backlog(row, cursor))


def backlog(row: SegmentRow, cursor: CursorRow) -> int:
    # Entries have no gaps, so counting is subtracting.
    return row.next_entry - 1 - cursor.mark_delete - cursor.acked


def stats(rows: Rows, name: str) -> SegmentStats:
    """Without what only its owner knows."""
    row = current(rows, name)
    messages = row.next_entry - row.first_entry
    mean = row.stored_bytes / messages if messages else 0
    return SegmentStats(
        rates=None,
        messages=messages,
        storage_bytes=row.stored_bytes,
        subscriptions={
            cursor.name: SubscriptionStats(
                backlog=backlog(row, cursor), backlog_bytes=round(backlog(row, cursor) * mean)
            )
            for cursor in rows.cursors(row.id)
        },
    )


def listed(rows: Rows, prefix: str) -> list[ListedSegment]:
    return [
        ListedSegment(row.name, row.stamp, row.terminated) for row in rows.segments(prefix) if row.deleted_at_ms is None
    ]


def create_regular(rows: Rows, name: str, *, now_ms: int) -> bool:
    """A regular topic, which carries no stamp. False = it was there."""
    if rows.segment(name) is not None:
        return False
    rows.add_segment(SegmentRow(name=name, stamp=None, created_at_ms=now_ms))
    return True


def delete_regular(rows: Rows, name: str) -> bool:
    """Without a tombstone: a regular topic may be made again. False = it was not there."""
    row = rows.segment(name)
    if row is None:
        return False
    rows.forget_segment(row.id)
    return True


def forget_tombstones(rows: Rows, *, deleted_before_ms: int) -> int:
    """Drop tombstones that no late call can meet any more; how many went."""
    old = [
        row.id for row in rows.segments("") if row.deleted_at_ms is not None and row.deleted_at_ms < deleted_before_ms
    ]
    for segment in old:
        rows.forget_segment(segment)
    return len(old)
