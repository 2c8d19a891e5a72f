"""Who may write for a topic: leadership as a value that every write compares, and the effort that every topic always
has a leader.

Leadership is a key with a create revision, its *term*. Losing it needs no message: a transaction that compares the
term simply does not happen any more. The daemons agree on a rank for each topic without talking; the first tries at
once, the next a second later, and so on, so that a crash is followed by one attempt per topic and not by a herd.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from heapq import heappop, heappush
from types import MappingProxyType
from typing import Final

import msgspec
from msgspec import Struct

from scalable_topics.metadata.session import BrokerInfo, Role, Session, SessionKeeper, decode_broker
from scalable_topics.metadata.store import Compare, CreateRevisionIs, Delete, KeyValue, LeaseIs, MetadataStore, Put
from scalable_topics.metadata.view import KeyChange, StoreView
from scalable_topics.model.codec import encode_json
from scalable_topics.model.errors import DecodeError, InvalidArgument, LeaseLost, Unavailable, UnknownOutcome
from scalable_topics.model.names import TopicName
from scalable_topics.model.paths import StorePaths
from scalable_topics.policy.ranking import ranked

RANK_SECONDS: Final = 1.0
"""How long each rank leaves the one before it alone."""
MAX_CAMPAIGNS: Final = 64
STABLE_SECONDS: Final = 600.0
"""How long the daemons must have been the same ones before leadership is handed back to first ranks."""
HAND_BACKS_PER_SECOND: Final = 20
RETRY_SECONDS: Final = 1.0

log = logging.getLogger(__name__)


class LeaderInfo(Struct, frozen=True, rename="camel"):
    """What an election key says to clients."""

    broker_id: str
    broker_url: str
    web_url: str


class Leadership(Struct, frozen=True):
    """The right to write for one topic, captured by value: it cannot turn into somebody else's."""

    topic: TopicName
    key: str
    term: int
    lease: int

    def __post_init__(self) -> None:
        if self.term <= 0 or self.lease <= 0:
            raise InvalidArgument(
                f"term {self.term} of lease {self.lease} is no leadership",
                subject=str(self.topic),
                remedy="an absent key compares equal to 0",
            )

    def fence(self) -> tuple[Compare, ...]:
        """PROTOCOL's E: holds exactly while this leadership does."""
        return CreateRevisionIs(self.key, self.term), LeaseIs(self.key, self.lease)


async def campaign(
    store: MetadataStore, paths: StorePaths, topic: TopicName, info: BrokerInfo, session: Session
) -> Leadership | None:
    """Try to become the leader; None = somebody else is. An answer that was lost is looked up, not guessed."""
    key = paths.controller(topic)
    leader = LeaderInfo(info.broker_id, info.broker_url, info.web_url)
    compares = (CreateRevisionIs(key, 0), *session.fence(paths, info.broker_id))
    try:
        answer = await store.commit([Put(key, encode_json(leader), session.lease)], compares=compares)
    except UnknownOutcome:
        found = (await store.get(key)).items
        return _ours(topic, found[0] if found else None, session)
    if answer.succeeded:
        return Leadership(topic, key, answer.revision, session.lease)
    return _ours(topic, answer.found[0], session)


def _ours(topic: TopicName, item: KeyValue | None, session: Session) -> Leadership | None:
    if item is None or item.lease != session.lease:
        return None
    return Leadership(topic, item.key, item.create_revision, item.lease)


async def resign(store: MetadataStore, leadership: Leadership) -> None:
    """Give it back; what is no longer ours is left alone."""
    await store.commit([Delete(leadership.key)], compares=leadership.fence())


class _OperationOnly(Struct):
    """As little of a record as tells whether something is half done."""

    operation: msgspec.Raw = msgspec.Raw(b"null")


_operation: Final = msgspec.json.Decoder(_OperationOnly)


class Elections:
    """Keeps a leader on every topic that has a record, as far as it is up to this daemon."""

    def __init__(
        self,
        store: MetadataStore,
        paths: StorePaths,
        keeper: SessionKeeper,
        view: StoreView,
        *,
        is_idle: Callable[[TopicName], bool] = lambda _: True,
        stable_seconds: float = STABLE_SECONDS,
    ) -> None:
        self._store = store
        self._paths = paths
        self._keeper = keeper
        self._view = view
        self._is_idle = is_idle
        self._stable_seconds = stable_seconds
        self._led: dict[TopicName, Leadership] = {}
        self._leaderless: dict[TopicName, float] = {}
        """Since when, in the loop's time."""
        self._controllers: dict[str, KeyValue] = {}
        self._stable_since = 0.0
        self._timed: list[tuple[float, TopicName]] = []
        """A heap of when to campaign for what; entries may be out of date."""
        self._wake = asyncio.Event()
        self.on_gain: Callable[[Leadership], None] = lambda _: None
        self.on_loss: Callable[[Leadership], None] = lambda _: None

    @property
    def led(self) -> Mapping[TopicName, Leadership]:
        """What this daemon leads and may act for right now."""
        return MappingProxyType(self._led if self._keeper.session is not None else {})

    @asynccontextmanager
    async def running(self) -> AsyncIterator["Elections"]:
        now = asyncio.get_running_loop().time()
        self._stable_since = now
        for item in self._view.items.values():
            self._take(KeyChange(item.key, None, item, item.mod_revision))
        end = self._view.listen(self._take)
        try:
            async with asyncio.TaskGroup() as tasks:
                running = tasks.create_task(self._run(), name="elections")
                try:
                    yield self
                finally:
                    running.cancel()
        finally:
            end()
            self._lose_all()

    async def _run(self) -> None:
        while True:
            session = await self._keeper.wait_session()
            async with asyncio.TaskGroup() as tasks:
                campaigns = tasks.create_task(self._campaign_for(session), name="campaigns")
                hand_backs = tasks.create_task(self._hand_back(session), name="hand-backs")
                await session.wait_lost()
                campaigns.cancel()
                hand_backs.cancel()
            self._lose_all()

    def _take(self, change: KeyChange) -> None:
        """Follow the store: which topics there are, who leads them, which daemons live."""
        broker = self._paths.broker_of(change.key)
        if broker is not None:
            self._take_broker(broker, change.after)
            return
        found = self._paths.topic_of(change.key)
        if found is None or found[1] not in {"", "controller"}:
            return
        topic = found[0]
        record, leader = (
            self._view.items.get(self._paths.record(topic)),
            self._view.items.get(self._paths.controller(topic)),
        )
        ours = self._led.get(topic)
        if ours is not None and (leader is None or leader.create_revision != ours.term):
            self._lose(ours)
        if record is not None and leader is None:
            if topic not in self._leaderless:
                self._leaderless[topic] = asyncio.get_running_loop().time()
                self._schedule(topic)
        else:
            self._leaderless.pop(topic, None)

    def _take_broker(self, broker: str, item: KeyValue | None) -> None:
        try:
            controls = item is not None and Role.CONTROLLER in decode_broker(item.value, subject=broker).roles
        except DecodeError as error:
            log.warning("not a broker key: %s", error)
            controls = False
        if item is not None and controls:
            self._controllers[broker] = item
        else:
            self._controllers.pop(broker, None)
        self._stable_since = asyncio.get_running_loop().time()
        self._timed.clear()
        for topic in self._leaderless:
            self._schedule(topic)

    def _schedule(self, topic: TopicName) -> None:
        rank = self._rank(topic)
        if rank is not None:
            heappush(self._timed, (self._leaderless[topic] + rank * RANK_SECONDS, topic))
            self._wake.set()

    def _rank(self, topic: TopicName) -> int | None:
        """Ours for a topic; None = we are not among those who may lead."""
        order = ranked(str(topic), self._controllers)
        broker = self._keeper.info.broker_id
        return order.index(broker) if broker in self._controllers else None

    async def _campaign_for(self, session: Session) -> None:
        loop = asyncio.get_running_loop()
        running: set[TopicName] = set()
        ready: list[tuple[bool, float, TopicName]] = []
        async with asyncio.TaskGroup() as tasks:
            while True:
                self._wake.clear()
                while self._timed and self._timed[0][0] <= loop.time():
                    due, topic = heappop(self._timed)
                    heappush(ready, (not self._has_operation(topic), due, topic))
                while ready and len(running) < MAX_CAMPAIGNS:
                    *_, topic = heappop(ready)
                    if topic in self._leaderless and topic not in running:
                        running.add(topic)
                        tasks.create_task(self._campaign(topic, session, running))
                await self._wait(self._timed[0][0] if self._timed else None)

    async def _wait(self, until: float | None) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout_at(until):
                await self._wake.wait()

    def _has_operation(self, topic: TopicName) -> bool:
        """Somebody's change is half done: these first."""
        record = self._view.items.get(self._paths.record(topic))
        try:
            return record is not None and _operation.decode(record.value).operation != msgspec.Raw(b"null")
        except msgspec.MsgspecError:
            return False

    async def _campaign(self, topic: TopicName, session: Session, running: set[TopicName]) -> None:
        try:
            leadership = await campaign(self._store, self._paths, topic, self._keeper.info, session)
        except (Unavailable, LeaseLost) as error:
            log.warning("campaign failed topic=%s: %s", topic, error)
            if topic in self._leaderless:
                self._leaderless[topic] = asyncio.get_running_loop().time() + RETRY_SECONDS
                self._schedule(topic)
        else:
            self._leaderless.pop(topic, None)
            if leadership is not None and session.alive:
                self._gain(leadership)
        finally:
            running.discard(topic)
            self._wake.set()

    async def _hand_back(self, session: Session) -> None:
        """Slowly, when nothing has moved for long: leadership goes to first ranks, so that load evens out after
        restarts.
        """
        loop = asyncio.get_running_loop()
        while session.alive:
            await asyncio.sleep(1)
            if loop.time() - self._stable_since < self._stable_seconds:
                continue
            guests = [
                leadership for topic, leadership in self._led.items() if self._rank(topic) != 0 and self._is_idle(topic)
            ]
            for leadership in guests[:HAND_BACKS_PER_SECOND]:
                try:
                    await resign(self._store, leadership)
                except Unavailable as error:
                    log.warning("not handed back topic=%s: %s", leadership.topic, error)
                # The view tells when it is really gone; until then it is ours, whatever the answer was.

    def _gain(self, leadership: Leadership) -> None:
        former = self._led.get(leadership.topic)
        if former == leadership:
            return
        if former is not None:
            self._lose(former)
        self._led[leadership.topic] = leadership
        log.info("leading topic=%s term=%d", leadership.topic, leadership.term)
        self.on_gain(leadership)

    def _lose(self, leadership: Leadership) -> None:
        if self._led.get(leadership.topic) == leadership:
            del self._led[leadership.topic]
            log.info("no longer leading topic=%s term=%d", leadership.topic, leadership.term)
            self.on_loss(leadership)

    def _lose_all(self) -> None:
        for leadership in tuple(self._led.values()):
            self._lose(leadership)
