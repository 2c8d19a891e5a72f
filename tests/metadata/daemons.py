"""Daemons for tests: a session, a view and elections on a link of their own to a shared store."""

import asyncio
from collections.abc import AsyncIterator, Iterable
from contextlib import AsyncExitStack, asynccontextmanager

from scalable_topics.metadata.elections import Elections
from scalable_topics.metadata.leadership import Leadership
from scalable_topics.metadata.session import BrokerInfo, Role, SessionKeeper
from scalable_topics.metadata.store import MetadataStore, Put
from scalable_topics.metadata.view import StoreView
from scalable_topics.model.layout import initial_layout
from scalable_topics.model.names import TopicName
from scalable_topics.model.paths import StorePaths
from scalable_topics.model.record import TopicRecord, encode_record
from tests.metadata.faulty import FaultyStore
from tests.strategies import INCARNATION

PATHS = StorePaths()
RECORD = TopicRecord(incarnation=INCARNATION, layout=initial_layout(1))


def topic(number: int) -> TopicName:
    return TopicName.parse(f"topic://t/n/{number}")


class Daemon:
    """One daemon's part in elections. It keeps the books of what it was told."""

    def __init__(
        self,
        store: MetadataStore,
        name: str,
        *,
        roles: tuple[str, ...] = (Role.CONTROLLER,),
        busy: Iterable[TopicName] = (),
    ) -> None:
        self.name = name
        self.link = FaultyStore(store)
        self.busy = set(busy)
        info = BrokerInfo(
            broker_id=name, broker_url=f"pulsar://{name}", web_url=f"http://{name}", roles=roles, process=f"p-{name}"
        )
        self.keeper = SessionKeeper(self.link, PATHS, info)
        self.view = StoreView(self.link, PATHS, silence_seconds=5)
        self.elections = Elections(
            self.link, PATHS, self.keeper, self.view, is_idle=lambda name: name not in self.busy, stable_seconds=600
        )
        self.history: list[tuple[str, Leadership]] = []
        self.wrong: list[str] = []
        """Looked at when it has stopped: what a listener raises is only logged."""
        self.elections.listen(self)

    def gained(self, leadership: Leadership) -> None:
        session = self.keeper.session
        if session is None or leadership.lease != session.lease:
            self.wrong.append(f"{self.name} gained {leadership} in the name of a session that is over")
        self.history.append(("gained", leadership))

    def lost(self, leadership: Leadership) -> None:
        self.history.append(("lost", leadership))

    def told(self, what: str) -> list[Leadership]:
        return [leadership for word, leadership in self.history if word == what]

    @asynccontextmanager
    async def running(self) -> AsyncIterator["Daemon"]:
        async with self.keeper.running(), self.view.running(), self.elections.running():
            yield self
        assert not self.wrong, self.wrong


@asynccontextmanager
async def daemons(store: MetadataStore, *names: str) -> AsyncIterator[list[Daemon]]:
    async with AsyncExitStack() as stack:
        yield [await stack.enter_async_context(Daemon(store, name).running()) for name in names]


async def create(store: MetadataStore, count: int) -> None:
    for number in range(count):
        await store.commit([Put(PATHS.record(topic(number)), encode_record(RECORD))])


async def settle(members: Iterable[Daemon], topics: int, *, seconds: float = 60) -> dict[TopicName, Leadership]:
    """Until every topic has exactly one leader that acts; fails if that does not happen in time."""
    members = list(members)
    async with asyncio.timeout(seconds):
        while True:
            leaders = [leadership for member in members for leadership in member.elections.led.values()]
            by_topic = {leadership.topic: leadership for leadership in leaders}
            if len(leaders) == len(by_topic) == topics:
                return by_topic
            await asyncio.sleep(0.05)
