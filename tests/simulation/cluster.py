"""A cluster in one process on virtual time: daemons, each with its own bad links, on one store and one disk."""

import asyncio
import random
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack
from functools import lru_cache
from typing import Any, TypeVar

from scalable_topics.control.controller import TopicController
from scalable_topics.control.failpoints import Failpoint, Failpoints
from scalable_topics.control.led_topic import ControlSettings, Surroundings
from scalable_topics.control.leftovers import Leftovers
from scalable_topics.control.service import ControlService
from scalable_topics.metadata.elections import Elections
from scalable_topics.metadata.memory import MemoryStore
from scalable_topics.metadata.repository import Repository
from scalable_topics.metadata.session import BrokerInfo, SessionKeeper
from scalable_topics.metadata.store import Answer, Compare, WatchBatch, Write
from scalable_topics.metadata.view import StoreView
from scalable_topics.model.errors import NotFound, Unavailable, UnknownOutcome
from scalable_topics.model.names import TopicName
from scalable_topics.model.paths import StorePaths
from scalable_topics.model.record import TopicRecord, decode_record
from scalable_topics.model.segment import SegmentAddress
from scalable_topics.segments.memory import MemoryDisk, memory_segments
from scalable_topics.segments.port import ServedSegment
from tests.metadata.faulty import FaultyStore, Loss

T = TypeVar("T")

PATHS = StorePaths()
SETTINGS = ControlSettings(gc_interval_seconds=12, absent_check_seconds=15)

Check = Callable[[Sequence[Write], Sequence[Compare], int], None]


@lru_cache(maxsize=64)
def decoded(data: bytes) -> TopicRecord:
    """Read by many, written once."""
    return decode_record(data)


class CheckedStore(MemoryStore):
    """Tells after each commit what was written, and under which compares."""

    def __init__(self) -> None:
        super().__init__()
        self.check: Check = lambda *_: None

    async def commit(self, writes: Sequence[Write], *, compares: Sequence[Compare] = ()) -> Answer:
        answer = await super().commit(writes, compares=compares)
        if answer.succeeded and writes:
            self.check(writes, compares, answer.revision)
        return answer


class Pausable:
    """A process that can be stopped: what it sends leaves, and what it is told arrives, only while it runs."""

    def __init__(self) -> None:
        self._running = asyncio.Event()
        self._running.set()

    @property
    def paused(self) -> bool:
        return not self._running.is_set()

    def pause(self) -> None:
        self._running.clear()

    def resume(self) -> None:
        self._running.set()

    async def runs(self) -> None:
        await self._running.wait()


class StoreLink(FaultyStore):
    def __init__(self, store: MemoryStore, process: Pausable) -> None:
        super().__init__(store)
        self._process = process
        self.latest_landing_seconds = 8.0

    async def _call(self, call: Callable[[], Awaitable[T]], *, loss: Loss | None = None, writing: bool = False) -> T:
        await self._process.runs()
        try:
            return await super()._call(call, loss=loss, writing=writing)
        finally:
            await self._process.runs()

    async def watch(self, prefix: str, *, after_revision: int) -> AsyncGenerator[WatchBatch, None]:
        async for batch in super().watch(prefix, after_revision=after_revision):
            await self._process.runs()
            yield batch


class SegmentLink:
    """One daemon's way to segments, some of whose owners may be down. Stands where a `SegmentStore` is expected."""

    def __init__(self, world: "World", process: Pausable, rng: random.Random) -> None:
        self._world = world
        self._process = process
        self._rng = rng
        self._inner = memory_segments(world.disk, now_ms=world.now_ms)
        self._late: set[asyncio.Task[object]] = set()
        self.cut = False

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._inner, name)

        async def call(*arguments: Any, **named: Any) -> Any:
            where = arguments[0] if arguments and isinstance(arguments[0], SegmentAddress) else None
            return await self._call(where, lambda: method(*arguments, **named))

        return call

    async def _call(self, address: SegmentAddress | None, call: Callable[[], Awaitable[T]]) -> T:
        await self._process.runs()
        storm = self._world.storm
        if storm:
            await asyncio.sleep(self._rng.random() * 0.1)
        if self.cut or (address is not None and self._world.is_down(address.physical)):
            await asyncio.sleep(0.2)
            raise Unavailable("the owner does not answer", subject=str(address))
        loss = self._rng.choice(list(Loss)) if storm and self._rng.random() < 0.1 else None
        try:
            if loss is None:
                return await call()
            if loss is Loss.ANSWER_LOST:
                await call()
            elif loss is Loss.LANDS_LATE:
                late = asyncio.ensure_future(self._land(call))
                self._late.add(late)
                late.add_done_callback(self._late.discard)
            await asyncio.sleep(1)
            raise UnknownOutcome("the answer was lost")
        finally:
            await self._process.runs()

    async def _land(self, call: Callable[[], Awaitable[object]]) -> None:
        await asyncio.sleep(self._rng.random() * 15)
        try:
            await call()
        except Exception as error:
            self._world.say(f"a late call was refused: {error}")


class World:
    """What outlives every daemon, the source of chance, and the story."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.store = CheckedStore()
        self.disk = MemoryDisk()
        self.repository = Repository(self.store, PATHS)
        self.truth = memory_segments(self.disk, now_ms=self.now_ms)
        self.daemons: dict[str, Daemon] = {}
        self.storm = False
        self.story: list[str] = []
        self._owner_terms: dict[str, int] = {}
        self._served: dict[str, ServedSegment] = {}
        self._down: set[str] = set()

    def say(self, what: str) -> None:
        self.story.append(f"{asyncio.get_running_loop().time() - 1_000:8.3f} {what}")

    def new_id(self) -> str:
        return f"{self.rng.getrandbits(64):016x}"

    @staticmethod
    def now_ms() -> int:
        return int(asyncio.get_running_loop().time() * 1_000)

    def is_down(self, physical: str) -> bool:
        return physical in self._down

    def take_down(self, physical: str) -> None:
        """Its owner dies: nobody serves it until it is brought up again."""
        self._down.add(physical)
        self._served.pop(physical, None)

    def bring_up(self, physical: str) -> None:
        self._down.discard(physical)

    def bring_all_up(self) -> None:
        self._down.clear()

    async def served(self, address: SegmentAddress) -> ServedSegment:
        """By its owner, whoever that is now; each has a higher term than the one before."""
        if self.is_down(address.physical):
            raise Unavailable("its owner is down", subject=address.physical)
        served = self._served.get(address.physical)
        if served is None:
            term = self._owner_terms[address.physical] = self._owner_terms.get(address.physical, 0) + 1
            served = self._served[address.physical] = await self.truth.serve(address, owner_term=term)
        return served

    def forget_served(self, address: SegmentAddress) -> None:
        self._served.pop(address.physical, None)

    async def record(self, topic: TopicName) -> TopicRecord:
        items = (await self.store.get(PATHS.record(topic))).items
        if not items:
            raise NotFound("there is no such topic", subject=str(topic))
        return decoded(items[0].value)

    def leader_of(self, topic: TopicName) -> tuple["Daemon", TopicController] | None:
        for daemon in self.daemons.values():
            found = daemon.service.controllers.get(topic)
            if found is not None and found.ready and topic in daemon.elections.led:
                return daemon, found
        return None


class FailpointHit:
    """Calls back the first time one place is reached."""

    def __init__(self, failpoint: Failpoint, hit: Callable[[], Awaitable[None]]) -> None:
        self._failpoint = failpoint
        self._hit = hit
        self.reached = False

    async def reach(self, failpoint: Failpoint, topic: TopicName) -> None:  # noqa: ARG002 - of the port
        if failpoint is self._failpoint and not self.reached:
            self.reached = True
            await self._hit()


class Daemon:
    """One life of one daemon's process."""

    def __init__(self, world: World, name: str, *, failpoints: Failpoints | None = None) -> None:
        self.world = world
        self.name = name
        self.process = Pausable()
        self.link = StoreLink(world.store, self.process)
        self.segments = SegmentLink(world, self.process, world.rng)
        info = BrokerInfo(
            broker_id=name, broker_url=f"pulsar://{name}", web_url=f"http://{name}", process=world.new_id()
        )
        skew_ms = world.rng.choice([0, 0, 0, -3_000, 4_000])
        self.keeper = SessionKeeper(self.link, PATHS, info)
        self.view = StoreView(self.link, PATHS, silence_seconds=5)
        self.elections = Elections(self.link, PATHS, self.keeper, self.view, is_idle=self._is_idle)
        more: dict[str, Any] = {"failpoints": failpoints} if failpoints is not None else {}
        around = Surroundings(
            repository=Repository(self.link, PATHS),
            segments=self.segments,
            now_ms=lambda: world.now_ms() + skew_ms,
            new_id=world.new_id,
            may_seal=self._may_seal,
            daemons_own_segments=True,
            settings=SETTINGS,
            **more,
        )
        self.service = ControlService(self.elections, around)
        self.leftovers = Leftovers(name, around)
        self._life: asyncio.Task[None] | None = None

    def start(self) -> None:
        self.world.daemons[self.name] = self
        self._life = asyncio.ensure_future(self._run())

    async def _run(self) -> None:
        async with AsyncExitStack() as stack:
            for part in (self.keeper, self.view, self.elections, self.service, self.leftovers):
                await stack.enter_async_context(part.running())
            await asyncio.Event().wait()

    def cut(self, cut: bool) -> None:
        self.link.cut = self.segments.cut = cut

    async def kill(self) -> None:
        """As kill -9: nothing it would still do reaches anybody."""
        self.cut(True)
        await self.stop()

    async def stop(self) -> None:
        self.process.resume()
        if self._life is not None:
            self._life.cancel()
            await asyncio.wait([self._life])
            if not self._life.cancelled() and self._life.exception() is not None:
                self._life.result()

    def check_alive(self) -> None:
        if self._life is not None and self._life.done() and not self._life.cancelled():
            raise AssertionError(f"daemon {self.name} ended by itself: {self._life.exception()!r}")

    def storm(self, on: bool) -> None:
        self.link.storm = self.world.rng if on else None

    def _is_idle(self, topic: TopicName) -> bool:
        return self.service.is_idle(topic)

    def _may_seal(self) -> bool:
        session = self.keeper.session
        return session is not None and session.may_seal()
