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
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Final, TypeVar
from weakref import WeakValueDictionary

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from scalable_topics.control import phases
from scalable_topics.metadata.patience import TRANSIENT, in_words, keep_running
from scalable_topics.metadata.repository import Conflict, Repository, Stored
from scalable_topics.metadata.session import BrokerInfo, Role, Session, SessionKeeper, decode_broker
from scalable_topics.metadata.store import KeyValue
from scalable_topics.metadata.view import StoreView, ViewChange
from scalable_topics.model.codec import decode_json
from scalable_topics.model.errors import DecodeError, NotFound, Unavailable, WrongState
from scalable_topics.model.names import TopicName
from scalable_topics.model.operation import Phase
from scalable_topics.model.ownership import SegmentOwner
from scalable_topics.model.record import TopicRecord, TopicState, decode_record
from scalable_topics.model.segment import SegmentAddress, SegmentInfo, segment_address
from scalable_topics.policy.ranking import ranked
from scalable_topics.segments.errors import Detached, Fenced
from scalable_topics.segments.port import SegmentData, ServedSegment

_SEALING: Final = b'"phase":"SEALING"'
"""In every record with an operation that announces children. Others need not be read to know it."""
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


class _Facts(Struct, frozen=True):
    """What a claim is decided on."""

    record: Stored[TopicRecord]
    owner: Stored[SegmentOwner] | None
    brokers: Mapping[str, Stored[BrokerInfo]]


class _Serving(Struct, frozen=True, kw_only=True):
    """A segment that is served here, and what that rests on."""

    incarnation: str
    address: SegmentAddress
    segment: SegmentInfo
    served: ServedSegment
    session: Session | None
    """In whose name; None = none: the store is away, and the segment's row says that nobody has taken over."""
    owner_term: int
    owner_revision: int


_Key = tuple[TopicName, int]
_owner: Final = msgspec.json.Decoder(SegmentOwner)


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
        before still is, until somebody else has taken it over. What is answered may end at any time: `use` looks again
        when it has.
        """
        return (await self._current(topic, segment_id, incarnation)).served

    def owner_in_view(self, topic: TopicName, segment_id: int) -> BrokerInfo | None:
        """Who serves it as far as this daemon has heard, without asking; None = nobody alive."""
        items, paths = self._view.state.items, self._repository.paths
        item = items.get(paths.owner(topic, segment_id))
        try:
            owner = decode_json(item.value, _owner, subject=item.key) if item is not None else None
            broker = items.get(paths.broker(owner.broker_id)) if owner is not None else None
            if owner is None or broker is None or broker.create_revision != owner.broker_session:
                return None
            return decode_broker(broker.value, subject=broker.key)
        except DecodeError as error:
            log.warning("passed over: %s", error)
            return None

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
            await self._follow(await self._keeper.wait_session())

    async def _follow(self, session: Session) -> None:
        """What was served without one is claimed anew; what was served in its name ends with it, all at once."""
        self._held.clear()
        self._evict_all(lambda one: one.session is not session)
        await session.wait_lost()
        self._held.update((key, one) for key, one in self._serving.items() if one.session is session)
        self._evict_all(lambda one: one.session is session)

    async def _current(self, topic: TopicName, segment_id: int, incarnation: str | None) -> _Serving:
        key = topic, segment_id
        found = self._cached(key)
        if found is None:
            owner = self.owner_in_view(topic, segment_id)
            if owner is not None and owner.broker_id != self._keeper.info.broker_id:
                raise OwnedElsewhere(owner, subject=_subject(topic, segment_id))
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
        if session is None:
            opened = await self._open_held(key)
        else:
            opened = await self._open_named(key, session) or await self._claim(key, session)
        if self._tasks is None or self._keeper.session is not session:
            await opened.served.close()
            raise Unavailable("this daemon's session has changed", subject=_subject(*key), remedy="ask again")
        self._serving[key] = opened
        return opened

    async def _open_named(self, key: _Key, session: Session) -> _Serving | None:
        """What the store has given to this daemon, as its view tells: announced children come with an owner, so that
        opening one waits for no store. None = it has not, or that was long ago.
        """
        paths, items = self._repository.paths, self._view.state.items
        given, item = items.get(paths.owner(*key)), items.get(paths.record(key[0]))
        if given is None or item is None:
            return None
        owner = decode_json(given.value, _owner, subject=given.key)
        if (owner.broker_id, owner.broker_session) != (self._keeper.info.broker_id, session.broker_revision):
            return None
        record = decode_record(item.value, subject=item.key)
        segment = _claimable(key[0], record, key[1])
        address = segment_address(key[0], segment, incarnation=record.incarnation)
        try:
            served = await self._segments.serve(address, owner_term=owner.owner_term)
        except (Fenced, NotFound):
            return None
        log.info("serving topic=%s segment=%d owner_term=%d", *key, owner.owner_term)
        return _Serving(
            incarnation=record.incarnation,
            address=address,
            segment=segment,
            served=served,
            session=session,
            owner_term=owner.owner_term,
            owner_revision=given.mod_revision,
        )

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
        least = 1
        for _ in range(MAX_CLAIMS):
            facts = await self._look(key)
            segment = _claimable(key[0], facts.record.value, key[1])
            address = segment_address(key[0], segment, incarnation=facts.record.value.incarnation)
            try:
                owned = await self._own(key, session, facts, address, least)
            except Conflict:
                if not session.alive:
                    raise Unavailable("this daemon's session is over", subject=_subject(*key)) from None
                continue
            try:
                served = await self._segments.serve(address, owner_term=owned.value.owner_term)
            except Fenced:
                # Somebody was faster; or the store came from a backup and is behind the data: then the term must rise.
                least = 2 * owned.value.owner_term
                continue
            log.info("serving topic=%s segment=%d owner_term=%d", *key, owned.value.owner_term)
            return _Serving(
                incarnation=facts.record.value.incarnation,
                address=address,
                segment=segment,
                served=served,
                session=session,
                owner_term=owned.value.owner_term,
                owner_revision=owned.mod_revision,
            )
        raise Unavailable("its owner keeps changing", subject=_subject(*key), remedy="ask again")

    async def _look(self, key: _Key) -> _Facts:
        topic, segment_id = key
        record, owner, brokers = await asyncio.gather(
            self._repository.topic(topic), self._repository.owner(topic, segment_id), self._repository.brokers()
        )
        if record is None:
            raise NotFound("there is no such topic", subject=str(topic))
        return _Facts(record, owner, brokers)

    async def _own(
        self, key: _Key, session: Session, facts: _Facts, address: SegmentAddress, least: int
    ) -> Stored[SegmentOwner]:
        """The recorded ownership of this daemon, with a term of at least that. `Conflict` = look again."""
        me, known, term = self._keeper.info.broker_id, facts.owner, least
        if known is not None:
            term = max(least, known.value.owner_term + 1)
            if (known.value.broker_id, known.value.broker_session) != (me, session.broker_revision):
                owner = facts.brokers.get(known.value.broker_id)
                if owner is not None and owner.create_revision == known.value.broker_session:
                    raise OwnedElsewhere(owner.value, subject=_subject(*key))
                await self._prefer_others(key, address, facts.brokers)
            elif known.value.owner_term >= least:
                return known
        else:
            await self._prefer_others(key, address, facts.brokers)
        ours = SegmentOwner(broker_id=me, broker_session=session.broker_revision, owner_term=term)
        return await self._repository.take_ownership(session, *key, ours, record=facts.record, known=known)

    async def _prefer_others(
        self, key: _Key, address: SegmentAddress, brokers: Mapping[str, Stored[BrokerInfo]]
    ) -> None:
        """Raise `OwnedElsewhere` if a daemon of a better rank answers."""
        for name in self._ranks(address, brokers):
            if name == self._keeper.info.broker_id:
                return
            if await self._answers(brokers[name].value):
                raise OwnedElsewhere(brokers[name].value, subject=_subject(*key))

    def _ranks(self, address: SegmentAddress, brokers: Mapping[str, Stored[BrokerInfo]]) -> Sequence[str]:
        controllers = {name for name, one in brokers.items() if Role.CONTROLLER in one.value.roles}
        return ranked(address.physical, controllers | {self._keeper.info.broker_id})

    async def _claim_early(self, topic: TopicName, record: TopicRecord) -> None:
        """Announced children that are this daemon's, before a writer is sent to them."""
        try:
            mine = [child.segment_id for child in _announced(record) if self._is_named(topic, child.segment_id)]
            if not mine:
                brokers = await self._repository.brokers()
                mine = [
                    child.segment_id for child in _announced(record) if self._is_mine(topic, record, child, brokers)
                ]
            await asyncio.gather(*(self.served(topic, segment_id) for segment_id in mine))
        except (*TRANSIENT, WrongState, NotFound, DecodeError) as error:
            log.info("not claimed early topic=%s: %s", topic, in_words(error))

    def _is_named(self, topic: TopicName, segment_id: int) -> bool:
        owner = self.owner_in_view(topic, segment_id)
        return owner is not None and owner.broker_id == self._keeper.info.broker_id

    def _is_mine(
        self,
        topic: TopicName,
        record: TopicRecord,
        child: SegmentInfo,
        brokers: Mapping[str, Stored[BrokerInfo]],
    ) -> bool:
        """By rank, of those that the leader named no owner for."""
        if self.owner_in_view(topic, child.segment_id) is not None:
            return False
        address = segment_address(topic, child, incarnation=record.incarnation)
        return self._ranks(address, brokers)[0] == self._keeper.info.broker_id

    def _take(self, change: ViewChange) -> None:
        """Owner keys tell everything: they go with their topic and with a segment that is pruned."""
        if change.after.generation != change.before.generation:
            self._evict_all()
            return
        for each in change.changes:
            if each.key.endswith("/owner"):
                self._take_owner(each.key, each.after, change.after.revision)
            elif each.after is not None and _SEALING in each.after.value:
                self._take_record(each.after)

    def _take_record(self, item: KeyValue) -> None:
        found = self._repository.paths.topic_of(item.key)
        if found is None or found[1] or self._tasks is None or self._keeper.session is None:
            return
        try:
            record = decode_record(item.value, subject=item.key)
        except DecodeError as error:
            log.warning("nothing claimed early: %s", error)
        else:
            self._tasks.create_task(self._claim_early(found[0], record))

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

    def _evict_all(self, which: Callable[[_Serving], bool] = lambda _: True) -> None:
        for key, one in list(self._serving.items()):
            if which(one):
                self._evict(key, one)


def _subject(topic: TopicName, segment_id: int) -> str:
    return f"segment {segment_id} of {topic}"


def _announced(record: TopicRecord) -> Sequence[SegmentInfo]:
    """Children of a SEALING operation: writers are sent to them from now on."""
    operation = record.operation
    return phases.children(operation.replacements) if operation and operation.phase is Phase.SEALING else ()


def _claimable(topic: TopicName, record: TopicRecord, segment_id: int) -> SegmentInfo:
    if record.state is not TopicState.ACTIVE:
        raise WrongState(f"the topic is {record.state}", subject=str(topic), remedy="wait until it is ACTIVE")
    listed = record.layout.segments.get(segment_id)
    segment = listed or next((child for child in _announced(record) if child.segment_id == segment_id), None)
    if segment is None:
        raise NotFound(
            "there is no such segment", subject=_subject(topic, segment_id), remedy="read the topic for its segments"
        )
    return segment
