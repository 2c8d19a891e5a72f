"""What this daemon knows of the store: a copy of everything under a prefix, fed by one watch, and every change told
once and in order.

It survives whatever the store does: a broken stream is resumed after the last revision seen, and forgotten history
is made up for by listing again and telling the difference, deletions included. What it tells is always a way from
what was told before to what is there.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import aclosing, asynccontextmanager
from types import MappingProxyType
from typing import Final

from msgspec import Struct

from scalable_topics.metadata.store import Deletion, KeyValue, MetadataStore, Snapshot, WatchBatch
from scalable_topics.model.errors import Compacted, ScalableTopicsError, Unavailable

SILENCE_SECONDS: Final = 30.0
"""A watch that has told nothing for so long is not believed to be alive: our own heartbeat should have come back on
it.
"""
RETRY_SECONDS: Final = 0.1
MAX_RETRY_SECONDS: Final = 2.0

log = logging.getLogger(__name__)


class KeyChange(Struct, frozen=True):
    """One key from one state to the next; None = absent. A key made anew is told as gone first.

    `revision` never falls: it is that of the event, or of the listing that made up for events that were missed.
    """

    key: str
    before: KeyValue | None
    after: KeyValue | None
    revision: int


Listener = Callable[[KeyChange], None]


class StoreView:
    """To be kept `running`; then `items` is the store under `prefix` at `revision`, or a little before."""

    def __init__(self, store: MetadataStore, prefix: str, *, silence_seconds: float = SILENCE_SECONDS) -> None:
        self.prefix = prefix
        self.revision = 0
        self._store = store
        self._silence_seconds = silence_seconds
        self._items: dict[str, KeyValue] = {}
        self._listeners: list[Listener] = []
        self._heard_at: float | None = None
        self._reached = asyncio.Condition()

    @property
    def items(self) -> Mapping[str, KeyValue]:
        return MappingProxyType(self._items)

    @property
    def stale_seconds(self) -> float:
        """Since the store was last heard of; 0 while the stream stands."""
        if self._heard_at is None:
            return 0.0
        return asyncio.get_running_loop().time() - self._heard_at

    def listen(self, listener: Listener) -> Callable[[], None]:
        """Be told every change from now on; answers what ends it. A listener must not fail and must not wait."""
        self._listeners.append(listener)
        return lambda: self._listeners.remove(listener)

    async def wait_for_revision(self, revision: int) -> None:
        """Until the copy has caught up with a write of our own."""
        async with self._reached:
            await self._reached.wait_for(lambda: self.revision >= revision)

    @asynccontextmanager
    async def running(self) -> AsyncIterator["StoreView"]:
        """Complete when the block begins."""
        self._load(await self._store.scan(self.prefix))
        async with asyncio.TaskGroup() as tasks:
            following = tasks.create_task(self._follow(), name=f"view of {self.prefix}")
            try:
                yield self
            finally:
                following.cancel()

    async def _follow(self) -> None:
        delay = RETRY_SECONDS
        while True:
            before = self.revision
            try:
                await self._follow_once()
            except (Unavailable, TimeoutError, Compacted) as error:
                log.warning("watch broken prefix=%s revision=%d: %s", self.prefix, self.revision, _words(error))
                if self._heard_at is None:
                    self._heard_at = asyncio.get_running_loop().time()
                if isinstance(error, Compacted):
                    await self._list_again()
            delay = RETRY_SECONDS if self.revision > before else min(2 * delay, MAX_RETRY_SECONDS)
            await asyncio.sleep(delay)

    async def _follow_once(self) -> None:
        """One stream, until it breaks or falls silent."""
        async with aclosing(self._store.watch(self.prefix, after_revision=self.revision)) as stream:
            while True:
                async with asyncio.timeout(self._silence_seconds):
                    batch = await anext(stream)
                self._heard_at = None
                await self._apply(batch)

    async def _list_again(self) -> None:
        try:
            self._load(await self._store.scan(self.prefix))
        except ScalableTopicsError as error:
            log.warning("listing failed prefix=%s: %s", self.prefix, error)
            return
        self._heard_at = None
        await self._tell_revision()

    async def _apply(self, batch: WatchBatch) -> None:
        for event in batch.events:
            if event.mod_revision > self.revision:
                self._change(event.key, None if isinstance(event, Deletion) else event, event.mod_revision)
        self.revision = max(self.revision, batch.revision)
        await self._tell_revision()

    def _load(self, snapshot: Snapshot) -> None:
        """Take a listing over, telling what is different: what is gone, then what is new, as it was written."""
        listed = {item.key: item for item in snapshot.items}
        for key in sorted(self._items.keys() - listed.keys()):
            self._change(key, None, snapshot.revision)
        for item in sorted(snapshot.items, key=lambda item: item.mod_revision):
            self._change(item.key, item, snapshot.revision)
        self.revision = snapshot.revision

    def _change(self, key: str, after: KeyValue | None, revision: int) -> None:
        before = self._items.get(key)
        if before == after:
            return
        if before is not None and after is not None and before.create_revision != after.create_revision:
            self._change(key, None, revision)
            before = None
        if after is None:
            del self._items[key]
        else:
            self._items[key] = after
        change = KeyChange(key, before, after, revision)
        for listener in tuple(self._listeners):
            listener(change)

    async def _tell_revision(self) -> None:
        async with self._reached:
            self._reached.notify_all()


def _words(error: BaseException) -> str:
    return str(error) or type(error).__name__
