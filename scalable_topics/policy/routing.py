"""Where a message goes: its segment, and its bucket inside it."""

from bisect import bisect_right
from collections.abc import Iterable, Sequence

from msgspec import Struct

from scalable_topics.model.entry_buckets import bucket_of
from scalable_topics.model.errors import WrongState
from scalable_topics.model.hashing import bucket_hash, legacy_partition, raw_hash, segment_hash
from scalable_topics.model.segment import SegmentInfo

KEYLESS_BUCKET_HASH = 0


class Route(Struct, frozen=True, order=True):
    """An active segment, as far as routing cares."""

    start: int
    end: int
    segment_id: int
    legacy: bool = False


class Router:
    """Routes over one set of active segments; a new layout means a new router.

    By hash range; or, while all segments are old partitions, by modulo, exactly as v4 producers do.
    """

    def __init__(self, routes: Iterable[Route]) -> None:
        self._by_range = sorted(routes)
        self._by_id = sorted(route.segment_id for route in self._by_range)
        self._starts = [route.start for route in self._by_range]
        self._modulo = all(route.legacy for route in self._by_range)

    @classmethod
    def of(cls, active: Iterable[SegmentInfo]) -> "Router":
        return cls(Route(s.hash_range.start, s.hash_range.end, s.segment_id, s.is_legacy) for s in active)

    def route(self, key: str | bytes) -> int:
        """The segment of a key."""
        self._ensure_segments()
        raw = raw_hash(key)
        if self._modulo:
            return self._by_id[legacy_partition(raw, len(self._by_id))]
        hash_value = segment_hash(raw)
        index = bisect_right(self._starts, hash_value) - 1
        if index < 0 or hash_value > self._by_range[index].end:
            raise WrongState(f"no active segment holds the hash {hash_value:04x}", remedy="wait for a complete layout")
        return self._by_range[index].segment_id

    def route_keyless(self, turn: int) -> int:
        """The segment of the `turn`-th message without a key: round-robin in range order; keyed ones take no turn."""
        self._ensure_segments()
        return self._by_range[turn % len(self._by_range)].segment_id

    def _ensure_segments(self) -> None:
        if not self._by_range:
            raise WrongState("there are no active segments to route to", remedy="wait for a layout")


def message_bucket_hash(key: str | bytes | None, ordering_key: str | bytes | None = None) -> int:
    """The bucket hash of a message; its ordering key wins, and one without any key is always in bucket 0."""
    decisive = ordering_key if ordering_key is not None else key
    return KEYLESS_BUCKET_HASH if decisive is None else bucket_hash(raw_hash(decisive))


class BucketBatch(Struct, frozen=True):
    """One batch: never more than one bucket, stamped with the hashes that are really in it."""

    bucket: int
    hash_min: int
    hash_max: int


def bucket_batches(splits: tuple[int, ...], bucket_hashes: Sequence[int]) -> list[BucketBatch]:
    """How a full buffer of messages becomes batches, by bucket."""
    by_bucket: dict[int, list[int]] = {}
    for hash_value in bucket_hashes:
        by_bucket.setdefault(bucket_of(splits, hash_value), []).append(hash_value)
    return [BucketBatch(bucket, min(hashes), max(hashes)) for bucket, hashes in sorted(by_bucket.items())]


def batches_by_bucket(*, batching: bool, encryption: bool) -> bool:
    """Does a producer batch, which on a scalable topic always means by bucket? An encrypted batch could not be
    reshaped, so it is never made.
    """
    return batching and not encryption
