"""Who serves a segment, on shared memory stores and virtual time."""

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable
from contextlib import AsyncExitStack, asynccontextmanager

import pytest
from msgspec.structs import replace

from scalable_topics.control.failpoints import Failpoint, Failpoints
from scalable_topics.control.owners import OwnedElsewhere, SegmentOwners
from scalable_topics.metadata.repository import Repository
from scalable_topics.metadata.session import BrokerInfo
from scalable_topics.metadata.store import Put
from scalable_topics.model.codec import encode_json
from scalable_topics.model.errors import NotFound, Unavailable, WrongState
from scalable_topics.model.names import TopicName
from scalable_topics.model.ownership import SegmentOwner
from scalable_topics.model.record import TopicRecord, TopicState, encode_record
from scalable_topics.model.segment import SegmentInfo, segment_address
from scalable_topics.policy.ranking import ranked
from scalable_topics.segments.errors import Detached, Fenced
from scalable_topics.segments.port import EXCLUSIVE, Appended, Message, ServedSegment
from tests.control.worlds import ME, PATHS, TOPIC, Daemon, World, created
from tests.virtual_time import run_virtual

ONE = [Message(payload=b"x")]


class Member:
    """A daemon that owns segments."""

    def __init__(self, world: World, name: str, failpoints: Failpoints | None = None) -> None:
        self.daemon = Daemon(world, name, failpoints=failpoints)
        self.deaf: set[str] = set()
        """Daemons that do not answer this one."""
        self.asked: list[str] = []
        self.owners = SegmentOwners(
            Repository(self.daemon.link, PATHS),
            self.daemon.segments,  # type: ignore[arg-type]  # the memory store is both ports
            self.daemon.keeper,
            self.daemon.view,
            answers=self._answers,
        )

    async def _answers(self, info: BrokerInfo) -> bool:
        self.asked.append(info.broker_id)
        return info.broker_id not in self.deaf

    @property
    def name(self) -> str:
        return self.daemon.name

    async def append(self, segment_id: int = 0) -> tuple[Appended, ...]:
        async def work(served: ServedSegment, _: SegmentInfo) -> tuple[Appended, ...]:
            return await served.append(ONE)

        return await self.owners.use(TOPIC, segment_id, work)


@asynccontextmanager
async def members(world: World, *names: str, failpoints: Failpoints | None = None) -> AsyncIterator[list[Member]]:
    async with AsyncExitStack() as stack:
        found = [Member(world, name, failpoints) for name in names]
        for member in found:
            await stack.enter_async_context(member.daemon.running())
            await stack.enter_async_context(member.owners.running())
        async with asyncio.timeout(30):
            while len(await world.repository.brokers()) < len(names):
                await asyncio.sleep(0.1)
        yield found


async def by_rank(world: World, found: Iterable[Member], segment_id: int = 0) -> list[Member]:
    record = await world.record()
    address = segment_address(TOPIC, record.layout.segment(segment_id), incarnation=record.incarnation)
    members = {member.name: member for member in found}
    return [members[name] for name in ranked(address.physical, members)]


async def owner(world: World, segment_id: int = 0) -> SegmentOwner:
    known = await world.repository.owner(TOPIC, segment_id)
    assert known is not None
    return known.value


def on_two(test: Callable[[World, list[Member]], Coroutine[object, object, None]]) -> None:
    failures: list[BaseException] = []

    async def run() -> None:
        world = World()
        async with members(world, "a", "b") as found:
            await created([member.daemon for member in found], segments=1)
            try:
                await test(world, await by_rank(world, found))
            except (Exception, pytest.fail.Exception) as error:
                failures.append(error)

    run_virtual(run())
    for error in failures:
        raise error  # by itself, not in the groups of all that was running


async def rewrite(world: World, record: TopicRecord) -> None:
    await world.store.commit([Put(PATHS.record(TOPIC), encode_record(record))])


def test_the_first_rank_claims_and_the_others_point_at_it() -> None:
    async def test(world: World, ranks: list[Member]) -> None:
        first, second = ranks
        with pytest.raises(OwnedElsewhere) as refused:
            await second.append()
        assert (refused.value.broker_id, refused.value.web_url) == (first.name, f"http://{first.name}")
        await first.append()
        assert (await owner(world)).owner_term == 1
        revision = (await world.store.get()).revision
        await first.append()
        assert (await world.store.get()).revision == revision, "what is served needs no store"

    on_two(test)


def test_pointing_at_the_owner_needs_no_store() -> None:
    async def test(_: World, ranks: list[Member]) -> None:
        first, second = ranks
        await first.append()
        await asyncio.sleep(1)
        second.daemon.link.cut = True
        for _again in range(2):
            with pytest.raises(OwnedElsewhere):
                await second.append()
            await asyncio.sleep(20)

    on_two(test)


def test_whoever_the_first_rank_does_not_answer_claims_itself_and_is_pointed_at_from_then_on() -> None:
    async def test(_: World, ranks: list[Member]) -> None:
        first, second = ranks
        second.deaf.add(first.name)
        await second.append()
        assert second.asked == [first.name]
        with pytest.raises(OwnedElsewhere) as refused:
            await first.append()
        assert refused.value.broker_id == second.name

    on_two(test)


def test_a_segment_of_a_dead_owner_is_taken_over_and_the_dead_one_is_fenced() -> None:
    async def test(world: World, ranks: list[Member]) -> None:
        first, second = ranks
        await first.append()
        served = await first.owners.served(TOPIC, 0)
        first.daemon.link.cut = True
        second.deaf.add(first.name)
        with pytest.raises(OwnedElsewhere):
            await second.append()
        await asyncio.sleep(20)
        assert await second.append() == (Appended((0, 1)),)
        now = await owner(world)
        assert (now.broker_id, now.owner_term) == (second.name, 2)
        with pytest.raises(Detached):
            await served.append(ONE)

    on_two(test)


def test_a_daemon_that_was_cut_off_goes_on_serving_until_somebody_takes_over() -> None:
    """PROTOCOL 7: the store away, producing and consuming go on."""

    async def test(_: World, ranks: list[Member]) -> None:
        first, second = ranks
        await first.append()
        before = await first.owners.served(TOPIC, 0)
        first.daemon.link.cut = True
        await asyncio.sleep(20)
        assert not first.owners.serving, "all at once, with the session"
        with pytest.raises(Detached):
            await before.append(ONE)
        assert await first.append() == (Appended((0, 1)),)
        second.deaf.add(first.name)
        await second.append()
        with pytest.raises(Unavailable, match="somebody else serves it"):
            await first.append()
        with pytest.raises(Unavailable, match="was not served here"):
            await first.append()
        first.daemon.link.cut = False
        await asyncio.sleep(20)
        with pytest.raises(OwnedElsewhere):
            await first.append()

    on_two(test)


def test_a_daemon_that_comes_back_takes_a_new_term_for_what_nobody_took() -> None:
    async def test(world: World, ranks: list[Member]) -> None:
        first, second = ranks
        await first.append()
        first.daemon.link.cut = True
        await asyncio.sleep(20)
        await first.append()
        first.daemon.link.cut = False
        await asyncio.sleep(20)
        assert second.owners.owner_in_view(TOPIC, 0) is None, "it lives again, in another session"
        await first.append()
        assert (await owner(world)).owner_term == 2

    on_two(test)


def test_a_paused_daemon_serves_nobody_when_it_wakes_up() -> None:
    """Its session is over by its own clock, before anything else of it has run."""

    async def test(world: World, ranks: list[Member]) -> None:
        first, second = ranks
        await first.append()
        served = await first.owners.served(TOPIC, 0)
        session = first.daemon.keeper.session
        assert session is not None
        first.daemon.link.cut = True
        session._believed_until = 0.0
        again = await first.owners.served(TOPIC, 0)
        assert again is not served, "what was served in the name of that session ends at once"
        with pytest.raises(Detached):
            await served.attach("s", "c", EXCLUSIVE)
        await asyncio.sleep(0.2)
        assert await first.owners.served(TOPIC, 0) is again, "nothing more ends when the keeper notices as well"
        await world.store.revoke_lease(session.lease)
        await asyncio.sleep(0.5)
        await second.append()
        with pytest.raises(Fenced):
            await again.append(ONE)
        with pytest.raises(Unavailable, match="somebody else serves it"):
            await first.append()

    on_two(test)


def test_an_owner_that_is_fenced_points_at_the_new_one() -> None:
    async def test(world: World, ranks: list[Member]) -> None:
        first, second = ranks
        await first.append()
        known = await world.repository.owner(TOPIC, 0)
        record = await world.repository.topic(TOPIC)
        session = second.daemon.keeper.session
        assert known is not None
        assert record is not None
        assert session is not None
        taken = SegmentOwner(broker_id=second.name, broker_session=session.broker_revision, owner_term=2)
        await world.repository.take_ownership(session, TOPIC, 0, taken, record=record, known=known)
        await second.append()
        with pytest.raises(OwnedElsewhere) as refused:
            await first.append()
        assert refused.value.broker_id == second.name
        assert not first.owners.serving

    on_two(test)


def test_what_the_store_tells_evicts_at_once() -> None:
    async def test(world: World, ranks: list[Member]) -> None:
        first, _ = ranks
        await first.append()
        served = await first.owners.served(TOPIC, 0)
        now = await owner(world)
        await world.store.commit([Put(PATHS.owner(TOPIC, 0), encode_json(replace(now, broker_id="b2", owner_term=9)))])
        await asyncio.sleep(1)
        assert not first.owners.serving
        with pytest.raises(Detached):
            await served.append(ONE)

    on_two(test)


def test_a_topic_that_is_made_anew_is_another_one() -> None:
    async def test(world: World, ranks: list[Member]) -> None:
        first, second = ranks
        former = (await world.record()).incarnation
        await first.append()
        leader = next(one.daemon for one in ranks if TOPIC in one.daemon.elections.led)
        await leader.service.controller(TOPIC).delete(ME)
        await asyncio.sleep(1)
        assert not first.owners.serving
        with pytest.raises(NotFound):
            await first.append()
        await created([first.daemon, second.daemon], segments=1)
        first, second = await by_rank(world, ranks)
        assert await first.append() == (Appended((0, 0)),)
        with pytest.raises(NotFound, match="incarnation"):
            await first.owners.served(TOPIC, 0, incarnation=former)

    on_two(test)


class Looks:
    """Asks for a child at two places of the operation that makes it."""

    def __init__(self) -> None:
        self.member: Member | None = None
        self.before: list[str] = []
        self.after: list[ServedSegment] = []

    async def reach(self, failpoint: Failpoint, topic: TopicName) -> None:
        if self.member is None:
            return
        if failpoint is Failpoint.ONE_CHILD_MADE:
            with pytest.raises(NotFound, match="no such segment"):
                await self.member.owners.served(topic, 1)
            self.before.append(topic.local)
        if failpoint is Failpoint.TERMINATE_SENT:
            self.after.append(await self.member.owners.served(topic, 1))


def test_only_listed_segments_and_announced_children_are_claimed() -> None:
    async def claims() -> None:
        world, looks = World(), Looks()
        async with members(world, "a", failpoints=looks) as (only,):
            controller = await created([only.daemon], segments=1)
            with pytest.raises(NotFound, match="no such segment"):
                await only.append(7)
            assert only.owners.owner_in_view(TOPIC, 0) is None
            looks.member = only
            await controller.split({0: 2}, ME)
            assert looks.before, "a child that is made and not announced yet is nobody's"
            assert await looks.after[0].append(ONE), "an announced one accepts messages before the split is done"
            with pytest.raises(WrongState, match="no more messages"):
                await only.append(0)
            assert await (await only.owners.served(TOPIC, 0)).read((0, 0)) == (), "sealed ones are served to be read"

    run_virtual(claims())


def test_a_topic_that_is_not_active_is_served_by_nobody() -> None:
    async def test(world: World, ranks: list[Member]) -> None:
        await rewrite(world, replace(await world.record(), state=TopicState.CREATING))
        with pytest.raises(WrongState, match="CREATING"):
            await ranks[0].append()

    on_two(test)


def test_a_term_that_fell_behind_the_data_rises_above_it() -> None:
    """As after a store was restored from a backup."""

    async def test(world: World, ranks: list[Member]) -> None:
        first, _ = ranks
        record = await world.record()
        address = segment_address(TOPIC, record.layout.segment(0), incarnation=record.incarnation)
        await first.daemon.segments.serve(address, owner_term=900)  # type: ignore[attr-defined]
        await first.append()
        assert (await owner(world)).owner_term >= 900

    on_two(test)


def test_announced_children_are_claimed_by_the_daemons_of_their_rank_before_anybody_writes() -> None:
    async def test(world: World, ranks: list[Member]) -> None:
        leader = next(one.daemon for one in ranks if TOPIC in one.daemon.elections.led)
        await leader.service.controller(TOPIC).split({0: 8}, ME)
        await asyncio.sleep(1)
        for segment in (await world.record()).layout.active:
            first, second = await by_rank(world, ranks, segment.segment_id)
            assert (await owner(world, segment.segment_id)).broker_id == first.name
            known = second.owners.owner_in_view(TOPIC, segment.segment_id)
            assert known is not None
            assert known.broker_id == first.name
        assert {name for one in ranks for _, name in one.owners.serving} == set(range(1, 9))

    on_two(test)


def test_many_at_once_claim_once() -> None:
    async def test(world: World, ranks: list[Member]) -> None:
        first, second = ranks
        second.deaf.add(first.name)
        first.deaf.add(second.name)
        results = await asyncio.gather(
            *(member.append() for member in (first, second) for _ in range(20)), return_exceptions=True
        )
        elsewhere = [one for one in results if isinstance(one, OwnedElsewhere)]
        done = [one for one in results if isinstance(one, tuple)]
        assert len(done) == len(elsewhere) == 20
        assert (await owner(world)).owner_term == 1

    on_two(test)


class HoldsTerminate:
    """The parents of an operation are not terminated before somebody says so."""

    def __init__(self) -> None:
        self.reached = asyncio.Event()
        self.go_on = asyncio.Event()

    async def reach(self, failpoint: Failpoint, topic: TopicName) -> None:  # noqa: ARG002 - of the port
        if failpoint is Failpoint.TERMINATE_SENT:
            self.reached.set()
            await self.go_on.wait()


def test_children_are_announced_with_their_owners_who_have_opened_them_before_a_parent_ends() -> None:
    """So a writer that is told *terminated* waits for no store: here the store is away from then on."""

    async def announced() -> None:
        world, hold = World(), HoldsTerminate()
        async with members(world, "a", "b", failpoints=hold) as found:
            topic = await created([member.daemon for member in found], segments=1)
            splitting = asyncio.ensure_future(topic.split({0: 8}, ME))
            await hold.reached.wait()
            await asyncio.sleep(0.01)
            owners = [(await owner(world, segment_id)).broker_id for segment_id in range(1, 9)]
            assert set(owners) == {"a", "b"}, "they spread"
            by_name = {member.name: member for member in found}
            for segment_id, name in enumerate(owners, 1):
                assert (TOPIC, segment_id) in by_name[name].owners.serving
            for member in found:
                member.daemon.link.cut = True
            for segment_id, name in enumerate(owners, 1):
                assert await by_name[name].append(segment_id)
            for member in found:
                member.daemon.link.cut = False
            hold.go_on.set()
            await splitting

    run_virtual(announced())


def test_an_owner_that_dies_before_it_is_announced_is_not_chosen() -> None:
    async def dies() -> None:
        world = World()
        async with members(world, "a", "b") as found:
            topic = await created([member.daemon for member in found], segments=1)
            leader = next(member for member in found if TOPIC in member.daemon.elections.led)
            other = next(member for member in found if member is not leader)
            session = await other.daemon.keeper.wait_session()
            splitting = asyncio.ensure_future(topic.split({0: 8}, ME))
            await world.store.revoke_lease(session.lease)
            other.daemon.link.cut = True
            await splitting
            owners = {(await owner(world, segment_id)).broker_id for segment_id in range(1, 9)}
            assert owners == {leader.name}

    run_virtual(dies())
