"""The memory adapter: a whole store in one process.

For simulation, where a hundred daemons share one of these on virtual time, and for a daemon that runs by itself
without etcd. It answers exactly as an etcd would: one contract suite and one state machine hold the two against
each other. Time is the event loop's.
"""

import asyncio
from bisect import bisect_left, bisect_right, insort
from collections.abc import AsyncGenerator, Iterator, Mapping, Sequence
from itertools import count
from typing import Final

from msgspec import Struct

from scalable_topics.metadata.requests import check_request, check_scan, check_ttl, check_watch
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
from scalable_topics.model.errors import Compacted, InvalidArgument, LeaseLost, Unavailable

Event = KeyValue | Deletion


KEEP_REVISIONS: Final = 10_000


class _Lease(Struct):
    ttl_seconds: int
    timer: asyncio.TimerHandle
    keys: set[str]


class Backup(Struct, frozen=True):
    """A whole store at one revision, history included."""

    cluster: int
    revision: int
    compacted: int
    versions: Mapping[str, tuple[Event, ...]]
    history: tuple[tuple[int, tuple[Event, ...]], ...]
    leases: Mapping[int, tuple[int, frozenset[str]]]


class MemoryStore:
    """One history. The last `keep_revisions` of it are there to be watched and scanned, as with an etcd that compacts
    by itself.
    """

    def __init__(self, *, keep_revisions: int = KEEP_REVISIONS) -> None:
        self._keep_revisions = keep_revisions
        self._cluster = 1
        self._life = 0
        self._revision = 1
        self._compacted = 0
        self._versions: dict[str, list[Event]] = {}
        self._keys: list[str] = []
        """Those of `_versions`, ascending."""
        self._history: list[tuple[int, tuple[Event, ...]]] = []
        self._leases: dict[int, _Lease] = {}
        self._lease_ids = count(1)
        self._watchers: dict[asyncio.Event, None] = {}
        """In the order in which they came, so that a simulation can be repeated."""

    async def get(self, *keys: str) -> Snapshot:
        found = (self._at(key, self._revision) for key in sorted(set(keys)))
        return Snapshot(self._revision, tuple(item for item in found if item is not None), self._cluster)

    async def scan(self, prefix: str, *, revision: int | None = None) -> Snapshot:
        check_scan(prefix, revision)
        at = self._revision if revision is None else revision
        if at < self._compacted:
            raise Compacted(f"revision {at} is forgotten", remedy=f"everything from {self._compacted} on is there")
        if at > self._revision:
            raise InvalidArgument(f"revision {at} has not happened yet")
        found = (self._at(key, at) for key in self._keys_under(prefix))
        return Snapshot(at, tuple(item for item in found if item is not None), self._cluster)

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
        check_ttl(ttl_seconds)
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
        check_watch(prefix, after_revision)
        news, life = asyncio.Event(), self._life
        self._watchers[news] = None
        seen = after_revision
        try:
            self._ensure_remembered(seen + 1)
            yield WatchBatch(self._revision, (), self._cluster)
            while True:
                if life != self._life:
                    raise Unavailable("the watch broke: the store was restored", subject="memory")
                self._ensure_remembered(seen + 1)
                for revision, events in self._history_after(seen):
                    seen = revision
                    ours = tuple(event for event in events if event.key.startswith(prefix))
                    if ours:
                        yield WatchBatch(revision, ours, self._cluster)
                        break
                else:
                    news.clear()
                    await news.wait()
        finally:
            del self._watchers[news]

    async def health(self) -> StoreHealth:
        used = sum(len(v.value) for of in self._versions.values() for v in of if isinstance(v, KeyValue))
        return StoreHealth(version="memory", used_bytes=used, quota_bytes=None, no_space=False, auto_compaction=True)

    async def close(self) -> None:
        """Leases end with the process that holds this store: nothing is left to expire them."""
        for lease in self._leases.values():
            lease.timer.cancel()

    def compact(self, revision: int) -> None:
        """Forget everything before a revision, as an etcd with auto-compaction does by itself. `Compacted` for one that
        is forgotten already or has not happened.
        """
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
        self._keys = sorted(self._versions)
        self._history = [entry for entry in self._history if entry[0] >= revision]
        self._tell()

    def backup(self) -> Backup:
        """The store as it is now; later writes leave it alone."""
        return Backup(
            self._cluster,
            self._revision,
            self._compacted,
            {key: tuple(versions) for key, versions in self._versions.items()},
            tuple(self._history),
            {number: (lease.ttl_seconds, frozenset(lease.keys)) for number, lease in self._leases.items()},
        )

    def restore(self, backup: Backup, *, cluster: int | None = None) -> None:
        """Go back to a backup, as an operator does who restores an etcd: watches break, leases start their time
        again. `cluster`: the restored store says that it is another one.
        """
        for lease in self._leases.values():
            lease.timer.cancel()
        self._life += 1
        self._cluster = backup.cluster if cluster is None else cluster
        self._revision, self._compacted = backup.revision, backup.compacted
        self._versions = {key: list(versions) for key, versions in backup.versions.items()}
        self._keys = sorted(self._versions)
        self._history = list(backup.history)
        self._leases = {
            number: _Lease(ttl, self._expiry(number, ttl), set(keys)) for number, (ttl, keys) in backup.leases.items()
        }
        self._tell()

    def _history_after(self, revision: int) -> Iterator[tuple[int, tuple[Event, ...]]]:
        first = bisect_right(self._history, revision, key=lambda entry: entry[0])
        return (self._history[index] for index in range(first, len(self._history)))

    def _ensure_remembered(self, revision: int) -> None:
        if revision < self._compacted:
            raise Compacted(f"revision {revision} is forgotten", remedy=f"go on from {self._compacted}")

    def _keys_under(self, prefix: str) -> Iterator[str]:
        for index in range(bisect_left(self._keys, prefix), len(self._keys)):
            if not self._keys[index].startswith(prefix):
                return
            yield self._keys[index]

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
                    events += self._deletions(list(self._keys_under(prefix)), revision)
        if events:
            self._revision = revision
            # One key has one fate in one revision, also when a delete and a prefix both meant it.
            distinct = tuple({event.key: event for event in events}.values())
            for event in distinct:
                if event.key not in self._versions:
                    self._versions[event.key] = []
                    insort(self._keys, event.key)
                self._versions[event.key].append(event)
            self._history.append((revision, distinct))
            if len(self._history) >= 2 * self._keep_revisions:
                self.compact(self._history[-self._keep_revisions][0])
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
        for watcher in tuple(self._watchers):
            watcher.set()


def _mod_revision(version: Event) -> int:
    return version.mod_revision
