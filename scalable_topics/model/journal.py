"""The journal of a topic: what was done to it and why, the newest rows in the store, all of them in files."""

from collections.abc import Mapping, Sequence
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from scalable_topics.model.codec import encode_json
from scalable_topics.model.errors import InvalidArgument
from scalable_topics.model.limits import is_long

MAX_ROWS: Final = 200
MAX_BYTES: Final = 16 << 10
"""Of one topic's rows together."""


class JournalRow(Struct, frozen=True, rename="camel", kw_only=True):
    at_ms: int
    what: str
    """Such as SPLIT, PRUNE, DATA_LOSS."""
    by: str
    reason: str = ""
    operation_id: str | None = None
    epoch: int | None = None
    details: Mapping[str, object] = {}

    def __post_init__(self) -> None:
        if not is_long(self.at_ms):
            raise InvalidArgument(f"atMs {self.at_ms} is not a time", remedy="milliseconds, a long of 0 or more")


def encode_row(row: JournalRow) -> bytes:
    """A row that would not fit by itself is shortened, never refused: the journal must not stand in the way of what it
    tells about.
    """
    data = encode_json(row)
    if len(data) <= MAX_BYTES // 4:
        return data
    return encode_json(replace(row, reason=row.reason[:500], details={"shortened": len(data)}))


def rows_to_drop(sizes: Sequence[int], new_bytes: int) -> int:
    """How many of the oldest rows go so that a new one fits; `sizes` oldest first."""
    rows, total, dropped = len(sizes) + 1, sum(sizes) + new_bytes, 0
    while dropped < len(sizes) and (rows > MAX_ROWS or total > MAX_BYTES):
        rows -= 1
        total -= sizes[dropped]
        dropped += 1
    return dropped
