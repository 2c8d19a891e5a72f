"""Both ports over one backend: each call is one transaction of the rules."""

import asyncio
from collections.abc import Callable, Collection
from functools import partial
from typing import Final, TypeVar

from scalable_topics.model.errors import InvalidArgument, NotFound, WrongState
from scalable_topics.model.positions import Position, Sentinel
from scalable_topics.model.segment import SegmentAddress
from scalable_topics.segments import cursors, lifecycle
from scalable_topics.segments.backend import Backend
from scalable_topics.segments.port import (
    MAX_CALL_SECONDS,
    Call,
    ListedSegment,
    SegmentFacts,
    SegmentStats,
    Stamp,
    StartAt,
    SubscriptionFacts,
)
from scalable_topics.segments.regular import RegularTopics
from scalable_topics.segments.rows import Rows
from scalable_topics.segments.served import Served

T = TypeVar("T")


class Segments:
    """`SegmentStore` and `SegmentData` on any backend."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self._served: dict[str, Served] = {}
        self.regular: Final = RegularTopics(backend)
        """What there was before: topics that no leader manages."""

    async def create(
        self,
        address: SegmentAddress,
        stamp: Stamp,
        subscriptions: Collection[str],
        call: Call,
        *,
        must_be_empty: bool = True,
    ) -> SegmentFacts:
        work = partial(
            lifecycle.create,
            name=address.physical,
            stamp=stamp,
            subscriptions=tuple(subscriptions),
            call=call,
            must_be_empty=must_be_empty,
            now_ms=self._backend.now_ms(),
        )
        return await self._change(address, call, work)

    async def terminate(self, address: SegmentAddress, call: Call) -> Position:
        return await self._change(address, call, partial(lifecycle.terminate, name=address.physical, call=call))

    async def delete(self, address: SegmentAddress, call: Call, *, made_by: str | None = None) -> None:
        now_ms = self._backend.now_ms()
        work = partial(lifecycle.delete, name=address.physical, call=call, made_by=made_by, now_ms=now_ms)
        await self._change(address, call, work)

    async def create_subscription(
        self, address: SegmentAddress, name: str, call: Call, *, at: StartAt = Sentinel.EARLIEST
    ) -> SubscriptionFacts:
        work = partial(cursors.create, name=address.physical, subscription=name, call=call, at=at)
        return await self._change(address, call, work)

    async def delete_subscription(self, address: SegmentAddress, name: str, call: Call) -> None:
        work = partial(cursors.delete, name=address.physical, subscription=name, call=call)
        await self._change(address, call, work)

    async def seek(self, address: SegmentAddress, name: str, to: StartAt, call: Call) -> SubscriptionFacts:
        work = partial(cursors.seek, name=address.physical, subscription=name, to=to, call=call)
        return await self._change(address, call, work)

    async def skip_all(self, address: SegmentAddress, name: str, call: Call) -> SubscriptionFacts:
        return await self.seek(address, name, Sentinel.LATEST, call)

    async def advance(self, address: SegmentAddress, name: str, mark_delete: Position, call: Call) -> SubscriptionFacts:
        work = partial(cursors.advance, name=address.physical, subscription=name, through=mark_delete, call=call)
        return await self._change(address, call, work)

    async def describe(self, address: SegmentAddress) -> SegmentFacts:
        return await self._backend.read(address.physical, partial(lifecycle.describe, name=address.physical))

    async def stats(self, address: SegmentAddress) -> SegmentStats:
        stats = await self._backend.read(address.physical, partial(lifecycle.stats, name=address.physical))
        served = self._served.get(address.physical)
        if served is None:
            return stats
        try:
            await served.look_again()
        except (NotFound, WrongState):
            return stats  # it is served here no more
        return served.add_to(stats)

    async def list(self, prefix: str = "") -> tuple[ListedSegment, ...]:
        found = await self._backend.read_all(partial(lifecycle.listed, prefix=prefix))
        return tuple(sorted((one for part in found for one in part), key=lambda one: one.physical))

    async def serve(self, address: SegmentAddress, *, owner_term: int) -> Served:
        row = await self._backend.write(
            address.physical, partial(lifecycle.serve, name=address.physical, owner_term=owner_term)
        )
        former = self._served.get(address.physical)
        if former is not None:
            await former.close()
        served = Served(self._backend, row, owner_term, clock=asyncio.get_running_loop().time)
        self._served = {name: other for name, other in self._served.items() if not other.has_ended}
        self._served[address.physical] = served
        return served

    async def forget_tombstones(self, *, older_than_seconds: float) -> int:
        """Drop the tombstones of what was deleted longer ago than any late call can be; how many went."""
        if older_than_seconds <= MAX_CALL_SECONDS:
            raise InvalidArgument(
                f"a tombstone of {older_than_seconds} s may still be needed",
                remedy=f"give more than {MAX_CALL_SECONDS}",
            )
        before_ms = self._backend.now_ms() - round(older_than_seconds * 1_000)
        return sum(await self._backend.write_all(partial(lifecycle.forget_tombstones, deleted_before_ms=before_ms)))

    async def close(self) -> None:
        for served in self._served.values():
            await served.close()
        await self._backend.close()

    async def _change(self, address: SegmentAddress, call: Call, work: Callable[[Rows], T]) -> T:
        ahead = call.deadline - asyncio.get_running_loop().time()
        if ahead > MAX_CALL_SECONDS:
            raise InvalidArgument(
                f"a deadline {ahead:.1f} s ahead", subject=address.logical, remedy=f"give at most {MAX_CALL_SECONDS}"
            )
        return await self._backend.write(address.physical, work, deadline=call.deadline)
