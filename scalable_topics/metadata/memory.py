"""The memory adapter: a whole store in one process.

For simulation, where a hundred daemons share one of these on virtual time, and for a daemon that runs by itself
without etcd. It answers exactly as an etcd would: one contract suite and one state machine hold the two against
each other. Time is the event loop's.
"""

import asyncio
from bisect import bisect_right
from collections.abc import AsyncGenerator, Sequence
from itertools import count

from msgspec import Struct

from scalable_topics.metadata.requests import check_request
from scalable_topics.metadata.store import (
    Answer,
    Compare,
    CreateRevisionIs,
    Delete,
    DeletePrefix,
    Deletion,
    KeyValue,
    LeaseIs,
    ModRevisionIs,
    Put,
    Snapshot,
    StoreHealth,
    ValueIs,
    WatchBatch,
    Write,
)
from scalable_topics.model.errors import Compacted, InvalidArgument, LeaseLost

Event = KeyValue | Deletion


class _Lease(Struct):
    ttl_seconds: int
    timer: asyncio.TimerHandle
    keys: set[str]


class MemoryStore:
    """One history, kept from its first revision until somebody compacts it."""

    def __init__(self) -> None:
        self._revision = 1
        self._compacted = 0
        self._versions: dict[str, list[Event]] = {}
        self._history: list[tuple[int, tuple[Event, ...]]] = []
        self._leases: dict[int, _Lease] = {}
        self._lease_ids = count(1)
        self._watchers: set[asyncio.Event] = set()

    async def get(self, *keys: str) -> Snapshot:
        found = (self._at(key, self._revision) for key in sorted(set(keys)))
        return Snapshot(self._revision, tuple(item for item in found if item is not None))

    async def scan(self, prefix: str, *, revision: int | None = None) -> Snapshot:
        at = self._revision if revision is None else revision
        if at < self._compacted:
            raise Compacted(f"revision {at} is forgotten", remedy=f"everything from {self._compacted} on is there")
        if at > self._revision:
            raise InvalidArgument(f"revision {at} has not happened yet")
        found = (self._at(key, at) for key in sorted(self._versions) if key.startswith(prefix))
        return Snapshot(at, tuple(item for item in found if item is not None))

    async def commit(self, writes: Sequence[Write], *, compares: Sequence[Compare] = ()) -> Answer:
        check_request(writes, compares)
        if not all(self._holds(compare) for compare in compares):
            found = tuple(self._at(compare.key, self._revision) for compare in compares)
            return Answer(False, self._revision, found)
        for write in writes:
            if isinstance(write, Put) and write.lease and write.lease not in self._leases:
                raise LeaseLost(f"there is no lease {write.lease}", subject=write.key)
        self._write(writes)
        return Answer(True, self._revision)

    async def grant_lease(self, ttl_seconds: int) -> int:
        if ttl_seconds < 1:
            raise InvalidArgument(f"a lease of {ttl_seconds} s is none", remedy="give 1 or more")
        lease_id = next(self._lease_ids)
        self._leases[lease_id] = _Lease(ttl_seconds, self._expiry(lease_id, ttl_seconds), set())
        return lease_id

    async def keep_alive(self, lease: int) -> float:
        known = self._leases.get(lease)
        if known is None:
            return 0
        known.timer.cancel()
        known.timer = self._expiry(lease, known.ttl_seconds)
        return known.ttl_seconds

    async def revoke_lease(self, lease: int) -> None:
        self._end_lease(lease)

    async def watch(self, prefix: str, *, after_revision: int) -> AsyncGenerator[WatchBatch, None]:
        news = asyncio.Event()
        self._watchers.add(news)
        seen = after_revision
        try:
            while True:
                if seen + 1 < self._compacted:
                    raise Compacted(f"revision {seen + 1} is forgotten", remedy=f"go on from {self._compacted}")
                first = bisect_right(self._history, seen, key=lambda entry: entry[0])
                for revision, events in self._history[first:]:
                    ours = tuple(event for event in events if event.key.startswith(prefix))
                    if ours:
                        yield WatchBatch(revision, ours)
                    seen = revision
                if seen >= self._revision:
                    news.clear()
                    await news.wait()
        finally:
            self._watchers.discard(news)

    async def health(self) -> StoreHealth:
        used = sum(len(v.value) for of in self._versions.values() for v in of if isinstance(v, KeyValue))
        return StoreHealth(version="memory", used_bytes=used, quota_bytes=None, no_space=False)

    async def close(self) -> None:
        """Leases end with the process that holds this store: nothing is left to expire them."""
        for lease in self._leases.values():
            lease.timer.cancel()

    def compact(self, revision: int) -> None:
        """Forget everything before a revision, as an etcd with auto-compaction does by itself."""
        if not self._compacted < revision <= self._revision:
            raise Compacted(f"cannot compact at {revision}: {self._compacted} to {self._revision} is there")
        self._compacted = revision
        for key, versions in list(self._versions.items()):
            kept = versions[max(0, bisect_right(versions, revision, key=_mod_revision) - 1) :]
            if isinstance(kept[0], Deletion) and kept[0].mod_revision <= revision:
                del kept[0]
            if kept:
                self._versions[key] = kept
            else:
                del self._versions[key]
        self._history = [entry for entry in self._history if entry[0] >= revision]
        self._tell()

    def _at(self, key: str, revision: int) -> KeyValue | None:
        versions = self._versions.get(key, [])
        index = bisect_right(versions, revision, key=_mod_revision) - 1
        version = versions[index] if index >= 0 else None
        return version if isinstance(version, KeyValue) else None

    def _holds(self, compare: Compare) -> bool:
        now = self._at(compare.key, self._revision)
        match compare:
            case ValueIs(value=value):
                return now is not None and now.value == value
            case ModRevisionIs(revision=revision):
                return (now.mod_revision if now else 0) == revision
            case CreateRevisionIs(revision=revision):
                return (now.create_revision if now else 0) == revision
            case LeaseIs(lease=lease):
                return (now.lease if now else 0) == lease

    def _write(self, writes: Sequence[Write]) -> None:
        revision = self._revision + 1
        events: list[Event] = []
        for write in writes:
            match write:
                case Put(key=key, value=value, lease=lease):
                    before = self._at(key, self._revision)
                    self._detach(before)
                    if lease:
                        self._leases[lease].keys.add(key)
                    events.append(KeyValue(key, value, before.create_revision if before else revision, revision, lease))
                case Delete(key=key):
                    events += self._deletions([key], revision)
                case DeletePrefix(prefix=prefix):
                    events += self._deletions(
                        [key for key in sorted(self._versions) if key.startswith(prefix)], revision
                    )
        if events:
            self._revision = revision
            # One key has one fate in one revision, also when a delete and a prefix both meant it.
            distinct = tuple({event.key: event for event in events}.values())
            for event in distinct:
                self._versions.setdefault(event.key, []).append(event)
            self._history.append((revision, distinct))
            self._tell()

    def _deletions(self, keys: Sequence[str], revision: int) -> list[Event]:
        gone = [item for key in keys if (item := self._at(key, self._revision)) is not None]
        for item in gone:
            self._detach(item)
        return [Deletion(item.key, revision) for item in gone]

    def _detach(self, item: KeyValue | None) -> None:
        if item is not None and item.lease in self._leases:
            self._leases[item.lease].keys.discard(item.key)

    def _expiry(self, lease: int, ttl_seconds: int) -> asyncio.TimerHandle:
        return asyncio.get_running_loop().call_later(ttl_seconds, self._end_lease, lease)

    def _end_lease(self, lease: int) -> None:
        ended = self._leases.pop(lease, None)
        if ended is not None:
            ended.timer.cancel()
            self._write([Delete(key) for key in sorted(ended.keys)])

    def _tell(self) -> None:
        for watcher in self._watchers:
            watcher.set()


def _mod_revision(version: Event) -> int:
    return version.mod_revision
