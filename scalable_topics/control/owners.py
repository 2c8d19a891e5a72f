"""Which daemon serves an embedded segment: a fact in the store, taken over when its owner dies (PROTOCOL 1 and 2).

The store says who owns, the data directory fences: a take-over raises `ownerTerm` in the store and then in the
segment's own row, and from that transaction on the former owner changes nothing. Daemons share nothing else, so no
answer here depends on what another daemon remembers.

Who should own what nobody owns is agreed on by rank, so that segments spread. The first rank claims; any other daemon
points at the best rank before itself that answers, and claims only if none does. A recorded owner that lives comes
before all ranks, which is why this settles: whoever is pointed at either owns, or is of a better rank.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Mapping
from contextlib import asynccontextmanager
from typing import Final, TypeVar
from weakref import WeakValueDictionary

from msgspec import Struct
from msgspec.structs import replace

from scalable_topics.metadata.patience import keep_running
from scalable_topics.metadata.repository import Conflict, Repository, Stored
from scalable_topics.metadata.session import BrokerInfo, Role, Session, SessionKeeper
from scalable_topics.metadata.store import KeyValue
from scalable_topics.metadata.view import StoreView, ViewChange
from scalable_topics.model.errors import NotFound, Unavailable, WrongState
from scalable_topics.model.names import TopicName
from scalable_topics.model.operation import Phase
from scalable_topics.model.ownership import SegmentOwner
from scalable_topics.model.record import TopicRecord, TopicState
from scalable_topics.model.segment import SegmentAddress, SegmentInfo, segment_address
from scalable_topics.policy.ranking import ranked
from scalable_topics.segments.errors import Detached, Fenced
from scalable_topics.segments.port import SegmentData, ServedSegment

MAX_CLAIMS: Final = 40
"""Attempts of one claim. Each loses to somebody faster, or doubles a term that the data is ahead of."""

T = TypeVar("T")

log = logging.getLogger(__name__)


class OwnedElsewhere(Unavailable):
    """Another daemon serves this segment, or should: ask there."""

    kind = "owned-elsewhere"

    def __init__(self, info: BrokerInfo, *, subject: str) -> None:
        super().__init__(f"{info.broker_id} serves it", subject=subject, remedy=f"ask {info.web_url}")
        self.broker_id = info.broker_id
        self.web_url = info.web_url


class _Serving(Struct, frozen=True, kw_only=True):
    """A segment that is served here, and what that rests on."""

    topic: TopicName
    incarnation: str
    address: SegmentAddress
    segment: SegmentInfo
    served: ServedSegment
    session: Session | None
    """In whose name; None = none: the store is away, and the segment's row says that nobody has taken over."""
    owner_term: int
    owner_revision: int


_Key = tuple[TopicName, int]


class SegmentOwners:
    """One for each daemon. To be kept `running`, beside a running keeper and a running view."""

    def __init__(
        self,
        repository: Repository,
        segments: SegmentData,
        keeper: SessionKeeper,
        view: StoreView,
        *,
        answers: Callable[[BrokerInfo], Awaitable[bool]],
    ) -> None:
        """`answers`: does that daemon answer right now? Asked of daemons that live in the store, before this one
        claims what they should.
        """
        self._repository = repository
        self._segments = segments
        self._keeper = keeper
        self._view = view
        self._answers = answers
        self._serving: dict[_Key, _Serving] = {}
        self._held: dict[_Key, _Serving] = {}
        """What was served in the name of the session that was lost last."""
        self._claiming: WeakValueDictionary[_Key, asyncio.Lock] = WeakValueDictionary()
        self._tasks: asyncio.TaskGroup | None = None

    @property
    def serving(self) -> Collection[tuple[TopicName, int]]:
        """What this daemon serves at the moment."""
        return tuple(self._serving)

    async def served(self, topic: TopicName, segment_id: int, *, incarnation: str | None = None) -> ServedSegment:
        """The segment as this daemon owns it, claimed now if nobody alive owns it.

        Raises `OwnedElsewhere`, `NotFound` (no such topic or segment, or another `incarnation` than the caller's),
        `WrongState` (the topic is not ACTIVE), and what the store raises. While the store is away, what was served
        before still is, until somebody else has taken it over.
        """
        return (await self._current(topic, segment_id, incarnation)).served

    async def use(
        self,
        topic: TopicName,
        segment_id: int,
        work: Callable[[ServedSegment, SegmentInfo], Awaitable[T]],
        *,
        incarnation: str | None = None,
    ) -> T:
        """Do something with a segment as its owner; a second time if ownership was lost on the way, which has changed
        nothing.
        """
        for _ in range(2):
            current = await self._current(topic, segment_id, incarnation)
            try:
                return await work(current.served, current.segment)
            except (Fenced, Detached) as error:
                log.info("lost topic=%s segment=%d: %s", topic, segment_id, error)
                self._evict((topic, segment_id), current)
            except NotFound as error:
                if error.subject == current.address.physical:
                    self._evict((topic, segment_id), current)
                raise
        raise Unavailable("its owner changes", subject=_subject(topic, segment_id), remedy="ask again")

    @asynccontextmanager
    async def running(self) -> AsyncIterator["SegmentOwners"]:
        """The end closes everything that is served."""
        async with asyncio.TaskGroup() as tasks:
            self._tasks = tasks
            end = self._view.listen(self._take)
            following = tasks.create_task(keep_running(self._follow_sessions, name="owners"), name="owners")
            try:
                yield self
            finally:
                following.cancel()
                end()
                self._evict_all()
                self._tasks = None

    async def _follow_sessions(self) -> None:
        while True:
            session = await self._keeper.wait_session()
            await session.wait_lost()
            self._held = {key: one for key, one in self._serving.items() if one.session is session}
            self._evict_all()

    async def _current(self, topic: TopicName, segment_id: int, incarnation: str | None) -> _Serving:
        key = topic, segment_id
        found = self._cached(key)
        if found is None:
            lock = self._claiming.setdefault(key, asyncio.Lock())
            async with lock:
                found = self._cached(key) or await self._open(key)
        if incarnation not in {None, found.incarnation}:
            raise NotFound(
                f"its incarnation is {found.incarnation}, not {incarnation}",
                subject=_subject(topic, segment_id),
                remedy="the topic was made anew: read it again",
            )
        return found

    def _cached(self, key: _Key) -> _Serving | None:
        """Only while what it rests on stands: whoever was paused finds out here, before anybody else is served."""
        found = self._serving.get(key)
        if found is not None and found.session is not self._keeper.session:
            if found.session is not None and self._keeper.session is None:
                self._held[key] = found
            self._evict(key, found)
            return None
        return found

    async def _open(self, key: _Key) -> _Serving:
        session = self._keeper.session
        opened = await (self._claim(key, session) if session is not None else self._open_held(key))
        if self._tasks is None or self._keeper.session is not session:
            await opened.served.close()
            raise Unavailable("this daemon's session has changed", subject=_subject(*key), remedy="ask again")
        self._serving[key] = opened
        return opened

    async def _open_held(self, key: _Key) -> _Serving:
        """Without a store. The same term again: the segment's row refuses it if somebody has taken over."""
        held = self._held.get(key)
        if held is None:
            raise Unavailable("the store is away, and it was not served here before", subject=_subject(*key))
        try:
            served = await self._segments.serve(held.address, owner_term=held.owner_term)
        except (Fenced, NotFound) as error:
            self._held.pop(key, None)
            raise Unavailable("somebody else serves it now", subject=_subject(*key), remedy="ask others") from error
        return replace(held, served=served, session=None)

    async def _claim(self, key: _Key, session: Session) -> _Serving:
        topic, segment_id = key
        least = 1
        for _ in range(MAX_CLAIMS):
            record, known, brokers = await asyncio.gather(
                self._repository.topic(topic), self._repository.owner(topic, segment_id), self._repository.brokers()
            )
            if record is None:
                raise NotFound("there is no such topic", subject=str(topic))
            segment = _claimable(topic, record.value, segment_id)
            address = segment_address(topic, segment, incarnation=record.value.incarnation)
            try:
                if not self._is_ours(known, session, least):
                    await self._ensure_nobody_else(key, address, known, brokers)
                    known = await self._take_over(key, session, record, known, least)
                served = await self._segments.serve(address, owner_term=known.value.owner_term)
            except Conflict:
                if not session.alive:
                    raise Unavailable("this daemon's session is over", subject=_subject(*key)) from None
                continue
            except Fenced:
                # Somebody was faster; or the store came from a backup and is behind the data: then the term must rise.
                least = 2 * max(least, known.value.owner_term if known is not None else 1)
                continue
            log.info("serving topic=%s segment=%d owner_term=%d", topic, segment_id, known.value.owner_term)
            return _Serving(
                topic=topic,
                incarnation=record.value.incarnation,
                address=address,
                segment=segment,
                served=served,
                session=session,
                owner_term=known.value.owner_term,
                owner_revision=known.mod_revision,
            )
        raise Unavailable("its owner keeps changing", subject=_subject(*key), remedy="ask again")

    def _is_ours(self, known: Stored[SegmentOwner] | None, session: Session, least: int) -> "TypeGuard[Stored[SegmentOwner]]":
        return known is not None and known.value.owner_term >= least
    async def _prefer_others(
        self, address: SegmentAddress, brokers: Mapping[str, Stored[BrokerInfo]], topic: TopicName, segment_id: int
    ) -> None:
        """Raise `OwnedElsewhere` if a daemon of a better rank answers."""
        me = self._keeper.info.broker_id
        controllers = {name for name, one in brokers.items() if Role.CONTROLLER in one.value.roles} | {me}
        for name in ranked(address.physical, controllers):
            if name == me:
                return
            if await self._answers(brokers[name].value):
                raise OwnedElsewhere(brokers[name].value, subject=_subject(topic, segment_id))

    def _take(self, change: ViewChange) -> None:
        """Owner keys tell everything: they go with their topic and with a segment that is pruned."""
        if change.after.generation != change.before.generation:
            self._evict_all()
            return
        if not self._serving:
            return
        for each in change.changes:
            if each.key.endswith("/owner"):
                self._take_owner(each.key, each.after, change.after.revision)

    def _take_owner(self, path: str, item: KeyValue | None, revision: int) -> None:
        found = self._repository.paths.topic_of(path)
        segment_id = found[1].split("/")[1] if found is not None else ""
        if found is None or not segment_id.isdecimal():
            return
        key = found[0], int(segment_id)
        one = self._serving.get(key)
        if one is not None and (item.mod_revision if item is not None else revision) > one.owner_revision:
            self._evict(key, one)

    def _evict(self, key: _Key, serving: _Serving) -> None:
        if self._serving.get(key) is serving:
            del self._serving[key]
        if self._tasks is not None:
            self._tasks.create_task(serving.served.close())

    def _evict_all(self) -> None:
        for key, one in list(self._serving.items()):
            self._evict(key, one)


def _subject(topic: TopicName, segment_id: int) -> str:
    return f"segment {segment_id} of {topic}"


def _same_owner(one: SegmentOwner, other: SegmentOwner) -> bool:
    return (one.broker_id, one.broker_session) == (other.broker_id, other.broker_session)


def _announced(record: TopicRecord, segment_id: int) -> SegmentInfo | None:
    """Listed, or a child of a SEALING operation: what a client may have been told of."""
    listed = record.layout.segments.get(segment_id)
    if listed is not None or record.operation is None or record.operation.phase is not Phase.SEALING:
        return listed
    children = (child for replacement in record.operation.replacements for child in replacement.children)
    return next((child for child in children if child.segment_id == segment_id), None)


def _claimable(topic: TopicName, record: TopicRecord, segment_id: int) -> SegmentInfo:
    if record.state is not TopicState.ACTIVE:
        raise WrongState(f"the topic is {record.state}", subject=str(topic), remedy="wait until it is ACTIVE")
    segment = _announced(record, segment_id)
    if segment is None:
        raise NotFound(
            "there is no such segment", subject=_subject(topic, segment_id), remedy="read the topic for its segments"
        )
    return segment
