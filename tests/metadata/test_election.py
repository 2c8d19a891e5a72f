"""Elections: one leader per topic and term, nobody who was deposed can write, and no topic stays without a leader."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scalable_topics.metadata.election import Elections, Leadership, campaign, resign
from scalable_topics.metadata.memory import MemoryStore
from scalable_topics.metadata.session import BrokerInfo, Role, SessionKeeper
from scalable_topics.metadata.store import DeletePrefix, MetadataStore, Put
from scalable_topics.metadata.view import StoreView
from scalable_topics.model.errors import InvalidArgument
from scalable_topics.model.layout import initial_layout
from scalable_topics.model.names import TopicName
from scalable_topics.model.operation import Operation, OperationKind, Phase
from scalable_topics.model.paths import StorePaths
from scalable_topics.model.record import TopicRecord, encode_record
from scalable_topics.model.replacements import split
from scalable_topics.policy.ranking import ranked
from tests.metadata.faulty import FaultyStore
from tests.strategies import INCARNATION
from tests.virtual_time import run_virtual

PATHS = StorePaths()


def topic(number: int) -> TopicName:
    return TopicName.parse(f"topic://t/n/{number}")


class Daemon:
    """One daemon's part in elections, on its own connection to a shared store."""

    def __init__(self, store: MetadataStore, name: str, *, roles: tuple[Role, ...] = (Role.CONTROLLER,)) -> None:
        self.name = name
        self.link = FaultyStore(store)
        info = BrokerInfo(
            broker_id=name, broker_url=f"pulsar://{name}", web_url=f"http://{name}", roles=roles, process=f"p-{name}"
        )
        self.keeper = SessionKeeper(self.link, PATHS, info)
        self.view = StoreView(self.link, PATHS.root + "/", silence_seconds=5)
        self.elections = Elections(self.link, PATHS, self.keeper, self.view, stable_seconds=600)
        self.gained: list[Leadership] = []
        self.lost: list[Leadership] = []
        self.elections.on_gain = self.gained.append
        self.elections.on_loss = self.lost.append

    @asynccontextmanager
    async def running(self) -> AsyncIterator["Daemon"]:
        async with self.keeper.running(), self.view.running(), self.elections.running():
            await self.keeper.wait_session()
            yield self


@asynccontextmanager
async def daemons(store: MetadataStore, *names: str) -> AsyncIterator[list[Daemon]]:
    async with AsyncExitStack() as stack:
        yield [await stack.enter_async_context(Daemon(store, name).running()) for name in names]


async def create(store: MetadataStore, count: int) -> None:
    for number in range(count):
        record = TopicRecord(incarnation=INCARNATION, layout=initial_layout(1))
        await store.commit([Put(PATHS.record(topic(number)), encode_record(record))])


async def settle(members: list[Daemon], topics: int, *, seconds: float = 60) -> dict[TopicName, Leadership]:
    """Until every topic has exactly one leader; fails if that does not happen in time."""

    async def agreed() -> dict[TopicName, Leadership] | None:
        leaders = [leadership for member in members for leadership in member.elections.led.values()]
        by_topic = {leadership.topic: leadership for leadership in leaders}
        return by_topic if len(leaders) == len(by_topic) == topics else None

    return await until(agreed, seconds)


async def until(
    check: Callable[[], Awaitable[dict[TopicName, Leadership] | None]], seconds: float
) -> dict[TopicName, Leadership]:
    async with asyncio.timeout(seconds):
        while True:
            found = await check()
            if found is not None:
                return found
            await asyncio.sleep(0.05)


def test_every_topic_gets_the_leader_that_everybody_ranks_first() -> None:
    async def calm() -> None:
        store = MemoryStore()
        async with daemons(store, "a", "b", "c") as members:
            await create(store, 30)
            leaders = await settle(members, 30)
            for member in members:
                for led in member.elections.led:
                    assert ranked(str(led), "abc")[0] == member.name
            assert min(Counter(len(member.elections.led) for member in members)) >= 3
            assert all(leadership.term > 0 for leadership in leaders.values())

    run_virtual(calm())


def test_a_crash_is_taken_over_once_the_lease_ends_and_a_shutdown_at_once() -> None:
    async def crash() -> None:
        loop = asyncio.get_running_loop()
        store = MemoryStore()
        async with daemons(store, "a", "b") as members:
            await create(store, 40)
            before = await settle(members, 40)
            async with Daemon(store, "c").running() as shut_down:
                await asyncio.sleep(700)
                assert shut_down.elections.led, "it was given its share when things were stable"
            start = loop.time()
            await settle(members, 40)
            assert loop.time() - start < 1.5
            members[0].link.cut = True
            start = loop.time()
            after = await settle(members[1:], 40)
            assert 5 < loop.time() - start < 13
            assert not members[0].elections.led
            for name in before:
                assert after[name].term >= before[name].term
            assert len(members[0].lost) == len(members[0].gained)

    run_virtual(crash())


def test_nothing_that_was_deposed_can_write() -> None:
    async def fenced() -> None:
        store = MemoryStore()
        async with daemons(store, "a", "b") as members:
            await create(store, 10)
            before = await settle(members, 10)
            victim, other = members if members[0].elections.led else members[::-1]
            stale = list(victim.elections.led.values())
            victim.link.cut = True
            after = await settle([other], 10)
            victim.link.cut = False
            for leadership in stale:
                key = PATHS.record(leadership.topic)
                refused = await store.commit([Put(key, b"zombie")], compares=leadership.fence())
                assert not refused.succeeded
                accepted = await store.commit([], compares=after[leadership.topic].fence())
                assert accepted.succeeded
                assert after[leadership.topic].term > before[leadership.topic].term

    run_virtual(fenced())


def test_leadership_goes_back_only_when_stable_and_idle() -> None:
    async def restart() -> None:
        store = MemoryStore()
        busy = topic(0)
        async with daemons(store, "a") as (first,):
            first.elections._is_idle = lambda name: name != busy
            await create(store, 50)
            await settle([first], 50)
            async with Daemon(store, "b").running() as second:
                await asyncio.sleep(590)
                assert len(first.elections.led) == 50
                await asyncio.sleep(60)
                await settle([first, second], 50)
                for number in range(50):
                    rightful = ranked(str(topic(number)), "ab")[0]
                    holder = first if number == 0 else {"a": first, "b": second}[rightful]
                    assert topic(number) in holder.elections.led

    run_virtual(restart())


def test_reporters_never_lead() -> None:
    async def replay() -> None:
        store = MemoryStore()
        reporting = Daemon(store, "z", roles=(Role.REPORTER,))
        async with daemons(store, "a") as (controller,), reporting.running() as reporter:
            await create(store, 20)
            await settle([controller], 20)
            assert not reporter.gained

    run_virtual(replay())


def test_topics_with_an_operation_come_first_and_campaigns_are_bounded() -> None:
    async def herd() -> None:
        store = MemoryStore()
        layout = initial_layout(1)
        change = split(layout, {0: 2}, at_ms=1)
        operation = Operation(
            id="o",
            kind=OperationKind.SPLIT,
            phase=Phase.SEALING,
            replacements=change,
            reason="",
            by="",
            started_at_ms=1,
        )
        await create(store, 300)
        half_done = TopicRecord(incarnation=INCARNATION, layout=layout.announce(change), operation=operation)
        await store.commit([Put(PATHS.record(topic(299)), encode_record(half_done))])

        class Slow(FaultyStore):
            flying = most = 0

            async def commit(self, writes, *, compares=()):  # type: ignore[no-untyped-def]
                if any(isinstance(write, Put) and write.key.endswith("/controller") for write in writes):
                    self.flying += 1
                    self.most = max(self.most, self.flying)
                    await asyncio.sleep(0.5)
                    self.flying -= 1
                return await super().commit(writes, compares=compares)

        member = Daemon(store, "a")
        slow = Slow(store)
        member.elections._store = slow
        async with member.running():
            await settle([member], 300)
            assert slow.most == 64
            assert topic(299) in [leadership.topic for leadership in member.gained[:64]]

    run_virtual(herd())


def test_a_lost_answer_is_looked_up() -> None:
    async def unknown() -> None:
        store = MemoryStore()
        async with daemons(store, "a") as (member,):
            await create(store, 1)
            (leadership,) = (await settle([member], 1)).values()
            session = member.keeper.session
            assert session is not None
            await create(store, 2)
            await settle([member], 2)
            member.link.lose_answers = 1
            await resign(store, leadership)
            async with asyncio.timeout(5):
                while leadership not in member.lost:  # noqa: ASYNC110 - what it waits for is a callback's trace
                    await asyncio.sleep(0.01)
            again = (await settle([member], 2))[leadership.topic]
            assert again.term > leadership.term
            assert await campaign(store, PATHS, leadership.topic, member.keeper.info, session) == again

    run_virtual(unknown())


def test_somebody_elses_key_is_not_ours() -> None:
    async def other() -> None:
        store = MemoryStore()
        async with daemons(store, "a", "b") as (one, two):
            await create(store, 1)
            (leadership,) = (await settle([one, two], 1)).values()
            loser = two if one.elections.led else one
            session = loser.keeper.session
            assert session is not None
            assert await campaign(store, PATHS, leadership.topic, loser.keeper.info, session) is None

    run_virtual(other())


def test_a_topic_that_is_gone_needs_no_leader() -> None:
    async def gone() -> None:
        store = MemoryStore()
        async with daemons(store, "a") as (member,):
            await create(store, 1)
            (leadership,) = (await settle([member], 1)).values()
            await store.commit([DeletePrefix(PATHS.record(topic(0)))])
            await asyncio.sleep(30)
            assert member.lost == [leadership]
            assert not member.elections.led
            assert len(member.gained) == 1

    run_virtual(gone())


@pytest.mark.parametrize(("term", "lease"), [(0, 1), (-1, 1), (1, 0)])
def test_an_absent_key_is_no_leadership(term: int, lease: int) -> None:
    with pytest.raises(InvalidArgument, match="an absent key compares equal to 0"):
        Leadership(topic(0), "key", term, lease)


@given(st.sets(st.text("abcdef", min_size=1, max_size=3), min_size=2), st.text(max_size=5))
def test_a_daemon_that_goes_moves_only_its_own_topics(brokers: set[str], name: str) -> None:
    order = ranked(name, brokers)

    for gone in brokers:
        assert ranked(name, brokers - {gone}) == [broker for broker in order if broker != gone]
    assert sorted(order) == sorted(brokers)


async def test_elections_on_a_real_store(store: MetadataStore) -> None:
    """The same on a real etcd, in real time: two daemons, one leaves, the other leads everything at once."""
    async with daemons(store, "x") as (stays,):
        async with daemons(store, "y") as (goes,):
            await create(store, 20)
            await settle([stays, goes], 20, seconds=20)
        await settle([stays], 20, seconds=20)
        terms = [leadership.term for leadership in stays.elections.led.values()]
        assert len(set(terms)) == 20
