"""Positions in a topic: of one message, and of a consumer over all segments, with their byte forms.

Both travel through applications as opaque bytes, so decoding trusts nothing: a length is believed only if the bytes
are there.
"""

import struct
from collections.abc import Collection, Iterator, Mapping
from enum import StrEnum
from typing import Final, Literal

from msgspec import Struct

from scalable_topics.model.errors import DecodeError, InvalidArgument
from scalable_topics.model.limits import MAX_LONG

Position = tuple[int, int]
"""(ledger, entry) of a message in a segment."""

NO_SEGMENT: Final = -1


def is_position(position: Position) -> bool:
    """Can it be one that a segment ends at, or a cursor stands at? -1 is before the first: of an empty ledger, or of
    all ledgers.
    """
    return all(type(number) is int and -1 <= number <= MAX_LONG for number in position)


class Sentinel(StrEnum):
    EARLIEST = "EARLIEST"
    LATEST = "LATEST"


class MessageId(Struct, frozen=True, eq=False):
    """Where a message is. `vector` is where its consumer stood in every segment when it was received.

    Ordered by segment, then position; the vector is luggage and does not count.
    """

    segment_id: int
    position: Position
    vector: Mapping[int, Position] = {}

    def _key(self) -> tuple[int, Position]:
        return self.segment_id, self.position

    def __eq__(self, other: object) -> bool:
        return self._key() == other._key() if isinstance(other, MessageId) else NotImplemented

    def __ne__(self, other: object) -> bool:
        # A Struct compares for inequality by itself, so it has to be told twice.
        return not self == other

    def __lt__(self, other: "MessageId") -> bool:
        return self._key() < other._key()

    def __le__(self, other: "MessageId") -> bool:
        return self._key() <= other._key()

    def __gt__(self, other: "MessageId") -> bool:
        return self._key() > other._key()

    def __ge__(self, other: "MessageId") -> bool:
        return self._key() >= other._key()

    def __hash__(self) -> int:
        return hash(self._key())

    def encode(self) -> bytes:
        return _encode_segment(self.segment_id) + _encode_position(self.position) + _encode_positions(self.vector)

    @classmethod
    def decode(cls, data: bytes) -> "MessageId":
        reader = _Reader(data, "message id")
        segment_id = reader.long()
        position = reader.position()
        if position is None:
            raise DecodeError("it has no position", subject="message id")
        vector = {segment: there for segment, there in reader.positions() if there is not None}
        reader.finish()
        return cls(segment_id, position, vector)


EARLIEST: Final = MessageId(NO_SEGMENT, (-1, -1))
LATEST: Final = MessageId(NO_SEGMENT, (2**63 - 1, 2**63 - 1))

Done = Literal["done"]
DONE: Final[Done] = "done"
"""Read to its end: not started again, even though the segment may still be there."""


class Checkpoint(Struct, frozen=True):
    """How far an application has read, per segment; or a place to start from."""

    positions: Mapping[int, Position | Done] | Sentinel

    def encode(self) -> bytes:
        if isinstance(self.positions, Sentinel):
            return bytes([_SENTINEL_TYPES[self.positions]])
        return bytes([_POSITIONS_TYPE]) + _encode_positions(self.positions)

    @classmethod
    def decode(cls, data: bytes) -> "Checkpoint":
        reader = _Reader(data, "checkpoint")
        kind = reader.byte()
        for sentinel, number in _SENTINEL_TYPES.items():
            if kind == number:
                reader.finish()
                return cls(sentinel)
        if kind != _POSITIONS_TYPE:
            raise DecodeError(
                f"it is of the unknown type {kind}", subject="checkpoint", remedy="was it written by a newer client?"
            )
        positions = {segment: DONE if there is None else there for segment, there in reader.positions()}
        reader.finish()
        return cls(positions)

    def resume(self, segment_ids: Collection[int]) -> "Resumption":
        """Where to start in the segments there are now. What the checkpoint does not know is new, so it starts at its
        beginning.
        """
        if isinstance(self.positions, Sentinel):
            return Resumption(dict.fromkeys(segment_ids, self.positions), ())
        positions = self.positions
        there = set(segment_ids)
        start = {
            segment_id: positions.get(segment_id, Sentinel.EARLIEST)
            for segment_id in segment_ids
            if positions.get(segment_id) != DONE
        }
        skipped = sorted(segment_id for segment_id in positions if segment_id not in there)
        return Resumption(start, tuple(skipped))


class Resumption(Struct, frozen=True):
    """Start of each segment still to be read, and the segments of the checkpoint that exist no more."""

    start: Mapping[int, Position | Done | Sentinel]
    skipped: tuple[int, ...]


_LONG: Final = struct.Struct(">q")
_INT: Final = struct.Struct(">i")
_POSITION: Final = struct.Struct(">qq")
_POSITIONS_TYPE: Final = 0
_SENTINEL_TYPES: Final = {Sentinel.EARLIEST: 1, Sentinel.LATEST: 2}


def _encode_segment(segment_id: int) -> bytes:
    try:
        return _LONG.pack(segment_id)
    except struct.error as error:
        raise InvalidArgument(f"{segment_id!r} is not a segment id", remedy="ids are longs") from error


def _encode_position(position: Position | Done) -> bytes:
    if position == DONE:
        return _INT.pack(0)
    try:
        packed = _POSITION.pack(*position)
    except struct.error as error:
        raise InvalidArgument(f"{position!r} is not a position", remedy="give (ledger, entry), two longs") from error
    return _INT.pack(len(packed)) + packed


def _encode_positions(positions: Mapping[int, Position | Done]) -> bytes:
    parts = [_INT.pack(len(positions))]
    for segment_id in sorted(positions):
        parts += [_encode_segment(segment_id), _encode_position(positions[segment_id])]
    return b"".join(parts)


class _Reader:
    def __init__(self, data: bytes, subject: str) -> None:
        self._data = data
        self._at = 0
        self._subject = subject

    def byte(self) -> int:
        return self._take(1)[0]

    def long(self) -> int:
        value: int = _LONG.unpack(self._take(_LONG.size))[0]
        return value

    def position(self) -> Position | None:
        """None = empty, which in a checkpoint means done."""
        length = self._int()
        if length == 0:
            return None
        if length != _POSITION.size:
            raise self._damaged(f"a position of {length} bytes")
        ledger, entry = _POSITION.unpack(self._take(length))
        return ledger, entry

    def positions(self) -> Iterator[tuple[int, Position | None]]:
        count = self._int()
        if not 0 <= count <= len(self._data) - self._at:
            raise self._damaged(f"{count} positions")
        seen: set[int] = set()
        for _ in range(count):
            segment_id = self.long()
            if segment_id in seen:
                raise self._damaged(f"segment {segment_id} a second time")
            seen.add(segment_id)
            yield segment_id, self.position()

    def finish(self) -> None:
        if self._at != len(self._data):
            raise self._damaged(f"{len(self._data) - self._at} bytes too many")

    def _int(self) -> int:
        value: int = _INT.unpack(self._take(_INT.size))[0]
        return value

    def _take(self, size: int) -> bytes:
        taken = self._data[self._at : self._at + size]
        if len(taken) < size:
            raise self._damaged(f"it ends after {len(self._data)} bytes")
        self._at += size
        return taken

    def _damaged(self, what: str) -> DecodeError:
        return DecodeError(
            f"{what} at byte {self._at}", subject=self._subject, remedy="it was cut off or is something else"
        )
