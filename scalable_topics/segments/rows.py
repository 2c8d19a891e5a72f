"""What is stored of segments, as rows, and the few ways to touch them.

The rules (`lifecycle`, `cursors`, `log`) are written against `Rows` and run inside one transaction of whichever
backend. They refuse before they write, so a refusal never leaves half a change, and a backend need not undo one.
"""

from collections.abc import Iterable, Sequence
from typing import Protocol

from msgspec import Struct

from scalable_topics.segments.port import Entry, Message, Stamp


class SegmentRow(Struct, frozen=True, kw_only=True):
    """One segment, or one regular topic. Entries `first_entry` to `next_entry - 1` are stored, without gaps."""

    id: int = 0
    """Given by the store; never used for another segment."""
    name: str
    stamp: Stamp | None
    term: int = 0
    """The highest term of a leader that was accepted here."""
    owner_term: int = 0
    first_entry: int = 0
    next_entry: int = 0
    stored_bytes: int = 0
    terminated: bool = False
    writer: str | None = None
    """The only producer that may append for the moment; None = everybody."""
    created_at_ms: int
    last_published_ms: int = 0
    deleted_at_ms: int | None = None
    """Set = a tombstone: only the name and the term still count."""


class HeldSlice(Struct, frozen=True, array_like=True):
    """The newest generation that was attached for these buckets, and by whom."""

    start: int
    end: int
    generation: int
    consumer: str


class CursorRow(Struct, frozen=True, kw_only=True):
    """A subscription on one segment. Entries up to `mark_delete` are acknowledged, and `acked` more beyond it."""

    id: int = 0
    segment: int
    name: str
    mark_delete: int
    acked: int = 0
    moves: int = 0
    """How often it was moved by force; acknowledgements of what was delivered before are void."""
    obeyed: tuple[str, ...] = ()
    """The last operations that moved it."""
    held: tuple[HeldSlice, ...] = ()


class ProducerRow(Struct, frozen=True, kw_only=True):
    segment: int
    name: str
    last_sequence: int
    last_entry: int


class Rows(Protocol):
    """One transaction's view of one place where segments are kept."""

    def segment(self, name: str) -> SegmentRow | None: ...
    def segments(self, prefix: str) -> Iterable[SegmentRow]: ...
    def add_segment(self, row: SegmentRow) -> SegmentRow:
        """Answers it with its id."""

    def put_segment(self, row: SegmentRow) -> None: ...
    def erase_contents(self, segment: int) -> None:
        """Messages, cursors and producers go; the segment's own row stays."""

    def forget_segment(self, segment: int) -> None:
        """The row itself goes."""

    def cursor(self, segment: int, name: str) -> CursorRow | None: ...
    def cursors(self, segment: int) -> Sequence[CursorRow]:
        """In the order of their names."""

    def add_cursor(self, row: CursorRow) -> None: ...
    def put_cursor(self, row: CursorRow) -> None: ...
    def delete_cursor(self, row: CursorRow) -> None: ...

    def acked(self, cursor: int) -> Sequence[int]:
        """Entries that were acknowledged one by one beyond the mark-delete, ascending."""

    def is_acked(self, cursor: int, entry: int) -> bool: ...
    def add_acked(self, cursor: int, entries: Iterable[int]) -> int:
        """How many were not there yet."""

    def drop_acked(self, cursor: int, through: int) -> int:
        """How many went."""

    def producer(self, segment: int, name: str) -> ProducerRow | None: ...
    def put_producer(self, row: ProducerRow) -> None: ...
    def find_sequence(self, segment: int, producer: str, sequence: int) -> tuple[int, int] | None:
        """(sequence, entry) of the producer's stored message with the highest sequence that is not above this."""

    def add_message(self, segment: int, entry: int, published_at_ms: int, message: Message) -> None: ...
    def messages(self, segment: int, entries: Sequence[int]) -> Sequence[Entry]:
        """Those that are stored; the entries ascend."""

    def messages_from(self, segment: int, first: int, max_entries: int) -> Sequence[Entry]: ...
    def published_at(self, segment: int, entry: int) -> int: ...
    def drop_messages(self, segment: int, below: int) -> int:
        """How many bytes went."""

    def partitions(self, name: str) -> int | None:
        """Of a partitioned regular topic."""

    def put_partitions(self, name: str, partitions: int | None) -> None: ...
    def partitioned(self, prefix: str) -> Iterable[tuple[str, int]]: ...
