"""Elections of whole daemons on virtual time: one leader per topic and term, nobody who was deposed can write, and no
topic stays without a leader, whatever was lost on the way.
"""

import asyncio
import random
from collections import Counter
from contextlib import AsyncExitStack

import pytest
from msgspec.structs import replace

from scalable_topics.metadata.leadership import campaign, resign
from scalable_topics.metadata.memory import MemoryStore
from scalable_topics.metadata.session import Role
from scalable_topics.metadata.store import Delete, DeletePrefix, KeyValue, MetadataStore, Put
from scalable_topics.metadata.view import KeyChange, ViewChange
from scalable_topics.model.codec import encode_json
from scalable_topics.model.layout import initial_layout
from scalable_topics.model.operation import Operation, OperationKind, Phase
from scalable_topics.model.record import TopicRecord, encode_record
from scalable_topics.model.replacements import split
from scalable_topics.policy.ranking import ranked
from tests.metadata.daemons import PATHS, RECORD, Daemon, create, daemons, settle, topic
from tests.metadata.faulty import FaultyStore, Loss
from tests.strategies import INCARNATION
from tests.virtual_time import jump, run_virtual

STORM_SEEDS = 1_000


def test_every_topic_gets_the_leader_that_everybody_ranks_first() -> None:
    async def calm() -> None:
        store = MemoryStore()
        async with daemons(store, "a", "b", "c") as members:
            await asyncio.sleep(1)
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
            assert len(members[0].told("lost")) == len(members[0].told("gained"))

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
                record = PATHS.record(leadership.topic)
                refused = await store.commit([Put(record, b"zombie")], compares=leadership.fence())
                assert not refused.succeeded
                accepted = await store.commit([], compares=after[leadership.topic].fence())
                assert accepted.succeeded
                assert after[leadership.topic].term > before[leadership.topic].term

    run_virtual(fenced())


def test_leadership_goes_back_only_when_stable_and_idle() -> None:
    async def restart() -> None:
        store = MemoryStore()
        async with Daemon(store, "a", busy=[topic(0)]).running() as first:
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


def test_reporters_that_come_and_go_do_not_hold_leadership_back() -> None:
    async def replay() -> None:
        store = MemoryStore()
        async with daemons(store, "a") as (first,):
            await create(store, 20)
            await settle([first], 20)
            async with daemons(store, "b") as (second,):
                for number in range(20):
                    async with Daemon(store, f"reporter-{number}", roles=(Role.REPORTER,)).running() as reporter:
                        await asyncio.sleep(60)
                        assert not reporter.history, "reporters never lead"
                await settle([first, second], 20)
                assert second.elections.led

    run_virtual(replay())


@pytest.mark.parametrize("names", ["a", "abc"])
@pytest.mark.parametrize("loss", Loss)
def test_a_lost_campaign_leaves_no_topic_without_a_leader(names: str, loss: Loss) -> None:
    """One request of each daemon is lost in this way; then nothing else ever goes wrong."""

    async def lost() -> None:
        store = MemoryStore()
        async with daemons(store, *names) as members:
            await asyncio.sleep(1)
            for member in members:
                member.link.latest_landing_seconds = 0.5 if loss is Loss.LANDS_LATE else 0
                member.link.lose_next(*[loss] * 3)
            await create(store, 10)
            await settle(members, 10, seconds=15)
            await asyncio.sleep(600)
            await settle(members, 10, seconds=0.2)

    run_virtual(lost())


def test_a_request_that_lands_after_everything_was_given_up_is_adopted() -> None:
    """The answer is lost, then the daemon is cut off; the request lands; nobody but its own daemon may lead by it."""

    async def late() -> None:
        store = MemoryStore()
        async with daemons(store, "a") as (member,):
            await asyncio.sleep(1)
            member.link.latest_landing_seconds = 4
            member.link.lose_next(Loss.LANDS_LATE)
            await create(store, 1)
            await asyncio.sleep(0.1)
            member.link.lose_next(*[Loss.REQUEST_LOST] * 3)
            (leadership,) = (await settle([member], 1, seconds=6)).values()
            assert (await store.commit([], compares=leadership.fence())).succeeded

    run_virtual(late())


def test_a_daemon_whose_store_is_away_at_the_start_waits_and_then_leads() -> None:
    """Session, view and elections alike: none ends, none is needed before the others."""

    async def away() -> None:
        store = MemoryStore()
        await create(store, 5)
        daemon = Daemon(store, "a")
        daemon.link.cut = True
        async with daemon.running():
            await asyncio.sleep(3_600)
            assert daemon.keeper.session is None
            assert not daemon.view.ready
            assert not daemon.history
            daemon.link.cut = False
            await settle([daemon], 5, seconds=10)

    run_virtual(away())


def test_a_broker_key_that_somebody_deletes_makes_another_session() -> None:
    """Without it no campaign can be won: topics would stay without a leader for ever."""

    async def deleted() -> None:
        store = MemoryStore()
        async with daemons(store, "a") as (member,):
            await create(store, 3)
            await settle([member], 3)
            former = member.keeper.session
            await store.commit([Delete(PATHS.broker("a"))])
            await asyncio.sleep(1)
            await create(store, 5)
            await settle([member], 5, seconds=20)
            assert former is not None
            assert not former.alive
            session = member.keeper.session
            await asyncio.sleep(100)
            assert member.keeper.session is session

    run_virtual(deleted())


def test_an_event_costs_the_same_in_a_large_store() -> None:
    """A broker key and a record change in a store of many keys: nothing walks over all of them."""

    async def large() -> None:
        store = MemoryStore()
        await create(store, 10)
        async with daemons(store, "a") as (member,):
            await settle([member], 10)

            class Unwalkable(dict[str, KeyValue]):
                def __iter__(self):  # type: ignore[no-untyped-def]
                    raise AssertionError("somebody walks over all keys")

                items = keys = values = __iter__

            state = member.view.state
            unwalkable = replace(state, items=Unwalkable(state.items.items()))
            info = encode_json(replace(member.keeper.info, broker_id="b"))
            changes = (
                KeyChange(PATHS.broker("b"), None, KeyValue(PATHS.broker("b"), info, 99, 99)),
                KeyChange(PATHS.record(topic(1)), None, state.items[PATHS.record(topic(1))]),
            )
            member.elections._take(ViewChange(state, unwalkable, changes))
            assert member.elections._election._controllers.keys() == {"a", "b"}

    run_virtual(large())


def test_pitfall_a_full_store_is_waited_for() -> None:
    """A running daemon and a starting one; both go on when there is room."""

    async def full() -> None:
        store = MemoryStore()
        async with daemons(store, "a") as (running,):
            await create(store, 3)
            (first, *_) = (await settle([running], 3)).values()
            starting = Daemon(store, "b")
            running.link.full = starting.link.full = True
            await resign(store, first)
            async with starting.running():
                await asyncio.sleep(120)
                assert starting.keeper.session is None
                assert len(running.elections.led) == 2
                running.link.full = starting.link.full = False
                await settle([running, starting], 3, seconds=10)
                await starting.keeper.wait_session()

    run_virtual(full())


@pytest.mark.parametrize(
    "key",
    [
        "/scalable-topics/topics/t/n/%zz",
        "/scalable-topics/topics/t/n/%ff",
        "/scalable-topics/topics/t/n/",
        "/scalable-topics/topics/a b/n/x",
        "/scalable-topics/topics/../n/x/controller",
        "/scalable-topics/topics//",
        "/scalable-topics/topics/t/n/%2f",
        "/scalable-topics/brokers/%zz",
        "/scalable-topics/brokers/",
        "/scalable-topics/brokers/stranger",
        "/scalable-topics/marker",
        "/scalable-topics/",
    ],
)
def test_foreign_keys_are_logged_once_and_passed_over(key: str, caplog: pytest.LogCaptureFixture) -> None:
    async def litter() -> None:
        store = MemoryStore()
        await store.commit([Put(key, b"\xff{")])
        async with daemons(store, "a") as (member,):
            await create(store, 3)
            for number in range(3):
                await store.commit([Put(key, bytes([number]))])
            await settle([member], 3)

    run_virtual(litter())
    problems = [record.getMessage() for record in caplog.records if record.levelname != "INFO"]
    assert len(problems) <= 1
    assert not any("failed" in problem or "failure" in problem for problem in problems)


def test_our_own_former_broker_key_of_a_later_version_is_taken_over() -> None:
    async def newer() -> None:
        store = MemoryStore()
        lease = await store.grant_lease(3_600)
        await store.commit([Put(PATHS.broker("a"), b'{"brokerId": "a", "roles": ["oracle"], "new": 1}', lease)])
        await store.commit([Put(PATHS.broker("b"), b"no lease, no sense")])
        async with daemons(store, "a", "b") as members:
            await create(store, 5)
            await settle(members, 5, seconds=5)

    run_virtual(newer())


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
                campaigns = sum(isinstance(write, Put) and write.key.endswith("/controller") for write in writes)
                if campaigns:
                    self.flying += campaigns
                    self.most = max(self.most, self.flying)
                    await asyncio.sleep(0.5)
                    self.flying -= campaigns
                return await super().commit(writes, compares=compares)

        member = Daemon(store, "a")
        slow = Slow(store)
        member.elections._store = slow
        async with member.running():
            await settle([member], 300)
            assert slow.most == 64
            assert topic(299) in [leadership.topic for leadership in member.told("gained")[:64]]

    run_virtual(herd())


def test_a_campaign_compares_the_broker_key() -> None:
    """PROTOCOL 2: a daemon whose broker key is gone, or is that of another life, cannot become a leader."""

    async def compared() -> None:
        store = MemoryStore()
        async with daemons(store, "a", "b") as (one, two):
            await create(store, 1)
            (leadership,) = (await settle([one, two], 1)).values()
            loser = two if one.elections.led else one
            session = await loser.keeper.wait_session()
            (found,) = await campaign(store, PATHS, [leadership.topic], loser.keeper.info, session)
            assert leadership.is_held_by(found.leader), "somebody else's key is told, and not ours"
            session.broker_revision += 1
            await create(store, 2)
            await store.commit([DeletePrefix(PATHS.controller(topic(1)))])
            (refused,) = await campaign(store, PATHS, [topic(1)], loser.keeper.info, session)
            assert refused.leader is None

    run_virtual(compared())


def test_one_campaign_for_many_topics_takes_those_that_are_free() -> None:
    async def many() -> None:
        store = MemoryStore()
        async with daemons(store, "a") as (first,):
            await create(store, 3)
            held = await settle([first], 3)
            other = Daemon(store, "b")
            async with other.keeper.running():
                session = await other.keeper.wait_session()
                asked = [topic(number) for number in range(5)]
                found = await campaign(store, PATHS, asked, other.keeper.info, session)
                for number, key in enumerate(found):
                    assert key.leader is not None
                    if number < 3:
                        assert held[topic(number)].is_held_by(key.leader)
                    else:
                        assert key.leader.lease == session.lease

    run_virtual(many())


def test_leadership_is_not_gained_after_the_session_is_over() -> None:
    """The answer to a campaign comes when belief has ended; the key may still stand, and must not be acted on."""

    async def too_late() -> None:
        store = MemoryStore()
        member = Daemon(store, "a")

        class Slow(FaultyStore):
            async def commit(self, writes, *, compares=()):  # type: ignore[no-untyped-def]
                answer = await super().commit(writes, compares=compares)
                jump(9.5)  # the process is stopped while the answer is on its way
                return answer

        async with member.running():
            await member.keeper.wait_session()
            await asyncio.sleep(0.5)
            member.elections._store = Slow(store)
            await create(store, 1)
            await asyncio.sleep(0.1)
            assert not member.told("gained"), "the daemon's own check in `gained` says why"
            assert not member.elections.led
            member.elections._store = member.link
            await settle([member], 1, seconds=20)

    run_virtual(too_late())


def test_a_listener_that_fails_harms_nobody(caplog: pytest.LogCaptureFixture) -> None:
    class Broken:
        def gained(self, leadership: object) -> None:
            raise RuntimeError(f"gained {leadership}")

        def lost(self, leadership: object) -> None:
            raise RuntimeError(f"lost {leadership}")

    async def run() -> None:
        store = MemoryStore()
        member = Daemon(store, "a")
        member.elections._listeners.insert(0, Broken())
        async with member.running():
            await create(store, 2)
            await settle([member], 2)
        assert len(member.told("gained")) == len(member.told("lost")) == 2

    run_virtual(run())
    assert sum("a listener failed" in record.getMessage() for record in caplog.records) == 4


def test_a_store_that_went_back_is_led_anew() -> None:
    """Restored from a backup in which other topics existed and an older term stood."""

    async def restored() -> None:
        store = MemoryStore()
        async with daemons(store, "a", "b") as members:
            await create(store, 10)
            await settle(members, 10)
            backup = store.backup()
            await store.commit([DeletePrefix(PATHS.record(topic(3)))])
            for number in range(10, 20):
                await store.commit(
                    [Put(PATHS.record(topic(number)), encode_record(TopicRecord(incarnation=INCARNATION)))]
                )
            await settle(members, 19)
            await asyncio.sleep(100)
            store.restore(backup)
            leaders = await settle(members, 10, seconds=30)
            await asyncio.sleep(60)
            assert await settle(members, 10, seconds=1) == leaders
            for leadership in leaders.values():
                assert (await store.commit([], compares=leadership.fence())).succeeded

    run_virtual(restored())


@pytest.mark.parametrize("first_seed", range(0, STORM_SEEDS, STORM_SEEDS // 10))
def test_storms_end_with_a_leader_on_every_topic(first_seed: int) -> None:
    """Every call slow, lost before or after it is done, or done late; links cut; members restarted. When that stops,
    every topic has exactly one acting leader within a bound (PROTOCOL 12.9), and its fence holds.
    """

    async def storm(seed: int) -> None:
        rng = random.Random(seed)
        store = MemoryStore()
        await create(store, 5)
        async with AsyncExitStack() as stack:
            members = [await stack.enter_async_context(Daemon(store, name).running()) for name in "abc"]
            for member in members:
                member.link.storm = random.Random(rng.random())
            for _ in range(6):
                await asyncio.sleep(rng.random() * 15)
                victim = rng.choice(members)
                match rng.randrange(4):
                    case 0:
                        victim.link.cut = not victim.link.cut
                    case 1:
                        jump(rng.random() * 12)
                    case 2:
                        number = rng.randrange(5, 8)
                        await store.commit([Put(PATHS.record(topic(number)), encode_record(RECORD))])
                    case _:
                        for leadership in victim.elections.led.values():
                            await resign(store, leadership)
            for member in members:
                member.link.storm = None
                member.link.cut = False
            topics = len([i for i in (await store.scan(PATHS.topics)).items if i.key.count("/") == 5])
            await asyncio.sleep(20)  # requests that land late are faults as well
            leaders = await settle(members, topics, seconds=25)
            for leadership in leaders.values():
                assert (await store.commit([], compares=leadership.fence())).succeeded

    for seed in range(first_seed, first_seed + STORM_SEEDS // 10):
        try:
            run_virtual(storm(seed))
        except BaseException as error:
            error.add_note(f"seed {seed}")
            raise


async def test_elections_on_a_real_store(store: MetadataStore) -> None:
    """The same on a real etcd, in real time: two daemons, one leaves, the other leads everything at once."""
    async with daemons(store, "x") as (stays,):
        async with daemons(store, "y") as (goes,):
            await create(store, 20)
            await settle([stays, goes], 20, seconds=20)
        await settle([stays], 20, seconds=20)
        assert len(stays.elections.led) == 20
