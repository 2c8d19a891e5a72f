"""Facts in the store: typed, compared, and never written by somebody who no longer may."""

import pytest
from msgspec.structs import replace

from scalable_topics.metadata.election import Leadership, campaign
from scalable_topics.metadata.repository import Conflict, Deposed, NamespacePolicies, Repository
from scalable_topics.metadata.session import BrokerInfo, SessionKeeper
from scalable_topics.metadata.store import Delete, MetadataStore, Put
from scalable_topics.model.errors import CapReached, DecodeError, WrongState
from scalable_topics.model.layout import initial_layout
from scalable_topics.model.load import SegmentLoadStats
from scalable_topics.model.names import TopicName
from scalable_topics.model.paths import StorePaths
from scalable_topics.model.record import TopicRecord
from scalable_topics.model.replacements import split
from tests.strategies import INCARNATION

RECORD = TopicRecord(incarnation=INCARNATION, layout=initial_layout(2), properties={"owner": "alice"})
LOAD = SegmentLoadStats(
    msg_rate_in=1.0,
    bytes_rate_in=2.0,
    msg_rate_out=3.0,
    bytes_rate_out=4.0,
    changed_at_ms=5,
    reporter="b",
    reporter_session=6,
)


def named(name: str) -> TopicName:
    return TopicName.parse(f"topic://t/n/{name}")


async def leader(store: MetadataStore, paths: StorePaths, topic: TopicName) -> Leadership:
    info = BrokerInfo(broker_id="b", broker_url="", web_url="", process="p")
    session = await SessionKeeper(store, paths, info, ttl_seconds=60)._open()
    leadership = await campaign(store, paths, topic, info, session)
    assert leadership is not None
    return leadership


async def test_a_topic_from_creation_to_removal(store: MetadataStore, root: str) -> None:
    paths = StorePaths(root)
    repository = Repository(store, paths)
    topic = named("a b/ü")
    assert await repository.topic(topic) is None
    created = await repository.create_topic(topic, RECORD)
    with pytest.raises(WrongState, match="it exists already"):
        await repository.create_topic(topic, RECORD)
    assert await repository.topic(topic) == created
    assert await repository.topics("t", "n") == [topic]
    assert await repository.topics("t", "other") == []

    leadership = await leader(store, paths, topic)
    changed = replace(RECORD, layout=RECORD.layout.apply(split(RECORD.layout, {0: 2}, at_ms=1), at_ms=1))
    updated = await repository.update_topic(leadership, created, changed)
    assert await repository.topic(topic) == updated
    assert updated.create_revision == created.create_revision < updated.mod_revision
    with pytest.raises(Conflict, match="it changed meanwhile"):
        await repository.update_topic(leadership, created, RECORD)
    with pytest.raises(Conflict):
        await repository.remove_topic(leadership, created)
    await repository.report_load(topic, 1, LOAD, record=updated, known=None)
    await repository.remove_topic(leadership, updated)
    left = [item.key for item in (await store.scan(root)).items]
    assert left == [paths.broker("b")]
    with pytest.raises(Deposed, match=f"term {leadership.term} is over"):
        await repository.update_topic(leadership, updated, changed)


async def test_a_deposed_leader_writes_nothing(store: MetadataStore, root: str) -> None:
    paths = StorePaths(root)
    repository = Repository(store, paths)
    created = await repository.create_topic(named("x"), RECORD)
    first = await leader(store, paths, named("x"))
    await store.commit([Delete(first.key)])
    second = await leader(store, paths, named("x"))

    with pytest.raises(Deposed):
        await repository.update_topic(first, created, replace(RECORD, properties={}))
    with pytest.raises(Deposed):
        await repository.remove_topic(first, created)
    assert second.term > first.term
    assert await repository.topic(named("x")) == created
    rightful = await repository.update_topic(second, created, RECORD)
    assert rightful.mod_revision > created.mod_revision


async def test_a_record_that_is_too_large_is_refused_before_it_is_written(store: MetadataStore, root: str) -> None:
    repository = Repository(store, StorePaths(root))

    with pytest.raises(CapReached, match=r"would be \d+ bytes, above 1048576"):
        await repository.create_topic(named("x"), replace(RECORD, properties={"a": "x" * (1 << 20)}))
    assert await repository.topic(named("x")) is None


async def test_damaged_records_are_told_by_name(store: MetadataStore, root: str) -> None:
    paths = StorePaths(root)
    await store.commit([Put(paths.record(named("x")), b"{}")])

    with pytest.raises(DecodeError, match="topic://t/n/x: "):
        await Repository(store, paths).topic(named("x"))


async def test_pitfall_53_load_of_a_segment_that_left_is_not_brought_back(store: MetadataStore, root: str) -> None:
    paths = StorePaths(root)
    repository = Repository(store, paths)
    topic = named("x")
    record = await repository.create_topic(topic, RECORD)
    leadership = await leader(store, paths, topic)

    first = await repository.report_load(topic, 0, LOAD, record=record, known=None)
    assert await repository.load(topic, 0) == first
    later = await repository.report_load(topic, 0, replace(LOAD, changed_at_ms=9), record=record, known=first)
    assert later.create_revision == first.create_revision
    with pytest.raises(Conflict):
        await repository.report_load(topic, 0, LOAD, record=record, known=first)
    with pytest.raises(Conflict, match="it is not in the topic's record"):
        await repository.report_load(topic, 7, LOAD, record=record, known=None)
    await repository.update_topic(leadership, record, replace(RECORD, properties={}))
    with pytest.raises(Conflict):
        await repository.report_load(topic, 1, LOAD, record=record, known=None)
    assert await repository.load(topic, 1) is None
    again = await repository.report_load(topic, 0, LOAD, record=record, known=later)
    assert again.mod_revision > later.mod_revision, "a known segment reports on, whatever else the record says"


async def test_namespace_policies(store: MetadataStore, root: str) -> None:
    repository = Repository(store, StorePaths(root))
    assert await repository.namespace_policies("t", "n") is None
    policies = NamespacePolicies({"maxSegments": 4}, 30)

    stored = await repository.set_namespace_policies("t", "n", policies, known=None)
    assert await repository.namespace_policies("t", "n") == stored
    with pytest.raises(Conflict, match="read them again"):
        await repository.set_namespace_policies("t", "n", policies, known=None)
    newer = await repository.set_namespace_policies("t", "n", NamespacePolicies(), known=stored)
    assert newer.mod_revision > stored.mod_revision
