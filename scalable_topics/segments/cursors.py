"""Cursors: where a subscription stands on one segment, and who may move it. Runs inside a transaction."""

from collections.abc import Collection, Iterable, Sequence
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from scalable_topics.model.errors import InvalidArgument, NotFound, WrongState
from scalable_topics.model.hash_range import HashRange
from scalable_topics.model.positions import Position
from scalable_topics.segments.errors import Detached, StaleGeneration
from scalable_topics.segments.lifecycle import current, entered, entry_of, owned, subscription_facts
from scalable_topics.segments.log import first_at
from scalable_topics.segments.port import Call, StartAt, SubscriptionFacts
from scalable_topics.segments.rows import CursorRow, HeldSlice, Rows, SegmentRow

REMEMBERED_OPERATIONS: Final = 8
"""How many of the operations that moved a cursor it remembers: far more than can still arrive late."""


class CursorState(Struct, frozen=True):
    """What an owner needs to begin to deliver."""

    mark_delete: int
    life: tuple[int, int]
    """Another one after the cursor was moved by force, or deleted and made again: what was delivered before is void."""
    acked: Sequence[int] = ()


def state_of(cursor: CursorRow) -> CursorState:
    """Without its single acknowledgements."""
    return CursorState(cursor.mark_delete, (cursor.id, cursor.moves))


def create(rows: Rows, name: str, subscription: str, call: Call, *, at: StartAt) -> SubscriptionFacts:
    row = entered(rows, name, call)
    before = rows.cursor(row.id, subscription)
    cursor = before or CursorRow(segment=row.id, name=subscription, mark_delete=first_at(rows, row, at) - 1)
    rows.put_segment(row)
    if before is None:
        rows.add_cursor(cursor)
    return subscription_facts(row, cursor)


def subscribe(rows: Rows, name: str, subscription: str, *, at: StartAt) -> SubscriptionFacts:
    """On a regular topic, where whoever attaches makes the subscription."""
    row = current(rows, name)
    if row.stamp is not None:
        raise WrongState("subscriptions of a scalable topic are made by its leader", subject=name)
    cursor = rows.cursor(row.id, subscription)
    if cursor is None:
        cursor = CursorRow(segment=row.id, name=subscription, mark_delete=first_at(rows, row, at) - 1)
        rows.add_cursor(cursor)
    return subscription_facts(row, cursor)


def delete(rows: Rows, name: str, subscription: str, call: Call) -> None:
    row = entered(rows, name, call)
    cursor = rows.cursor(row.id, subscription)
    rows.put_segment(row)
    if cursor is not None:
        rows.delete_cursor(cursor)


def seek(rows: Rows, name: str, subscription: str, to: StartAt, call: Call) -> SubscriptionFacts:
    row = entered(rows, name, call)
    cursor = _cursor(rows, row, subscription)
    if call.operation_id in cursor.obeyed:
        return subscription_facts(row, cursor)
    obeyed = (*cursor.obeyed, call.operation_id)[-REMEMBERED_OPERATIONS:]
    moved = replace(cursor, mark_delete=first_at(rows, row, to) - 1, acked=0, moves=cursor.moves + 1, obeyed=obeyed)
    rows.put_segment(row)
    rows.drop_acked(cursor.id, row.next_entry)
    rows.put_cursor(moved)
    return subscription_facts(row, moved)


def advance(rows: Rows, name: str, subscription: str, through: Position, call: Call) -> SubscriptionFacts:
    row = entered(rows, name, call)
    cursor = _cursor(rows, row, subscription)
    entry = _stored_entry(row, through)
    rows.put_segment(row)
    return subscription_facts(row, _mark_through(rows, cursor, entry))


def attach(
    rows: Rows, name: str, owner_term: int, subscription: str, consumer: str, buckets: HashRange | None, generation: int
) -> CursorState:
    """Note who now delivers these buckets (None = shared, which is not noted), if its generation still counts."""
    row = owned(rows, name, owner_term)
    cursor = _cursor(rows, row, subscription)
    if buckets is not None:
        held = take_slice(cursor.held, HeldSlice(buckets.start, buckets.end, generation, consumer))
        if held != cursor.held:
            rows.put_cursor(replace(cursor, held=held))
    return replace(state_of(cursor), acked=rows.acked(cursor.id) if cursor.acked else ())


def take_slice(held: Iterable[HeldSlice], taken: HeldSlice) -> tuple[HeldSlice, ...]:
    """Who holds what after `taken` was attached; refuses one that is not newer than what it overlaps."""
    rest: list[HeldSlice] = []
    for old in held:
        if old.end < taken.start or taken.end < old.start:
            rest.append(old)
            continue
        if (taken.generation, taken.consumer) != (old.generation, old.consumer) and taken.generation <= old.generation:
            raise StaleGeneration(
                f"generation {taken.generation} of {taken.consumer!r} comes after generation {old.generation} of "
                f"{old.consumer!r}",
                remedy="wait for a new assignment",
            )
        if old.start < taken.start:
            rest.append(replace(old, end=taken.start - 1))
        if taken.end < old.end:
            rest.append(replace(old, start=taken.end + 1))
    if taken.generation:
        rest.append(taken)
    return tuple(sorted(rest, key=lambda one: one.start))


def acknowledge(
    rows: Rows, name: str, owner_term: int, subscription: str, life: tuple[int, int], entries: Collection[int]
) -> None:
    """Entries one by one. `life` is of the cursor as it was when they were delivered."""
    row, cursor = _acknowledged(rows, name, owner_term, subscription, life)
    if max(entries, default=-1) >= row.next_entry or min(entries, default=0) < 0:
        raise _never_stored(row)
    pending = {entry for entry in entries if entry > cursor.mark_delete}
    mark = cursor.mark_delete
    while mark + 1 in pending or (cursor.acked and rows.is_acked(cursor.id, mark + 1)):
        mark += 1
    gone = rows.drop_acked(cursor.id, mark) if cursor.acked else 0
    later = sorted(entry for entry in pending if entry > mark)
    added = rows.add_acked(cursor.id, later) if later else 0
    if mark != cursor.mark_delete or added:
        rows.put_cursor(replace(cursor, mark_delete=mark, acked=cursor.acked - gone + added))


def acknowledge_through(
    rows: Rows, name: str, owner_term: int, subscription: str, life: tuple[int, int], through: int
) -> None:
    row, cursor = _acknowledged(rows, name, owner_term, subscription, life)
    if through >= row.next_entry:
        raise _never_stored(row)
    _mark_through(rows, cursor, through)


def _acknowledged(
    rows: Rows, name: str, owner_term: int, subscription: str, life: tuple[int, int]
) -> tuple[SegmentRow, CursorRow]:
    row = owned(rows, name, owner_term)
    cursor = _cursor(rows, row, subscription)
    if state_of(cursor).life != life:
        raise Detached("the cursor was moved since", subject=f"{subscription} on {name}", remedy="attach again")
    return row, cursor


def _mark_through(rows: Rows, cursor: CursorRow, entry: int) -> CursorRow:
    if entry <= cursor.mark_delete:
        return cursor
    while cursor.acked and rows.is_acked(cursor.id, entry + 1):
        entry += 1
    gone = rows.drop_acked(cursor.id, entry) if cursor.acked else 0
    marked = replace(cursor, mark_delete=entry, acked=cursor.acked - gone)
    rows.put_cursor(marked)
    return marked


def _cursor(rows: Rows, row: SegmentRow, subscription: str) -> CursorRow:
    cursor = rows.cursor(row.id, subscription)
    if cursor is None:
        raise NotFound(
            "there is no such subscription", subject=f"{subscription} on {row.name}", remedy="the leader makes them"
        )
    return cursor


def _stored_entry(row: SegmentRow, position: Position) -> int:
    entry = entry_of(position)
    if entry >= row.next_entry:
        raise _never_stored(row)
    return entry


def _never_stored(row: SegmentRow) -> InvalidArgument:
    return InvalidArgument(
        f"that position is outside 0 to {row.next_entry - 1}", subject=row.name, remedy="acknowledge what was delivered"
    )
