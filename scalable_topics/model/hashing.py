"""One hash, two halves.

MurmurHash3 x86-32, seed 0, over the key's UTF-8 bytes, used raw: the high 16 bits choose the segment, the low 16
bits the entry bucket inside it. The halves of a good hash are independent, so the keys of one segment spread evenly
over its buckets. Partitioned v4 topics route by the same hash with its sign bit cleared, modulo the number of
partitions.
"""

import mmh3

from scalable_topics.model.errors import InvalidArgument


def raw_hash(key: str | bytes) -> int:
    """The unmasked 32 bits, unsigned."""
    try:
        return mmh3.mmh3_32_uintdigest(key.encode() if isinstance(key, str) else key)
    except UnicodeEncodeError as error:
        raise InvalidArgument(
            f"the key {key!r} is not text that UTF-8 can encode", remedy="pass bytes instead"
        ) from error


def segment_hash(raw: int) -> int:
    return raw >> 16


def bucket_hash(raw: int) -> int:
    return raw & 0xFFFF


def legacy_partition(raw: int, partitions: int) -> int:
    """Where a v4 partitioned producer sends the key."""
    if partitions < 1:
        raise InvalidArgument(f"cannot route over {partitions} partitions", remedy="give 1 or more")
    return (raw & 0x7FFFFFFF) % partitions
