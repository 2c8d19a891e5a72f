"""What every store promises: one suite, run against memory and against a real etcd."""

import asyncio
from contextlib import aclosing
from typing import Any

import pytest

from scalable_topics.metadata import etcd as etcd_module
from scalable_topics.metadata.etcd import EtcdStore
from scalable_topics.metadata.memory import MemoryStore
from scalable_topics.metadata.store import (
    Compare,
    CreateRevisionIs,
    Delete,
    DeletePrefix,
    Deletion,
    KeyValue,
    LeaseIs,
    MetadataStore,
    ModRevisionIs,
    Put,
    ValueIs,
    WatchBatch,
    Write,
)
from scalable_topics.model.errors import Compacted, InvalidArgument, LeaseLost, TooLarge


async def put(store: MetadataStore, key: str, value: bytes = b"", lease: int = 0) -> int:
    answer = await store.commit([Put(key, value, lease)])
    assert answer.succeeded
    return answer.revision


async def one(store: MetadataStore, key: str) -> KeyValue | None:
    items = (await store.get(key)).items
    return items[0] if items else None


async def compact(store: MetadataStore, revision: int) -> None:
    """What auto-compaction does by itself; we never ask for it."""
    if isinstance(store, MemoryStore):
        store.compact(revision)
    else:
        assert isinstance(store, EtcdStore)
        await store._call("/kv/compaction", {"revision": revision, "physical": True}, etcd_module._nothing)


async def read(store: MetadataStore, prefix: str, after: int, until: int) -> list[WatchBatch]:
    """Batches of a watch, until it has told a revision."""
    batches = []
    async with asyncio.timeout(10), aclosing(store.watch(prefix, after_revision=after)) as watch:
        async for batch in watch:
            if not batch.events:
                continue  # a sign of life
            batches.append(batch)
            if batch.revision >= until:
                break
    return batches


async def test_what_was_put_is_there(store: MetadataStore, root: str) -> None:
    first = await put(store, f"{root}a", b"1")
    second = await put(store, f"{root}a", "ü\0\xff".encode("latin-1"))

    assert second == first + 1
    assert await store.get(f"{root}a", f"{root}absent", f"{root}a") == await store.scan(root)
    assert (await store.get(f"{root}a")).items == (KeyValue(f"{root}a", b"\xfc\0\xff", first, second),)
    assert (await store.get()).items == ()


async def test_scans_are_sorted_complete_and_of_one_revision(
    store: MetadataStore, root: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(etcd_module, "PAGE_KEYS", 3)
    keys = sorted([f"{root}k{number}" for number in range(10)] + [f"{root}é", f"{root}k1/x", f"{root}k1 x"])
    for key in reversed(keys):
        await put(store, key)
    before = await store.scan(root)
    await store.commit([DeletePrefix(f"{root}k"), Put(f"{root}new", b"")])

    assert [item.key for item in before.items] == keys
    assert [item.key for item in (await store.scan(root)).items] == [f"{root}new", f"{root}é"]
    assert await store.scan(root, revision=before.revision) == before
    with pytest.raises(InvalidArgument):
        await store.scan(root, revision=before.revision + 1_000)


async def test_reads_of_any_number_of_keys_are_of_one_revision(store: MetadataStore, root: str) -> None:
    """A frame reads a record, its controller and the owners of all its segments."""
    keys = [f"{root}{number:03}" for number in range(300)]
    for at in range(0, 300, 100):
        await store.commit([Put(key, b"1") for key in keys[at : at + 100]])
    reading = asyncio.create_task(store.get(*keys))
    for at in range(0, 300, 100):
        await store.commit([Put(key, b"2") for key in keys[at : at + 100]])

    found = await reading

    assert [item.key for item in found.items] == keys
    assert found == await store.scan(root, revision=found.revision)


@pytest.mark.parametrize("revision", [0, -1])
async def test_there_is_no_revision_before_the_first(store: MetadataStore, root: str, revision: int) -> None:
    with pytest.raises(InvalidArgument, match="there is no revision"):
        await store.scan(root, revision=revision)
    with pytest.raises(InvalidArgument, match="there is no revision"):
        await anext(store.watch(root, after_revision=revision - 1))


async def test_an_empty_prefix_is_not_everything(store: MetadataStore) -> None:
    with pytest.raises(InvalidArgument, match="name the prefix that is meant"):
        await store.scan("")
    with pytest.raises(InvalidArgument, match="name the prefix that is meant"):
        await anext(store.watch("", after_revision=1))


async def test_a_key_that_is_not_text_is_passed_over(store: MetadataStore, root: str) -> None:
    """Only an etcd can have one: it is put there by somebody else, and must not stop anybody."""
    before = await put(store, f"{root}a")
    if isinstance(store, EtcdStore):
        await store._call("/kv/put", {"key": root.encode() + b"\xff\xfe", "value": b"?"}, etcd_module._nothing)
    last = await put(store, f"{root}b")

    assert [item.key for item in (await store.scan(root)).items] == [f"{root}a", f"{root}b"]
    told = await read(store, root, before, last)
    assert [event.key for batch in told for event in batch.events] == [f"{root}b"]


async def test_every_answer_names_the_cluster(store: MetadataStore, root: str) -> None:
    cluster = (await store.get()).cluster
    watch = store.watch(root, after_revision=1)

    assert cluster > 0
    assert {(await store.scan(root)).cluster, (await store.get(f"{root}x")).cluster} == {cluster}
    assert (await anext(watch)).cluster == cluster
    await watch.aclose()


async def test_a_prefix_is_no_pattern(store: MetadataStore, root: str) -> None:
    for name in ("a/1", "a0", "a/2", "b"):
        await put(store, f"{root}{name}")

    await store.commit([DeletePrefix(f"{root}a/")])

    assert [item.key for item in (await store.scan(root)).items] == [f"{root}a0", f"{root}b"]


@pytest.mark.parametrize("kind", ["value", "mod", "create", "lease", "absent"])
async def test_compares(store: MetadataStore, root: str, kind: str) -> None:
    key, other = f"{root}key", f"{root}other"
    created = await put(store, key, b"1")
    modified = await put(store, key, b"2")
    holds: dict[str, Compare] = {
        "value": ValueIs(key, b"2"),
        "mod": ModRevisionIs(key, modified),
        "create": CreateRevisionIs(key, created),
        "lease": LeaseIs(key, 0),
        "absent": CreateRevisionIs(f"{root}nothing", 0),
    }
    fails: dict[str, Compare] = {
        "value": ValueIs(key, b"1"),
        "mod": ModRevisionIs(key, created),
        "create": CreateRevisionIs(key, modified),
        "lease": LeaseIs(key, 5),
        "absent": ModRevisionIs(key, 0),
    }

    refused = await store.commit([Put(other, b"no")], compares=[holds[kind], fails[kind]])
    assert not refused.succeeded
    assert refused.revision == modified
    held_key = holds[kind].key
    assert refused.found == (await one(store, held_key), KeyValue(key, b"2", created, modified))
    assert await one(store, other) is None
    accepted = await store.commit([Put(other, b"yes"), Delete(key)], compares=[holds[kind]])
    assert accepted.succeeded
    assert accepted.revision == modified + 1
    assert await one(store, key) is None


async def test_an_absent_key_has_no_value(store: MetadataStore, root: str) -> None:
    assert not (await store.commit([], compares=[ValueIs(f"{root}x", b"")])).succeeded
    assert (await store.commit([], compares=[ModRevisionIs(f"{root}x", 0), LeaseIs(f"{root}x", 0)])).succeeded


async def test_a_key_made_anew_is_another_life(store: MetadataStore, root: str) -> None:
    first = await put(store, f"{root}x")
    await store.commit([Delete(f"{root}x")])
    second = await put(store, f"{root}x")

    assert second == first + 2
    assert not (await store.commit([], compares=[CreateRevisionIs(f"{root}x", first)])).succeeded
    assert (await store.commit([], compares=[CreateRevisionIs(f"{root}x", second)])).succeeded


async def test_what_changes_nothing_has_no_revision(store: MetadataStore, root: str) -> None:
    before = await put(store, f"{root}x")

    for nothing in ([], [Delete(f"{root}absent")], [DeletePrefix(f"{root}absent/")]):
        assert (await store.commit(nothing)).revision == before


@pytest.mark.parametrize(
    ("writes", "error"),
    [
        ([Put("/x", b""), Put("/x", b"")], InvalidArgument),
        ([Put("/x", b""), Delete("/x")], InvalidArgument),
        ([Put("/x/1", b""), DeletePrefix("/x/")], InvalidArgument),
        ([Put("", b"")], InvalidArgument),
        ([DeletePrefix("")], InvalidArgument),
        ([Put(f"/x{number}", b"") for number in range(129)], TooLarge),
        ([Put("/x", bytes(1_572_864))], TooLarge),
    ],
)
async def test_impossible_transactions(store: MetadataStore, writes: list[Write], error: type[Exception]) -> None:
    with pytest.raises(error):
        await store.commit(writes)
    assert await one(store, "/x") is None


async def test_the_largest_transactions(store: MetadataStore, root: str) -> None:
    many = await store.commit([Put(f"{root}{number}", b"") for number in range(128)])
    big = await store.commit([Put(f"{root}big", bytes(1_500_000))])

    assert big.revision == many.revision + 1
    assert len((await store.scan(root)).items) == 129


async def test_leases_take_their_keys_along_at_one_revision(store: MetadataStore, root: str) -> None:
    lease = await store.grant_lease(60)
    for name in ("a", "b", "c"):
        await put(store, f"{root}{name}", lease=lease)
    before = await put(store, f"{root}c")

    assert await store.keep_alive(lease) == 60
    await store.revoke_lease(lease)
    await store.revoke_lease(lease)

    assert await store.keep_alive(lease) == 0
    left = await store.scan(root)
    assert [item.key for item in left.items] == [f"{root}c"], "a key written without the lease has left it"
    assert left.revision == before + 1
    with pytest.raises(LeaseLost):
        await put(store, f"{root}d", lease=lease)
    with pytest.raises(InvalidArgument):
        await store.grant_lease(0)


async def test_a_lease_ends_by_itself_unless_kept_alive(store: MetadataStore, root: str) -> None:
    kept, lost = await store.grant_lease(8), await store.grant_lease(1)
    revision = await put(store, f"{root}kept", lease=kept)
    await put(store, f"{root}lost", lease=lost)
    gone = asyncio.create_task(read(store, root, revision, revision + 2))
    while not gone.done():
        await store.keep_alive(kept)
        await asyncio.sleep(0.2)

    assert [event for batch in await gone for event in batch.events][-1] == Deletion(f"{root}lost", revision + 2)
    assert await one(store, f"{root}kept") is not None
    await store.revoke_lease(kept)


async def test_a_watch_tells_everything_once_and_in_order(store: MetadataStore, root: str) -> None:
    start = await put(store, f"{root}x/0")
    expected: list[Any] = []
    for number in range(1, 6):
        revision = (await store.commit([Put(f"{root}x/{number}", b"v"), Put(f"{root}y{number}", b"other")])).revision
        expected.append(KeyValue(f"{root}x/{number}", b"v", revision, revision))
    live = asyncio.create_task(read(store, f"{root}x/", start, start + 6))
    await asyncio.sleep(0.05)
    gone = await store.commit([DeletePrefix(f"{root}x/")])
    expected += [Deletion(f"{root}x/{number}", gone.revision) for number in range(6)]

    batches = await live

    assert [event for batch in batches for event in batch.events] == expected
    assert [batch.revision for batch in batches] == [batch.events[-1].mod_revision for batch in batches]
    for batch in batches:
        revisions = [event.mod_revision for event in batch.events]
        assert revisions == sorted(revisions)
    assert (await read(store, f"{root}x/", gone.revision - 1, gone.revision))[0].events == tuple(expected[-6:])


async def test_forgotten_history(store: MetadataStore, root: str) -> None:
    first = await put(store, f"{root}x", b"1")
    await put(store, f"{root}x", b"2")
    last = await put(store, f"{root}x", b"3")
    await compact(store, last)

    with pytest.raises(Compacted):
        await read(store, root, first, last)
    with pytest.raises(Compacted):
        await store.scan(root, revision=first)
    assert (await one(store, f"{root}x")) == KeyValue(f"{root}x", b"3", first, last)
    assert [batch.revision for batch in await read(store, root, last - 1, last)] == [last]


async def test_a_watch_that_nobody_reads_any_more_is_gone(store: MetadataStore, root: str) -> None:
    revision = await put(store, f"{root}x")
    watch = store.watch(root, after_revision=revision - 1)
    assert (await anext(watch)).events == ()
    assert (await anext(watch)).revision == revision
    waiting = asyncio.ensure_future(anext(watch))
    await asyncio.sleep(0.01)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    if isinstance(store, MemoryStore):
        assert not store._watchers


async def test_health(store: MetadataStore, root: str) -> None:
    await put(store, f"{root}x", b"12345")
    health = await store.health()

    assert health.used_bytes > 0
    assert not health.no_space
    assert health.version
    assert health.auto_compaction is not False, "True once something was forgotten, unknown before"


def test_memory_forgets_by_itself() -> None:
    """A daemon that runs by itself for weeks does not grow with every write."""

    async def run() -> None:
        store = MemoryStore(keep_revisions=10)
        revisions = [await put(store, "/x", str(number).encode()) for number in range(1_000)]
        last = revisions[-1]
        assert len(store._history) < 20
        assert len(store._versions["/x"]) <= 20
        assert (await one(store, "/x")) == KeyValue("/x", b"999", 2, last)
        with pytest.raises(Compacted):
            await store.scan("/", revision=last - 30)

    asyncio.run(run())
