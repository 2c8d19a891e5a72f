"""Facts in the store: one method for each, typed, and every write with the compares of PROTOCOL 2 in its one
transaction.

A write that did not happen says why: `Deposed` (stop, you are not the leader), `Conflict` (read again, somebody was
faster). One whose answer was lost is looked into here, by `transactions`, and not by the caller. Every write of a
leader takes *companions*: other writes that must happen with it or not at all.
"""

from collections.abc import Mapping, Sequence
from typing import Final, TypeVar

from msgspec.structs import replace

from scalable_topics.metadata.leadership import Leadership
from scalable_topics.metadata.patience import PassedOver
from scalable_topics.metadata.session import BrokerInfo, Session
from scalable_topics.metadata.store import (
    Compare,
    CreateRevisionIs,
    Delete,
    DeletePrefix,
    KeyValue,
    MetadataStore,
    ModRevisionIs,
    Put,
    Write,
)
from scalable_topics.metadata.transactions import (
    Change,
    Conflict,
    Deposed,
    Kind,
    Stored,
    Transactions,
    same_life,
    stored,
    unchanged,
    written,
)
from scalable_topics.model.administration import NamespacePolicies, Permissions, TenantInfo
from scalable_topics.model.errors import CapReached, DecodeError, WrongState
from scalable_topics.model.garbage import garbage_entry
from scalable_topics.model.journal import JournalRow, encode_row, rows_to_drop
from scalable_topics.model.load import SegmentLoadStats, SweepHeartbeat
from scalable_topics.model.names import TopicName
from scalable_topics.model.operation import Operation, Phase
from scalable_topics.model.ownership import SegmentOwner
from scalable_topics.model.paths import StorePaths
from scalable_topics.model.record import RECORD_LIMIT_BYTES, TopicRecord, decode_record, encode_record
from scalable_topics.model.segment import segment_address
from scalable_topics.model.subscription import (
    AssignmentRecord,
    ConsumerRegistration,
    DrainedMarker,
    SubscriptionRecord,
)

T = TypeVar("T")

__all__ = ["Conflict", "Deposed", "Repository", "Stored"]


class _RecordKind(Kind[TopicRecord]):
    def __init__(self) -> None:
        super().__init__(TopicRecord)

    def decode(self, data: bytes, *, subject: str) -> TopicRecord:
        return decode_record(data, subject=subject)

    def encode(self, value: TopicRecord) -> bytes:
        return encode_record(value)


_RECORD: Final = _RecordKind()
_LOAD: Final = Kind(SegmentLoadStats)
_OWNER: Final = Kind(SegmentOwner)
_SUBSCRIPTION: Final = Kind(SubscriptionRecord)
_ASSIGNMENT: Final = Kind(AssignmentRecord)
_CONSUMER: Final = Kind(ConsumerRegistration)
_DRAINED: Final = Kind(DrainedMarker)
_TENANT: Final = Kind(TenantInfo)
_POLICIES: Final = Kind(NamespacePolicies)
_PERMISSIONS: Final[Kind[Permissions]] = Kind(dict[str, tuple[str, ...]])
_JOURNAL: Final = Kind(JournalRow)
_GARBAGE: Final = Kind(tuple[str, ...])
_BROKER: Final = Kind(BrokerInfo)
_HEARTBEAT: Final = Kind(SweepHeartbeat)

StoredRecord = Stored[TopicRecord]


class Repository:
    """Every method may raise `Unavailable` (nothing was changed), `NoSpace`, `Forbidden`; one that reads a fact,
    `DecodeError` with its name, because a leader must not act on what it cannot read.

    Every write raises `Deposed` or `Conflict` when it did not happen for that reason, `TooLarge` when it cannot,
    `LeaseLost` when it was to carry the lease of a session that is over, and `UnknownOutcome` only when the store
    stayed away for `RESOLVE_SECONDS` after an answer was lost. After `Conflict` and `UnknownOutcome` the caller reads
    again; after `Deposed` and `LeaseLost` it stops, and compensates nothing.

    `known` is always the fact as the caller last read it, and None if it was not there. What a write answers is what
    the next one compares.
    """

    def __init__(self, store: MetadataStore, paths: StorePaths) -> None:
        self._do = Transactions(store)
        self.paths = paths
        self._passed_over = PassedOver()

    async def topic(self, topic: TopicName) -> StoredRecord | None:
        """Its record; None = there is no such topic."""
        return await self._do.read(self.paths.record(topic), _RECORD, subject=str(topic))

    async def topics(self, tenant: str, namespace: str) -> list[TopicName]:
        """By the index, so that listing reads no load and no record. Keys that are not ours are passed over."""
        items = await self._do.scan(self.paths.index_of(tenant, namespace))
        return [topic for item in items if (topic := self.paths.topic_of_index(item.key)) is not None]

    async def create_topic(
        self, topic: TopicName, record: TopicRecord, *, companions: Sequence[Write] = ()
    ) -> StoredRecord:
        """Anybody may, with the index entry in the same transaction; the first wins, and the others get `WrongState`.
        `CapReached` for a record that is too large.
        """
        key = self.paths.record(topic)
        change = Change(
            subject=str(topic),
            key=key,
            value=_encoded(topic, record),
            expected=CreateRevisionIs(key, 0),
            companions=(Put(self.paths.index(topic), b""), *companions),
            happened=lambda found: found is not None and _record(topic, found).incarnation == record.incarnation,
        )
        try:
            return written(record, None, await self._do.apply(change), _RECORD, subject=str(topic))
        except Conflict:
            raise WrongState(
                "it exists already", subject=str(topic), remedy="choose another name, or delete it first"
            ) from None

    async def update_topic(
        self,
        leadership: Leadership,
        known: StoredRecord,
        record: TopicRecord,
        *,
        companions: Sequence[Write] = (),
        compares: Sequence[Compare] = (),
    ) -> StoredRecord:
        """Any change of a record: operation phases, policy, properties, prune. Compares E and R, and what the
        companions need. `CapReached` for a record that is too large.
        """
        change = replace(self._record_change(leadership, known, record, companions), compares=tuple(compares))
        return written(record, known, await self._do.apply(change), _RECORD, subject=change.subject)

    async def remove_topic(
        self, leadership: Leadership, known: StoredRecord, *, companions: Sequence[Write] = ()
    ) -> None:
        """The last step of a deletion, at one revision: everything under the topic, its election key, its index entry
        and its journal go; what may still exist of its segments is named in `/garbage/{incarnation}`. Compares E and R.
        """
        topic = leadership.topic
        key = self.paths.record(topic)
        gone = (DeletePrefix(f"{key}/"), Delete(self.paths.index(topic)), DeletePrefix(self.paths.journal_of(topic)))
        garbage = _leftovers(topic, known.value)
        kept = (Put(self.paths.garbage(known.value.incarnation), _GARBAGE.encode(garbage)),) if garbage else ()
        await self._do.apply(
            Change(
                subject=str(topic),
                key=key,
                value=None,
                expected=unchanged(key, known),
                leadership=leadership,
                companions=(*gone, *kept, *companions),
                happened=lambda found: found is None or found.create_revision != known.create_revision,
            )
        )

    async def garbage(self) -> dict[str, Stored[tuple[str, ...]]]:
        """Of topics that are gone, by incarnation. What cannot be read is passed over: nothing of it is deleted."""
        prefix = self.paths.garbage("")
        found = ((item.key.removeprefix(prefix), item) for item in await self._do.scan(prefix))
        return {name: fact for name, item in found if (fact := self._readable(item, _GARBAGE)) is not None}

    async def set_garbage(self, incarnation: str, garbage: tuple[str, ...], *, known: Stored[tuple[str, ...]]) -> None:
        """What is left of a topic that is gone; nothing = the entry goes. Any daemon may."""
        key = self.paths.garbage(incarnation)
        value = _GARBAGE.encode(garbage) if garbage else None
        await self._do.apply(Change(subject=key, key=key, value=value, expected=unchanged(key, known)))

    async def subscriptions(self, topic: TopicName) -> dict[str, Stored[SubscriptionRecord]]:
        """By name. One that cannot be read is a `DecodeError`, not passed over: whoever did not know of a subscription
        would delete what it has not read yet.
        """
        return {
            name: stored(item, _SUBSCRIPTION, subject=f"{name} of {topic}")
            for item in await self._do.scan(self.paths.subscriptions(topic))
            if (name := self.paths.subscription_of(topic, item.key)) is not None
        }

    async def subscription(self, topic: TopicName, name: str) -> Stored[SubscriptionRecord] | None:
        key = self.paths.subscription(topic, name)
        return await self._do.read(key, _SUBSCRIPTION, subject=f"{name} of {topic}")

    async def write_subscription(
        self,
        leadership: Leadership,
        record: StoredRecord,
        name: str,
        subscription: SubscriptionRecord | None,
        *,
        known: Stored[SubscriptionRecord] | None,
        companions: Sequence[Write] = (),
    ) -> StoredRecord:
        """Create, change or (None) delete one: everything under it goes. Raises the record's `subscriptionsRevision`
        in the same transaction, so that an operation that has not seen it cannot go on.
        """
        topic = leadership.topic
        key, record_key = self.paths.subscription(topic, name), self.paths.record(topic)
        bumped = replace(record.value, subscriptions_revision=record.value.subscriptions_revision + 1)
        below = () if subscription is not None else (DeletePrefix(f"{key}/"),)
        # The subscription is the fact that is looked for after a lost answer: two of them bump the record alike.
        applied = await self._do.apply(
            Change(
                subject=f"{name} of {topic}",
                key=key,
                value=_SUBSCRIPTION.encode(subscription) if subscription is not None else None,
                expected=unchanged(key, known),
                leadership=leadership,
                compares=(ModRevisionIs(record_key, record.mod_revision),),
                companions=(Put(record_key, _encoded(topic, bumped)), *below, *companions),
            )
        )
        if not applied.doubted:
            return Stored(bumped, record.create_revision, applied.revision)
        now = await self.topic(topic)
        if now is None:
            raise Conflict("the topic has been removed", subject=str(topic))
        return now

    async def drained(self, topic: TopicName) -> dict[tuple[int, str], Stored[DrainedMarker]]:
        """By segment and subscription. One that cannot be read is no proof, and is passed over."""
        return {
            place: fact
            for item in await self._do.scan(self.paths.segments(topic))
            if (place := self.paths.drained_of(topic, item.key)) is not None
            and (fact := self._readable(item, _DRAINED)) is not None
        }

    async def mark_drained(
        self,
        leadership: Leadership,
        record: StoredRecord,
        segment_id: int,
        subscription: str,
        marker: DrainedMarker,
        *,
        known: Stored[SubscriptionRecord],
        companions: Sequence[Write] = (),
    ) -> None:
        """`known` is the subscription: one that was sought or deleted meanwhile gets no marker."""
        topic = leadership.topic
        await self._do.apply(
            Change(
                subject=f"segment {segment_id} of {topic} for {subscription}",
                key=self.paths.drained(topic, segment_id, subscription),
                value=_DRAINED.encode(marker),
                expected=None,
                leadership=leadership,
                compares=(
                    same_life(self.paths.record(topic), record),
                    unchanged(self.paths.subscription(topic, subscription), known),
                ),
                companions=tuple(companions),
            )
        )

    async def assignment(self, topic: TopicName, subscription: str) -> Stored[AssignmentRecord] | None:
        key = self.paths.assignment(topic, subscription)
        return await self._do.read(key, _ASSIGNMENT, subject=f"assignment of {subscription} of {topic}")

    async def assign(
        self,
        leadership: Leadership,
        record: StoredRecord,
        subscription: str,
        assignment: AssignmentRecord,
        *,
        known: Stored[AssignmentRecord] | None,
        companions: Sequence[Write] = (),
    ) -> Stored[AssignmentRecord]:
        """The whole assignment of a subscription, in its one key. Compares E, I and the assignment."""
        key = self.paths.assignment(leadership.topic, subscription)
        change = Change(
            subject=f"assignment of {subscription} of {leadership.topic}",
            key=key,
            value=_ASSIGNMENT.encode(assignment),
            expected=unchanged(key, known),
            leadership=leadership,
            compares=(same_life(self.paths.record(leadership.topic), record),),
            companions=tuple(companions),
        )
        return written(assignment, known, await self._do.apply(change), _ASSIGNMENT, subject=change.subject)

    async def consumers(self, topic: TopicName, subscription: str) -> dict[str, Stored[ConsumerRegistration]]:
        """By name."""
        return {
            name: stored(item, _CONSUMER, subject=f"consumer {name} of {subscription} of {topic}")
            for item in await self._do.scan(self.paths.consumers(topic, subscription))
            if (name := self.paths.consumer_of(topic, subscription, item.key)) is not None
        }

    async def register_consumer(
        self,
        leadership: Leadership,
        subscription: str,
        name: str,
        registration: ConsumerRegistration | None,
        *,
        known: Stored[ConsumerRegistration] | None,
        companions: Sequence[Write] = (),
    ) -> int:
        """None = it leaves. Compares E and the registration. Answers the revision."""
        key = self.paths.consumer(leadership.topic, subscription, name)
        applied = await self._do.apply(
            Change(
                subject=f"consumer {name} of {subscription} of {leadership.topic}",
                key=key,
                value=_CONSUMER.encode(registration) if registration is not None else None,
                expected=unchanged(key, known),
                leadership=leadership,
                companions=tuple(companions),
            )
        )
        return applied.revision

    async def load(self, topic: TopicName, segment_id: int) -> Stored[SegmentLoadStats] | None:
        key = self.paths.load(topic, segment_id)
        return await self._do.read(key, _LOAD, subject=f"load of segment {segment_id} of {topic}")

    async def report_load(
        self,
        topic: TopicName,
        segment_id: int,
        load: SegmentLoadStats,
        *,
        record: StoredRecord,
        known: Stored[SegmentLoadStats] | None,
    ) -> Stored[SegmentLoadStats]:
        """By whoever owns the segment. The first report compares the whole record, so that a segment which has left is
        not brought back: `Conflict` for one that is not listed.
        """
        key, record_key = self.paths.load(topic, segment_id), self.paths.record(topic)
        subject = f"load of segment {segment_id} of {topic}"
        if known is None and segment_id not in record.value.layout.segments:
            raise Conflict("it is not in the topic's record", subject=subject)
        life = unchanged(record_key, record) if known is None else same_life(record_key, record)
        change = Change(
            subject=subject, key=key, value=_LOAD.encode(load), expected=unchanged(key, known), compares=(life,)
        )
        return written(load, known, await self._do.apply(change), _LOAD, subject=subject)

    async def owner(self, topic: TopicName, segment_id: int) -> Stored[SegmentOwner] | None:
        key = self.paths.owner(topic, segment_id)
        return await self._do.read(key, _OWNER, subject=f"owner of segment {segment_id} of {topic}")

    def owner_writes(
        self, topic: TopicName, owners: Mapping[int, SegmentOwner]
    ) -> tuple[tuple[Write, ...], tuple[Compare, ...]]:
        """Companions and compares that give new segments their first owners: nobody owns them yet, and each owner's
        session stands.
        """
        keys = {segment_id: self.paths.owner(topic, segment_id) for segment_id in owners}
        writes = tuple(Put(keys[segment_id], _OWNER.encode(owner)) for segment_id, owner in owners.items())
        absent = tuple(CreateRevisionIs(key, 0) for key in keys.values())
        sessions = {owner.broker_id: owner.broker_session for owner in owners.values()}
        alive = tuple(CreateRevisionIs(self.paths.broker(name), revision) for name, revision in sessions.items())
        return writes, (*absent, *alive)

    async def take_ownership(
        self,
        session: Session,
        topic: TopicName,
        segment_id: int,
        owner: SegmentOwner,
        *,
        record: StoredRecord,
        known: Stored[SegmentOwner] | None,
    ) -> Stored[SegmentOwner]:
        """By a living daemon, for itself; `WrongState` when its `ownerTerm` does not rise. The key outlives its owner,
        so that `ownerTerm` never falls; the first one compares the whole record, so that a segment which has left gets
        none. `Conflict` also when the session is over.
        """
        key, subject = self.paths.owner(topic, segment_id), f"owner of segment {segment_id} of {topic}"
        if known is not None and owner.owner_term <= known.value.owner_term:
            raise WrongState(
                f"owner term {owner.owner_term} does not rise", subject=subject, remedy="take the next one"
            )
        record_key = self.paths.record(topic)
        life = same_life(record_key, record) if known is not None else unchanged(record_key, record)
        change = Change(
            subject=subject,
            key=key,
            value=_OWNER.encode(owner),
            expected=unchanged(key, known),
            compares=(life, *session.fence(self.paths, owner.broker_id)),
        )
        return written(owner, known, await self._do.apply(change), _OWNER, subject=subject)

    async def journal(self, topic: TopicName) -> tuple[KeyValue, ...]:
        """Its rows as they are kept, oldest first; `journal_rows` reads them, `journal_writes` wants them."""
        found = await self._do.scan(self.paths.journal_of(topic))
        return tuple(item for item in found if self._sequence(topic, item) is not None)

    def journal_rows(self, items: Sequence[KeyValue]) -> list[JournalRow]:
        """Those that can be read."""
        return [fact.value for item in items if (fact := self._readable(item, _JOURNAL)) is not None]

    def journal_writes(self, topic: TopicName, row: JournalRow, *, known: Sequence[KeyValue]) -> tuple[Write, ...]:
        """Companions that add a row and drop the oldest ones, so that a topic keeps at most 200 rows and 16 KiB.
        `known` is what `journal` answered.
        """
        data = encode_row(row)
        last = (self._sequence(topic, known[-1]) or 0) if known else 0
        dropped = known[: rows_to_drop([len(item.value) for item in known], len(data))]
        return (Put(self.paths.journal(topic, last + 1), data), *(Delete(item.key) for item in dropped))

    async def tenant(self, tenant: str) -> Stored[TenantInfo] | None:
        return await self._do.read(self.paths.tenant(tenant), _TENANT, subject=f"tenant {tenant}")

    async def set_tenant(
        self, tenant: str, info: TenantInfo | None, *, known: Stored[TenantInfo] | None
    ) -> Stored[TenantInfo] | None:
        return await self._set(self.paths.tenant(tenant), _TENANT, info, known, f"tenant {tenant}")

    async def namespace_policies(self, tenant: str, namespace: str) -> Stored[NamespacePolicies] | None:
        key, subject = self.paths.policies(tenant, namespace), f"policies of {tenant}/{namespace}"
        return await self._do.read(key, _POLICIES, subject=subject)

    async def set_namespace_policies(
        self,
        tenant: str,
        namespace: str,
        policies: NamespacePolicies | None,
        *,
        known: Stored[NamespacePolicies] | None,
    ) -> Stored[NamespacePolicies] | None:
        key, subject = self.paths.policies(tenant, namespace), f"policies of {tenant}/{namespace}"
        return await self._set(key, _POLICIES, policies, known, subject)

    async def permissions(self, tenant: str, namespace: str) -> Stored[Permissions] | None:
        key, subject = self.paths.namespace_permissions(tenant, namespace), f"permissions of {tenant}/{namespace}"
        return await self._do.read(key, _PERMISSIONS, subject=subject)

    async def set_permissions(
        self, tenant: str, namespace: str, granted: Permissions | None, *, known: Stored[Permissions] | None
    ) -> Stored[Permissions] | None:
        key, subject = self.paths.namespace_permissions(tenant, namespace), f"permissions of {tenant}/{namespace}"
        return await self._set(key, _PERMISSIONS, granted, known, subject)

    async def topic_permissions(self, topic: TopicName) -> Stored[Permissions] | None:
        key = self.paths.topic_permissions(topic)
        return await self._do.read(key, _PERMISSIONS, subject=f"permissions of {topic}")

    async def set_topic_permissions(
        self, topic: TopicName, granted: Permissions | None, *, known: Stored[Permissions] | None
    ) -> Stored[Permissions] | None:
        key = self.paths.topic_permissions(topic)
        return await self._set(key, _PERMISSIONS, granted, known, f"permissions of {topic}")

    async def brokers(self) -> dict[str, Stored[BrokerInfo]]:
        """Living daemons by name; the create revision is that of their session. Keys that say nothing readable are
        passed over.
        """
        return {
            name: fact
            for item in await self._do.scan(self.paths.brokers)
            if (name := self.paths.broker_of(item.key)) is not None
            and (fact := self._readable(item, _BROKER)) is not None
        }

    async def beat(self, session: Session, broker_id: str, heartbeat: SweepHeartbeat) -> int:
        """This daemon's sweep heartbeat (`heartbeats` calls it); goes with its session. Answers the revision that the
        watch will tell. `Conflict` when the session is over.
        """
        key = self.paths.reporter(broker_id)
        applied = await self._do.apply(
            Change(
                subject=f"heartbeat of {broker_id}",
                key=key,
                value=_HEARTBEAT.encode(heartbeat),
                expected=None,
                lease=session.lease,
                compares=session.fence(self.paths, broker_id),
            )
        )
        return applied.revision

    def _readable(self, item: KeyValue, kind: Kind[T]) -> Stored[T] | None:
        """None = it cannot be read, which is logged once."""
        try:
            return stored(item, kind, subject=item.key)
        except DecodeError as error:
            self._passed_over.note(item.key, str(error))
            return None

    def _sequence(self, topic: TopicName, item: KeyValue) -> int | None:
        """The number of a journal row; None = it is no row of ours."""
        number = item.key.removeprefix(self.paths.journal_of(topic))
        if number.isascii() and number.isdecimal() and self.paths.journal(topic, int(number)) == item.key:
            return int(number)
        self._passed_over.note(item.key, "it is no journal row as we spell them")
        return None

    async def _set(
        self, key: str, kind: Kind[T], value: T | None, known: Stored[T] | None, subject: str
    ) -> Stored[T] | None:
        """What an operator sets, on any daemon: what is compared is what was read. None = it goes."""
        data = kind.encode(value) if value is not None else None
        applied = await self._do.apply(Change(subject=subject, key=key, value=data, expected=unchanged(key, known)))
        return written(value, known, applied, kind, subject=subject) if value is not None else None

    def _record_change(
        self, leadership: Leadership, known: StoredRecord, record: TopicRecord, companions: Sequence[Write]
    ) -> Change:
        topic = leadership.topic
        key = self.paths.record(topic)
        return Change(
            subject=str(topic),
            key=key,
            value=_encoded(topic, record),
            expected=ModRevisionIs(key, known.mod_revision),
            leadership=leadership,
            companions=tuple(companions),
            happened=lambda found: found is not None and _follows(_record(topic, found), record, known.value),
        )


def _record(topic: TopicName, item: KeyValue) -> TopicRecord:
    return _RECORD.decode(item.value, subject=str(topic))


def _follows(found: TopicRecord, ours: TopicRecord, before: TopicRecord) -> bool:
    """Is this our write, or what came after it? By the operation ids, which nobody else uses (PROTOCOL 2). A write that
    neither begins, moves nor ends an operation cannot be recognised once somebody has written after it, and one that
    leaves the record as it was not at all.
    """
    if ours == before or found.incarnation != ours.incarnation:
        return False
    if found == ours:
        return True
    ended = {operation.id for operation in found.recent_operations}
    new = {operation.id for operation in ours.recent_operations} - {o.id for o in before.recent_operations}
    if new:
        return new <= ended
    if ours.operation is None or _step(ours.operation) == _step(before.operation):
        return False
    if ours.operation.id in ended:
        return True
    step, wanted = _step(found.operation), _step(ours.operation)
    return step is not None and wanted is not None and step[0] == wanted[0] and step[1] >= wanted[1]


def _step(operation: Operation | None) -> tuple[str, int] | None:
    """Which operation, and how far it is."""
    return None if operation is None else (operation.id, list(Phase).index(operation.phase))


def _leftovers(topic: TopicName, record: TopicRecord) -> tuple[str, ...]:
    """Every physical segment that may still exist once the record is gone. Old topics of a migration are nobody's to
    delete.
    """
    made = [segment for segment in record.layout.segments.values() if not segment.is_legacy]
    entries = [segment_address(topic, one, incarnation=record.incarnation).physical for one in made]
    if record.operation is not None:
        for replacement in record.operation.replacements:
            for child in replacement.children:
                physical = segment_address(topic, child, incarnation=record.incarnation).physical
                entries.append(garbage_entry(physical, made_by=record.operation.id))
    return tuple(dict.fromkeys((*record.garbage, *entries)))


def _encoded(topic: TopicName, record: TopicRecord) -> bytes:
    """Its size is looked at before anything is written."""
    data = encode_record(record)
    if len(data) > RECORD_LIMIT_BYTES:
        raise CapReached(
            f"the record would be {len(data)} bytes, above {RECORD_LIMIT_BYTES}",
            subject=str(topic),
            remedy="prune drained segments, or merge some",
        )
    return data
