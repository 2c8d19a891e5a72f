"""The shell around `election`: feeds it what the store, the session and the clock say, and does what it asks for."""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from types import MappingProxyType
from typing import Final, Protocol

import msgspec
from msgspec import Struct

from scalable_topics.metadata.election import (
    STABLE_SECONDS,
    Campaign,
    CampaignEnded,
    ControllersSeen,
    Election,
    Event,
    Gain,
    Lose,
    Resign,
    ResignEnded,
    SessionLost,
    SessionOpened,
    StoreRestarted,
    TimePassed,
    TopicSeen,
)
from scalable_topics.metadata.leadership import ElectionKey, Leadership, campaign, resign
from scalable_topics.metadata.patience import TRANSIENT, PassedOver, in_words, keep_running
from scalable_topics.metadata.session import Role, Session, SessionKeeper, decode_broker
from scalable_topics.metadata.store import KeyValue, MetadataStore
from scalable_topics.metadata.view import StoreView, ViewChange, ViewState
from scalable_topics.model.errors import DecodeError, WrongState
from scalable_topics.model.names import TopicName
from scalable_topics.model.paths import StorePaths

log = logging.getLogger(__name__)


class LeadershipListener(Protocol):
    """Is told every gain and every loss once, in order; of two terms of one topic the old one is lost before the new
    one is gained. Must not wait. What it raises is logged, and nobody else notices.
    """

    def gained(self, leadership: Leadership) -> None:
        """From now on this daemon leads. Told before anything else is done for this leadership."""

    def lost(self, leadership: Leadership) -> None:
        """It does not any more. The store may have refused its writes for some time already."""


class _OperationOnly(Struct):
    """As little of a record as tells whether something is half done."""

    operation: msgspec.Raw = msgspec.Raw(b"null")


_operation: Final = msgspec.json.Decoder(_OperationOnly)


class Elections:
    """Keeps a leader on every topic that has a record, as far as it is up to this daemon. To be kept `running`, beside
    a running keeper and a running view; any of them may start without a store.
    """

    def __init__(
        self,
        store: MetadataStore,
        paths: StorePaths,
        keeper: SessionKeeper,
        view: StoreView,
        *,
        is_idle: Callable[[TopicName], bool],
        stable_seconds: float = STABLE_SECONDS,
    ) -> None:
        self._store = store
        self._paths = paths
        self._keeper = keeper
        self._view = view
        self._is_idle = is_idle
        self._stable_seconds = stable_seconds
        self._listeners: list[LeadershipListener] = []
        self._passed_over = PassedOver()
        self._election = self._new_election()
        self._controllers: dict[str, int] = {}
        """Followed key by key: looking for them among all keys of a large store takes long."""
        self._session: Session | None = None
        """The one that is served."""
        self._tasks: asyncio.TaskGroup | None = None
        self._calls: set[asyncio.Task[None]] = set()
        self._campaigns: list[Campaign] = []
        self._wake = asyncio.Event()

    @property
    def led(self) -> Mapping[TopicName, Leadership]:
        """What this daemon leads and may act for right now; empty without a session. Ask again after every await."""
        alive = self._session is not None and self._session.alive
        return self._election.led if alive else MappingProxyType({})

    def listen(self, listener: LeadershipListener) -> Callable[[], None]:
        """Be told every gain and loss from now on, in order; answers what ends it."""
        self._listeners.append(listener)
        return lambda: self._listeners.remove(listener)

    @asynccontextmanager
    async def running(self) -> AsyncIterator["Elections"]:
        """In the background of a block, which begins at once, with or without a store. When the block ends, listeners
        are told that everything is lost; the keys go with the session.
        """
        async with asyncio.TaskGroup() as tasks:
            running = tasks.create_task(keep_running(self._run, name="elections"), name="elections")
            try:
                yield self
            finally:
                running.cancel()

    def _new_election(self) -> Election:
        return Election(self._keeper.info.broker_id, is_idle=self._is_idle, stable_seconds=self._stable_seconds)

    async def _run(self) -> None:
        """From nothing: what is known is taken from the view, what is led from the keys that carry our lease."""
        self._election = self._new_election()
        self._take_all(self._view.state)
        end = self._view.listen(self._take)
        try:
            while True:
                await self._serve(await self._keeper.wait_session())
        finally:
            end()

    async def _serve(self, session: Session) -> None:
        """One session, to its end."""
        async with asyncio.TaskGroup() as tasks:
            self._session, self._tasks = session, tasks
            ending = tasks.create_task(self._wake_when_lost(session))
            try:
                self._handle(SessionOpened(session.lease))
                while session.alive:
                    self._handle(TimePassed())
                    self._wake.clear()
                    await self._wait(session)
            finally:
                self._session = self._tasks = None
                self._handle(SessionLost())
                for task in (ending, *self._calls):
                    task.cancel()

    async def _wake_when_lost(self, session: Session) -> None:
        await session.wait_lost()
        self._wake.set()

    async def _wait(self, session: Session) -> None:
        wake_at = self._election.next_wake()
        until = session.believed_until if wake_at is None else min(wake_at, session.believed_until)
        with suppress(TimeoutError):
            async with asyncio.timeout_at(until):
                await self._wake.wait()

    def _take(self, change: ViewChange) -> None:
        if change.after.generation != change.before.generation:
            self._take_all(change.after)
            return
        before = dict(self._controllers)
        for each in change.changes:
            self._take_broker(each.key, each.after)
            if each.key == self._paths.broker(self._keeper.info.broker_id):
                self._check_session(each.after, change.after.revision)
        if self._controllers != before:
            self._handle(ControllersSeen(dict(self._controllers)))
        self._take_topics((each.key for each in change.changes), change.after)

    def _take_all(self, state: ViewState) -> None:
        self._handle(StoreRestarted())
        self._controllers.clear()
        for key, item in state.items.items():
            self._take_broker(key, item)
        self._handle(ControllersSeen(dict(self._controllers)))
        self._take_topics(state.items, state)
        self._handle(TimePassed())

    def _take_topics(self, keys: Iterable[str], state: ViewState) -> None:
        """Those whose record or election key is among these keys."""
        topics: dict[TopicName, None] = {}  # in the order told, so that a run can be repeated
        for key in keys:
            if not key.startswith(self._paths.topics):
                continue
            found = self._paths.topic_of(key)
            if found is None:
                self._passed_over.note(key, "it is no topic's key as we spell them")
            elif found[1] in {"", "controller"}:
                topics[found[0]] = None
        for topic in topics:
            record = state.items.get(self._paths.record(topic))
            leader = state.items.get(self._paths.controller(topic))
            self._handle(
                TopicSeen(topic, record is not None, _has_operation(record), ElectionKey(state.revision, leader))
            )

    def _take_broker(self, key: str, item: KeyValue | None) -> None:
        broker = self._paths.broker_of(key)
        if broker is None:
            return
        self._controllers.pop(broker, None)
        try:
            if item is not None and Role.CONTROLLER in decode_broker(item.value, subject=broker).roles:
                self._controllers[broker] = item.create_revision
        except DecodeError as error:
            self._passed_over.note(key, str(error))

    def _check_session(self, own: KeyValue | None, revision: int) -> None:
        """A session whose broker key somebody has deleted can never win an election again: give it up."""
        session = self._session
        if session is None or revision <= session.broker_revision:
            return
        if own is None or own.create_revision != session.broker_revision:
            log.warning("our broker key is gone, giving the session up lease=%d", session.lease)
            session.lose()

    def _handle(self, event: Event) -> None:
        if self._session is not None and not self._session.alive:
            self._do(SessionLost())  # noticed here first: nothing may be gained in the name of what is over
            if isinstance(event, SessionOpened):
                return
        self._do(event)
        self._wake.set()

    def _do(self, event: Event) -> None:
        for instruction in self._election.handle(event, now=asyncio.get_running_loop().time()):
            match instruction:
                case Gain(leadership=leadership):
                    log.info("leading topic=%s term=%d", leadership.topic, leadership.term)
                    self._tell(leadership, gained=True)
                case Lose(leadership=leadership):
                    log.info("no longer leading topic=%s term=%d", leadership.topic, leadership.term)
                    self._tell(leadership, gained=False)
                case Campaign():
                    if not self._campaigns:
                        asyncio.get_running_loop().call_soon(self._send_campaigns)
                    self._campaigns.append(instruction)
                case Resign(leadership=leadership):
                    self._call(self._resign(leadership))

    def _tell(self, leadership: Leadership, *, gained: bool) -> None:
        for listener in tuple(self._listeners):
            try:
                (listener.gained if gained else listener.lost)(leadership)
            except Exception:
                log.exception("a listener failed topic=%s term=%d", leadership.topic, leadership.term)

    def _call(self, work: Coroutine[object, object, None]) -> None:
        if self._tasks is None:
            raise WrongState("there is no session to act for")
        task = self._tasks.create_task(work)
        self._calls.add(task)
        task.add_done_callback(self._calls.discard)

    def _send_campaigns(self) -> None:
        """All that have come up together, in one transaction."""
        campaigns, self._campaigns = self._campaigns, []
        if self._tasks is not None and self._session is not None:
            self._call(self._campaign(campaigns, self._session))

    async def _campaign(self, campaigns: Sequence[Campaign], session: Session) -> None:
        topics = [each.topic for each in campaigns]
        found: Sequence[ElectionKey | None] = [None] * len(campaigns)
        try:
            found = await campaign(self._store, self._paths, topics, self._keeper.info, session)
        except TRANSIENT as error:
            log.warning("campaign failed, trying again topics=%d first=%s: %s", len(topics), topics[0], in_words(error))
        for each, key in zip(campaigns, found, strict=True):
            self._handle(CampaignEnded(each.topic, each.attempt, key))

    async def _resign(self, leadership: Leadership) -> None:
        try:
            await resign(self._store, leadership)
        except TRANSIENT as error:
            log.warning("not handed back topic=%s: %s", leadership.topic, in_words(error))
        self._handle(ResignEnded(leadership.topic))


def _has_operation(record: KeyValue | None) -> bool:
    """Somebody's change is half done: these first."""
    try:
        return record is not None and _operation.decode(record.value).operation != msgspec.Raw(b"null")
    except (msgspec.MsgspecError, ValueError):
        return False
