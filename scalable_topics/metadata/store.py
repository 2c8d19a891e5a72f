"""The port to the metadata store. Everything above it is written against this page, and nothing else.

A store is a map from keys to values with one history: every write that changes something has a revision, one higher
than the last. A transaction compares, then writes, all at one revision. A watch tells every revision after a known
one, once and in order. Keys that carry a lease vanish with it. Adapters: `etcd` (production) and `memory`
(simulation, a daemon by itself).
"""

from collections.abc import AsyncGenerator, Sequence
from typing import Final, Protocol

from msgspec import Struct

MAX_WRITES: Final = 128
"""Of one transaction, and of its compares: what an etcd takes with its default settings."""
MAX_REQUEST_BYTES: Final = 3 << 19
"""1.5 MiB, keys and values of one transaction together."""
PAGE_KEYS: Final = 1_000


class KeyValue(Struct, frozen=True, gc=False):
    """A key as it is at one revision. It was created at `create_revision` and last written at `mod_revision`."""

    key: str
    value: bytes
    create_revision: int
    mod_revision: int
    lease: int = 0


class Deletion(Struct, frozen=True, gc=False):
    """In a watch: the key went at this revision."""

    key: str
    mod_revision: int


class Snapshot(Struct, frozen=True):
    """What a read saw, all of it at one revision; keys ascending."""

    revision: int
    items: tuple[KeyValue, ...]
    cluster: int = 0
    """Which store answered. Revisions of two clusters have nothing to do with each other."""


class ValueIs(Struct, frozen=True):
    key: str
    value: bytes


class ModRevisionIs(Struct, frozen=True):
    """Nobody has written it since; 0 = it is absent."""

    key: str
    revision: int


class CreateRevisionIs(Struct, frozen=True):
    """It is still the same life of the key; 0 = it is absent."""

    key: str
    revision: int


class LeaseIs(Struct, frozen=True):
    key: str
    lease: int


Compare = ValueIs | ModRevisionIs | CreateRevisionIs | LeaseIs


class Put(Struct, frozen=True):
    key: str
    value: bytes
    lease: int = 0


class Delete(Struct, frozen=True):
    key: str


class DeletePrefix(Struct, frozen=True):
    prefix: str


Write = Put | Delete | DeletePrefix


class Answer(Struct, frozen=True):
    """Of a transaction. `revision` is where the store stood after it.

    A refused one also tells what it found instead: the compared keys in the order of the compares, None = absent.
    """

    succeeded: bool
    revision: int
    found: tuple[KeyValue | None, ...] = ()


class WatchBatch(Struct, frozen=True):
    """Whole revisions, ascending, up to and including `revision`.

    No events: only a sign of life, and then `revision` is where the member that serves the watch stands, which may be
    before or after what it has told.
    """

    revision: int
    events: tuple[KeyValue | Deletion, ...]
    cluster: int = 0


class StoreHealth(Struct, frozen=True, kw_only=True):
    version: str
    used_bytes: int
    quota_bytes: int | None
    """None = unknown."""
    no_space: bool
    """Writes are refused until somebody makes room."""
    auto_compaction: bool | None
    """Does it forget old revisions by itself? None = unknown. Without it the store grows until it is full."""

    @property
    def nearly_full(self) -> bool:
        """From four fifths of the quota on automatic operations stop, so that people still have room to mend things."""
        return self.no_space or (self.quota_bytes is not None and self.used_bytes >= 0.8 * self.quota_bytes)


class MetadataStore(Protocol):
    """Reads are linearizable. Every call may raise `Unavailable`: the store did not answer within the call's deadline
    and nothing was changed. A commit raises `UnknownOutcome` instead when it may have happened. Where the store has
    users, every call may raise `Forbidden`.

    Keys are text. A key that is not UTF-8 cannot be ours, and is passed over by reads and watches.
    """

    async def get(self, *keys: str) -> Snapshot:
        """Those of the keys that exist, however many are asked for, at one revision."""

    async def scan(self, prefix: str, *, revision: int | None = None) -> Snapshot:
        """All keys with a prefix, read page by page at one revision: now, or an earlier one.

        Raises `Compacted` for a forgotten revision, `InvalidArgument` for one that has not happened, for one below 1
        and for an empty prefix.
        """

    async def commit(self, writes: Sequence[Write], *, compares: Sequence[Compare] = ()) -> Answer:
        """If all compares hold, all writes happen, at one revision.

        `TooLarge`, `NoSpace`, `InvalidArgument` and `LeaseLost` (a put names a lease that is gone) mean that nothing
        was written.
        """

    async def grant_lease(self, ttl_seconds: int) -> int:
        """A new lease that ends by itself unless it is kept alive. `NoSpace` when the store is full."""

    async def keep_alive(self, lease: int) -> float:
        """Seconds it now has left; 0 = it is gone, and its keys with it."""

    async def revoke_lease(self, lease: int) -> None:
        """Its keys go at once, at one revision. A lease that is gone already is fine."""

    def watch(self, prefix: str, *, after_revision: int) -> AsyncGenerator[WatchBatch, None]:
        """Everything under a prefix that comes after a revision, once and in order, until it breaks.

        The first batch is a sign of life without events: the stream stands. It ends only by raising: `Unavailable`,
        `Forbidden`, or `Compacted` when that part of the history is forgotten. A revision that has not happened yet is
        waited for.

        It may fall silent without an error. How long is too long, the reader decides: it closes the stream and opens
        another, which is served by another member where there are several.
        """

    async def health(self) -> StoreHealth:
        """What the store says of itself now."""

    async def close(self) -> None:
        """Let go of connections and timers. Nothing may be called afterwards; leases end by themselves."""
