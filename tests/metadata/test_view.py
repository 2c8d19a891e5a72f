"""A view of the store: complete, in order, and never behind for long, whatever happens to the stream."""

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

from scalable_topics.metadata.memory import MemoryStore
from scalable_topics.metadata.store import Delete, DeletePrefix, MetadataStore, Put
from scalable_topics.metadata.view import KeyChange, StoreView
from scalable_topics.model.errors import Compacted
from tests.metadata.faulty import FaultyStore
from tests.virtual_time import run_virtual


class Replica:
    """Somebody who only believes what is told, and checks that it makes sense."""

    def __init__(self, view: StoreView) -> None:
        self.items = dict(view.items)
        self.revision = view.revision
        self.told: list[KeyChange] = []
        view.listen(self.take)

    def take(self, change: KeyChange) -> None:
        assert self.items.get(change.key) == change.before
        assert change.before != change.after
        assert change.revision >= self.revision, "changes are told in order"
        self.revision = change.revision
        self.told.append(change)
        if change.after is None:
            del self.items[change.key]
        else:
            self.items[change.key] = change.after


@asynccontextmanager
async def followed(store: MetadataStore, root: str) -> AsyncIterator[tuple[StoreView, Replica]]:
    async with StoreView(store, root).running() as view:
        yield view, Replica(view)


async def test_a_view_is_the_store(store: MetadataStore, root: str) -> None:
    await store.commit([Put(f"{root}old", b"1"), Put("/elsewhere", b"")])
    async with followed(store, root) as (view, replica):
        assert list(view.items) == [f"{root}old"]
        await store.commit([Put(f"{root}new", b"2"), Delete(f"{root}old")])
        answer = await store.commit([Put(f"{root}old", b"3")])
        async with asyncio.timeout(5):
            await view.wait_for_revision(answer.revision)

        assert view.items == {item.key: item for item in (await store.scan(root)).items} == replica.items
        assert [(change.key, change.after is None) for change in replica.told] == [
            (f"{root}new", False),
            (f"{root}old", True),
            (f"{root}old", False),
        ]
        assert view.stale_seconds == 0


async def test_an_ended_listener_hears_nothing_more(store: MetadataStore, root: str) -> None:
    async with StoreView(store, root).running() as view:
        heard: list[KeyChange] = []
        end = view.listen(heard.append)
        await view.wait_for_revision((await store.commit([Put(f"{root}a", b"")])).revision)
        end()
        await view.wait_for_revision((await store.commit([Put(f"{root}b", b"")])).revision)
        assert [change.key for change in heard] == [f"{root}a"]


def test_outages_and_forgotten_history_are_made_up_for() -> None:
    """Random writes while the stream breaks, falls silent, and loses its history; in the end nothing was missed."""

    async def storm(seed: int) -> None:
        rng = random.Random(seed)
        memory = MemoryStore()
        store = FaultyStore(memory)
        async with StoreView(store, "/r/", silence_seconds=5).running() as view:
            replica = Replica(view)
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

            assert dict(view.items) == {item.key: item for item in (await memory.scan("/r/")).items}
            assert replica.items == dict(view.items)

    for seed in range(30):
        run_virtual(storm(seed))


def test_a_key_made_anew_while_nobody_looked_is_told_as_gone_first() -> None:
    async def anew() -> None:
        memory = MemoryStore()
        store = FaultyStore(memory)
        first = await memory.commit([Put("/r/x", b"1")])
        async with StoreView(store, "/r/", silence_seconds=1).running() as view:
            replica = Replica(view)
            store.cut = True
            await asyncio.sleep(3)
            await memory.commit([Delete("/r/x")])
            second = await memory.commit([Put("/r/x", b"1")])
            memory.compact(second.revision)
            store.cut = False
            await view.wait_for_revision(second.revision)

            lives = [(c.before and c.before.create_revision, c.after and c.after.create_revision) for c in replica.told]
            assert lives == [(first.revision, None), (None, second.revision)]

    run_virtual(anew())


def test_staleness_is_told() -> None:
    async def stale() -> None:
        store = FaultyStore(MemoryStore())
        async with StoreView(store, "/r/", silence_seconds=5).running() as view:
            store.cut = True
            await asyncio.sleep(60)
            assert 50 < view.stale_seconds <= 60
            store.cut = False
            await store.commit([Put("/r/x", b"")])
            await asyncio.sleep(5)
            assert view.stale_seconds == 0

    run_virtual(stale())
