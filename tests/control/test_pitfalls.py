"""The pitfalls of layout changes, leadership and garbage collection: a test named after each number.

| number | where else |
|---|---|
| 11 | `tests/policy/test_autoscale.py`: depth is kept on the segment |
| 12, 18, 19 | `tests/policy/test_decisions.py`: cool-downs are read off the layout, by the kind of each operation |
| 1, 7 | `tests/model`: a change that does not fit is refused whole; policy and properties stay |
| 1, 2, 3, 5, 8, 9, 10, 14, 15, 64, 66, 67 | `tests/segments`: what the owner of a segment does its part for |
| 13, 63, 64, 65, 67 | `tests/policy`, `tests/segments/test_serving.py`: what may be pruned |

The others are here, and so is the leader's part of most of those.
"""

import asyncio
import re
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from scalable_topics.control.controller import TopicController
from scalable_topics.control.failpoints import Failpoint
from scalable_topics.control.led_topic import ControlSettings, LedTopic
from scalable_topics.control.service import NotLeading
from scalable_topics.metadata.leadership import LeaderInfo, Leadership
from scalable_topics.metadata.repository import Deposed
from scalable_topics.model.errors import NotFound, Unavailable, UnknownOutcome, WrongState
from scalable_topics.model.names import TopicName
from scalable_topics.model.operation import Outcome, Phase
from scalable_topics.model.record import TopicState
from scalable_topics.model.segment import SegmentAddress, segment_address
from scalable_topics.model.subscription import (
    ConsumerRegistration,
    InitialPosition,
    SubscriptionState,
    SubscriptionType,
)
from scalable_topics.segments.errors import Damaged, Terminated
from scalable_topics.segments.memory import memory_segments
from scalable_topics.segments.port import EXCLUSIVE, Message
from tests.control.worlds import ME, PATHS, TOPIC, Daemon, World, controller, created
from tests.metadata.faulty import Loss
from tests.virtual_time import run_virtual

STREAM, EARLIEST = SubscriptionType.STREAM, InitialPosition.EARLIEST
SECTIONS = {"A": range(1, 15), "B": range(15, 23), "F": range(63, 68)}
COMES_LATER = {
    16: "the grace timers of consumers come with the hand-over; here: its fence, and the leader's other timers",
    22: "the answer to a lookup comes with the server; here: the key that it is made from",
}
"""What of these numbers is still to be tested, by which issue."""

Fault = Callable[[str, str], Exception | None]


class Owners:
    """One daemon's way to segments, on which a test sees every call, and makes those fail that it wants to."""

    def __init__(self, world: World) -> None:
        self._inner = memory_segments(world.disk, now_ms=world.now_ms)
        self.calls: list[tuple[str, str]] = []
        self.fault: Fault = lambda _, __: None
        """Given a method and the physical name (or the prefix of a list)."""

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._inner, name)

        async def call(*arguments: Any, **named: Any) -> Any:
            where = arguments[0] if arguments else ""
            physical = where.physical if isinstance(where, SegmentAddress) else str(where)
            self.calls.append((name, physical))
            error = self.fault(name, physical)
            if error is not None:
                await asyncio.sleep(0.1)
                raise error
            return await method(*arguments, **named)

        return call


class Stop:
    """A failpoint that waits, once, until the test lets it go on."""

    def __init__(self, failpoint: Failpoint) -> None:
        self._failpoint = failpoint
        self.armed = False
        self.reached = asyncio.Event()
        self.go = asyncio.Event()

    async def reach(self, failpoint: Failpoint, topic: TopicName) -> None:  # noqa: ARG002 - of the port
        if self.armed and failpoint is self._failpoint and not self.reached.is_set():
            self.reached.set()
            await self.go.wait()


class Cluster:
    def __init__(self, world: World, members: list[Daemon], stop: Stop) -> None:
        self.world = world
        self.members = members
        self.stop = stop
        self.truth = memory_segments(world.disk, now_ms=world.now_ms)

    @property
    def leader(self) -> Daemon:
        return next(member for member in self.members if TOPIC in member.elections.led)

    @property
    def others(self) -> list[Daemon]:
        return [member for member in self.members if TOPIC not in member.elections.led]

    def owners(self, daemon: Daemon) -> Owners:
        assert isinstance(daemon.segments, Owners)
        return daemon.segments

    def fault(self, fault: Fault) -> None:
        """For everybody."""
        for member in self.members:
            self.owners(member).fault = fault

    async def next_leader(self) -> TopicController:
        """Whoever leads is cut off until another has finished its start; then it may be back."""
        leader = self.leader
        others = [member for member in self.members if member is not leader]
        leader.link.cut = True
        try:
            return await controller(others)
        finally:
            leader.link.cut = False

    async def address(self, segment_id: int) -> SegmentAddress:
        record = await self.world.record()
        made = [] if record.operation is None else [c for r in record.operation.replacements for c in r.children]
        known = {**record.layout.segments, **{child.segment_id: child for child in made}}
        return segment_address(TOPIC, known[segment_id], incarnation=record.incarnation)

    async def subscriptions_of(self, segment_id: int) -> set[str]:
        return set((await self.truth.describe(await self.address(segment_id))).subscriptions)

    async def send(self, segment_id: int) -> None:
        address = await self.address(segment_id)
        row = self.world.disk.rows.segment(address.physical)
        served = await self.truth.serve(address, owner_term=(row.owner_term if row else 0) + 1)
        await served.append([Message(payload=b"x")])

    async def lose(self, segment_id: int) -> str:
        """Its storage is gone, without a tombstone."""
        physical = (await self.address(segment_id)).physical
        row = self.world.disk.rows.segment(physical)
        assert row is not None
        self.world.disk.rows.forget_segment(row.id)
        return physical

    async def stored(self) -> set[str]:
        return {one.physical for one in await self.truth.list()}

    async def listed(self) -> set[str]:
        record = await self.world.record()
        names = {(await self.address(segment_id)).physical for segment_id in record.layout.segments}
        return names | set(record.garbage)

    async def settled(self, *, seconds: float = 120) -> None:
        """No operation is under way any more."""
        async with asyncio.timeout(seconds):
            while (await self.world.record()).operation is not None:
                await asyncio.sleep(0.5)

    async def whole(self) -> None:
        """Everything that exists is listed, and everything that is listed exists; who is ACTIVE accepts messages."""
        await self.settled()
        assert await self.stored() == await self.listed()
        for segment in (await self.world.record()).layout.segments.values():
            facts = await self.truth.describe(await self.address(segment.segment_id))
            assert (facts.terminated is None) is segment.is_active, segment.segment_id

    def as_if_leading(self, leadership: Leadership, known: LedTopic) -> LedTopic:
        """A leader who has not noticed that it is not one any more: only the fences are left."""
        return LedTopic(leadership, known.record, known.around, leads=lambda: True)


@asynccontextmanager
async def cluster(
    *names: str, stop_at: Failpoint = Failpoint.BEFORE_COMMIT_1, settings: ControlSettings | None = None
) -> AsyncIterator[Cluster]:
    world, stop = World(), Stop(stop_at)
    async with AsyncExitStack() as stack:
        members = [
            await stack.enter_async_context(
                Daemon(world, name, segments=Owners(world), failpoints=stop, settings=settings).running()
            )
            for name in names
        ]
        yield Cluster(world, members, stop)


def down(physical: str) -> Fault:
    """Its owner does not answer."""
    return lambda _, called: Unavailable("nobody answers", subject=called) if called == physical else None


def test_every_number_has_a_test() -> None:
    tests = Path(__file__).parent.parent
    text = "\n".join(path.read_text() for path in sorted(tests.rglob("test_*.py")))
    found = {int(number) for number in re.findall(r"^(?:async )?def test_pitfall_(\d\d)_\w+", text, re.MULTILINE)}
    wanted = {number for section in SECTIONS.values() for number in section}
    assert wanted <= found, f"nobody tests {sorted(wanted - found)}"
    assert COMES_LATER.keys() <= wanted


def test_pitfall_01_operations_at_once_make_only_what_the_record_will_list() -> None:
    async def at_once() -> None:
        async with cluster("a", "b") as it:
            topic = await created(it.members, segments=4)
            await topic.subscriptions.create("s", STREAM, EARLIEST)
            done = await asyncio.gather(
                topic.split({0: 2}, ME),
                topic.merge([0, 1], ME),
                topic.collect(),
                topic.rebucket([2], 7, ME),
                topic.split({2: 2}, ME),
                topic.merge([2, 3], ME),
                return_exceptions=True,
            )
            refused = [one for one in done if isinstance(one, Exception)]
            assert len(refused) == 3
            assert all(isinstance(one, WrongState) for one in refused)
            await it.whole()
            assert topic.collector.orphans == ()

    run_virtual(at_once())


def test_pitfall_01_a_first_commit_that_lands_after_it_was_given_up_is_carried_out() -> None:
    async def late() -> None:
        async with cluster("a") as it:
            topic = await created(it.members, segments=2)
            it.leader.link.lose_next(Loss.LANDS_LATE, *[Loss.REQUEST_LOST] * 9)
            done = await topic.split({0: 2}, ME)
            assert done.outcome is Outcome.DONE
            record = await it.world.record()
            assert [segment.segment_id for segment in record.layout.active] == [2, 3, 1]
            await it.whole()

    run_virtual(late())


@pytest.mark.parametrize("failpoint", [Failpoint.ONE_PARENT_TERMINATED, Failpoint.ALL_TERMINATED])
def test_pitfall_02_a_leader_that_dies_after_terminate_leaves_nobody_stranded(failpoint: Failpoint) -> None:
    async def dies() -> None:
        async with cluster("a", "b", stop_at=failpoint) as it:
            topic = await created(it.members, segments=2)
            it.stop.armed = True
            merging = asyncio.ensure_future(topic.merge([0, 1], ME))
            await it.stop.reached.wait()
            assert (await it.world.record()).layout.epoch == 0
            await it.send(2)
            await it.next_leader()
            record = await it.world.record()
            assert [segment.segment_id for segment in record.layout.active] == [2]
            assert [one.outcome for one in record.recent_operations] == [Outcome.DONE, Outcome.DONE]
            await it.whole()
            with pytest.raises(Deposed):
                await merging

    run_virtual(dies())


def test_pitfall_02_whatever_ends_an_executor_the_operation_is_taken_up_again() -> None:
    async def unexpected() -> None:
        async with cluster("a") as it:
            topic = await created(it.members, segments=1)
            errors: list[Exception] = [Damaged("a page cannot be read"), Damaged("nor another")]
            it.fault(lambda name, _: errors.pop() if name == "terminate" and errors else None)
            with pytest.raises(Exception, match="nor another"):
                await topic.split({0: 2}, ME)
            await it.settled(seconds=10)
            assert [s.segment_id for s in (await it.world.record()).layout.active] == [1, 2]
            again = await controller(it.members)
            assert (await again.split({1: 2}, ME)).outcome is Outcome.DONE
            assert not it.leader.service.failures

    run_virtual(unexpected())


def test_pitfall_03_a_terminated_parent_stays_so_before_commit_3() -> None:
    async def reopened() -> None:
        async with cluster("a", stop_at=Failpoint.ALL_TERMINATED) as it:
            topic = await created(it.members, segments=1)
            it.stop.armed = True
            splitting = asyncio.ensure_future(topic.split({0: 2}, ME))
            await it.stop.reached.wait()
            assert (await it.world.record()).layout.segment(0).is_active
            with pytest.raises(Terminated):
                await it.send(0)
            await topic._look_at_segments()
            with pytest.raises(Terminated):
                await it.send(0)
            it.stop.go.set()
            await splitting
            await it.whole()

    run_virtual(reopened())


def test_pitfall_04_children_get_their_cursors_without_asking_the_parents_owner() -> None:
    async def away() -> None:
        async with cluster("a") as it:
            topic = await created(it.members, segments=1)
            await topic.subscriptions.create("s", STREAM, EARLIEST)
            parent = (await it.address(0)).physical
            it.fault(down(parent))
            splitting = asyncio.ensure_future(topic.split({0: 2}, ME))
            async with asyncio.timeout(30):
                while (operation := (await it.world.record()).operation) is None or operation.phase is Phase.PREPARING:
                    await asyncio.sleep(0.1)
            assert await it.subscriptions_of(1) == await it.subscriptions_of(2) == {"s"}
            it.fault(lambda _, __: None)
            await splitting
            await it.whole()

    run_virtual(away())


@pytest.mark.parametrize(
    "failpoint",
    [
        Failpoint.CURSOR_MISSING,
        Failpoint.ONE_CHILD_MADE,
        Failpoint.COMMIT_2_ANSWER_LOST,
        Failpoint.TERMINATE_SENT,
        Failpoint.ALL_TERMINATED,
        Failpoint.COMMITTED_NOT_PUSHED,
    ],
)
def test_pitfall_05_a_subscription_made_while_a_split_runs_is_on_the_children_from_their_beginning(
    failpoint: Failpoint,
) -> None:
    async def meanwhile() -> None:
        async with cluster("a", stop_at=failpoint) as it:
            topic = await created(it.members, segments=1)
            it.stop.armed = True
            splitting = asyncio.ensure_future(topic.split({0: 2}, ME))
            await it.stop.reached.wait()
            subscribing = asyncio.ensure_future(topic.subscriptions.create("s", STREAM, EARLIEST))
            await asyncio.sleep(1)
            it.stop.go.set()
            await splitting
            made = await subscribing
            assert made.state is SubscriptionState.READY
            for segment_id in (0, 1, 2):
                await it.send(segment_id) if segment_id else None
                facts = await it.truth.describe(await it.address(segment_id))
                assert facts.subscriptions["s"].backlog == (1 if segment_id else 0)

    run_virtual(meanwhile())


def test_pitfall_06_only_recorded_subscriptions_can_be_attached_and_those_are_on_every_child() -> None:
    async def implicit() -> None:
        async with cluster("a") as it:
            topic = await created(it.members, segments=1)
            served = await it.truth.serve(await it.address(0), owner_term=1)
            with pytest.raises(NotFound):
                await served.attach("q", "consumer", EXCLUSIVE)
            await topic.subscriptions.create("q", SubscriptionType.QUEUE, EARLIEST)
            await served.attach("q", "consumer", EXCLUSIVE)
            await it.send(0)
            await topic.split({0: 2}, ME)
            assert await it.subscriptions_of(1) == await it.subscriptions_of(2) == {"q"}
            assert (await topic.collector.round()).pruned == (), "its backlog keeps the parent"

    run_virtual(implicit())


def test_pitfall_07_what_is_not_layout_survives_every_operation() -> None:
    async def kept() -> None:
        async with cluster("a") as it:
            await it.members[0].service.create(TOPIC, segments=2, request=ME, properties={"owner": "alice"})
            topic = await controller(it.members)
            await topic.topic.update(lambda r: replace(r, auto_scale_policy={"maxSegments": 9}, load_source="replay"))
            await topic.split({0: 2}, ME)
            await topic.merge([2, 3], ME)
            await topic.rebucket([1], 7, ME)
            await topic.collector.round()
            record = await it.world.record()
            assert record.layout.epoch == 4
            assert record.properties == {"owner": "alice"}
            assert (record.auto_scale_policy, record.load_source) == ({"maxSegments": 9}, "replay")

    run_virtual(kept())


def test_pitfall_08_a_sealed_segment_that_is_gone_is_never_made_again() -> None:
    async def gone() -> None:
        async with cluster("a", "b", settings=ControlSettings(retention_minutes=-1, gc_interval_seconds=20)) as it:
            topic = await created(it.members, segments=1)
            await topic.subscriptions.create("s", STREAM, EARLIEST)
            await topic.split({0: 2}, ME)
            sealed = await it.lose(0)
            topic = await it.next_leader()
            await topic.subscriptions.create("later", STREAM, EARLIEST)
            await topic.subscriptions.seek("s", 1)
            await asyncio.sleep(60)
            assert sealed not in await it.stored()
            assert len(await it.stored()) == 2

    run_virtual(gone())


def test_pitfall_08_segments_are_made_up_front_and_not_after_the_deletion() -> None:
    async def up_front() -> None:
        async with cluster("a") as it:
            topic = await created(it.members, segments=3)
            assert len(await it.stored()) == 3
            address = await it.address(0)
            await topic.delete(ME)
            assert await it.stored() == set()
            with pytest.raises(NotFound):
                await it.truth.serve(address, owner_term=1)
            stale = it.as_if_leading(topic.topic.leadership, topic.topic)
            with pytest.raises(WrongState, match="deleted"):
                segment = topic.record.layout.segment(0)
                await stale.call("late", lambda call: it.truth.create(address, stale.stamp(segment, "late"), (), call))

    run_virtual(up_front())


def test_pitfall_09_a_lost_active_segment_is_made_again_with_its_cursors_and_told_as_a_loss() -> None:
    async def lost() -> None:
        async with cluster("a", "b") as it:
            topic = await created(it.members, segments=2)
            await topic.subscriptions.create("s", STREAM, EARLIEST)
            await topic.subscriptions.create("t", SubscriptionType.QUEUE, EARLIEST)
            await it.lose(1)
            await it.next_leader()
            assert await it.subscriptions_of(1) == {"s", "t"}
            repository = it.world.repository
            rows = repository.journal_rows(await repository.journal(TOPIC))
            losses = [row for row in rows if row.what == "DATA_LOSS"]
            assert ["segment 1" in row.reason for row in losses] == [True]
            await it.whole()

    run_virtual(lost())


def test_pitfall_10_a_deletion_that_was_interrupted_is_finished_and_what_cannot_go_is_written_down() -> None:
    async def deleted() -> None:
        async with cluster(
            "a", "b", stop_at=Failpoint.CLEAN_UP_HALF_DONE, settings=ControlSettings(gc_interval_seconds=30)
        ) as it:
            topic = await created(it.members, segments=3)
            unreachable = (await it.address(2)).physical
            it.fault(down(unreachable))
            it.stop.armed = True
            deleting = asyncio.ensure_future(topic.delete(ME))
            await it.stop.reached.wait()
            assert (await it.world.record()).state is TopicState.DELETING
            with pytest.raises(WrongState, match="exists already"):
                await it.others[0].service.create(TOPIC, segments=1, request=ME)
            it.leader.link.cut = True
            async with asyncio.timeout(60):
                while await it.world.repository.topic(TOPIC) is not None:
                    await asyncio.sleep(0.5)
            for member in it.members:
                member.link.cut = False
            with pytest.raises((Deposed, NotFound, Unavailable)):
                await deleting
            (kept,) = (await it.world.repository.garbage()).values()
            assert unreachable in kept.value
            assert await it.stored() == {unreachable}
            it.fault(lambda _, __: None)
            await asyncio.sleep(100)
            assert await it.stored() == set()
            assert await it.world.repository.garbage() == {}

    run_virtual(deleted())


def test_pitfall_13_however_many_are_pruned_the_epoch_takes_one_step() -> None:
    async def pruned() -> None:
        async with cluster("a") as it:
            topic = await created(it.members, segments=3)
            await topic.subscriptions.create("s", STREAM, EARLIEST)
            await topic.split({0: 2, 1: 2, 2: 2}, ME)
            await topic.merge([3, 4], ME)
            epoch = topic.record.layout.epoch
            assert (await topic.collector.round()).pruned == (0, 1, 2, 3, 4)
            assert (await it.world.record()).layout.epoch == epoch + 1

    run_virtual(pruned())


def test_pitfall_14_every_call_uses_the_address_of_the_segments_record() -> None:
    async def addressed() -> None:
        async with cluster("a") as it:
            topic = await created(it.members, segments=2)
            await topic.subscriptions.create("s", STREAM, EARLIEST)
            await topic.split({0: 2}, ME)
            await topic.subscriptions.seek("s", None)
            names = {(await it.address(segment_id)).physical for segment_id in range(4)}
            await topic.collector.round()
            await topic.subscriptions.delete("s")
            called = {physical for name, physical in it.owners(it.leader).calls if name != "list"}
            assert called == names
            assert all(physical.startswith("segment://t/n/orders/") for physical in called)
            await topic.delete(ME)
            again = await created(it.members, segments=2)
            assert {again.topic.address(one).physical for one in again.record.layout.active}.isdisjoint(names)

    run_virtual(addressed())


def test_pitfall_15_a_deposed_leader_writes_nothing_even_if_nobody_has_told_it() -> None:
    async def deposed() -> None:
        async with cluster("a", "b") as it:
            former = await created(it.members, segments=1)
            await former.subscriptions.create("s", STREAM, EARLIEST)
            leadership, around = former.topic.leadership, former.topic.around
            now = await it.next_leader()
            await now.split({0: 2}, ME)
            before = await it.world.record()
            led = it.as_if_leading(leadership, former.topic)
            await led.reload()
            with pytest.raises(Deposed):
                await led.update(lambda record: replace(record, properties={"by": "a ghost"}))
            with pytest.raises(Deposed):
                await around.repository.write_subscription(leadership, led.record, "s", None, known=None)
            with pytest.raises(Deposed):
                address = await it.address(1)
                await led.call("late", lambda call: around.segments.terminate(address, call))
            for asked in (former.split({1: 2}, ME), former.subscriptions.delete("s"), former.delete(ME)):
                with pytest.raises(Deposed):
                    await asked
            assert await it.world.record() == before
            await it.whole()

    run_virtual(deposed())


def test_pitfall_16_a_deposed_leader_has_no_timers_left_and_deletes_no_consumer() -> None:
    async def timers() -> None:
        async with cluster("a", "b", settings=ControlSettings(gc_interval_seconds=10)) as it:
            former = await created(it.members, segments=1)
            await former.subscriptions.create("s", STREAM, EARLIEST)
            leadership, daemon = former.topic.leadership, it.leader
            await it.next_leader()
            now = it.leader.elections.led[TOPIC]
            repository = it.world.repository
            registration = ConsumerRegistration(nonce="n", registered_at_ms=1)
            await repository.register_consumer(now, "s", "c", registration, known=None)
            known = (await repository.consumers(TOPIC, "s"))["c"]
            with pytest.raises(Deposed):
                await repository.register_consumer(leadership, "s", "c", None, known=known)
            assert (await repository.consumers(TOPIC, "s")).keys() == {"c"}
            await asyncio.sleep(1)
            it.owners(daemon).calls.clear()
            await asyncio.sleep(100)
            assert daemon is not it.leader
            assert it.owners(daemon).calls == []

    run_virtual(timers())


def test_pitfall_17_the_collector_of_a_deposed_leader_prunes_and_deletes_nothing() -> None:
    async def collect() -> None:
        async with cluster("a", "b", settings=ControlSettings(gc_interval_seconds=10_000)) as it:
            former = await created(it.members, segments=1)
            await former.subscriptions.create("s", STREAM, EARLIEST)
            await former.split({0: 2}, ME)
            await it.next_leader()
            before = await it.world.record()
            former.topic._leads = lambda: True
            with pytest.raises(Deposed):
                await former.collector.round()
            assert await it.world.record() == before
            assert await it.world.repository.drained(TOPIC) == {}
            assert len(await it.stored()) == 3

    run_virtual(collect())


def test_pitfall_20_a_failed_start_is_told_and_tried_again() -> None:
    async def fails() -> None:
        async with cluster("a") as it:
            it.fault(lambda name, _: Damaged("the disk is broken") if name == "create" else None)
            service = it.members[0].service
            await service.create(TOPIC, segments=1, request=ME)
            await asyncio.sleep(20)
            assert "the disk is broken" in service.failures[TOPIC]
            with pytest.raises(NotLeading, match="does not start"):
                service.controller(TOPIC)
            it.fault(lambda _, __: None)
            assert (await service.wait_active(TOPIC, seconds=60)).state is TopicState.ACTIVE
            await controller(it.members)
            await asyncio.sleep(1)
            assert service.failures == {}
            service.controller(TOPIC)

    run_virtual(fails())


def test_pitfall_21_asking_a_daemon_that_does_not_lead_changes_nothing() -> None:
    async def asked() -> None:
        async with cluster("a", "b") as it:
            await created(it.members, segments=1)
            leadership, (other,) = it.leader.elections.led[TOPIC], it.others
            before = (await it.world.store.get()).revision
            with pytest.raises(NotLeading, match="ask the leader"):
                other.service.controller(TOPIC)
            assert not other.service.is_idle(TOPIC)
            await asyncio.sleep(0)
            assert TOPIC not in other.service.controllers
            assert (await it.world.store.get()).revision == before
            assert it.leader.elections.led[TOPIC] == leadership

    run_virtual(asked())


def test_pitfall_22_the_election_key_tells_where_the_leader_is() -> None:
    async def where() -> None:
        async with cluster("a", "b") as it:
            await created(it.members, segments=1)
            for _ in range(2):
                (item,) = (await it.world.store.get(PATHS.controller(TOPIC))).items
                name = it.leader.name
                told = msgspec.json.decode(item.value, type=LeaderInfo)
                assert told == LeaderInfo(name, f"pulsar://{name}", f"http://{name}")
                await it.next_leader()

    run_virtual(where())


def test_pitfall_63_a_subscription_that_is_still_being_made_keeps_everything() -> None:
    async def keeps() -> None:
        async with cluster("a", stop_at=Failpoint.COMMIT_1_ANSWER_LOST) as it:
            topic = await created(it.members, segments=1)
            await it.send(0)
            await topic.split({0: 2}, ME)
            it.stop.armed = True
            subscribing = asyncio.ensure_future(topic.subscriptions.create("s", STREAM, EARLIEST))
            await it.stop.reached.wait()
            assert (await it.world.repository.subscriptions(TOPIC))["s"].value.state is SubscriptionState.CREATING
            swept = await topic.collector.round()
            assert (swept.drained, swept.pruned) == (0, ())
            it.stop.go.set()
            await subscribing
            assert (await topic.collector.round()).pruned == ()
            facts = await it.truth.describe(await it.address(0))
            assert facts.subscriptions["s"].backlog == 1

    run_virtual(keeps())


def test_pitfall_64_a_checkpoint_group_holds_back_pruning_until_its_oldest_checkpoint_is_past() -> None:
    async def checkpoint() -> None:
        async with cluster("a") as it:
            topic = await created(it.members, segments=1)
            await topic.subscriptions.create("c", SubscriptionType.CHECKPOINT, EARLIEST)
            await it.send(0)
            await topic.split({0: 2}, ME)
            assert (await topic.collector.round()).pruned == ()
            address, end = await it.address(0), topic.record.layout.segment(0).terminated_at
            assert end is not None
            await topic.topic.call("", lambda call: it.truth.advance(address, "c", end, call))
            assert (await topic.collector.round()).pruned == (0,)

    run_virtual(checkpoint())


def test_pitfall_65_a_prune_is_one_commit_that_a_new_subscription_refuses() -> None:
    async def raced() -> None:
        async with cluster("a") as it:
            topic = await created(it.members, segments=2)
            await it.send(0)
            await topic.split({0: 2, 1: 2}, ME)
            it.stop.armed = True
            collecting = asyncio.ensure_future(topic.collect())
            await it.stop.reached.wait()
            await topic.subscriptions.create("s", STREAM, EARLIEST)
            it.stop.go.set()
            await collecting
            assert (await it.world.record()).layout.segments.keys() == {0, 1, 2, 3, 4, 5}
            swept = await topic.collector.round()
            assert (swept.drained, swept.pruned) == (1, (1,)), "0 has a backlog now"

    run_virtual(raced())


def test_pitfall_66_a_backing_segment_that_cannot_be_deleted_yet_is_deleted_by_a_later_leader() -> None:
    async def rubbish() -> None:
        async with cluster("a", "b", settings=ControlSettings(gc_interval_seconds=20)) as it:
            topic = await created(it.members, segments=1)
            parent = (await it.address(0)).physical
            await topic.split({0: 2}, ME)
            it.fault(lambda name, at: UnknownOutcome("no answer") if (name, at) == ("delete", parent) else None)
            assert (await topic.collector.round()).pruned == (0,)
            await asyncio.sleep(100)
            assert (await it.world.record()).garbage == (parent,)
            await it.next_leader()
            it.fault(lambda _, __: None)
            await asyncio.sleep(100)
            assert (await it.world.record()).garbage == ()
            assert parent not in await it.stored()
            await it.whole()

    run_virtual(rubbish())


def test_pitfall_66_what_nobody_lists_is_reported_and_left_alone() -> None:
    async def orphan() -> None:
        async with cluster("a") as it:
            topic = await created(it.members, segments=1)
            led = topic.topic
            segment = replace(topic.record.layout.segment(0), segment_id=77)
            address, stamp = led.address(segment), led.stamp(segment, "nobody")
            await led.call("nobody", lambda call: it.truth.create(address, stamp, (), call))
            for _ in range(3):
                assert (await topic.collector.round()).orphans == (address.physical,)
                await asyncio.sleep(30)
            assert address.physical in await it.stored()

    run_virtual(orphan())


@pytest.mark.parametrize("error", [NotFound("not loaded"), Unavailable("nobody answers"), TimeoutError()])
def test_pitfall_67_not_there_and_no_answer_are_not_drained(error: Exception) -> None:
    async def silent() -> None:
        async with cluster("a") as it:
            topic = await created(it.members, segments=1)
            await topic.subscriptions.create("s", STREAM, EARLIEST)
            await topic.split({0: 2}, ME)
            parent = (await it.address(0)).physical
            it.fault(lambda name, at: type(error)(*error.args) if (name, at) == ("describe", parent) else None)
            swept = await topic.collector.round()
            assert (swept.drained, swept.pruned) == (0, ())
            assert await it.world.repository.drained(TOPIC) == {}
            it.fault(lambda _, __: None)
            assert (await topic.collector.round()).pruned == (0,)

    run_virtual(silent())


def test_pitfall_67_garbage_that_does_not_answer_is_not_gone() -> None:
    async def silent() -> None:
        async with cluster("a") as it:
            topic = await created(it.members, segments=1)
            parent = (await it.address(0)).physical
            await topic.split({0: 2}, ME)
            it.fault(down(parent))
            assert (await topic.collector.round()).pruned == (0,)
            for _ in range(3):
                await asyncio.sleep(20)
                assert (await topic.collector.round()).deleted == ()
            it.fault(lambda _, __: None)
            assert (await topic.collector.round()).deleted == (), "absent once is not enough"
            await asyncio.sleep(20)
            assert (await topic.collector.round()).deleted == (parent,)

    run_virtual(silent())
