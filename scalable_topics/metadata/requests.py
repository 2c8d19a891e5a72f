"""What any store refuses before it is asked: checked here once, so that all adapters refuse the same."""

from collections.abc import Sequence

from scalable_topics.metadata.store import (
    MAX_REQUEST_BYTES,
    MAX_WRITES,
    Compare,
    Delete,
    DeletePrefix,
    Put,
    ValueIs,
    Write,
)
from scalable_topics.model.errors import InvalidArgument, TooLarge


def check_scan(prefix: str, revision: int | None) -> None:
    """`InvalidArgument` for an empty prefix and for a revision below 1."""
    _refuse_empty(prefix)
    if revision is not None and revision < 1:
        raise InvalidArgument(f"there is no revision {revision}", remedy="the first one is 1")


def check_watch(prefix: str, after_revision: int) -> None:
    """`InvalidArgument` for an empty prefix and for a revision below 0."""
    _refuse_empty(prefix)
    if after_revision < 0:
        raise InvalidArgument(f"there is no revision {after_revision}", remedy="0 = from the beginning")


def check_ttl(ttl_seconds: int) -> None:
    """`InvalidArgument` for less than a second."""
    if ttl_seconds < 1:
        raise InvalidArgument(f"a lease of {ttl_seconds} s is none", remedy="give 1 or more")


def _refuse_empty(prefix: str) -> None:
    if not prefix:
        raise InvalidArgument("an empty prefix means everything", remedy="name the prefix that is meant")


def check_request(writes: Sequence[Write], compares: Sequence[Compare]) -> None:
    """`TooLarge` for more writes, compares or bytes than an etcd takes; `InvalidArgument` for a key that is written
    twice and for an empty one.
    """
    for what, number in (("writes", len(writes)), ("compares", len(compares))):
        if number > MAX_WRITES:
            raise TooLarge(
                f"{number} {what} in one transaction", remedy=f"give at most {MAX_WRITES}, in several transactions"
            )
    size = sum(_write_bytes(write) for write in writes) + sum(_compare_bytes(compare) for compare in compares)
    if size > MAX_REQUEST_BYTES:
        raise TooLarge(f"a transaction of {size} bytes", remedy=f"give at most {MAX_REQUEST_BYTES}")
    _refuse_overlaps(writes)


def _write_bytes(write: Write) -> int:
    match write:
        case Put(key=key, value=value):
            return len(key.encode()) + len(value)
        case Delete(key=key) | DeletePrefix(prefix=key):
            return len(key.encode())


def _compare_bytes(compare: Compare) -> int:
    return len(compare.key.encode()) + (len(compare.value) if isinstance(compare, ValueIs) else 8)


def _refuse_overlaps(writes: Sequence[Write]) -> None:
    """One key has one fate in one revision."""
    puts = [write.key for write in writes if isinstance(write, Put)]
    prefixes = tuple(write.prefix for write in writes if isinstance(write, DeletePrefix))
    deletes = [write.key for write in writes if isinstance(write, Delete)]
    doubled = len(set(puts)) != len(puts) or set(puts) & set(deletes)
    if doubled or any(key.startswith(prefixes) for key in puts):
        raise InvalidArgument("a transaction writes one key twice", remedy="say once what becomes of a key")
    if "" in prefixes or any(not write.key for write in writes if isinstance(write, Put | Delete)):
        raise InvalidArgument("a transaction names an empty key or prefix", remedy="name what is meant")
