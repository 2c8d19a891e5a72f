"""A topic's life in the hands of its leader."""

import asyncio

import pytest
from msgspec.structs import replace

from scalable_topics.control.controller import etag
from scalable_topics.control.led_topic import ControlSettings
from scalable_topics.control.phases import children
from scalable_topics.model.errors import CapReached, InvalidArgument, NotFound, WrongState
from scalable_topics.model.operation import OperationKind, Outcome
from scalable_topics.model.record import TopicState
from scalable_topics.model.segment import segment_address
from scalable_topics.model.subscription import InitialPosition, SubscriptionState, SubscriptionType
from tests.control.worlds import ME, TOPIC, World, created, daemons
from tests.virtual_time import run_virtual

STREAM, EARLIEST, LATEST = SubscriptionType.STREAM, InitialPosition.EARLIEST, InitialPosition.LATEST


def test_a_topic_is_made_split_merged_rolled_over_and_deleted() -> None:
    async def life() -> None:
        world = World()
        async with daemons(world, "a", "b") as members:
            topic = await created(members, segments=1)
            await topic.subscriptions.create("s", STREAM, EARLIEST)
            done = await topic.split({0: 4}, ME)
            assert (done.kind, done.outcome, done.parents) == (OperationKind.SPLIT, Outcome.DONE, (0,))
            record = await world.record()
            assert [s.segment_id for s in record.layout.active] == [1, 2, 3, 4]
            assert record.layout.segment(0).terminated_at is not None
            await topic.merge([1, 2], ME)
            await topic.rebucket([3, 4], 2, ME)
            record = await world.record()
            assert [s.segment_id for s in record.layout.active] == [5, 6, 7]
            for segment in record.layout.active:
                address = segment_address(TOPIC, segment, incarnation=record.incarnation)
                facts = await members[0].segments.describe(address)
                assert facts.subscriptions.keys() == {"s"}
                assert facts.terminated is None
            assert record.operation is None
            assert len(record.recent_operations) == 4

            removed = await topic.delete(ME)
            assert removed.kind is OperationKind.DELETE
            assert await world.repository.topic(TOPIC) is None
            assert await members[0].segments.list() == ()

    run_virtual(life())


def test_refusals_come_before_anything_is_written() -> None:
    async def refused() -> None:
        world = World()
        async with daemons(world, "a") as members:
            topic = await created(members)
            before = (await world.store.get()).revision
            with pytest.raises(NotFound, match="no such segment"):
                await topic.split({9: 2}, ME)
            with pytest.raises(CapReached):
                await topic.split({0: 65}, ME)
            with pytest.raises(InvalidArgument):
                await topic.merge([0, 0], ME)
            with pytest.raises(WrongState, match="read it again"):
                await topic.split({0: 2}, replace(ME, if_match="0123456789abcdef:0"))
            assert (await world.store.get()).revision - before < 3, "only heartbeats of the session"
            forced = await topic.split({0: 65}, replace(ME, force=True, if_match=etag(topic.record)))
            assert forced.outcome is Outcome.DONE

    run_virtual(refused())


def test_the_same_key_is_answered_the_same_and_done_once() -> None:
    async def twice() -> None:
        world = World()
        async with daemons(world, "a") as members:
            topic = await created(members)
            keyed = replace(ME, key="k1")
            first, second = await asyncio.gather(topic.split({0: 2}, keyed), topic.split({0: 2}, keyed))
            assert first == second
            assert await topic.split({0: 2}, keyed) == first
            with pytest.raises(WrongState, match="was sealed at epoch 1"):
                await topic.split({0: 2}, ME)

    run_virtual(twice())


def test_operations_wait_for_their_turn_and_those_that_do_not_fit_any_more_are_refused() -> None:
    async def queue() -> None:
        world = World()
        async with daemons(world, "a") as members:
            topic = await created(members, segments=4)
            results = await asyncio.gather(
                topic.split({0: 2}, ME),
                topic.merge([0, 1], ME),
                topic.split({1: 2}, ME),
                topic.merge([2, 3], ME),
                return_exceptions=True,
            )
            assert [isinstance(result, Exception) for result in results] == [False, True, False, False]
            record = await world.record()
            assert record.layout.epoch == 3
            assert len(record.layout.active) == 5
            assert not children(record.operation.replacements if record.operation else ())

    run_virtual(queue())


def test_subscriptions_of_both_positions_and_a_seek() -> None:
    async def subscribe() -> None:
        world = World()
        async with daemons(world, "a") as members:
            topic = await created(members, segments=1)
            await topic.split({0: 2}, ME)
            early = await topic.subscriptions.create("early", STREAM, EARLIEST)
            late = await topic.subscriptions.create("late", STREAM, LATEST)
            assert early.state is late.state is SubscriptionState.READY
            markers = await world.repository.drained(TOPIC)
            assert markers.keys() == {(0, "late")}
            assert await topic.subscriptions.create("early", STREAM, LATEST) == early
            with pytest.raises(WrongState, match="it exists as STREAM"):
                await topic.subscriptions.create("early", SubscriptionType.QUEUE, LATEST)
            done = await topic.subscriptions.seek("late", 1, request_key="k")
            assert done is not None
            assert (done.kind, done.subscription, done.request_key) == (OperationKind.SEEK, "late", "k")
            assert await topic.subscriptions.seek("late", 1, request_key="k") == done
            assert await world.repository.drained(TOPIC) == {}, "a seek makes them void"
            skipped = await topic.subscriptions.seek("late", None)
            assert skipped is not None
            assert skipped.kind is OperationKind.SKIP_ALL
            await topic.subscriptions.delete("late")
            assert (await world.repository.subscriptions(TOPIC)).keys() == {"early"}
            for physical in await members[0].segments.list():
                facts = await members[0].segments.describe(
                    segment_address(TOPIC, topic.record.layout.segments[0], incarnation=topic.record.incarnation)
                )
                assert facts.subscriptions.keys() == {"early"}, physical
            with pytest.raises(NotFound):
                await topic.subscriptions.delete("late")

    run_virtual(subscribe())


def test_drained_segments_are_pruned_and_their_storage_deleted() -> None:
    async def collect() -> None:
        world = World()
        async with daemons(world, "a") as members:
            topic = await created(members, segments=1)
            await topic.subscriptions.create("s", STREAM, EARLIEST)
            await topic.split({0: 2}, ME)
            swept = await topic.collector.round()
            assert (swept.drained, swept.pruned) == (1, (0,))
            record = await world.record()
            assert record.layout.segments.keys() == {1, 2}
            assert len(record.garbage) == 1
            assert record.layout.epoch == 2
            await asyncio.sleep(20)
            assert (await topic.collector.round()).deleted == record.garbage
            assert (await world.record()).garbage == ()
            assert len(await members[0].segments.list()) == 2
            assert topic.collector.orphans == ()

    run_virtual(collect())


def test_the_caps_of_the_cluster_hold_until_the_topic_has_its_own() -> None:
    async def capped() -> None:
        world = World()
        async with daemons(world, "a", autoscale={"maxSegments": 2}) as members:
            topic = await created(members, segments=1)
            with pytest.raises(CapReached, match="maxSegments 2"):
                await topic.split({0: 3}, ME)
            await topic.topic.update(lambda r: replace(r, auto_scale_policy={"maxSegments": 3}))
            assert (await topic.split({0: 3}, ME)).outcome is Outcome.DONE

    run_virtual(capped())


@pytest.mark.parametrize(("property_", "pruned"), [("0", (0,)), ("60", ()), ("-1", ()), ("soon", ()), ("nan", ())])
def test_a_topics_own_retention_and_one_that_cannot_be_read(property_: str, pruned: tuple[int, ...]) -> None:
    async def retain() -> None:
        world = World()
        async with daemons(world, "a") as members:
            topic = await created(members, segments=1)
            await topic.topic.update(lambda r: replace(r, properties={"retentionMinutes": property_}))
            await topic.split({0: 2}, ME)
            assert (await topic.collector.round()).pruned == pruned

    run_virtual(retain())


def test_a_topic_whose_leader_dies_is_finished_by_the_next() -> None:
    async def crash() -> None:
        world = World()
        async with daemons(world, "a", "b") as members:
            topic = await created(members, segments=1)
            leader = next(member for member in members if TOPIC in member.elections.led)
            splitting = asyncio.ensure_future(topic.split({0: 2}, ME))
            async with asyncio.timeout(5):
                while (await world.record()).operation is None:
                    await asyncio.sleep(0.0)
            leader.link.cut = True
            other = next(member for member in members if member is not leader)
            async with asyncio.timeout(40):
                while (await world.record()).operation is not None or TOPIC not in other.elections.led:
                    await asyncio.sleep(0.5)
            record = await world.record()
            assert record.state is TopicState.ACTIVE
            assert [one.outcome for one in record.recent_operations] == [Outcome.DONE, Outcome.DONE]
            with pytest.raises(WrongState):
                await splitting

    run_virtual(crash())


def test_what_is_left_of_a_deleted_topic_is_deleted_by_one_of_the_daemons() -> None:
    async def leftovers() -> None:
        world = World()
        async with daemons(world, "a", "b", settings=replace(ControlSettings(), gc_interval_seconds=30)) as members:
            topic = await created(members, segments=3)
            incarnation = topic.record.incarnation
            await topic.split({0: 2}, ME)
            await topic.delete(ME)
            assert len((await world.repository.garbage())[incarnation].value) == 5
            again = await created(members, segments=1)
            assert again.record.incarnation != incarnation
            await asyncio.sleep(70)
            assert await world.repository.garbage() == {}
            assert len(await members[0].segments.list()) == 1, "the new life of the topic keeps its own"

    run_virtual(leftovers())
