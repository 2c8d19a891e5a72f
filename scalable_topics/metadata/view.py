"""What this daemon knows of the store: a copy of everything under a prefix, fed by one watch, told one whole revision
at a time.

It survives whatever the store does. A broken stream is resumed after the last revision seen. Forgotten history is made
up for by listing again and telling the difference, deletions included. A store that went back in time (restored from a
backup) is listed again too, under a new generation. What it tells is always a way from what was told before to what is
there.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import aclosing, asynccontextmanager
from itertools import groupby
from typing import Final

from immutables import Map
from msgspec import Struct

from scalable_topics.metadata.marker import StoreMarker, bump_generation, generation_of, marker_of
from scalable_topics.metadata.patience import TRANSIENT, Backoff, in_words, keep_running
from scalable_topics.metadata.store import Deletion, KeyValue, MetadataStore, Snapshot, WatchBatch
from scalable_topics.model.errors import Compacted
from scalable_topics.model.paths import StorePaths

SILENCE_SECONDS: Final = 30.0
"""A watch that has told nothing for so long is not believed to be alive: our own heartbeat should have come back on
it.
"""

log = logging.getLogger(__name__)


class KeyChange(Struct, frozen=True):
    """One key from one state to the next; None = absent. Two different create revisions are two lives of the key: it
    was gone in between.
    """

    key: str
    before: KeyValue | None
    after: KeyValue | None


class ViewState(Struct, frozen=True):
    """Everything under the prefix at one revision. Nothing about it changes, so it may be kept.

    States are ordered by (generation, revision). `generation` is the marker's; 0 where there is no marker.
    """

    generation: int
    revision: int
    items: Mapping[str, KeyValue]


class ViewChange(Struct, frozen=True):
    """From one state to the next: one revision of the store, or the whole difference after a listing."""

    before: ViewState
    after: ViewState
    changes: tuple[KeyChange, ...]
    listed: bool = False
    """It is a whole difference: revisions in between were not told one by one."""


Listener = Callable[[ViewChange], None]


class StoreView:
    """To be kept `running`. `state` is empty until the store has answered once (`wait_ready`), and from then on the
    store under the root, a little behind it while `stale_seconds` is small, and as it was last known otherwise.
    """

    def __init__(self, store: MetadataStore, paths: StorePaths, *, silence_seconds: float = SILENCE_SECONDS) -> None:
        self.prefix = f"{paths.root}/"
        self._store = store
        self._paths = paths
        self._silence_seconds = silence_seconds
        self._items: Map[str, KeyValue] = Map()
        self._state = ViewState(0, 0, self._items)
        self._cluster: int | None = None
        """Of the last listing; None = there was none yet."""
        self._marker: StoreMarker | None = None
        """As it was when it could last be read."""
        self._listeners: list[Listener] = []
        self._heard_at = 0.0
        self._changed = asyncio.Condition()

    @property
    def state(self) -> ViewState:
        return self._state

    @property
    def ready(self) -> bool:
        return self._cluster is not None

    @property
    def stale_seconds(self) -> float:
        """Since the store was last heard of. Small and changing while the stream is alive, however little happens on
        it; above `silence_seconds` only when the store is away.
        """
        return asyncio.get_running_loop().time() - self._heard_at

    def listen(self, listener: Listener) -> Callable[[], None]:
        """Be told every change from now on; answers what ends it.

        A listener must not wait. If it raises, that is logged, it is told the next change all the same, and nobody
        else notices; as every change carries the whole state, it can find its way back.
        """
        self._listeners.append(listener)
        return lambda: self._listeners.remove(listener)

    async def wait_ready(self) -> None:
        """Until the store was read for the first time. Waits as long as that takes; the reasons are logged."""
        async with self._changed:
            await self._changed.wait_for(lambda: self.ready)

    async def wait_for_revision(self, revision: int) -> None:
        """Until the copy has caught up with a write of our own. Waits for ever on a revision of another prefix."""
        async with self._changed:
            await self._changed.wait_for(lambda: self._state.revision >= revision)

    @asynccontextmanager
    async def running(self) -> AsyncIterator["StoreView"]:
        """Follows the store in the background of a block, which begins at once, with or without a store."""
        self._heard_at = asyncio.get_running_loop().time()
        async with asyncio.TaskGroup() as tasks:
            following = tasks.create_task(
                keep_running(self._follow, name=f"view of {self.prefix}"), name=f"view of {self.prefix}"
            )
            try:
                yield self
            finally:
                following.cancel()

    async def _follow(self) -> None:
        backoff = Backoff()
        must_list = not self.ready
        while True:
            before = self._heard_at
            try:
                if must_list:
                    await self._list()
                    must_list = False
                must_list = await self._follow_once()
            except TRANSIENT as error:
                log.warning(
                    "watch broken prefix=%s revision=%d: %s", self.prefix, self._state.revision, in_words(error)
                )
                must_list = must_list or isinstance(error, Compacted)
            if self._heard_at > before:
                backoff.reset()
            await backoff.wait()

    async def _follow_once(self) -> bool:
        """One stream, until it breaks or falls silent, which raises, or until there is a reason to list again, which
        answers True.

        What the store says of itself is asked once the stream stands: a store is restored only while it is down, and
        then the stream breaks. So nothing told before the answer can be from after a restore.
        """
        stream = self._store.watch(self.prefix, after_revision=self._state.revision)
        async with aclosing(stream):
            async with asyncio.timeout(self._silence_seconds):
                first = await anext(stream)
                if await self._is_another_life(first):
                    return True
            await self._heard()
            while True:
                if first.cluster != self._cluster:
                    return True
                await self._apply(first)
                if generation_of(self._items.get(self._paths.marker)) != self._state.generation:
                    return True
                async with asyncio.timeout(self._silence_seconds):
                    first = await anext(stream)

    async def _is_another_life(self, first: WatchBatch) -> bool:
        """May the store have gone back, or been replaced, since the last listing? By a linearizable read: a member that
        serves a watch may merely lag.
        """
        now = await self._store.get(self._paths.marker)
        marker = now.items[0] if now.items else None
        return (
            {now.cluster, first.cluster} != {self._cluster}
            or now.revision < self._state.revision
            or marker != self._items.get(self._paths.marker)
        )

    async def _list(self) -> None:
        """Read everything, and tell the difference as one change. A store that went back gets a new generation first,
        so that nobody can confuse its two lives.
        """
        snapshot = await self._store.scan(self.prefix)
        if self._went_back(snapshot):
            log.error(
                "the store went back or was replaced, listing again root=%s revision=%d was=%d",
                self._paths.root,
                snapshot.revision,
                self._state.revision,
            )
            if self._marker is not None:
                await bump_generation(self._store, self._paths, known=self._marker)
                snapshot = await self._store.scan(self.prefix)
        listed = {item.key: item for item in snapshot.items}
        changes = [KeyChange(key, item, None) for key, item in self._items.items() if key not in listed]
        changes += [
            KeyChange(key, self._items.get(key), item) for key, item in listed.items() if self._items.get(key) != item
        ]
        self._cluster = snapshot.cluster
        self._items = Map(listed)
        self._marker = marker_of(listed.get(self._paths.marker)) or self._marker
        generation = self._marker.generation if self._marker is not None else 0
        after = ViewState(generation, snapshot.revision, self._items)
        self._tell(after, tuple(sorted(changes, key=lambda change: change.key)), listed=True)
        await self._heard()

    def _went_back(self, snapshot: Snapshot) -> bool:
        """And nobody has given it a new generation yet. A marker is written only to raise its generation: the one we
        knew, written anew, was raised from an older backup.
        """
        marker = next((item for item in snapshot.items if item.key == self._paths.marker), None)
        if not self.ready or generation_of(marker) > self._state.generation:
            return False
        return (
            snapshot.cluster != self._cluster
            or snapshot.revision < self._state.revision
            or marker != self._items.get(self._paths.marker)
        )

    async def _apply(self, batch: WatchBatch) -> None:
        for revision, events in groupby(batch.events, key=lambda event: event.mod_revision):
            if revision > self._state.revision:
                changes = tuple(self._changes(events))
                self._tell(ViewState(self._state.generation, revision, self._items), changes)
        await self._heard()

    def _changes(self, events: Iterator[KeyValue | Deletion]) -> Iterator[KeyChange]:
        for event in events:
            before = self._items.get(event.key)
            if isinstance(event, KeyValue):
                self._items = self._items.set(event.key, event)
                yield KeyChange(event.key, before, event)
            elif before is not None:
                self._items = self._items.delete(event.key)
                yield KeyChange(event.key, before, None)

    def _tell(self, after: ViewState, changes: tuple[KeyChange, ...], *, listed: bool = False) -> None:
        change = ViewChange(self._state, after, changes, listed)
        self._state = after
        for listener in tuple(self._listeners):
            try:
                listener(change)
            except Exception:
                log.exception("a listener failed prefix=%s revision=%d", self.prefix, after.revision)

    async def _heard(self) -> None:
        self._heard_at = asyncio.get_running_loop().time()
        async with self._changed:
            self._changed.notify_all()
