"""Memory and etcd side by side: hypothesis does the same to both and compares every answer and every watch event."""

import asyncio
from collections.abc import Coroutine
from contextlib import aclosing
from itertools import count
from typing import Any, TypeVar

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test
from msgspec.structs import replace

from scalable_topics.metadata.etcd import EtcdSettings, EtcdStore
from scalable_topics.metadata.local_etcd import EtcdCluster
from scalable_topics.metadata.memory import MemoryStore
from scalable_topics.metadata.store import (
    Answer,
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
    Snapshot,
    ValueIs,
    Write,
)
from scalable_topics.model.errors import LeaseLost, ScalableTopicsError
from tests.metadata.test_contract import compact

T = TypeVar("T")

NAMES = ["a", "b", "a/1", "a/2", "ab", "é"]
names = st.sampled_from(NAMES)
values = st.binary(max_size=3)
_runs = count()


class Side:
    """One store, seen so that two can be compared: revisions from zero, leases by number, keys without the root."""

    def __init__(self, store: MetadataStore, root: str) -> None:
        self.store = store
        self.root = root
        self.zero = 0
        self.leases: list[int] = []
        self.seen: list[Any] = []
        self.told = asyncio.Event()

    async def begin(self) -> None:
        self.zero = (await self.store.commit([Put(f"{self.root}zero", b"")])).revision
        self.watching = asyncio.create_task(self._watch())

    async def _watch(self) -> None:
        async with aclosing(self.store.watch(self.root, after_revision=self.zero)) as watch:
            async for batch in watch:
                self.seen += [self.plain(event) for event in batch.events]
                self.told.set()

    def plain(self, item: KeyValue | Deletion | None) -> Any:
        if item is None:
            return None
        short = replace(item, key=item.key.removeprefix(self.root), mod_revision=item.mod_revision - self.zero)
        if isinstance(short, Deletion):
            return short
        lease = self.leases.index(short.lease) + 1 if short.lease else 0
        return replace(short, create_revision=short.create_revision - self.zero, lease=lease)

    def answer(self, answer: Answer) -> Answer:
        return Answer(answer.succeeded, answer.revision - self.zero, tuple(map(self.plain, answer.found)))

    def snapshot(self, snapshot: Snapshot) -> Snapshot:
        return Snapshot(snapshot.revision - self.zero, tuple(map(self.plain, snapshot.items)))

    def write(self, write: Write) -> Write:
        match write:
            case Put(key=key, value=value, lease=lease):
                return Put(self.root + key, value, self.leases[lease - 1] if lease else 0)
            case Delete(key=key):
                return Delete(self.root + key)
            case DeletePrefix(prefix=prefix):
                return DeletePrefix(self.root + prefix)

    def compare(self, compare: Compare) -> Compare:
        key = self.root + compare.key
        match compare:
            case LeaseIs(lease=lease):
                return LeaseIs(key, self.leases[lease - 1] if lease else 0)
            case ValueIs():
                return replace(compare, key=key)
            case _:
                revision = compare.revision + self.zero if compare.revision else 0
                return replace(compare, key=key, revision=revision)


class SideBySide(RuleBasedStateMachine):
    endpoints: tuple[str, ...] = ()

    def __init__(self) -> None:
        super().__init__()
        self.runner = asyncio.Runner()
        self.revision = 0
        self.lease_count = 0
        self.ended: set[int] = set()

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        return self.runner.run(work)

    @initialize()
    def begin(self) -> None:
        async def start() -> list[Side]:
            root = f"/side-{next(_runs)}/"
            etcd = EtcdStore(EtcdSettings(endpoints=self.endpoints))
            sides = [Side(MemoryStore(), root), Side(etcd, root)]
            for side in sides:
                await side.begin()
            return sides

        self.sides = self.run(start())

    def both(self, ask: Any) -> Any:
        """Ask both sides the same; they must say the same, or refuse in the same way."""

        async def one(side: Side) -> Any:
            try:
                return await ask(side)
            except ScalableTopicsError as error:
                return type(error)

        memory, etcd = (self.run(one(side)) for side in self.sides)
        assert memory == etcd
        return memory

    def writes(self, data: st.DataObject) -> list[Write]:
        lease = st.integers(0, self.lease_count)
        write = st.one_of(
            st.builds(Put, names, values, lease),
            st.builds(Delete, names),
            st.builds(DeletePrefix, st.sampled_from("abé")),
        )
        return data.draw(st.lists(write, max_size=4))

    def compares(self, data: st.DataObject) -> list[Compare]:
        revision = st.integers(0, self.revision + 1)
        compare = st.one_of(
            st.builds(ValueIs, names, values),
            st.builds(ModRevisionIs, names, revision),
            st.builds(CreateRevisionIs, names, revision),
            st.builds(LeaseIs, names, st.integers(0, self.lease_count)),
        )
        return data.draw(st.lists(compare, max_size=2))

    @rule(data=st.data())
    def commit(self, data: st.DataObject) -> None:
        writes, compares = self.writes(data), self.compares(data) if data.draw(st.booleans()) else []

        async def ask(side: Side) -> Answer:
            answer = await side.store.commit(
                [side.write(write) for write in writes], compares=[side.compare(compare) for compare in compares]
            )
            return side.answer(answer)

        answer = self.both(ask)
        if isinstance(answer, Answer):
            self.revision = answer.revision

    @rule()
    def grant(self) -> None:
        async def ask(side: Side) -> None:
            side.leases.append(await side.store.grant_lease(600))

        self.both(ask)
        self.lease_count += 1

    @rule(data=st.data())
    def revoke(self, data: st.DataObject) -> None:
        if self.lease_count:
            number = data.draw(st.integers(1, self.lease_count))
            self.both(lambda side: side.store.revoke_lease(side.leases[number - 1]))
            self.ended.add(number)

    @rule(data=st.data())
    def keep_alive(self, data: st.DataObject) -> None:
        if self.lease_count:
            number = data.draw(st.integers(1, self.lease_count))
            left = self.both(lambda side: side.store.keep_alive(side.leases[number - 1]))
            assert (left == 0) is (number in self.ended)

    @rule(prefix=st.sampled_from(["", "a", "a/", "nothing"]))
    def scan(self, prefix: str) -> None:
        async def ask(side: Side) -> Snapshot:
            return side.snapshot(await side.store.scan(side.root + prefix))

        self.revision = self.both(ask).revision

    @rule(data=st.data())
    def scan_the_past(self, data: st.DataObject) -> None:
        revision = data.draw(st.integers(0, self.revision))

        async def ask(side: Side) -> Snapshot:
            return side.snapshot(await side.store.scan(side.root, revision=revision + side.zero))

        self.both(ask)

    @rule(prefix=st.sampled_from([None, "a", "a/"]), revision=st.sampled_from([None, -1, 0, 1_000_000_000]))
    def scan_what_is_not_there(self, prefix: str | None, revision: int | None) -> None:
        async def ask(side: Side) -> Snapshot:
            whole = "" if prefix is None else side.root + prefix
            return side.snapshot(await side.store.scan(whole, revision=revision))

        self.both(ask)

    @rule(number=st.sampled_from([120, 129, 300]))
    def get_many(self, number: int) -> None:
        async def ask(side: Side) -> Snapshot:
            others = (f"{side.root}{index}" for index in range(number))
            return side.snapshot(await side.store.get(*others, *(side.root + name for name in NAMES)))

        self.both(ask)

    @rule(chosen=st.lists(names, max_size=3))
    def get(self, chosen: list[str]) -> None:
        async def ask(side: Side) -> Snapshot:
            return side.snapshot(await side.store.get(*(side.root + name for name in chosen)))

        self.both(ask)

    @rule()
    def forget(self) -> None:
        async def ask(side: Side) -> None:
            await compact(side.store, self.revision + side.zero)

        if self.revision:
            self.both(ask)

    @invariant()
    def watches_agree(self) -> None:
        if hasattr(self, "sides"):
            self.run(self._await_watches())

    async def _await_watches(self) -> None:
        memory, etcd = self.sides
        await asyncio.sleep(0)
        async with asyncio.timeout(5):
            while len(etcd.seen) < len(memory.seen):
                await etcd.told.wait()
                etcd.told.clear()
        assert etcd.seen == memory.seen

    def teardown(self) -> None:
        async def end() -> None:
            for side in getattr(self, "sides", []):
                side.watching.cancel()
                await asyncio.wait([side.watching])
                await side.store.close()

        self.run(end())
        self.runner.close()


def test_memory_answers_exactly_as_etcd_does(etcd: EtcdCluster) -> None:
    SideBySide.endpoints = etcd.endpoints
    run_state_machine_as_test(SideBySide, settings=settings(max_examples=60, stateful_step_count=30))


def test_a_lost_lease_refuses_alike() -> None:
    """The rule above meets this only by chance, so it is here by name."""

    async def memory() -> None:
        store = MemoryStore()
        with pytest.raises(LeaseLost):
            await store.commit([Put("/x", b"", 9)])

    asyncio.run(memory())
