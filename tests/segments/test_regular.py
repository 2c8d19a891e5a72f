"""Regular topics: created, listed, fenced, terminated and read as a migration will."""

import pytest

from scalable_topics.model.errors import InvalidArgument, NotFound, WrongState
from scalable_topics.model.layout import SegmentLayout
from scalable_topics.model.names import TopicName
from scalable_topics.model.positions import Sentinel
from scalable_topics.model.segment import segment_address
from scalable_topics.policy.migration import plan_migration
from scalable_topics.segments.errors import Terminated, WritersFenced
from scalable_topics.segments.port import EXCLUSIVE, NOTHING, Message
from scalable_topics.segments.regular import RegularTopic, regular_address
from scalable_topics.segments.store import Segments
from tests.segments.conftest import Open
from tests.segments.worlds import INCARNATION, address, call, entries_of, message, messages, receive_all, stamp

ORDERS = TopicName.parse("persistent://tenant/ns/orders")
PLAIN = TopicName.parse("persistent://tenant/ns/plain")


async def test_topics_are_made_listed_and_deleted(store: Segments) -> None:
    await store.regular.create(ORDERS, partitions=3)
    await store.regular.create(PLAIN)

    assert await store.regular.list("tenant", "ns") == (RegularTopic(str(ORDERS), 3), RegularTopic(str(PLAIN), 0))
    assert await store.regular.partitions(ORDERS) == 3
    assert await store.regular.partitions(PLAIN) == 0
    assert await store.regular.list("tenant", "n") == ()
    for topic in (ORDERS, PLAIN):
        with pytest.raises(WrongState):
            await store.regular.create(topic)
    await store.regular.delete(ORDERS)
    await store.regular.delete(PLAIN)
    assert await store.regular.list("tenant", "ns") == ()
    for missing in (store.regular.partitions(PLAIN), store.regular.delete(ORDERS), store.regular.subscribe(PLAIN, "s")):
        with pytest.raises(NotFound):
            await missing
    await store.regular.create(PLAIN)  # unlike a segment it may come back


@pytest.mark.parametrize(("name", "partitions"), [("x-partition-1", 2), ("x", -1)])
async def test_impossible_topics_are_refused(store: Segments, name: str, partitions: int) -> None:
    with pytest.raises(InvalidArgument):
        await store.regular.create(TopicName.parse(name), partitions=partitions)
    with pytest.raises(InvalidArgument):
        await store.regular.create(TopicName.parse("topic://tenant/ns/x"))


async def test_pitfall_76_a_legacy_parent_is_reached_by_the_address_of_its_record(store: Segments) -> None:
    await store.regular.create(ORDERS, partitions=2)
    await store.regular.subscribe(ORDERS, "s", at=Sentinel.EARLIEST)
    plan = plan_migration(ORDERS, 2, bucket_budget=4, subscriptions=(), now_ms=1)
    layout: SegmentLayout = plan.after
    legacy = [segment for segment in layout.segments.values() if segment.is_legacy]
    addresses = [segment_address(ORDERS.to_scalable(), segment, incarnation=INCARNATION) for segment in legacy]
    assert [each.physical for each in addresses] == [str(ORDERS.partition_name(index)) for index in range(2)]

    served = await store.serve(addresses[0], owner_term=1)
    await served.append(messages(2))
    ends = [await store.terminate(each, call(term=5)) for each in addresses]

    assert ends == [(0, 1), NOTHING]
    facts = [await store.describe(each) for each in addresses]
    assert [one.is_drained("s") for one in facts] == [False, True]
    consumer = await served.attach("s", "c", EXCLUSIVE, generation=1)
    consumer.permit(5)
    assert entries_of(await receive_all(consumer, 2)) == [0, 1]
    await consumer.ack_through((0, 1))
    assert await consumer.receive() == ()
    with pytest.raises(WrongState):
        await store.delete(addresses[0], call(term=5))


async def test_pitfall_78_writers_can_be_fenced_and_let_in_again(store: Segments, reopen: Open) -> None:
    await store.regular.create(ORDERS, partitions=2)
    await store.regular.create(PLAIN)
    partition = regular_address(ORDERS.partition_name(1))
    served = await store.serve(partition, owner_term=1)
    await served.append([message(0)])

    await store.regular.fence_writers(ORDERS, "migration")

    with pytest.raises(WritersFenced):
        await served.append([message(1)])
    with pytest.raises(WritersFenced):
        await (await (await reopen()).serve(partition, owner_term=2)).append([Message(payload=b"")])
    served = await store.serve(partition, owner_term=3)
    await served.append([message(0, producer="migration"), message(0)])  # the second one is known already
    await store.regular.fence_writers(ORDERS, None)
    await served.append([message(1)])
    assert (await store.describe(partition)).last == (0, 2)


async def test_a_terminated_partition_refuses_old_writers(store: Segments) -> None:
    await store.regular.create(PLAIN)
    served = await store.serve(regular_address(PLAIN), owner_term=1)
    await store.terminate(regular_address(PLAIN), call())

    with pytest.raises(Terminated):
        await served.append([message(0)])


async def test_subscriptions_of_segments_are_the_leaders(store: Segments) -> None:
    await store.regular.create(PLAIN)
    assert (await store.regular.subscribe(PLAIN, "s"))[0].backlog == 0
    await (await store.serve(regular_address(PLAIN), owner_term=1)).append(messages(2))
    assert [one.backlog for one in await store.regular.subscribe(PLAIN, "s")] == [2]
    await store.create(address(), stamp(), [], call())
    assert [one.physical for one in await store.list("segment://")] == [address().physical]
