"""Entry buckets: how many consumers can share one segment in order (PIP-486).

A segment divides the *bucket ring* (all 65536 low halves of the hash, whatever range the segment itself has) into N
buckets. They are stored as a count when they are equally wide, which is all we make, or as explicit split points:
the inclusive starts of buckets 1..N-1, ascending.
"""

from bisect import bisect_right
from functools import lru_cache
from typing import Final

from scalable_topics.model.errors import InvalidArgument
from scalable_topics.model.hash_range import RING_END, RING_SIZE, HashRange

EntryBuckets = int | tuple[int, ...]
"""A count of equally wide buckets, or explicit split points."""

DEFAULT_BUDGET: Final = 4
DEFAULT_MAX_PER_SEGMENT: Final = 1024


@lru_cache(maxsize=256)
def equal_width_splits(count: int) -> tuple[int, ...]:
    if not 0 <= count <= RING_SIZE:
        raise InvalidArgument(f"cannot make {count} buckets", remedy=f"give 0 to {RING_SIZE}")
    return tuple(index * RING_SIZE // count for index in range(1, count))


def count_for_budget(budget: int, segments: int) -> int:
    """One segment's share of a topic's bucket budget; never less than one bucket."""
    if budget < 0 or segments < 1:
        raise InvalidArgument(
            f"a budget of {budget} buckets cannot be shared by {segments} segments",
            remedy="give a budget of 0 or more and at least one segment",
        )
    return max(1, budget // segments)


def validate_splits(splits: tuple[int, ...]) -> int:
    """The number of buckets that these split points make."""
    previous = 0
    for split in splits:
        if not previous < split <= RING_END:
            raise InvalidArgument(
                f"bucket split point {split} after {previous} is out of order or off the ring",
                remedy=f"give ascending values from 1 to {RING_END}; bucket 0 always starts at 0",
            )
        previous = split
    return len(splits) + 1


def validate(buckets: EntryBuckets) -> None:
    if isinstance(buckets, tuple):
        validate_splits(buckets)
    elif type(buckets) is not int or not 1 <= buckets <= RING_SIZE:
        raise InvalidArgument(f"a segment cannot have {buckets} entry buckets", remedy=f"give 1 to {RING_SIZE}")


def bucket_count(buckets: EntryBuckets) -> int:
    return len(buckets) + 1 if isinstance(buckets, tuple) else buckets


def splits_of(buckets: EntryBuckets) -> tuple[int, ...]:
    return buckets if isinstance(buckets, tuple) else equal_width_splits(buckets)


def bucket_ranges(splits: tuple[int, ...]) -> tuple[HashRange, ...]:
    starts = (0, *splits)
    return tuple(map(HashRange, starts, (*(start - 1 for start in splits), RING_END)))


def bucket_of(splits: tuple[int, ...], hash_value: int) -> int:
    """The index of the bucket that holds this bucket hash."""
    return bisect_right(splits, hash_value)
