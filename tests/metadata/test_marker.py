"""The marker: whose store this is, and which of its lives."""

import asyncio

import pytest

from scalable_topics.metadata.marker import (
    StoreMarker,
    bump_generation,
    ensure_marker,
    generation_of,
    wait_for_marker,
)
from scalable_topics.metadata.memory import MemoryStore
from scalable_topics.metadata.store import KeyValue, MetadataStore, Put
from scalable_topics.model.errors import DecodeError, NotFound, WrongState
from scalable_topics.model.paths import StorePaths
from tests.metadata.faulty import FaultyStore, Loss
from tests.virtual_time import run_virtual


async def test_the_first_writes_it_and_the_others_must_agree(store: MetadataStore, root: str) -> None:
    paths = StorePaths(root)
    first, second = await asyncio.gather(*(ensure_marker(store, paths, cluster_name="c") for _ in range(2)))
    assert first == second
    assert (first.format_version, first.cluster_name, first.generation) == (1, "c", 1)
    with pytest.raises(WrongState, match=r"belongs to the cluster 'c', not to 'd' \(give this cluster a root"):
        await ensure_marker(store, paths, cluster_name="d")
    await store.commit([Put(paths.marker, b'{"formatVersion": 2, "clusterName": "c", "generation": 1}')])
    with pytest.raises(WrongState, match="its keys have format 2, and this version reads format 1"):
        await ensure_marker(store, paths, cluster_name="c")
    await store.commit([Put(paths.marker, b"junk")])
    with pytest.raises(DecodeError):
        await ensure_marker(store, paths, cluster_name="c")


async def test_an_operator_raises_the_generation(store: MetadataStore, root: str) -> None:
    paths = StorePaths(root)
    with pytest.raises(NotFound, match="is this the right root"):
        await bump_generation(store, paths)
    marker = await ensure_marker(store, paths, cluster_name="c")
    assert (await bump_generation(store, paths)).generation == 2
    assert (await bump_generation(store, paths, known=marker)).generation == 2, "somebody was faster"
    assert (await bump_generation(store, paths)).generation == 3
    await store.commit([Put(paths.marker, b"junk")])
    with pytest.raises(DecodeError):
        await bump_generation(store, paths)
    later = StoreMarker(cluster_name="c", generation=7)
    bumped = await bump_generation(store, paths, known=later)
    assert (bumped.cluster_name, bumped.generation) == ("c", 8)
    assert bumped.life != marker.life


@pytest.mark.parametrize("loss", Loss)
def test_a_lost_answer_raises_it_once(loss: Loss) -> None:
    async def run() -> None:
        store = FaultyStore(MemoryStore())
        paths = StorePaths("/r")
        store.lose_next(loss)
        await ensure_marker(store, paths, cluster_name="c")
        store.lose_next(loss)
        assert (await bump_generation(store, paths)).generation == 2
        await asyncio.sleep(60)
        assert generation_of((await store.get(paths.marker)).items[0]) == 2

    run_virtual(run())


def test_a_store_that_is_away_or_full_at_the_start_is_waited_for() -> None:
    async def run() -> None:
        store = FaultyStore(MemoryStore())
        paths = StorePaths("/r")
        store.cut = store.full = True
        waiting = asyncio.create_task(wait_for_marker(store, paths, cluster_name="c"))
        await asyncio.sleep(60)
        store.cut = False
        await asyncio.sleep(60)
        assert not waiting.done()
        store.full = False
        async with asyncio.timeout(5):
            assert (await waiting).generation == 1
        with pytest.raises(WrongState):
            await wait_for_marker(store, paths, cluster_name="d")

    run_virtual(run())


def test_what_is_no_marker_has_no_generation() -> None:
    assert generation_of(None) == 0
    assert generation_of(KeyValue("k", b'{"clusterName": "c", "generation": 0}', 1, 1)) == 0
