"""The messages of a segment: append with de-duplication, read, prune. Runs inside a transaction."""

from collections.abc import Mapping, Sequence
from typing import Final

from msgspec.structs import replace

from scalable_topics.model.errors import CapReached, InvalidArgument, TooLarge
from scalable_topics.model.limits import is_long
from scalable_topics.model.positions import Sentinel
from scalable_topics.segments.errors import OutOfOrder, Terminated, WritersFenced
from scalable_topics.segments.lifecycle import current, entry_of, owned, position_of
from scalable_topics.segments.port import MAX_MESSAGE_BYTES, Appended, Entry, Message, PublishedFrom, StartAt
from scalable_topics.segments.rows import ProducerRow, Rows, SegmentRow

MAX_ENTRIES: Final = 1 << 32
"""Of one segment in all its life: the room that the embedded store gives them."""


def size_of(message: Message) -> int:
    """What counts as the size of a message, in bytes; exact for the payload, close for the rest."""
    size = len(message.payload) + len(message.key or "") + len(message.ordering_key or b"")
    if message.properties:
        size += sum(len(name) + len(value) for name, value in message.properties.items())
    return size


def check(message: Message) -> None:
    """Refuse what no store could keep. Needs no transaction, so it is asked first."""
    size = size_of(message)
    if size > MAX_MESSAGE_BYTES:
        raise TooLarge(f"a message of {size} bytes", remedy=f"send at most {MAX_MESSAGE_BYTES}")
    if message.sequence is not None and not is_long(message.sequence):
        raise InvalidArgument(f"{message.sequence} is not a sequence number", remedy="sequences are longs of 0 or more")
    if message.key_hash is not None and not 0 <= message.key_hash < 1 << 32:
        raise InvalidArgument(f"{message.key_hash} is not a raw hash", remedy="give the unsigned 32 bits of raw_hash()")
    if not is_long(message.event_time_ms):
        raise InvalidArgument(f"{message.event_time_ms} is not a time", remedy="milliseconds, a long of 0 or more")
    for text in (message.producer, message.key or "", *message.properties, *message.properties.values()):
        if not text.isascii():
            _check_text(text)
    if message.sequence is not None and not message.producer:
        raise InvalidArgument("a sequence number without a producer", remedy="name the producer")


def _check_text(text: str) -> None:
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise InvalidArgument(f"{text!r} is not text that UTF-8 can encode") from error


def append(
    rows: Rows, name: str, owner_term: int, messages: Sequence[Message], *, now_ms: int
) -> tuple[SegmentRow, tuple[Appended, ...]]:
    """Answers the segment as it is then, and where each message is."""
    row = owned(rows, name, owner_term)
    stored: dict[str, ProducerRow | None] = {}
    placed: dict[str, dict[int, int]] = {}
    answers: list[Appended] = []
    fresh: list[Message] = []
    for message in messages:
        producer, sequence, entry = message.producer, message.sequence, row.next_entry + len(fresh)
        if sequence is not None:
            if producer not in stored:
                stored[producer], placed[producer] = rows.producer(row.id, producer), {}
            former = _former(rows, row, stored[producer], placed[producer], producer, sequence)
            if former is not None:
                answers.append(former)
                continue
            placed[producer][sequence] = entry
        answers.append(Appended(position_of(entry)))
        fresh.append(message)
    if fresh:
        newest = {producer: max(there.items()) for producer, there in placed.items() if there}
        row = _store(rows, row, fresh, newest, now_ms)
    return row, tuple(answers)


def _former(
    rows: Rows, row: SegmentRow, last: ProducerRow | None, placed: Mapping[int, int], producer: str, sequence: int
) -> Appended | None:
    """Where this sequence is already: stored, or placed by this very append. None = nowhere, and it may be stored."""
    if sequence in placed:
        return Appended(position_of(placed[sequence]), duplicate=True)
    if last is None or sequence > last.last_sequence:
        if sequence > max(placed, default=-1):
            return None
        raise _out_of_order(row, producer, max(placed), sequence)
    if sequence == last.last_sequence:
        return Appended(position_of(last.last_entry) if last.last_entry >= row.first_entry else None, duplicate=True)
    found = rows.find_sequence(row.id, producer, sequence)
    if found is not None and found[0] == sequence:
        return Appended(position_of(found[1]), duplicate=True)
    if found is None and row.first_entry:
        return Appended(None, duplicate=True)
    raise _out_of_order(row, producer, last.last_sequence, sequence)


def _out_of_order(row: SegmentRow, producer: str, last: int, sequence: int) -> OutOfOrder:
    return OutOfOrder(
        f"{producer!r} stored sequence {last} already, and never stored {sequence}",
        subject=row.name,
        remedy="send in the order of the sequence numbers, and repeat from the first that failed",
    )


def _store(
    rows: Rows, row: SegmentRow, fresh: Sequence[Message], newest: Mapping[str, tuple[int, int]], now_ms: int
) -> SegmentRow:
    if row.terminated:
        raise Terminated("it accepts no more messages", subject=row.name, remedy="write to its children")
    if row.next_entry + len(fresh) > MAX_ENTRIES:
        raise CapReached(f"a segment holds at most {MAX_ENTRIES} messages", subject=row.name, remedy="split it")
    if row.writer is not None and any(message.producer != row.writer for message in fresh):
        raise WritersFenced(f"only {row.writer!r} may write for the moment", subject=row.name, remedy="try again soon")
    published_at_ms = max(now_ms, row.last_published_ms)
    for entry, message in enumerate(fresh, row.next_entry):
        rows.add_message(row.id, entry, published_at_ms, message)
    for producer, (sequence, entry) in newest.items():
        rows.put_producer(ProducerRow(segment=row.id, name=producer, last_sequence=sequence, last_entry=entry))
    row = replace(
        row,
        next_entry=row.next_entry + len(fresh),
        stored_bytes=row.stored_bytes + sum(map(size_of, fresh)),
        last_published_ms=published_at_ms,
    )
    rows.put_segment(row)
    return row


def read(rows: Rows, name: str, owner_term: int, start: StartAt, max_entries: int) -> Sequence[Entry]:
    row = owned(rows, name, owner_term)
    return rows.messages_from(row.id, first_at(rows, row, start), max_entries)


def first_at(rows: Rows, row: SegmentRow, start: StartAt) -> int:
    """The entry that a start means; the next one to be written if it lies beyond the last."""
    match start:
        case Sentinel.EARLIEST:
            return row.first_entry
        case Sentinel.LATEST:
            return row.next_entry
        case PublishedFrom(timestamp_ms=timestamp_ms):
            return first_published_from(rows, row, timestamp_ms)
        case _:
            return min(max(entry_of(start), row.first_entry), row.next_entry)


def read_entries(rows: Rows, name: str, owner_term: int, entries: Sequence[int]) -> Sequence[Entry]:
    return rows.messages(owned(rows, name, owner_term).id, entries)


def first_published_from(rows: Rows, row: SegmentRow, timestamp_ms: int) -> int:
    """The first entry that was published at a time or later; the next one to be written if there is none."""
    low, high = row.first_entry, row.next_entry
    while low < high:
        middle = (low + high) // 2
        if rows.published_at(row.id, middle) < timestamp_ms:
            low = middle + 1
        else:
            high = middle
    return low


def prune(rows: Rows, name: str, owner_term: int, *, before_ms: int, max_entries: int) -> int:
    """Drop messages that everybody acknowledged and that are older than a time; how many went."""
    row = owned(rows, name, owner_term)
    marks = [cursor.mark_delete for cursor in rows.cursors(row.id)]
    if not marks:
        return 0
    below = min(min(marks) + 1, first_published_from(rows, row, before_ms), row.first_entry + max_entries)
    if below <= row.first_entry:
        return 0
    freed = rows.drop_messages(row.id, below)
    rows.put_segment(replace(row, first_entry=below, stored_bytes=row.stored_bytes - freed))
    return below - row.first_entry


def fence_writers(rows: Rows, name: str, writer: str | None) -> None:
    """Only this producer may append from now on; None = everybody again."""
    rows.put_segment(replace(current(rows, name), writer=writer))
