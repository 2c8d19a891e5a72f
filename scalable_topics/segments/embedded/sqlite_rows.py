"""`Rows` of one SQLite transaction."""

import sqlite3
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final

import msgspec
from msgspec import Struct
from msgspec.structs import astuple, replace

from scalable_topics.segments.embedded.schema import ENTRY_BITS
from scalable_topics.segments.lifecycle import position_of
from scalable_topics.segments.log import size_of
from scalable_topics.segments.port import Entry, Message, Stamp
from scalable_topics.segments.rows import CursorRow, HeldSlice, ProducerRow, SegmentRow

_SEGMENT: Final = (
    "id, name, incarnation, segment_id, operation_id, term, owner_term, first_entry, next_entry, stored_bytes, "
    "terminated, writer, created_at_ms, last_published_ms, deleted_at_ms"
)
_CURSOR: Final = "id, segment, name, mark_delete, acked, moves, obeyed, held"
_MESSAGE: Final = "id, published_at_ms, producer, sequence, body"
_ENTRY_MASK: Final = (1 << ENTRY_BITS) - 1
_LARGEST: Final = 400
"""How many entries are asked for by number in one statement."""


class _Body(Struct, frozen=True, array_like=True):
    """What nobody searches for. Later versions may append fields with defaults."""

    payload: bytes
    key: str | None
    ordering_key: bytes | None
    key_hash: int | None
    properties: Mapping[str, str]
    event_time_ms: int


_encoder: Final = msgspec.msgpack.Encoder()
_bodies: Final = msgspec.msgpack.Decoder(_Body)
_obeyed: Final = msgspec.msgpack.Decoder(tuple[str, ...])
_held: Final = msgspec.msgpack.Decoder(tuple[HeldSlice, ...])


class SqliteRows:
    """Segments and producers are written once, by `flush`, however often the transaction changes them."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._do = connection.execute
        self._many = connection.executemany
        self._segments: dict[str, SegmentRow] = {}
        self._changed_segments: set[str] = set()
        self._producers: dict[tuple[int, str], ProducerRow | None] = {}
        self._changed_producers: set[tuple[int, str]] = set()

    def flush(self) -> None:
        """Before the commit."""
        for name in self._changed_segments:
            row = self._segments[name]
            self._do(
                "UPDATE segments SET term = ?, owner_term = ?, first_entry = ?, next_entry = ?, stored_bytes = ?, "
                "terminated = ?, writer = ?, last_published_ms = ?, deleted_at_ms = ? WHERE id = ?",
                (
                    row.term,
                    row.owner_term,
                    row.first_entry,
                    row.next_entry,
                    row.stored_bytes,
                    row.terminated,
                    row.writer,
                    row.last_published_ms,
                    row.deleted_at_ms,
                    row.id,
                ),
            )
        changed = [astuple(one) for key in self._changed_producers if (one := self._producers[key]) is not None]
        if changed:
            self._many("INSERT OR REPLACE INTO producers VALUES (?, ?, ?, ?)", changed)
        self._changed_segments.clear()
        self._changed_producers.clear()

    def segment(self, name: str) -> SegmentRow | None:
        known = self._segments.get(name)
        if known is None:
            found = self._do(f"SELECT {_SEGMENT} FROM segments WHERE name = ?", (name,)).fetchone()  # noqa: S608
            if found is not None:
                known = self._segments[name] = _segment(found)
        return known

    def segments(self, prefix: str) -> Iterator[SegmentRow]:
        self.flush()
        for found in self._do(f"SELECT {_SEGMENT} FROM segments WHERE name >= ? ORDER BY name", (prefix,)).fetchall():  # noqa: S608
            row = _segment(found)
            if not row.name.startswith(prefix):
                return
            yield row

    def add_segment(self, row: SegmentRow) -> SegmentRow:
        stamp = row.stamp
        added = self._do(
            "INSERT INTO segments VALUES (NULL, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
            (
                row.name,
                stamp and stamp.incarnation,
                stamp and stamp.segment_id,
                stamp and stamp.operation_id,
                row.term,
                row.owner_term,
                row.first_entry,
                row.next_entry,
                row.stored_bytes,
                row.terminated,
                row.writer,
                row.created_at_ms,
                row.last_published_ms,
                row.deleted_at_ms,
            ),
        )
        row = replace(row, id=added.lastrowid)
        self._segments[row.name] = row
        return row

    def put_segment(self, row: SegmentRow) -> None:
        if self._segments.get(row.name) != row:
            self._segments[row.name] = row
            self._changed_segments.add(row.name)

    def erase_contents(self, segment: int) -> None:
        self._do("DELETE FROM acked WHERE cursor IN (SELECT id FROM cursors WHERE segment = ?)", (segment,))
        self._do("DELETE FROM cursors WHERE segment = ?", (segment,))
        self._do("DELETE FROM producers WHERE segment = ?", (segment,))
        self._do("DELETE FROM messages WHERE id BETWEEN ? AND ?", (_row_id(segment, 0), _row_id(segment, _ENTRY_MASK)))
        for key in [key for key in self._producers if key[0] == segment]:
            del self._producers[key]
            self._changed_producers.discard(key)

    def forget_segment(self, segment: int) -> None:
        self.erase_contents(segment)
        self._do("DELETE FROM segments WHERE id = ?", (segment,))
        for name in [name for name, row in self._segments.items() if row.id == segment]:
            del self._segments[name]
            self._changed_segments.discard(name)

    def cursor(self, segment: int, name: str) -> CursorRow | None:
        found = self._do(f"SELECT {_CURSOR} FROM cursors WHERE segment = ? AND name = ?", (segment, name))  # noqa: S608
        row = found.fetchone()
        return None if row is None else _cursor(row)

    def cursors(self, segment: int) -> Sequence[CursorRow]:
        found = self._do(f"SELECT {_CURSOR} FROM cursors WHERE segment = ? ORDER BY name", (segment,))  # noqa: S608
        return [_cursor(row) for row in found]

    def add_cursor(self, row: CursorRow) -> None:
        self._do(
            "INSERT INTO cursors VALUES (NULL, ?, ?, ?, ?, ?, ?, ?)",
            (
                row.segment,
                row.name,
                row.mark_delete,
                row.acked,
                row.moves,
                _encoder.encode(row.obeyed),
                _encoder.encode(row.held),
            ),
        )

    def put_cursor(self, row: CursorRow) -> None:
        self._do(
            "UPDATE cursors SET mark_delete = ?, acked = ?, moves = ?, obeyed = ?, held = ? WHERE id = ?",
            (row.mark_delete, row.acked, row.moves, _encoder.encode(row.obeyed), _encoder.encode(row.held), row.id),
        )

    def delete_cursor(self, row: CursorRow) -> None:
        self._do("DELETE FROM acked WHERE cursor = ?", (row.id,))
        self._do("DELETE FROM cursors WHERE id = ?", (row.id,))

    def acked(self, cursor: int) -> Sequence[int]:
        return [entry for (entry,) in self._do("SELECT entry FROM acked WHERE cursor = ? ORDER BY entry", (cursor,))]

    def is_acked(self, cursor: int, entry: int) -> bool:
        found = self._do("SELECT 1 FROM acked WHERE cursor = ? AND entry = ?", (cursor, entry))
        return found.fetchone() is not None

    def add_acked(self, cursor: int, entries: Iterable[int]) -> int:
        added = self._many("INSERT OR IGNORE INTO acked VALUES (?, ?)", [(cursor, entry) for entry in entries])
        return added.rowcount

    def drop_acked(self, cursor: int, through: int) -> int:
        return self._do("DELETE FROM acked WHERE cursor = ? AND entry <= ?", (cursor, through)).rowcount

    def producer(self, segment: int, name: str) -> ProducerRow | None:
        key = (segment, name)
        if key not in self._producers:
            found = self._do(
                "SELECT last_sequence, last_entry FROM producers WHERE segment = ? AND name = ?", key
            ).fetchone()
            self._producers[key] = found and ProducerRow(
                segment=segment, name=name, last_sequence=found[0], last_entry=found[1]
            )
        return self._producers[key]

    def put_producer(self, row: ProducerRow) -> None:
        self._producers[row.segment, row.name] = row
        self._changed_producers.add((row.segment, row.name))

    def find_sequence(self, segment: int, producer: str, sequence: int) -> tuple[int, int] | None:
        last = self.producer(segment, producer)
        if last is None:
            return None
        found = self._do(
            "SELECT sequence, id FROM messages WHERE id BETWEEN ? AND ? AND producer = ? AND sequence <= ? "
            "ORDER BY id DESC LIMIT 1",
            (_row_id(segment, 0), _row_id(segment, last.last_entry), producer, sequence),
        ).fetchone()
        return found and (found[0], found[1] & _ENTRY_MASK)

    def add_message(self, segment: int, entry: int, published_at_ms: int, message: Message) -> None:
        body = _Body(
            message.payload,
            message.key,
            message.ordering_key,
            message.key_hash,
            message.properties,
            message.event_time_ms,
        )
        self._do(
            "INSERT INTO messages VALUES (?, ?, ?, ?, ?, ?)",
            (
                _row_id(segment, entry),
                published_at_ms,
                message.producer,
                message.sequence,
                size_of(message),
                _encoder.encode(body),
            ),
        )

    def messages(self, segment: int, entries: Sequence[int]) -> Sequence[Entry]:
        found: list[Entry] = []
        for start in range(0, len(entries), _LARGEST):
            ids = [_row_id(segment, entry) for entry in entries[start : start + _LARGEST]]
            marks = ", ".join("?" * len(ids))
            found += map(
                _entry,
                self._do(f"SELECT {_MESSAGE} FROM messages WHERE id IN ({marks}) ORDER BY id", ids),  # noqa: S608
            )
        return found

    def messages_from(self, segment: int, first: int, max_entries: int) -> Sequence[Entry]:
        found = self._do(
            f"SELECT {_MESSAGE} FROM messages WHERE id BETWEEN ? AND ? ORDER BY id LIMIT ?",  # noqa: S608
            (_row_id(segment, first), _row_id(segment, _ENTRY_MASK), max_entries),
        )
        return [_entry(row) for row in found]

    def published_at(self, segment: int, entry: int) -> int:
        found = self._do("SELECT published_at_ms FROM messages WHERE id = ?", (_row_id(segment, entry),)).fetchone()
        at_ms: int = found[0]
        return at_ms

    def drop_messages(self, segment: int, below: int) -> int:
        span = (_row_id(segment, 0), _row_id(segment, below))
        (size,) = self._do("SELECT total(size) FROM messages WHERE id >= ? AND id < ?", span).fetchone()
        self._do("DELETE FROM messages WHERE id >= ? AND id < ?", span)
        return int(size)

    def partitions(self, name: str) -> int | None:
        found = self._do("SELECT partitions FROM partitioned WHERE name = ?", (name,)).fetchone()
        return None if found is None else found[0]

    def put_partitions(self, name: str, partitions: int | None) -> None:
        if partitions is None:
            self._do("DELETE FROM partitioned WHERE name = ?", (name,))
        else:
            self._do("INSERT OR REPLACE INTO partitioned VALUES (?, ?)", (name, partitions))

    def partitioned(self, prefix: str) -> Iterable[tuple[str, int]]:
        found = self._do("SELECT name, partitions FROM partitioned ORDER BY name").fetchall()
        return [(name, partitions) for name, partitions in found if name.startswith(prefix)]


def _row_id(segment: int, entry: int) -> int:
    return segment << ENTRY_BITS | entry


def _segment(found: tuple[object, ...]) -> SegmentRow:
    row_id, name, incarnation, segment_id, operation_id, *rest = found
    stamp = None if incarnation is None else Stamp(incarnation, segment_id, operation_id)  # type: ignore[arg-type]
    fields = ("term", "owner_term", "first_entry", "next_entry", "stored_bytes", "terminated", "writer")
    times = ("created_at_ms", "last_published_ms", "deleted_at_ms")
    row = dict(zip((*fields, *times), rest, strict=True))
    row["terminated"] = bool(row["terminated"])
    return SegmentRow(id=row_id, name=name, stamp=stamp, **row)  # type: ignore[arg-type]


def _cursor(found: tuple[int, int, str, int, int, int, bytes, bytes]) -> CursorRow:
    row_id, segment, name, mark_delete, acked, moves, obeyed, held = found
    return CursorRow(
        id=row_id,
        segment=segment,
        name=name,
        mark_delete=mark_delete,
        acked=acked,
        moves=moves,
        obeyed=_obeyed.decode(obeyed),
        held=_held.decode(held),
    )


def _entry(found: tuple[int, int, str, int | None, bytes]) -> Entry:
    row_id, published_at_ms, producer, sequence, encoded = found
    body = _bodies.decode(encoded)
    message = Message(
        payload=body.payload,
        producer=producer,
        sequence=sequence,
        key=body.key,
        ordering_key=body.ordering_key,
        key_hash=body.key_hash,
        properties=body.properties,
        event_time_ms=body.event_time_ms,
    )
    return Entry(position_of(row_id & _ENTRY_MASK), published_at_ms, message)
