"""A view of the store: complete, in order, whole revisions, never behind for long, whatever happens to the stream."""

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress

import pytest

from scalable_topics.metadata.marker import bump_generation, ensure_marker
from scalable_topics.metadata.memory import MemoryStore
from scalable_topics.metadata.store import Delete, DeletePrefix, MetadataStore, Put
from scalable_topics.metadata.view import StoreView, ViewChange
from scalable_topics.model.errors import Compacted
from scalable_topics.model.paths import StorePaths
from tests.metadata.faulty import FaultyStore
from tests.virtual_time import run_virtual

R = StorePaths("/r")


class Replica:
    """Somebody who only believes what is told, and checks that it makes sense."""

    def __init__(self, view: StoreView) -> None:
        self.items = dict(view.state.items)
        self.state = view.state
        self.told: list[ViewChange] = []
        view.listen(self.take)

    def take(self, change: ViewChange) -> None:
        assert change.before == self.state
        before = (self.state.generation, self.state.revision)
        assert (change.after.generation, change.after.revision) >= before, "states are told in order"
        for each in change.changes:
            assert self.items.get(each.key) == each.before
            assert each.before != each.after
            if each.after is None:
                del self.items[each.key]
            else:
                self.items[each.key] = each.after
        assert self.items == dict(change.after.items), "nobody sees half a revision"
        self.state = change.after
        self.told.append(change)


@asynccontextmanager
async def followed(store: MetadataStore, root: str = "/r") -> AsyncIterator[tuple[StoreView, Replica]]:
    async with StoreView(store, StorePaths(root), silence_seconds=5).running() as view:
        await view.wait_ready()
        yield view, Replica(view)


async def test_a_view_is_the_store_in_whole_revisions(store: MetadataStore, root: str) -> None:
    await store.commit([Put(f"{root}old", b"1"), Put("/elsewhere", b"")])
    async with followed(store, root) as (view, replica):
        assert list(view.state.items) == [f"{root}old"]
        await store.commit([Put(f"{root}new", b"2"), Delete(f"{root}old"), Put(f"{root}more", b"")])
        answer = await store.commit([Put(f"{root}old", b"3")])
        async with asyncio.timeout(5):
            await view.wait_for_revision(answer.revision)

        assert dict(view.state.items) == {item.key: item for item in (await store.scan(root)).items} == replica.items
        told = [{each.key.removeprefix(root): each.after is None for each in c.changes} for c in replica.told]
        assert told == [{"new": False, "old": True, "more": False}, {"old": False}]
        assert view.stale_seconds < 5


async def test_what_was_told_stays_as_it_was(store: MetadataStore, root: str) -> None:
    async with followed(store, root) as (view, _):
        await view.wait_for_revision((await store.commit([Put(f"{root}a", b"1")])).revision)
        kept = view.state
        await view.wait_for_revision((await store.commit([Put(f"{root}a", b"2"), Put(f"{root}b", b"")])).revision)
        assert {key: item.value for key, item in kept.items.items()} == {f"{root}a": b"1"}


async def test_an_ended_listener_hears_nothing_more(store: MetadataStore, root: str) -> None:
    async with followed(store, root) as (view, _):
        heard: list[ViewChange] = []
        end = view.listen(heard.append)
        await view.wait_for_revision((await store.commit([Put(f"{root}a", b"")])).revision)
        end()
        await view.wait_for_revision((await store.commit([Put(f"{root}b", b"")])).revision)
        assert [change.changes[0].key for change in heard] == [f"{root}a"]


def test_outages_and_forgotten_history_are_made_up_for() -> None:
    """Random writes while the stream breaks, falls silent, and loses its history; in the end nothing was missed."""

    async def storm(seed: int) -> None:
        rng = random.Random(seed)
        memory = MemoryStore()
        store = FaultyStore(memory)
        async with followed(store) as (view, replica):
            for _ in range(60):
                key = f"/r/{rng.randrange(6)}"
                match rng.randrange(8):
                    case 0:
                        store.cut = not store.cut
                    case 1:
                        with suppress(Compacted):  # nothing new to forget
                            memory.compact((await memory.get()).revision)
                    case 2:
                        await memory.commit([Delete(key)])
                    case 3:
                        await memory.commit([DeletePrefix("/r/")])
                    case 4:
                        await asyncio.sleep(rng.random() * 20)
                    case _:
                        await memory.commit([Put(key, rng.randbytes(1))])
                await asyncio.sleep(rng.random())
            store.cut = False
            await view.wait_for_revision((await memory.commit([Put("/r/end", b"")])).revision)

            assert dict(view.state.items) == {item.key: item for item in (await memory.scan("/r/")).items}
            assert replica.items == dict(view.state.items)

    for seed in range(60):
        run_virtual(storm(seed))


def test_every_revision_is_told_once_from_the_very_next_one() -> None:
    async def gapless() -> None:
        memory = MemoryStore()
        store = FaultyStore(memory)
        async with followed(store) as (view, replica):
            expected = []
            for number in range(50):
                expected.append((await memory.commit([Put("/r/x", str(number).encode())])).revision)
                if number % 7 == 0:
                    store.cut = True
                    await asyncio.sleep(6)
                    store.cut = False
            async with asyncio.timeout(30):
                await view.wait_for_revision(expected[-1])
            assert [change.after.revision for change in replica.told] == expected

    run_virtual(gapless())


def test_a_key_made_anew_while_nobody_looked_is_another_life() -> None:
    async def anew() -> None:
        memory = MemoryStore()
        store = FaultyStore(memory)
        first = await memory.commit([Put("/r/x", b"1")])
        async with followed(store) as (view, replica):
            store.cut = True
            await asyncio.sleep(10)
            await memory.commit([Delete("/r/x")])
            second = await memory.commit([Put("/r/x", b"1")])
            memory.compact(second.revision)
            store.cut = False
            await view.wait_for_revision(second.revision)

            (change,) = (each for told in replica.told for each in told.changes)
            assert change.before is not None
            assert change.after is not None
            assert (change.before.create_revision, change.after.create_revision) == (first.revision, second.revision)

    run_virtual(anew())


def test_staleness_is_the_time_since_the_last_sign_of_life() -> None:
    """From the first silent moment on, and over as soon as the store answers, though nothing happens in it."""

    async def stale() -> None:
        store = FaultyStore(MemoryStore())
        async with followed(store) as (view, _):
            await asyncio.sleep(60)
            assert view.stale_seconds <= 6, "nothing happens, and the store is known to be there"
            store.cut = True
            await asyncio.sleep(4)
            assert view.stale_seconds >= 4, "the first silence counts"
            await asyncio.sleep(56)
            assert 60 <= view.stale_seconds <= 66
            store.cut = False
            await asyncio.sleep(3)
            assert view.stale_seconds <= 3, "healed, with nothing written"

    run_virtual(stale())


def test_a_store_that_is_away_at_the_start_is_waited_for() -> None:
    async def away() -> None:
        memory = MemoryStore()
        await memory.commit([Put("/r/x", b"")])
        store = FaultyStore(memory)
        store.cut = True
        async with StoreView(store, R).running() as view:
            heard: list[ViewChange] = []
            view.listen(heard.append)
            await asyncio.sleep(100)
            assert not view.ready
            assert view.stale_seconds >= 100
            store.cut = False
            async with asyncio.timeout(5):
                await view.wait_ready()
            assert [each.key for change in heard for each in change.changes] == ["/r/x"]

    run_virtual(away())


def test_a_listener_that_fails_is_told_on_and_harms_nobody(caplog: pytest.LogCaptureFixture) -> None:
    async def broken() -> None:
        store = MemoryStore()
        async with StoreView(store, R).running() as view:
            await view.wait_ready()
            heard: list[int] = []

            def fail(change: ViewChange) -> None:
                heard.append(change.after.revision)
                raise RuntimeError("no")

            view.listen(fail)
            replica = Replica(view)
            for number in range(3):
                await view.wait_for_revision((await store.commit([Put(f"/r/{number}", b"")])).revision)
            assert len(heard) == len(replica.told) == 3

    run_virtual(broken())
    assert sum("a listener failed" in record.getMessage() for record in caplog.records) == 3


async def nothing(_: MemoryStore) -> None:
    pass


def restored(change: Callable[[MemoryStore], Awaitable[None]], *, down_seconds: float) -> None:
    """Twenty keys, a backup of the first six and a half, then what `change` does while nobody can look."""

    async def run() -> None:
        memory = MemoryStore()
        store = FaultyStore(memory)
        await ensure_marker(memory, R, cluster_name="c")
        async with followed(store) as (view, replica):
            for number in range(6):
                await memory.commit([Put(f"/r/{number}", b"old")])
            backup = memory.backup()
            for number in range(4, 20):
                await memory.commit([Put(f"/r/{number}", b"new")])
            await view.wait_for_revision((await memory.get()).revision)
            generation = view.state.generation
            store.cut = down_seconds > 0
            memory.restore(backup)
            await change(memory)
            await asyncio.sleep(down_seconds)
            for number in range(100 if down_seconds else 2):
                await memory.commit([Put("/r/after", str(number).encode())])
            if down_seconds:
                await bump_generation(memory, R)
            store.cut = False
            await asyncio.sleep(10)
            last = await memory.commit([Put("/r/end", b"")])
            await asyncio.sleep(10)

            assert dict(view.state.items) == {item.key: item for item in (await memory.scan("/r/")).items}
            assert replica.items == dict(view.state.items)
            assert view.state.revision == last.revision
            assert view.state.generation > generation, "an order that clients can keep"

    run_virtual(run())


def test_a_store_restored_to_a_lower_revision_is_listed_again() -> None:
    restored(nothing, down_seconds=0)


def test_a_store_restored_and_written_beyond_what_was_seen_is_listed_again_once_the_operator_says_so() -> None:
    restored(nothing, down_seconds=30)


def test_a_marker_lost_in_the_restore_is_put_back() -> None:
    async def delete(memory: MemoryStore) -> None:
        await memory.commit([Delete(R.marker)])

    restored(delete, down_seconds=0)


def test_a_backup_from_before_an_earlier_restore_is_another_life_though_its_raised_generation_is_known() -> None:
    """Generation 2 is known; a backup of generation 1 is raised to 2 again, and written beyond what was seen."""

    async def run() -> None:
        memory = MemoryStore()
        store = FaultyStore(memory)
        await ensure_marker(memory, R, cluster_name="c")
        backup = memory.backup()
        await bump_generation(memory, R)
        async with followed(store) as (view, replica):
            await view.wait_for_revision((await memory.commit([Put("/r/gone", b"")])).revision)
            assert view.state.generation == 2
            store.cut = True
            memory.restore(backup)
            assert (await bump_generation(memory, R)).generation == 2
            for number in range(20):
                await memory.commit([Put(f"/r/{number}", b"")])
            await asyncio.sleep(10)
            store.cut = False
            await asyncio.sleep(10)
            assert dict(view.state.items) == {item.key: item for item in (await memory.scan("/r/")).items}
            assert replica.items == dict(view.state.items)
            assert view.state.generation == 3

    run_virtual(run())


def test_another_cluster_is_another_life() -> None:
    async def run() -> None:
        memory = MemoryStore()
        store = FaultyStore(memory)
        await ensure_marker(memory, R, cluster_name="c")
        async with followed(store) as (view, replica):
            for number in range(3):
                await memory.commit([Put(f"/r/{number}", b"old")])
            await view.wait_for_revision((await memory.get()).revision)
            backup = memory.backup()
            await memory.commit([Put("/r/0", b"seen by nobody else")])
            await asyncio.sleep(1)
            memory.restore(backup, cluster=77)
            await memory.commit([Put("/r/1", b"new")])
            await memory.commit([Put("/r/2", b"new")])
            await asyncio.sleep(10)
            assert dict(view.state.items) == {item.key: item for item in (await memory.scan("/r/")).items}
            assert view.state.generation == 2
            assert replica.items == dict(view.state.items)

    run_virtual(run())
