"""Facts in the store: typed, compared, and never written by somebody who no longer may."""

import asyncio
import random
from collections.abc import Awaitable, Callable
from typing import TypeVar

import pytest
from msgspec.structs import replace

from scalable_topics.metadata.leadership import Leadership, campaign
from scalable_topics.metadata.memory import MemoryStore
from scalable_topics.metadata.repository import Conflict, Deposed, Repository
from scalable_topics.metadata.session import BrokerInfo, Session, SessionKeeper
from scalable_topics.metadata.store import Delete, MetadataStore, Put
from scalable_topics.model.administration import NamespacePolicies, TenantInfo
from scalable_topics.model.errors import CapReached, DecodeError, UnknownOutcome, WrongState
from scalable_topics.model.journal import JournalRow
from scalable_topics.model.layout import initial_layout
from scalable_topics.model.load import SegmentLoadStats, SweepHeartbeat
from scalable_topics.model.names import TopicName
from scalable_topics.model.operation import FinishedOperation, Operation, OperationKind, Outcome, Phase
from scalable_topics.model.ownership import SegmentOwner
from scalable_topics.model.paths import StorePaths
from scalable_topics.model.record import TopicRecord, remember
from scalable_topics.model.replacements import split
from scalable_topics.model.subscription import (
    AssignmentRecord,
    ConsumerRegistration,
    DrainedMarker,
    InitialPosition,
    SubscriptionRecord,
    SubscriptionState,
    SubscriptionType,
)
from tests.metadata.faulty import FaultyStore, Loss
from tests.strategies import INCARNATION
from tests.virtual_time import run_virtual

T = TypeVar("T")

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


HEARTBEAT = SweepHeartbeat(swept_at_ms=1, interval_ms=15_000)
SUBSCRIPTION = SubscriptionRecord(
    type=SubscriptionType.STREAM,
    state=SubscriptionState.CREATING,
    initial_position=InitialPosition.EARLIEST,
    created_at_ms=1,
)


async def session_of(store: MetadataStore, paths: StorePaths, broker: str = "b") -> Session:
    info = BrokerInfo(broker_id=broker, broker_url="", web_url="", process="p")
    return await SessionKeeper(store, paths, info, ttl_seconds=60)._open()


async def leader(store: MetadataStore, paths: StorePaths, topic: TopicName) -> Leadership:
    session = await session_of(store, paths)
    info = BrokerInfo(broker_id="b", broker_url="", web_url="", process="p")
    found = (await campaign(store, paths, [topic], info, session))[0].leader
    assert found is not None
    return Leadership(topic, found.key, found.create_revision, found.lease)


class Led:
    """A topic with a leader."""

    def __init__(self, store: MetadataStore, root: str) -> None:
        self.store = store
        self.paths = StorePaths(root)
        self.repository = Repository(store, self.paths)
        self.topic = named("x")

    async def begin(self, record: TopicRecord = RECORD) -> "Led":
        self.record = await self.repository.create_topic(self.topic, record)
        self.leadership = await leader(self.store, self.paths, self.topic)
        return self


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
    assert left == [paths.broker("b"), paths.garbage(INCARNATION)]
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


async def test_what_operators_set_is_compared_with_what_they_saw(store: MetadataStore, root: str) -> None:
    repository = Repository(store, StorePaths(root))
    assert await repository.namespace_policies("t", "n") is None
    policies = NamespacePolicies({"maxSegments": 4}, 30)

    stored = await repository.set_namespace_policies("t", "n", policies, known=None)
    assert await repository.namespace_policies("t", "n") == stored
    with pytest.raises(Conflict, match="read it again"):
        await repository.set_namespace_policies("t", "n", policies, known=None)
    newer = await repository.set_namespace_policies("t", "n", NamespacePolicies(), known=stored)
    assert newer is not None
    assert stored is not None
    assert newer.mod_revision > stored.mod_revision
    assert await repository.set_namespace_policies("t", "n", None, known=newer) is None
    assert await repository.namespace_policies("t", "n") is None

    tenant = await repository.set_tenant("t", TenantInfo(("admin",), ("c",)), known=None)
    assert await repository.tenant("t") == tenant
    grants = await repository.set_permissions("t", "n", {"app": ("produce",)}, known=None)
    own = await repository.set_topic_permissions(named("x"), {"app": ("consume",)}, known=None)
    assert (await repository.permissions("t", "n"), await repository.topic_permissions(named("x"))) == (grants, own)
    with pytest.raises(Conflict):
        await repository.set_permissions("t", "n", {}, known=None)


async def test_a_subscription_raises_the_revision_that_operations_compare(store: MetadataStore, root: str) -> None:
    led = await Led(store, root).begin()
    repository = led.repository
    first = await repository.write_subscription(led.leadership, led.record, "s/1", SUBSCRIPTION, known=None)
    assert first.value.subscriptions_revision == 1
    assert await repository.topic(led.topic) == first
    known = (await repository.subscriptions(led.topic))["s/1"]
    with pytest.raises(Conflict):
        await repository.write_subscription(led.leadership, led.record, "s/2", SUBSCRIPTION, known=None)
    with pytest.raises(Conflict):
        await repository.write_subscription(led.leadership, first, "s/1", SUBSCRIPTION, known=None)
    ready = replace(SUBSCRIPTION, state=SubscriptionState.READY)
    second = await repository.write_subscription(led.leadership, first, "s/1", ready, known=known)
    known = (await repository.subscriptions(led.topic))["s/1"]
    assert known.value == ready

    marker = DrainedMarker(seek_generation=0, at_ms=5)
    await repository.mark_drained(led.leadership, second, 0, "s/1", marker, known=known)
    assert [(place, found.value) for place, found in (await repository.drained(led.topic)).items()] == [
        ((0, "s/1"), marker)
    ]
    units = AssignmentRecord(1, ())
    assigned = await repository.assign(led.leadership, second, "s/1", units, known=None)
    assert await repository.assignment(led.topic, "s/1") == assigned
    with pytest.raises(Conflict):
        await repository.assign(led.leadership, second, "s/1", units, known=None)
    registration = ConsumerRegistration(nonce="n", registered_at_ms=1)
    await repository.register_consumer(led.leadership, "s/1", "c", registration, known=None)
    assert (await repository.consumers(led.topic, "s/1"))["c"].value == registration

    third = await repository.write_subscription(led.leadership, second, "s/1", None, known=known)
    assert third.value.subscriptions_revision == 3
    assert await repository.subscriptions(led.topic) == {}
    assert await repository.consumers(led.topic, "s/1") == {}, "pitfall 44: everything under it goes"
    with pytest.raises(Conflict):
        await repository.mark_drained(led.leadership, third, 1, "s/1", marker, known=known)


async def test_removing_a_topic_names_what_is_left_of_its_segments(store: MetadataStore, root: str) -> None:
    """Its own garbage, its segments, and the children of what was under way; nothing is forgotten."""
    change = split(RECORD.layout, {0: 2}, at_ms=1)
    operation = Operation(
        id="o", kind=OperationKind.SPLIT, phase=Phase.PREPARING, replacements=change, reason="", by="", started_at_ms=1
    )
    record = replace(RECORD, layout=RECORD.layout.announce(change), operation=operation, garbage=("segment://old",))
    led = await Led(store, root).begin(record)
    row = JournalRow(at_ms=1, what="SPLIT", by="me")
    await store.commit(led.repository.journal_writes(led.topic, row, known=()))

    await led.repository.remove_topic(led.leadership, led.record)

    garbage = (await led.repository.garbage())[INCARNATION]
    assert garbage.value[0] == "segment://old"
    assert len(garbage.value) == 1 + 2 + 2
    assert all(INCARNATION in name for name in garbage.value[1:])
    assert await led.repository.journal(led.topic) == ()
    assert await led.repository.topics("t", "n") == []
    await led.repository.set_garbage(INCARNATION, garbage.value[:1], known=garbage)
    with pytest.raises(Conflict):
        await led.repository.set_garbage(INCARNATION, (), known=garbage)
    await led.repository.set_garbage(INCARNATION, (), known=(await led.repository.garbage())[INCARNATION])
    assert await led.repository.garbage() == {}


async def test_the_journal_keeps_its_newest_rows(store: MetadataStore, root: str) -> None:
    led = await Led(store, root).begin()
    for number in range(250):
        known = await led.repository.journal(led.topic)
        row = JournalRow(at_ms=number, what="NOTHING", by="me")
        await store.commit(led.repository.journal_writes(led.topic, row, known=known))
    items = await led.repository.journal(led.topic)
    kept = [row.at_ms for row in led.repository.journal_rows(items)]
    assert kept == list(range(250 - len(kept), 250))
    assert 100 < len(kept) <= 200
    long = JournalRow(at_ms=250, what="NOTHING", by="me", reason="x" * 20_000)
    await store.commit(led.repository.journal_writes(led.topic, long, known=items))
    rows = led.repository.journal_rows(await led.repository.journal(led.topic))
    assert rows[-1].at_ms == 250
    assert sum(len(item.value) for item in await led.repository.journal(led.topic)) <= 16 << 10


async def test_owners_and_heartbeats_are_of_living_daemons(store: MetadataStore, root: str) -> None:
    led = await Led(store, root).begin()
    session = await session_of(store, led.paths, "o")
    owner = SegmentOwner(broker_id="o", broker_session=session.broker_revision, owner_term=1)
    first = await led.repository.take_ownership(session, led.topic, 0, owner, record=led.record, known=None)
    assert await led.repository.owner(led.topic, 0) == first
    with pytest.raises(WrongState, match="does not rise"):
        await led.repository.take_ownership(session, led.topic, 0, owner, record=led.record, known=first)
    with pytest.raises(Conflict):
        await led.repository.take_ownership(session, led.topic, 0, owner, record=led.record, known=None)
    await led.repository.beat(session, "o", HEARTBEAT)
    assert set(await led.repository.brokers()) == {"b", "o"}
    await store.revoke_lease(session.lease)
    assert set(await led.repository.brokers()) == {"b"}
    with pytest.raises(Conflict):
        await led.repository.take_ownership(
            session, led.topic, 0, replace(owner, owner_term=2), record=led.record, known=first
        )


async def test_what_is_foreign_or_unreadable_is_passed_over_unless_acting_without_it_would_do_harm(
    store: MetadataStore, root: str, caplog: pytest.LogCaptureFixture
) -> None:
    led = await Led(store, root).begin()
    paths, topic = led.paths, led.topic
    journal = paths.journal_of(topic)
    row = JournalRow(at_ms=1, what="NOTHING", by="me")
    await store.commit(led.repository.journal_writes(topic, row, known=()))
    litter = [
        f"{paths.brokers}stranger",
        paths.garbage("0123"),
        paths.drained(topic, 0, "s"),
        paths.journal(topic, 7),
        f"{journal}~",
        f"{journal}8",
        f"{paths.segments(topic)}x/drained/s",
    ]
    await store.commit([Put(key, b"\xff{") for key in litter])

    for _ in range(2):
        assert set(await led.repository.brokers()) == {"b"}
        assert await led.repository.garbage() == {}
        assert await led.repository.drained(topic) == {}
        known = await led.repository.journal(topic)
        assert led.repository.journal_rows(known) == [row]
        (added, *_) = led.repository.journal_writes(topic, row, known=known)
        assert isinstance(added, Put)
        assert added.key == paths.journal(topic, 8), "after the last one that is spelled like ours"
    told = [record.getMessage() for record in caplog.records]
    assert sorted(key for key in litter if any(repr(key) in line for line in told)) == sorted(litter[:-1])
    assert len(told) == len(set(told))

    await store.commit([Put(paths.subscription(topic, "s"), b"junk")])
    with pytest.raises(DecodeError, match="s of topic://t/n/x"):
        await led.repository.subscriptions(topic)


async def test_every_write_of_a_leader_takes_companions(store: MetadataStore, root: str) -> None:
    """They are written with it or not at all."""
    led = await Led(store, root).begin()
    repository, leadership, topic = led.repository, led.leadership, led.topic
    done: list[str] = []

    def companion(name: str) -> list[Put]:
        done.append(f"{root}with-{name}")
        return [Put(done[-1], b"")]

    record = await repository.update_topic(leadership, led.record, RECORD, companions=companion("record"))
    record = await repository.write_subscription(
        leadership, record, "s", SUBSCRIPTION, known=None, companions=companion("subscription")
    )
    known = (await repository.subscriptions(topic))["s"]
    marker = DrainedMarker(seek_generation=0, at_ms=5)
    await repository.mark_drained(leadership, record, 0, "s", marker, known=known, companions=companion("drained"))
    assignment = AssignmentRecord(generation=1, units=())
    await repository.assign(leadership, record, "s", assignment, known=None, companions=companion("assignment"))
    consumer = ConsumerRegistration(nonce="n", registered_at_ms=1)
    await repository.register_consumer(leadership, "s", "c", consumer, known=None, companions=companion("consumer"))
    with pytest.raises(Conflict):
        await repository.register_consumer(
            leadership, "s", "c", consumer, known=None, companions=[Put(f"{root}with-nothing", b"")]
        )
    await repository.remove_topic(leadership, record, companions=companion("removal"))

    found = [item.key for item in (await store.scan(f"{root}with-")).items]
    assert found == sorted(done)


def operation(kind: OperationKind = OperationKind.SPLIT, phase: Phase = Phase.PREPARING) -> Operation:
    return Operation(
        id="o",
        kind=kind,
        phase=phase,
        replacements=split(RECORD.layout, {0: 2}, at_ms=1),
        reason="",
        by="",
        started_at_ms=1,
    )


def test_an_unknown_outcome_is_looked_into_here_and_not_by_the_caller() -> None:
    """Each kind of loss, at each write of an operation, with and without somebody who writes in between: the caller is
    told exactly what happened.
    """

    async def lost(seed: int) -> None:
        rng = random.Random(seed)
        memory = MemoryStore()
        link = FaultyStore(memory)
        link.latest_landing_seconds = rng.choice([0.5, 1.9, 8.0])
        led = await Led(memory, "/r").begin()
        repository = Repository(link, led.paths)
        record, expected = led.record, led.record.value
        steps: list[Callable[[TopicRecord], TopicRecord]] = [
            lambda r: replace(r, layout=r.layout.announce(operation().replacements), operation=operation()),
            lambda r: replace(r, operation=operation(phase=Phase.SEALING)),
            lambda r: remember(
                replace(r, layout=r.layout.apply(operation().replacements, at_ms=2), operation=None),
                FinishedOperation(id="o", kind=OperationKind.SPLIT, outcome=Outcome.DONE, finished_at_ms=2),
            ),
        ]
        for step in steps:
            expected = step(expected)
            link.lose_next(*rng.choices(list(Loss), k=rng.choice([1, 1, 2, 3])))
            record = await repository.update_topic(led.leadership, record, expected)
            assert await led.repository.topic(led.topic) == record
        await asyncio.sleep(60)
        assert await led.repository.topic(led.topic) == record, "what landed late changed nothing"
        await link.close()

    for seed in range(500):
        try:
            run_virtual(lost(seed))
        except BaseException as error:
            error.add_note(f"seed {seed}")
            raise


def test_a_write_whose_answer_was_lost_is_told_as_what_has_become_of_it() -> None:
    """The same leader writes on while the answer to its first write is out: what is handed back is the record as it is
    now, so that the next write does not undo the one in between.
    """

    async def overtaken() -> None:
        memory = MemoryStore()
        link = FaultyStore(memory)
        led = await Led(memory, "/r").begin()
        begun = replace(RECORD, layout=RECORD.layout.announce(operation().replacements), operation=operation())
        link.lose_next(Loss.ANSWER_LOST)
        writing = asyncio.create_task(Repository(link, led.paths).update_topic(led.leadership, led.record, begun))
        await asyncio.sleep(1)
        there = await led.repository.topic(led.topic)
        assert there is not None
        later = await led.repository.update_topic(led.leadership, there, replace(begun, properties={"new": "1"}))
        assert await writing == later

    run_virtual(overtaken())


def test_a_write_that_cannot_be_recognised_is_a_conflict_and_never_a_false_success() -> None:
    """Two subscriptions are made while an operation runs. The request for one is lost, the other one is written: the
    record looks as if either could have made it so.
    """

    async def lost() -> None:
        memory = MemoryStore()
        link = FaultyStore(memory)
        running = replace(RECORD, layout=RECORD.layout.announce(operation().replacements), operation=operation())
        led = await Led(memory, "/r").begin(running)
        link.lose_next(Loss.REQUEST_LOST)
        writing = asyncio.create_task(
            Repository(link, led.paths).write_subscription(led.leadership, led.record, "a", SUBSCRIPTION, known=None)
        )
        await asyncio.sleep(1)
        other = replace(SUBSCRIPTION, created_at_ms=2)
        await led.repository.write_subscription(led.leadership, led.record, "b", other, known=None)
        try:
            await writing
        except Conflict:
            pass
        else:
            assert "a" in await led.repository.subscriptions(led.topic)

    run_virtual(lost())


@pytest.mark.parametrize("loss", Loss)
def test_every_kind_of_write_survives_a_lost_answer(loss: Loss) -> None:
    """Told as success when it happened, whoever asks; done once."""

    async def lost() -> None:
        memory = MemoryStore()
        link = FaultyStore(memory)
        link.latest_landing_seconds = 5
        repository, paths = Repository(link, StorePaths("/r")), StorePaths("/r")
        topic = named("x")

        async def with_loss(write: Callable[[], Awaitable[T]], *, at_most: int = 1) -> T:
            link.lose_next(loss)
            before = (await memory.get()).revision
            answer = await write()
            await asyncio.sleep(10)  # what lands late has landed
            assert before < (await memory.get()).revision <= before + at_most
            return answer

        record = await with_loss(lambda: repository.create_topic(topic, RECORD))
        leadership = await leader(memory, paths, topic)
        bumped = await with_loss(
            lambda: repository.write_subscription(leadership, record, "s", SUBSCRIPTION, known=None)
        )
        assert bumped == await repository.topic(topic)
        known = (await repository.subscriptions(topic))["s"]
        marker = DrainedMarker(seek_generation=0, at_ms=5)
        await with_loss(lambda: repository.mark_drained(leadership, bumped, 0, "s", marker, known=known), at_most=2)
        await with_loss(lambda: repository.report_load(topic, 0, LOAD, record=bumped, known=None))
        await with_loss(lambda: repository.remove_topic(leadership, bumped))
        assert await repository.topic(topic) is None
        await link.close()

    run_virtual(lost())


def test_a_lost_answer_to_a_deposed_leader_is_told_as_deposed() -> None:
    async def deposed() -> None:
        memory = MemoryStore()
        link = FaultyStore(memory)
        led = await Led(memory, "/r").begin()
        link.lose_next(Loss.REQUEST_LOST)
        writing = asyncio.create_task(
            Repository(link, led.paths).update_topic(led.leadership, led.record, replace(RECORD, properties={}))
        )
        await asyncio.sleep(1)
        await memory.commit([Delete(led.leadership.key)])
        with pytest.raises(Deposed):
            await writing
        assert await led.repository.topic(led.topic) == led.record

    run_virtual(deposed())


def test_a_store_that_stays_away_leaves_the_outcome_unknown_and_says_so() -> None:
    async def away() -> None:
        memory = MemoryStore()
        link = FaultyStore(memory)
        led = await Led(memory, "/r").begin()
        link.lose_next(Loss.ANSWER_LOST)
        writing = asyncio.create_task(
            Repository(link, led.paths).update_topic(led.leadership, led.record, replace(RECORD, properties={}))
        )
        await asyncio.sleep(1)
        link.cut = True
        with pytest.raises(UnknownOutcome, match="read it before doing anything else"):
            await writing

    run_virtual(away())
