"""Hash ranges: inclusive intervals on the ring 0..65535 that decide which segment a key belongs to.

The ring is a ring in name only: 65535 and 0 are not neighbours.
"""

import re
from collections.abc import Iterable
from typing import Final, Self

from msgspec import Struct

from scalable_topics.model.errors import InvalidArgument, WrongState

RING_SIZE: Final = 1 << 16
RING_END: Final = RING_SIZE - 1

_HEX_PAIR: Final = re.compile(r"([0-9a-f]{4})-([0-9a-f]{4})")


class HashRange(Struct, frozen=True, order=True, gc=False):
    """`start` to `end`, both inclusive. Ordered by start, then end."""

    start: int
    end: int

    def __post_init__(self) -> None:
        start, end = self.start, self.end
        if not (0 <= start <= end <= RING_END and type(start) is type(end) is int):
            raise InvalidArgument(
                f"[{self.start}, {self.end}] is not a hash range",
                remedy=f"give 0 <= start <= end <= {RING_END}",
            )

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read the hex form, `0a0b-f0f0`: four lower-case digits each, so that a range has one spelling."""
        match = _HEX_PAIR.fullmatch(text)
        if match is None:
            raise InvalidArgument(f"{text!r} is not a hash range", remedy="write it as four hex digits each: 0000-7fff")
        return cls(int(match[1], 16), int(match[2], 16))

    @property
    def size(self) -> int:
        return self.end - self.start + 1

    @property
    def hex(self) -> str:
        return f"{self.start:04x}-{self.end:04x}"

    def __str__(self) -> str:
        return f"[{self.start:04x}, {self.end:04x}]"

    def __contains__(self, hash_value: int) -> bool:
        return self.start <= hash_value <= self.end

    def covers(self, other: "HashRange") -> bool:
        return self.start <= other.start and other.end <= self.end

    def is_adjacent_to(self, other: "HashRange") -> bool:
        return self.end + 1 == other.start or other.end + 1 == self.start

    def split(self, ways: int = 2) -> "tuple[HashRange, ...]":
        """Cut into contiguous parts, lowest first; the first `size mod ways` are one value wider."""
        if ways < 2:
            raise InvalidArgument(f"cannot split a range {ways} ways", subject=str(self), remedy="give 2 or more")
        if self.size < ways:
            raise WrongState(
                f"holds {self.size} hash value(s), too few to split {ways} ways",
                subject=str(self),
                remedy=f"split at most {self.size} ways" if self.size > 1 else "a single hash value stays one segment",
            )
        width, wider = divmod(self.size, ways)
        starts = [self.start + part * width + min(part, wider) for part in range(ways)]
        ends = [start - 1 for start in starts[1:]] + [self.end]
        return tuple(map(HashRange, starts, ends))

    def merge(self, other: "HashRange") -> "HashRange":
        if not self.is_adjacent_to(other):
            raise InvalidArgument(
                f"{self} and {other} are not adjacent", remedy="merge neighbours: one ends where the other starts"
            )
        return HashRange(min(self.start, other.start), max(self.end, other.end))


FULL_RANGE: Final = HashRange(0, RING_END)


def equal_ranges(count: int) -> tuple[HashRange, ...]:
    """Cut the whole ring as new topics and migrations do: equal floor width, the last part takes the rest."""
    if not 1 <= count <= RING_SIZE:
        raise InvalidArgument(f"a topic cannot have {count} segments", remedy=f"give 1 to {RING_SIZE}")
    width = RING_SIZE // count
    return tuple(HashRange(i * width, RING_END if i == count - 1 else (i + 1) * width - 1) for i in range(count))


def tiling_problem(ranges: Iterable[HashRange], whole: HashRange) -> str | None:
    """Say how ranges, sorted by start, fail to cover `whole` exactly once; None when they tile it."""
    expected = whole.start
    for part in ranges:
        if part.start != expected:
            what = "a gap at" if part.start > expected else "an overlap at"
            return f"{what} {min(part.start, expected):04x}: expected a range starting at {expected:04x}, found {part}"
        expected = part.end + 1
    return None if expected == whole.end + 1 else f"{expected:04x} to {whole.end:04x} is not covered"
