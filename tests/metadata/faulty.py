"""A store that fails on command: the daemon's own end of a broken network."""

from collections.abc import AsyncGenerator, Sequence

from scalable_topics.metadata.store import (
    Answer,
    Compare,
    MetadataStore,
    Snapshot,
    StoreHealth,
    WatchBatch,
    Write,
)
from scalable_topics.model.errors import Unavailable, UnknownOutcome


class FaultyStore:
    """`cut`: nothing gets through. `lose_answers`: writes happen, and their answers are lost."""

    def __init__(self, inner: MetadataStore) -> None:
        self.inner = inner
        self.cut = False
        self.lose_answers = 0

    def _pass(self) -> None:
        if self.cut:
            raise Unavailable("cut off")

    async def get(self, *keys: str) -> Snapshot:
        self._pass()
        return await self.inner.get(*keys)

    async def scan(self, prefix: str, *, revision: int | None = None) -> Snapshot:
        self._pass()
        return await self.inner.scan(prefix, revision=revision)

    async def commit(self, writes: Sequence[Write], *, compares: Sequence[Compare] = ()) -> Answer:
        self._pass()
        answer = await self.inner.commit(writes, compares=compares)
        if self.lose_answers and writes:
            self.lose_answers -= 1
            raise UnknownOutcome("the answer was lost")
        return answer

    async def grant_lease(self, ttl_seconds: int) -> int:
        self._pass()
        return await self.inner.grant_lease(ttl_seconds)

    async def keep_alive(self, lease: int) -> float:
        self._pass()
        return await self.inner.keep_alive(lease)

    async def revoke_lease(self, lease: int) -> None:
        self._pass()
        await self.inner.revoke_lease(lease)

    def watch(self, prefix: str, *, after_revision: int) -> AsyncGenerator[WatchBatch, None]:
        self._pass()
        return self.inner.watch(prefix, after_revision=after_revision)

    async def health(self) -> StoreHealth:
        self._pass()
        return await self.inner.health()

    async def close(self) -> None:
        await self.inner.close()
