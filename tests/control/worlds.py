"""Daemons with the leader's work on them, on shared memory stores and virtual time."""

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

from scalable_topics.control.controller import Request, TopicController
from scalable_topics.control.failpoints import Failpoints, NoFailpoints
from scalable_topics.control.led_topic import ControlSettings, Surroundings
from scalable_topics.control.leftovers import Leftovers
from scalable_topics.control.service import ControlService
from scalable_topics.metadata.elections import Elections
from scalable_topics.metadata.memory import MemoryStore
from scalable_topics.metadata.repository import Repository
from scalable_topics.metadata.session import BrokerInfo, SessionKeeper
from scalable_topics.metadata.view import StoreView
from scalable_topics.model.autoscale_policy import AutoScalePolicyOverride
from scalable_topics.model.names import TopicName
from scalable_topics.model.paths import StorePaths
from scalable_topics.model.record import TopicRecord
from scalable_topics.segments.memory import MemoryDisk, memory_segments
from scalable_topics.segments.port import SegmentStore
from tests.metadata.faulty import FaultyStore

PATHS = StorePaths()
TOPIC = TopicName.parse("topic://t/n/orders")
ME = Request(by="me")


class World:
    """What outlives every daemon: the store, the disk, and the source of chance."""

    def __init__(self, seed: int = 1) -> None:
        self.rng = random.Random(seed)
        self.store = MemoryStore()
        self.disk = MemoryDisk()
        self.repository = Repository(self.store, PATHS)

    def new_id(self) -> str:
        return f"{self.rng.getrandbits(64):016x}"

    @staticmethod
    def now_ms() -> int:
        return int(asyncio.get_running_loop().time() * 1_000)

    async def record(self, topic: TopicName = TOPIC) -> TopicRecord:
        known = await self.repository.topic(topic)
        assert known is not None
        return known.value


class Daemon:
    def __init__(
        self,
        world: World,
        name: str,
        *,
        segments: SegmentStore | None = None,
        settings: ControlSettings | None = None,
        failpoints: Failpoints | None = None,
        autoscale: AutoScalePolicyOverride | None = None,
    ) -> None:
        self.world = world
        self.name = name
        self.link = FaultyStore(world.store)
        self.segments = segments or memory_segments(world.disk, now_ms=world.now_ms)
        info = BrokerInfo(broker_id=name, broker_url=f"pulsar://{name}", web_url=f"http://{name}", process=f"p-{name}")
        self.keeper = SessionKeeper(self.link, PATHS, info)
        self.view = StoreView(self.link, PATHS, silence_seconds=5)
        self.elections = Elections(self.link, PATHS, self.keeper, self.view, is_idle=self._is_idle)
        around = Surroundings(
            repository=Repository(self.link, PATHS),
            segments=self.segments,
            now_ms=world.now_ms,
            new_id=world.new_id,
            may_seal=self.may_seal,
            daemons_own_segments=True,
            autoscale=autoscale,
            settings=settings or ControlSettings(),
            failpoints=failpoints or NoFailpoints(),
        )
        self.service = ControlService(self.elections, around)
        self.leftovers = Leftovers(name, around)

    def _is_idle(self, topic: TopicName) -> bool:
        return self.service.is_idle(topic)

    def may_seal(self) -> bool:
        session = self.keeper.session
        return session is not None and session.may_seal()

    @asynccontextmanager
    async def running(self) -> AsyncIterator["Daemon"]:
        async with (
            self.keeper.running(),
            self.view.running(),
            self.elections.running(),
            self.service.running(),
            self.leftovers.running(),
        ):
            yield self


@asynccontextmanager
async def daemons(world: World, *names: str, **options: object) -> AsyncIterator[list[Daemon]]:
    async with AsyncExitStack() as stack:
        yield [await stack.enter_async_context(Daemon(world, name, **options).running()) for name in names]  # type: ignore[arg-type]


async def controller(members: list[Daemon], topic: TopicName = TOPIC, *, seconds: float = 60) -> TopicController:
    """Of whoever leads, once it is ready."""
    async with asyncio.timeout(seconds):
        while True:
            for member in members:
                found = member.service.controllers.get(topic)
                if found is not None and found.ready and topic in member.elections.led:
                    return found
            await asyncio.sleep(0.05)


async def created(members: list[Daemon], *, segments: int = 2, topic: TopicName = TOPIC) -> TopicController:
    await members[0].service.create(topic, segments=segments, request=ME)
    await members[0].service.wait_active(topic)
    return await controller(members, topic)
