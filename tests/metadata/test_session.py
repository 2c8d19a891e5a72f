"""The daemon's life in the store, on virtual time: when it is believed in, when it is lost, and what comes after."""

import asyncio

import pytest

from scalable_topics.metadata.memory import MemoryStore
from scalable_topics.metadata.session import BrokerInfo, Session, SessionKeeper, decode_broker
from scalable_topics.metadata.store import KeyValue, MetadataStore
from scalable_topics.model.errors import InvalidArgument, WrongState
from scalable_topics.model.paths import StorePaths
from tests.metadata.faulty import FaultyStore, Loss
from tests.virtual_time import jump, run_virtual

PATHS = StorePaths()
KEY = PATHS.broker("b1")


def keeper(store: MetadataStore, *, process: str = "p1", ttl_seconds: int = 10) -> SessionKeeper:
    info = BrokerInfo(broker_id="b1", broker_url="pulsar://b1:6650", web_url="http://b1:8080", process=process)
    return SessionKeeper(store, PATHS, info, ttl_seconds=ttl_seconds)


async def broker_key(store: MetadataStore) -> KeyValue | None:
    items = (await store.get(KEY)).items
    return items[0] if items else None


async def lost(session: Session) -> float:
    """Seconds until it is no longer believed in, looked at very often."""
    loop = asyncio.get_running_loop()
    start = loop.time()
    while session.alive:
        await asyncio.sleep(0.01)
    return loop.time() - start


def test_a_session_lives_as_long_as_it_is_renewed() -> None:
    async def day() -> None:
        store = MemoryStore()
        async with keeper(store).running() as one:
            session = await one.wait_session()
            await asyncio.sleep(86_400)

            key = await broker_key(store)
            assert one.session is session
            assert key is not None
            assert (key.lease, key.create_revision) == (session.lease, session.broker_revision)
            assert decode_broker(key.value, subject="b1") == one.info
            assert 5 < session.seconds_left() <= 9
        assert await broker_key(store) is None, "a clean shutdown frees everything at once"
        assert not session.alive
        assert one.session is None

    run_virtual(day())


def test_belief_ends_before_the_lease_can() -> None:
    async def outage() -> None:
        memory = MemoryStore()
        store = FaultyStore(memory)
        async with keeper(store).running() as one:
            session = await one.wait_session()
            await asyncio.sleep(5)
            store.cut = True

            seconds = await lost(session)

            assert 5.6 <= seconds <= 7.4, "the last renewal was sent up to 10/3 s before, and counts for 9"

            assert await broker_key(memory) is not None, "whoever stops believing must do so while the key still stands"
            assert one.session is None
            store.cut = False
            again = await one.wait_session()
            assert again is not session
            assert again.lease != session.lease
            assert again.broker_revision > session.broker_revision
            assert not session.alive, "a lost session stays lost"
        await memory.close()

    run_virtual(outage())


def test_a_short_outage_is_survived() -> None:
    async def blip() -> None:
        store = FaultyStore(MemoryStore())
        async with keeper(store).running() as one:
            session = await one.wait_session()
            for _ in range(20):
                await asyncio.sleep(7)
                store.cut = True
                await asyncio.sleep(4)
                store.cut = False
            assert one.session is session

    run_virtual(blip())


def test_a_process_that_was_stopped_knows_at_once() -> None:
    async def stopped() -> None:
        memory = MemoryStore()
        async with keeper(memory).running() as one:
            session = await one.wait_session()
            await asyncio.sleep(1)
            jump(9.5)
            assert not session.alive
            assert session.seconds_left() == 0
            assert one.session is None
            assert (await one.wait_session()) is not session

    run_virtual(stopped())


def test_a_restart_takes_its_former_life_over_at_once() -> None:
    async def restart() -> None:
        store = MemoryStore()
        loop = asyncio.get_running_loop()
        killed = FaultyStore(store)
        first = keeper(killed)
        opened = await first._open()
        killed.cut = True

        start = loop.time()
        async with keeper(store, process="p2").running() as second:
            session = await second.wait_session()
            assert loop.time() - start < 1, "it does not wait for the old lease to end"
            assert session.broker_revision > opened.broker_revision
            key = await broker_key(store)
            assert key is not None
            assert decode_broker(key.value, subject="b1").process == "p2"

    run_virtual(restart())


def test_of_two_daemons_with_one_name_the_older_stops() -> None:
    async def twins() -> None:
        store = MemoryStore()

        async def older() -> None:
            async with keeper(store, process="older").running() as one:
                await one.wait_session()
                await asyncio.sleep(1_000)

        task = asyncio.create_task(older())
        await asyncio.sleep(5)
        async with keeper(store, process="newer").running() as newer:
            session = await newer.wait_session()
            with pytest.raises(ExceptionGroup) as caught:
                await task
            (error,) = caught.value.exceptions
            assert isinstance(error, WrongState)
            assert "another process runs as 'b1' (http://b1:8080)" in str(error)
            await asyncio.sleep(100)
            assert newer.session is session

    run_virtual(twins())


def test_a_lost_answer_leaves_one_session() -> None:
    async def unknown() -> None:
        memory = MemoryStore()
        store = FaultyStore(memory)
        store.lose_next(Loss.ANSWER_LOST)
        async with keeper(store).running() as one:
            session = await one.wait_session()
            key = await broker_key(memory)
            assert key is not None
            assert key.lease == session.lease
            assert key.create_revision == session.broker_revision

    run_virtual(unknown())


def test_fences_and_limits() -> None:
    async def check() -> None:
        session = Session(lease=1, ttl_seconds=10, granted_at=asyncio.get_running_loop().time())
        with pytest.raises(WrongState, match="no broker key"):
            session.fence(PATHS, "b1")
        session.renewed(0)
        assert session.alive, "an old answer that comes late takes nothing back"
        with pytest.raises(InvalidArgument, match="leaves no time to act"):
            keeper(MemoryStore(), ttl_seconds=1)

    run_virtual(check())


def test_belief_counts_from_the_sending_of_a_renewal_and_not_from_its_answer() -> None:
    """An answer that took long: the store may have counted from the moment the request left."""

    async def slow() -> None:
        memory = MemoryStore()

        class Slow(FaultyStore):
            async def keep_alive(self, lease: int) -> float:
                left = await super().keep_alive(lease)
                await asyncio.sleep(4)
                self.cut = True
                return left

        store = Slow(memory)
        async with keeper(store).running() as one:
            session = await one.wait_session()
            await lost(session)
            assert await broker_key(memory) is not None, "it must not be believed in longer than the store keeps it"

    run_virtual(slow())


def test_a_session_that_was_given_up_is_not_renewed_and_the_next_one_opens_at_once() -> None:
    async def given_up() -> None:
        renewed: list[int] = []

        class Counting(FaultyStore):
            async def keep_alive(self, lease: int) -> float:
                renewed.append(lease)
                return await super().keep_alive(lease)

        async with keeper(Counting(MemoryStore())).running() as one:
            session = await one.wait_session()
            await asyncio.sleep(20)
            assert set(renewed) == {session.lease}
            renewed.clear()
            session.lose()
            async with asyncio.timeout(1):
                again = await one.wait_session()
            await asyncio.sleep(20)
            assert set(renewed) == {again.lease} != {session.lease}

    run_virtual(given_up())


@pytest.mark.parametrize("loss", Loss)
def test_opening_a_session_survives_every_kind_of_loss(loss: Loss) -> None:
    async def lossy() -> None:
        memory = MemoryStore()
        store = FaultyStore(memory)
        store.lose_next(*[loss] * 3)
        async with keeper(store).running() as one:
            async with asyncio.timeout(30):
                session = await one.wait_session()
            await asyncio.sleep(100)
            key = await broker_key(memory)
            assert key is not None
            assert one.session is not None
            assert (key.lease, key.create_revision) == (one.session.lease, one.session.broker_revision)
            assert one.session is session, "what landed late took nothing from it"

    run_virtual(lossy())


def test_pitfall_a_full_store_or_none_at_the_start_is_waited_for() -> None:
    async def waiting() -> None:
        store = FaultyStore(MemoryStore())
        store.full = store.cut = True
        async with keeper(store).running() as one:
            await asyncio.sleep(60)
            store.cut = False
            await asyncio.sleep(60)
            assert one.session is None
            store.full = False
            async with asyncio.timeout(5):
                await one.wait_session()

    run_virtual(waiting())


def test_a_session_that_was_not_believed_in_for_a_moment_stays_lost() -> None:
    """The process stands still while a renewal is on its way; its answer comes after belief has ended, and others may
    have seen that it had.
    """

    async def stood_still() -> None:
        loop = asyncio.get_running_loop()
        session = Session(lease=1, ttl_seconds=10, granted_at=loop.time())
        sent_at = loop.time() + 5
        jump(9.5)
        assert not session.alive
        session.renewed(sent_at)
        assert not session.alive
        await asyncio.wait_for(session.wait_lost(), 1)

    run_virtual(stood_still())
