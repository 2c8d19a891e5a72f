"""The sign that a daemon works: its sweep heartbeat, written after every sweep and read by everybody.

It does three things at once (PROTOCOL 7 and 8). It says that the daemon's sampler works, so that the silence of a
load record means *unchanged* and not *dead*. It says what the daemon's clock says. And it comes back on the daemon's
own watch, which proves that the stream is alive from end to end: a `StoreView` that hears nothing for long goes to
another member.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from types import MappingProxyType
from typing import Final

from msgspec import Struct

from scalable_topics.metadata.patience import TRANSIENT, PassedOver, in_words, keep_running
from scalable_topics.metadata.repository import Conflict, Repository
from scalable_topics.metadata.session import SessionKeeper
from scalable_topics.metadata.store import KeyValue
from scalable_topics.metadata.view import SILENCE_SECONDS, StoreView, ViewChange, ViewState
from scalable_topics.model.errors import DecodeError, InvalidArgument
from scalable_topics.model.load import SweepHeartbeat, decode_heartbeat
from scalable_topics.model.paths import StorePaths

SWEEP_SECONDS: Final = 5.0
MAX_SWEEP_SECONDS: Final = SILENCE_SECONDS / 2
"""Two of them must fit into the silence after which a watch is given up."""

log = logging.getLogger(__name__)


async def nothing_to_sweep() -> None:
    """For a daemon without segments: its heartbeat only keeps its watch proved alive."""


class Heartbeat:
    """Sweeps, and says so, as long as it is kept `running`, beside a running keeper."""

    def __init__(
        self,
        repository: Repository,
        keeper: SessionKeeper,
        *,
        wall_clock_ms: Callable[[], int],
        sweep: Callable[[], Awaitable[object]] = nothing_to_sweep,
        interval_seconds: float = SWEEP_SECONDS,
    ) -> None:
        """`sweep` measures this daemon's segments and reports what changed; if it raises, nothing is said, because
        its sampler does not work. `InvalidArgument` for an interval that is too long to prove anything.
        """
        if not 0 < interval_seconds <= MAX_SWEEP_SECONDS:
            raise InvalidArgument(
                f"a sweep every {interval_seconds} s does not prove a watch alive",
                remedy=f"give more than 0 s and at most {MAX_SWEEP_SECONDS:g} s",
            )
        self._repository = repository
        self._keeper = keeper
        self._wall_clock_ms = wall_clock_ms
        self._sweep = sweep
        self._interval_seconds = interval_seconds

    @asynccontextmanager
    async def running(self) -> AsyncIterator["Heartbeat"]:
        """In the background of a block, which begins at once, with or without a store."""
        async with asyncio.TaskGroup() as tasks:
            beating = tasks.create_task(keep_running(self._beat_for_ever, name="heartbeat"), name="heartbeat")
            try:
                yield self
            finally:
                beating.cancel()

    async def _beat_for_ever(self) -> None:
        while True:
            await self.beat()
            await asyncio.sleep(self._interval_seconds)

    async def beat(self) -> None:
        """One sweep and its heartbeat, as soon as there is a session to write it in. Raises what the sweep raises; a
        heartbeat that the store did not take is logged, and the next one comes soon.
        """
        session = await self._keeper.wait_session()
        await self._sweep()
        told = SweepHeartbeat(swept_at_ms=self._wall_clock_ms(), interval_ms=int(self._interval_seconds * 1_000))
        try:
            await self._repository.beat(session, self._keeper.info.broker_id, told)
        except (*TRANSIENT, Conflict) as error:
            log.warning("no heartbeat this time broker=%s: %s", self._keeper.info.broker_id, in_words(error))


class SweepSeen(Struct, frozen=True):
    """A heartbeat as it reached this daemon."""

    heartbeat: SweepHeartbeat
    arrived_at: float
    """In the loop's time: its age is measured by our own clock, whatever the sender's says."""
    arrived_at_ms: int
    """By our wall clock: what the sender's clock is compared with."""


class Heartbeats:
    """The last heartbeat of every daemon that has one, from the view. To be made beside a view, and `close`d.

    A heartbeat that is found by a listing counts as arriving then, however old it is: what is asked of it has to hold
    for several intervals.
    """

    def __init__(self, view: StoreView, paths: StorePaths, *, wall_clock_ms: Callable[[], int]) -> None:
        self._paths = paths
        self._wall_clock_ms = wall_clock_ms
        self._seen: dict[str, SweepSeen] = {}
        self._passed_over = PassedOver()
        self._take_all(view.state)
        self.close = view.listen(self._take)

    @property
    def seen(self) -> Mapping[str, SweepSeen]:
        """By broker id. One whose session has ended has none."""
        return MappingProxyType(self._seen)

    def age_ms(self, broker_id: str) -> float | None:
        """Since its last heartbeat arrived; None = it has none."""
        seen = self._seen.get(broker_id)
        return (asyncio.get_running_loop().time() - seen.arrived_at) * 1_000 if seen is not None else None

    def _take(self, change: ViewChange) -> None:
        for each in change.changes:
            self._take_key(each.key, each.after)

    def _take_all(self, state: ViewState) -> None:
        for key, item in state.items.items():
            self._take_key(key, item)

    def _take_key(self, key: str, item: KeyValue | None) -> None:
        broker = self._paths.reporter_of(key)
        if broker is None:
            return
        self._seen.pop(broker, None)
        if item is None:
            return
        try:
            heartbeat = decode_heartbeat(item.value, subject=key)
        except DecodeError as error:
            self._passed_over.note(key, str(error))
        else:
            self._seen[broker] = SweepSeen(heartbeat, asyncio.get_running_loop().time(), self._wall_clock_ms())
