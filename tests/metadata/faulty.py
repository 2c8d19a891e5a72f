"""A store that fails: the daemon's own end of a broken network, on command or by chance."""

import asyncio
import random
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import aclosing, suppress
from enum import StrEnum
from typing import TypeVar

from scalable_topics.metadata.store import (
    Answer,
    Compare,
    MetadataStore,
    Snapshot,
    StoreHealth,
    WatchBatch,
    Write,
)
from scalable_topics.model.errors import LeaseLost, NoSpace, Unavailable, UnknownOutcome

T = TypeVar("T")

PATIENCE_SECONDS = 2.0
"""How long a caller waits before a call that got lost is given up."""


class Loss(StrEnum):
    """What became of a call whose caller was told nothing."""

    ANSWER_LOST = "answer lost"
    REQUEST_LOST = "request lost"
    LANDS_LATE = "lands late"


class FaultyStore:
    """One daemon's link to a store.

    `cut`: calls fail at once and watches fall silent. `full`: the store takes no writes. `lose_next(…)`: the next
    commits are lost in that way. `storm`: by chance, every call is slow, and may be lost in any of the three ways.
    """

    def __init__(self, inner: MetadataStore) -> None:
        self.inner = inner
        self.full = False
        self.storm: random.Random | None = None
        self.latest_landing_seconds = 20.0
        self._losses: list[Loss] = []
        self._late: set[asyncio.Task[object]] = set()
        self._passable = asyncio.Event()
        self._passable.set()

    @property
    def cut(self) -> bool:
        return not self._passable.is_set()

    @cut.setter
    def cut(self, cut: bool) -> None:
        if cut:
            self._passable.clear()
        else:
            self._passable.set()

    def lose_next(self, *losses: Loss) -> None:
        self._losses += losses

    async def get(self, *keys: str) -> Snapshot:
        return await self._call(lambda: self.inner.get(*keys))

    async def scan(self, prefix: str, *, revision: int | None = None) -> Snapshot:
        return await self._call(lambda: self.inner.scan(prefix, revision=revision))

    async def commit(self, writes: Sequence[Write], *, compares: Sequence[Compare] = ()) -> Answer:
        if self.full and writes:
            raise NoSpace("database space exceeded")
        loss = self._losses.pop(0) if self._losses and writes else None
        return await self._call(lambda: self.inner.commit(writes, compares=compares), loss=loss, writing=bool(writes))

    async def grant_lease(self, ttl_seconds: int) -> int:
        if self.full:
            raise NoSpace("database space exceeded")
        return await self._call(lambda: self.inner.grant_lease(ttl_seconds))

    async def keep_alive(self, lease: int) -> float:
        return await self._call(lambda: self.inner.keep_alive(lease))

    async def revoke_lease(self, lease: int) -> None:
        await self._call(lambda: self.inner.revoke_lease(lease))

    async def watch(self, prefix: str, *, after_revision: int) -> AsyncGenerator[WatchBatch, None]:
        self._refuse_if_cut()
        async with aclosing(self.inner.watch(prefix, after_revision=after_revision)) as stream:
            async for batch in stream:
                storm = self.storm
                if storm is not None:
                    if storm.random() < 0.01:
                        raise Unavailable("the watch broke")
                    await asyncio.sleep(storm.random() * 0.05)
                await self._passable.wait()
                yield batch

    async def health(self) -> StoreHealth:
        return await self._call(self.inner.health)

    async def close(self) -> None:
        for task in self._late:
            task.cancel()
        await self.inner.close()

    def _refuse_if_cut(self) -> None:
        if self.cut:
            raise Unavailable("cut off")

    async def _call(self, call: Callable[[], Awaitable[T]], *, loss: Loss | None = None, writing: bool = False) -> T:
        self._refuse_if_cut()
        storm = self.storm
        if storm is not None:
            await asyncio.sleep(storm.random() * 0.05)
            if loss is None and storm.random() < 0.15:
                loss = storm.choice(list(Loss))
        if loss is None:
            return await call()
        if loss is Loss.ANSWER_LOST:
            await call()
        elif loss is Loss.LANDS_LATE:
            delay = self.latest_landing_seconds * (storm.random() if storm else 1.0)
            late = asyncio.ensure_future(self._land(call, delay))
            self._late.add(late)
            late.add_done_callback(self._late.discard)
        await asyncio.sleep(PATIENCE_SECONDS)
        raise UnknownOutcome("the answer was lost") if writing else Unavailable("no answer")

    @staticmethod
    async def _land(call: Callable[[], Awaitable[object]], delay: float) -> None:
        await asyncio.sleep(delay)
        with suppress(LeaseLost, NoSpace):  # it came too late
            await call()
