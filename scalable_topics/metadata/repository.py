"""Facts in the store: one method for each, typed, and every write with the compares of PROTOCOL 2 in its one
transaction.

A write that did not happen says why: `Deposed` (stop, you are not the leader), `Conflict` (read again, somebody was
faster). A write whose answer was lost is an `UnknownOutcome`, and whoever wrote it has to look.
"""

from collections.abc import Callable, Sequence
from typing import Final, Generic, TypeVar

import msgspec
from msgspec import Struct

from scalable_topics.metadata.election import Leadership
from scalable_topics.metadata.store import (
    Answer,
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
from scalable_topics.model.autoscale_policy import AutoScalePolicyOverride
from scalable_topics.model.codec import decode_json, encode_json
from scalable_topics.model.errors import CapReached, WrongState
from scalable_topics.model.load import SegmentLoadStats, decode_load, encode_load
from scalable_topics.model.names import TopicName
from scalable_topics.model.paths import StorePaths
from scalable_topics.model.record import RECORD_LIMIT_BYTES, TopicRecord, decode_record, encode_record

T = TypeVar("T")


class Stored(Struct, Generic[T], frozen=True):
    """A fact and the revisions that a later write of it compares."""

    value: T
    create_revision: int
    mod_revision: int


class Deposed(WrongState):
    """This leadership is over: nothing was written, and nothing will be."""

    kind = "deposed"


class Conflict(WrongState):
    """Somebody else wrote it first: nothing was written; read it again."""

    kind = "conflict"


class NamespacePolicies(Struct, frozen=True, rename="camel"):
    """What an operator sets for a namespace."""

    scalable_topic_auto_scale_policy: AutoScalePolicyOverride | None = None
    retention_minutes: float | None = None


_policies: Final = msgspec.json.Decoder(NamespacePolicies)


class Repository:
    def __init__(self, store: MetadataStore, paths: StorePaths) -> None:
        self._store = store
        self._paths = paths

    async def topic(self, topic: TopicName) -> Stored[TopicRecord] | None:
        return await self._read(self._paths.record(topic), lambda data: decode_record(data, subject=str(topic)))

    async def topics(self, tenant: str, namespace: str) -> list[TopicName]:
        """By the index, so that listing reads no load and no record."""
        prefix = self._paths.index_of(tenant, namespace)
        items = (await self._store.scan(prefix)).items
        return [topic for item in items if (topic := self._paths.topic_of_index(item.key)) is not None]

    async def create_topic(self, topic: TopicName, record: TopicRecord) -> Stored[TopicRecord]:
        """Anybody may; the first wins."""
        key = self._paths.record(topic)
        writes = [Put(key, _encoded(topic, record)), Put(self._paths.index(topic), b"")]
        answer = await self._store.commit(writes, compares=[CreateRevisionIs(key, 0)])
        if not answer.succeeded:
            raise WrongState("it exists already", subject=str(topic), remedy="choose another name, or delete it first")
        return Stored(record, answer.revision, answer.revision)

    async def update_topic(
        self, leadership: Leadership, stored: Stored[TopicRecord], record: TopicRecord
    ) -> Stored[TopicRecord]:
        """Any change of a record: operation phases, policy, properties, prune."""
        topic = leadership.topic
        put = Put(self._paths.record(topic), _encoded(topic, record))
        answer = await self._commit_as(leadership, [put], [ModRevisionIs(put.key, stored.mod_revision)])
        return Stored(record, stored.create_revision, answer.revision)

    async def remove_topic(self, leadership: Leadership, stored: Stored[TopicRecord]) -> None:
        """The last step of a deletion: everything under the topic, its election key and its index entry, at one
        revision.
        """
        record = self._paths.record(leadership.topic)
        writes = (Delete(record), DeletePrefix(f"{record}/"), Delete(self._paths.index(leadership.topic)))
        await self._commit_as(leadership, writes, [ModRevisionIs(record, stored.mod_revision)])

    async def load(self, topic: TopicName, segment_id: int) -> Stored[SegmentLoadStats] | None:
        return await self._read(self._paths.load(topic, segment_id), decode_load)

    async def report_load(
        self,
        topic: TopicName,
        segment_id: int,
        load: SegmentLoadStats,
        *,
        record: Stored[TopicRecord],
        known: Stored[SegmentLoadStats] | None,
    ) -> Stored[SegmentLoadStats]:
        """By whoever owns the segment. The first report compares the whole record, so that a segment which has left is
        not brought back.
        """
        key, record_key = self._paths.load(topic, segment_id), self._paths.record(topic)
        if known is None:
            if segment_id not in record.value.layout.segments:
                raise Conflict("it is not in the topic's record", subject=f"segment {segment_id} of {topic}")
            compares: list[Compare] = [ModRevisionIs(record_key, record.mod_revision), CreateRevisionIs(key, 0)]
        else:
            compares = [CreateRevisionIs(record_key, record.create_revision), ModRevisionIs(key, known.mod_revision)]
        answer = await self._store.commit([Put(key, encode_load(load))], compares=compares)
        if not answer.succeeded:
            raise Conflict("the topic or the load changed meanwhile", subject=f"segment {segment_id} of {topic}")
        return Stored(load, known.create_revision if known else answer.revision, answer.revision)

    async def namespace_policies(self, tenant: str, namespace: str) -> Stored[NamespacePolicies] | None:
        key = self._paths.policies(tenant, namespace)
        return await self._read(
            key, lambda data: decode_json(data, _policies, subject=f"policies of {tenant}/{namespace}")
        )

    async def set_namespace_policies(
        self, tenant: str, namespace: str, policies: NamespacePolicies, *, known: Stored[NamespacePolicies] | None
    ) -> Stored[NamespacePolicies]:
        """On any daemon: what is compared is what was read."""
        key = self._paths.policies(tenant, namespace)
        before = known.mod_revision if known else 0
        answer = await self._store.commit([Put(key, encode_json(policies))], compares=[ModRevisionIs(key, before)])
        if not answer.succeeded:
            raise Conflict("the policies changed meanwhile", subject=f"{tenant}/{namespace}", remedy="read them again")
        return Stored(policies, known.create_revision if known else answer.revision, answer.revision)

    async def _read(self, key: str, decode: Callable[[bytes], T]) -> Stored[T] | None:
        items = (await self._store.get(key)).items
        return _stored(items[0], decode) if items else None

    async def _commit_as(self, leadership: Leadership, writes: Sequence[Write], compares: Sequence[Compare]) -> Answer:
        """A leader's write: fenced, or not at all."""
        fence = leadership.fence()
        answer = await self._store.commit(writes, compares=[*fence, *compares])
        if answer.succeeded:
            return answer
        holder = answer.found[0]
        if holder is None or (holder.create_revision, holder.lease) != (leadership.term, leadership.lease):
            raise Deposed(
                f"term {leadership.term} is over", subject=str(leadership.topic), remedy="leave it to the next leader"
            )
        raise Conflict("it changed meanwhile", subject=str(leadership.topic), remedy="read it again")


def _stored(item: KeyValue, decode: Callable[[bytes], T]) -> Stored[T]:
    return Stored(decode(item.value), item.create_revision, item.mod_revision)


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
