"""Operations: what a split costs on top of its bare calls, and what it costs those who write meanwhile.

One daemon's control plane in this process, on a real etcd and on embedded segments in a temporary directory.
"""

import asyncio
import multiprocessing
import os
import secrets
import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import AsyncExitStack, aclosing, asynccontextmanager, contextmanager
from functools import partial
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from time import perf_counter_ns
from typing import Final, Self

from msgspec import Struct

from scalable_topics.control.controller import Request, TopicController
from scalable_topics.control.led_topic import Surroundings
from scalable_topics.control.owners import SegmentOwners
from scalable_topics.control.service import ControlService
from scalable_topics.metadata.elections import Elections
from scalable_topics.metadata.etcd import EtcdSettings, EtcdStore
from scalable_topics.metadata.local_etcd import etcd_cluster
from scalable_topics.metadata.repository import Repository
from scalable_topics.metadata.session import DEFAULT_TTL_SECONDS, BrokerInfo, SessionKeeper
from scalable_topics.metadata.store import (
    Answer,
    Compare,
    CreateRevisionIs,
    Delete,
    KeyValue,
    LeaseIs,
    ModRevisionIs,
    Put,
    Snapshot,
    WatchBatch,
    Write,
)
from scalable_topics.metadata.view import StoreView
from scalable_topics.model.layout import initial_layout
from scalable_topics.model.names import Domain, TopicName
from scalable_topics.model.operation import Outcome
from scalable_topics.model.paths import StorePaths
from scalable_topics.model.positions import Position
from scalable_topics.model.record import TopicRecord, TopicState, decode_record
from scalable_topics.model.segment import SegmentAddress, SegmentInfo, segment_address
from scalable_topics.model.subscription import InitialPosition, SubscriptionType
from scalable_topics.segments.backend import Backend
from scalable_topics.segments.embedded import open_segments
from scalable_topics.segments.errors import Terminated
from scalable_topics.segments.port import Call, Message, ServedSegment, Stamp
from scalable_topics.segments.store import Segments
from tests.bench.measure import timing_of, without_gc
from tests.bench.rows import Floor, Group, Reading, Row
from tests.simulation.__main__ import attempt
from tests.simulation.clients import route

PATHS: Final = StorePaths()
ME: Final = Request(by="bench")
SUBSCRIPTION: Final = "orders"
SPLIT_TARGET: Final = 1.3
STALL_TARGET: Final = 5.0
MIN_SPLITS: Final = 40
WARM_UP: Final = 3
STALLS: Final = 20
DELAY_SECONDS: Final = 0.05
APPENDS: Final = 30
"""Accepted by the parent before its split begins; and as many bare ones afterwards."""
LATE_SPLITS: Final = 3
TOPICS_AT_ONCE: Final = 100
SPLITS_EACH: Final = 5
SEEDS: Final = range(1, 21)
SEED_MS: Final = 100.0
MESSAGE: Final = Message(payload=bytes(100))
BARE: Final = "/bare"
"""Where the floor writes: outside of what the daemon watches."""


class Committed(Struct, frozen=True):
    writes: tuple[Write, ...]
    compares: tuple[Compare, ...]


class Scanned(Struct, frozen=True):
    prefix: str
    items: tuple[KeyValue, ...]


class Link(EtcdStore):
    """The way to etcd: longer on demand, there and back and for what is watched; and remembers what went over it."""

    def __init__(self, settings: EtcdSettings) -> None:
        super().__init__(settings)
        self.delay_seconds = 0.0
        self.heard: list[Committed | Scanned] = []

    async def get(self, *keys: str) -> Snapshot:
        async with self._far():
            return await super().get(*keys)

    async def scan(self, prefix: str, *, revision: int | None = None) -> Snapshot:
        async with self._far():
            found = await super().scan(prefix, revision=revision)
        self.heard.append(Scanned(prefix, found.items))
        return found

    async def commit(self, writes: Sequence[Write], *, compares: Sequence[Compare] = ()) -> Answer:
        self.heard.append(Committed(tuple(writes), tuple(compares)))
        async with self._far():
            return await super().commit(writes, compares=compares)

    async def keep_alive(self, lease: int) -> float:
        async with self._far():
            return await super().keep_alive(lease)

    async def watch(self, prefix: str, *, after_revision: int) -> AsyncGenerator[WatchBatch, None]:
        async with aclosing(super().watch(prefix, after_revision=after_revision)) as stream:
            async for batch in stream:
                await self._half_way()
                yield batch

    @asynccontextmanager
    async def _far(self) -> AsyncIterator[None]:
        await self._half_way()
        yield
        await self._half_way()

    async def _half_way(self) -> None:
        if self.delay_seconds:
            await asyncio.sleep(self.delay_seconds / 2)


class Disk(Segments):
    """Remembers when a segment was terminated."""

    def __init__(self, backend: Backend) -> None:
        super().__init__(backend)
        self.terminated_at = 0

    async def terminate(self, address: SegmentAddress, call: Call) -> Position:
        position = await super().terminate(address, call)
        self.terminated_at = perf_counter_ns()
        return position


class Daemon:
    """The control plane of one daemon, and it serves its segments itself."""

    def __init__(self, link: Link, segments: Disk) -> None:
        self.link = link
        self.segments = segments
        self.refusals = 0
        """How often too little of the lease was left to seal."""
        self._topics = 0
        info = BrokerInfo(broker_id="a", broker_url="pulsar://a", web_url="http://a", process="bench")
        self.keeper = SessionKeeper(link, PATHS, info)
        self.view = StoreView(link, PATHS)
        self.elections = Elections(link, PATHS, self.keeper, self.view, is_idle=self._is_idle)
        repository = Repository(link, PATHS)
        around = Surroundings(
            repository=repository,
            segments=segments,
            now_ms=lambda: time.time_ns() // 1_000_000,
            new_id=lambda: secrets.token_hex(8),
            may_seal=self._may_seal,
        )
        self.service = ControlService(self.elections, around)
        self.owners = SegmentOwners(repository, segments, self.keeper, self.view, answers=_nobody)

    @asynccontextmanager
    async def running(self) -> AsyncIterator[Self]:
        async with (
            self.keeper.running(),
            self.view.running(),
            self.elections.running(),
            self.service.running(),
        ):
            yield self

    def _is_idle(self, topic: TopicName) -> bool:
        return self.service.is_idle(topic)

    def _may_seal(self) -> bool:
        session = self.keeper.session
        may = session is not None and session.may_seal()
        self.refusals += not may
        return may

    async def topics(self, count: int, *, segments: int) -> list[TopicController]:
        """New ones, each with one subscription."""
        names = [TopicName(Domain.TOPIC, "t", "n", f"orders-{self._topics + number:04}") for number in range(count)]
        self._topics += count
        return list(await asyncio.gather(*(self._topic(name, segments) for name in names)))

    async def _topic(self, topic: TopicName, segments: int) -> TopicController:
        await self.service.create(topic, segments=segments, request=ME)
        await self.service.wait_active(topic)
        while topic not in self.service.controllers or not self.service.controllers[topic].ready:
            await asyncio.sleep(0.01)
        controller = self.service.controller(topic)
        await controller.subscriptions.create(SUBSCRIPTION, SubscriptionType.STREAM, InitialPosition.EARLIEST)
        return controller

    async def split(self, controller: TopicController) -> float | None:
        """Of segment 0, in ns from the call to its end; None = it had to wait for a renewal of the lease."""
        self.link.heard.clear()
        refusals, began = self.refusals, perf_counter_ns()
        done = await controller.split({0: 2}, ME)
        taken = perf_counter_ns() - began
        if done.outcome is not Outcome.DONE:
            raise RuntimeError(f"{done} would measure something else")
        return taken if self.refusals == refusals else None


async def _nobody(_: BrokerInfo) -> bool:
    return False


class Replay:
    """What a split has just done, once more, on other keys and other segments, with nothing in between."""

    def __init__(self, daemon: Daemon, topic: TopicName, record: TopicRecord, lease: int) -> None:
        self._store = daemon.link
        self._segments = daemon.segments
        self._lease = lease
        self._prefix = f"{BARE}/{secrets.token_hex(8)}"
        self._names = (SUBSCRIPTION,)
        self._incarnation = secrets.token_hex(8)
        shape = [type(each) for each in daemon.link.heard]
        if shape != [Committed, Scanned, Committed, Scanned, Committed]:
            raise RuntimeError(f"a split called the store like this: {daemon.link.heard}")
        self._heard = tuple(daemon.link.heard)
        parent = record.layout.segment(0)
        children = [segment for segment in record.layout.segments.values() if 0 in segment.parent_ids]
        self._parent = self._address(topic, parent)
        self._children = [(self._address(topic, child), self._stamp(child)) for child in children]

    def _address(self, topic: TopicName, segment: SegmentInfo) -> SegmentAddress:
        return segment_address(topic, segment, incarnation=self._incarnation)

    def _stamp(self, segment: SegmentInfo) -> Stamp:
        return Stamp(self._incarnation, segment.segment_id, "split")

    async def prepare(self) -> None:
        """What was there before: the record, the leader's key, what was listed, the parent."""
        first = self._heard[0]
        assert isinstance(first, Committed)
        value = next(write.value for write in first.writes if isinstance(write, Put))
        found = {self._moved(one.key): one.value for each in self._listed() for one in each.items}
        held = {self._moved(one.key) for one in first.compares if isinstance(one, LeaseIs)}
        compared = {self._moved(one.key) for one in first.compares}
        await self._store.commit(
            [
                *(Put(key, value, self._lease if key in held else 0) for key in sorted(compared)),
                *(Put(key, value) for key, value in found.items()),
            ]
        )
        snapshot = await self._store.get(*compared)
        self._created = {item.key: item.create_revision for item in snapshot.items}
        self._revision = snapshot.revision
        stamp = Stamp(self._incarnation, 0, "create")
        await self._segments.create(self._parent, stamp, self._names, self._call())

    def _listed(self) -> Iterator[Scanned]:
        return (each for each in self._heard if isinstance(each, Scanned))

    async def run(self) -> float:
        """In ns, one call after the other."""
        commit_1, subscriptions, commit_2, journal, commit_3 = (self._replayed(each) for each in self._heard)
        began = perf_counter_ns()
        await commit_1()
        await subscriptions()
        for address, stamp in self._children:
            await self._segments.create(address, stamp, self._names, self._call())
        await commit_2()
        await self._segments.terminate(self._parent, self._call())
        await journal()
        await commit_3()
        return perf_counter_ns() - began

    def _call(self) -> Call:
        deadline = asyncio.get_running_loop().time() + 9
        return Call(incarnation=self._incarnation, operation_id="split", term=1, deadline=deadline)

    def _replayed(self, one: Committed | Scanned) -> Callable[[], Awaitable[None]]:
        if isinstance(one, Scanned):
            return partial(self._scan, self._moved(one.prefix))
        return partial(self._commit, [self._written(write) for write in one.writes], one.compares)

    async def _scan(self, prefix: str) -> None:
        await self._store.scan(prefix)

    async def _commit(self, writes: Sequence[Write], compares: Sequence[Compare]) -> None:
        answer = await self._store.commit(writes, compares=[self._compared(one) for one in compares])
        if not answer.succeeded:
            raise RuntimeError(f"refused, it found {answer.found}")
        self._revision = answer.revision

    def _moved(self, key: str) -> str:
        return f"{self._prefix}{key}"

    def _written(self, write: Write) -> Write:
        match write:
            case Put(key=key, value=value):
                return Put(self._moved(key), value)
            case Delete(key=key):
                return Delete(self._moved(key))
            case _:
                raise RuntimeError(f"a split is not expected to write {write}")

    def _compared(self, one: Compare) -> Compare:
        key = self._moved(one.key)
        match one:
            case ModRevisionIs():
                return ModRevisionIs(key, self._revision)
            case CreateRevisionIs():
                return CreateRevisionIs(key, self._created[key])
            case LeaseIs():
                return LeaseIs(key, self._lease)
            case _:
                raise RuntimeError(f"a split is not expected to compare {one}")


class Direct:
    """To a segment that is opened when it is written to first, without asking whose it is."""

    name: Final = "served at once"

    def __init__(self, daemon: Daemon, controller: TopicController) -> None:
        self._segments = daemon.segments
        self._topic = controller.topic
        self._served: dict[int, ServedSegment] = {}

    async def append(self, segment: SegmentInfo) -> None:
        served = self._served.get(segment.segment_id)
        if served is None:
            served = await self._segments.serve(self._topic.address(segment), owner_term=1)
            self._served[segment.segment_id] = served
        await served.append([MESSAGE])


class Owned:
    """As a daemon does: to a segment whose ownership is claimed in the store first."""

    name: Final = "ownership claimed"

    def __init__(self, daemon: Daemon, controller: TopicController) -> None:
        self._owners = daemon.owners
        self._topic = controller.topic.topic

    async def append(self, segment: SegmentInfo) -> None:
        await self._owners.use(self._topic, segment.segment_id, self._append)

    @staticmethod
    async def _append(served: ServedSegment, _: SegmentInfo) -> None:
        await served.append([MESSAGE])


class Writer:
    """Writes one message after the other, for the first hash of the ring, wherever the view says it goes."""

    def __init__(self, daemon: Daemon, controller: TopicController, way: Direct | Owned) -> None:
        self._view = daemon.view
        self._key = PATHS.record(controller.topic.topic)
        self._way = way
        self._sealed = frozenset[int]()
        self.accepted = 0

    async def run(self) -> int:
        """Until a child has accepted a message, and when that was."""
        segment = self._route()
        while True:
            try:
                await self._way.append(segment)
            except Terminated:
                self._sealed |= {segment.segment_id}
                segment = await self._next(segment)
            else:
                if segment.segment_id:
                    return perf_counter_ns()
                self.accepted += 1

    async def _next(self, former: SegmentInfo) -> SegmentInfo:
        segment = self._route()
        while segment.segment_id == former.segment_id:
            await self._view.wait_for_revision(self._view.state.revision + 1)
            segment = self._route()
        return segment

    def _route(self) -> SegmentInfo:
        record = decode_record(self._view.state.items[self._key].value, subject=self._key)
        return route(record, 0, sealed=self._sealed)


class Bench:
    def __init__(self, daemon: Daemon, seconds: float = 0.0) -> None:
        self._daemon = daemon
        self._seconds = seconds

    async def rows(self) -> list[Row]:
        stalls = [await self._stalls(way, seconds) for way in (Direct, Owned) for seconds in (0.0, DELAY_SECONDS)]
        return [await self._splits(), *stalls]

    async def _splits(self) -> Row:
        """Ours and the bare calls in turns."""
        lease = await self._daemon.link.grant_lease(600)
        ours, bare = list[float](), list[float]()
        until = perf_counter_ns() + self._seconds * 1e9
        while len(bare) < WARM_UP + MIN_SPLITS or perf_counter_ns() < until:
            for controller in await self._daemon.topics(10, segments=2):
                taken = await self._daemon.split(controller)
                replay = Replay(self._daemon, controller.topic.topic, controller.record, lease)
                await replay.prepare()
                floor = await replay.run()
                if taken is not None:
                    ours.append(taken)
                    bare.append(floor)
        await self._daemon.link.revoke_lease(lease)
        floors = (Floor("the same calls, bare, in turn", timing_of(bare[WARM_UP:])),)
        return Row(
            name="split, from the call to DONE",
            timing=timing_of(ours[WARM_UP:]),
            floors=floors,
            target_ratio=SPLIT_TARGET,
        )

    async def _stalls(self, kind: type[Direct | Owned], delay_seconds: float) -> Row:
        stalls, bare = list[float](), list[float]()
        async with AsyncExitStack() as stack:
            if kind is Owned:
                await stack.enter_async_context(self._daemon.owners.running())
            for controller in await self._daemon.topics(WARM_UP + STALLS, segments=1):
                stalls.append(await self._stall(controller, kind(self._daemon, controller), delay_seconds))
                bare.append(await self._bare_append())
        etcd = f"etcd {delay_seconds * 1_000:.0f} ms away" if delay_seconds else "etcd at hand"
        return Row(
            name=f"stall of a writer in a split, {kind.name}, {etcd}",
            timing=timing_of(stalls[WARM_UP:]),
            floors=(Floor("bare append", timing_of(bare[WARM_UP:])),),
            target_ratio=STALL_TARGET,
        )

    async def _stall(self, controller: TopicController, way: Direct | Owned, delay_seconds: float) -> float:
        writer = Writer(self._daemon, controller, way)
        async with asyncio.TaskGroup() as tasks:
            writing = tasks.create_task(writer.run())
            while writer.accepted < APPENDS:
                await asyncio.sleep(0.001)
            self._daemon.link.delay_seconds = delay_seconds
            try:
                await self._daemon.split(controller)
            finally:
                self._daemon.link.delay_seconds = 0.0
            accepted_at = await writing
        return accepted_at - self._daemon.segments.terminated_at

    async def _bare_append(self) -> float:
        """The median of some, to a segment of its own: the best of many would be luckier than the best of few."""
        incarnation = secrets.token_hex(8)
        (segment,) = initial_layout(1).active
        address = segment_address(TopicName(Domain.TOPIC, "t", "n", "bare"), segment, incarnation=incarnation)
        deadline = asyncio.get_running_loop().time() + 9
        call = Call(incarnation=incarnation, operation_id="create", term=1, deadline=deadline)
        await self._daemon.segments.create(address, Stamp(incarnation, 0, "create"), (SUBSCRIPTION,), call)
        served = await self._daemon.segments.serve(address, owner_term=1)
        taken = []
        for _ in range(APPENDS):
            began = perf_counter_ns()
            await served.append([MESSAGE])
            taken.append(float(perf_counter_ns() - began))
        await served.close()
        return median(taken)

    async def readings(self) -> list[Reading]:
        late = await self._late_splits()
        return [
            Reading(name="split that had to wait for a renewal of the lease", unit="ms", values=late),
            *await self._many_splits(),
        ]

    async def _late_splits(self) -> tuple[float, ...]:
        """Asked for at the worst moment: when just too little of the lease is left."""
        late = list[float]()
        while len(late) < LATE_SPLITS:
            (controller,) = await self._daemon.topics(1, segments=2)
            session = await self._daemon.keeper.wait_session()
            while session.may_seal():
                await asyncio.sleep(0.005)
            began = perf_counter_ns()
            if await self._daemon.split(controller) is None:
                late.append((perf_counter_ns() - began) / 1e6)
        return tuple(late)

    async def _many_splits(self) -> list[Reading]:
        controllers = await self._daemon.topics(TOPICS_AT_ONCE, segments=SPLITS_EACH)
        began = perf_counter_ns()
        asked = [one.split({number: 2}, ME) for one in controllers for number in range(SPLITS_EACH)]
        answers = await asyncio.gather(*asked, return_exceptions=True)
        seconds = (perf_counter_ns() - began) / 1e9
        errors = sum(isinstance(answer, BaseException) or answer.outcome is not Outcome.DONE for answer in answers)
        errors += sum(not _is_split(one.record) for one in controllers)
        what = f"{len(asked)} splits of {TOPICS_AT_ONCE} topics, all asked for at once"
        return [
            Reading(name=what, unit="failed", values=(errors,), limit=0),
            Reading(name="- in all", unit="s", values=(seconds,)),
            Reading(name="- rate", unit="per s", values=(len(asked) / seconds,)),
        ]


def _is_split(record: TopicRecord) -> bool:
    return (
        record.state is TopicState.ACTIVE and record.operation is None and len(record.layout.active) == 2 * SPLITS_EACH
    )


@asynccontextmanager
async def _daemon() -> AsyncIterator[Daemon]:
    async with AsyncExitStack() as stack:
        cluster = await stack.enter_async_context(etcd_cluster())
        directory = stack.enter_context(TemporaryDirectory(prefix="segments-"))
        link = Link(EtcdSettings(endpoints=cluster.endpoints))
        stack.push_async_callback(link.close)
        segments = Disk((await open_segments(Path(directory)))._backend)
        stack.push_async_callback(segments.close)
        yield await stack.enter_async_context(Daemon(link, segments).running())


def rows(seconds: float) -> Sequence[Row]:
    async def measured() -> list[Row]:
        async with _daemon() as daemon:
            with without_gc():
                return await Bench(daemon, seconds).rows()

    return asyncio.run(measured())


def readings() -> Sequence[Reading]:
    async def looked() -> list[Reading]:
        async with _daemon() as daemon:
            return await Bench(daemon).readings()

    return [*asyncio.run(looked()), *_simulation()]


def _simulation() -> list[Reading]:
    """In a process of its own, whose sets are walked in the same order every time."""
    outcomes = []
    with _no_hash_seed(), ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        for seed, outcome, story in pool.map(attempt, SEEDS):
            if outcome is None:
                raise RuntimeError(f"seed {seed} failed: {story}")
            outcomes.append(outcome)
    seconds = [outcome.seconds for outcome in outcomes]
    rate = sum(outcome.steps for outcome in outcomes) / sum(seconds)
    simulated = sum(outcome.simulated_seconds for outcome in outcomes) / sum(seconds)
    what = f"simulation, {len(SEEDS)} seeds"
    return [
        Reading(name=f"{what}, the median one", unit="ms", values=(1_000 * median(seconds),), limit=SEED_MS),
        Reading(name="- steps, each of them checked", unit="per s", values=(rate,)),
        Reading(name="- simulated seconds", unit="per s", values=(simulated,)),
    ]


@contextmanager
def _no_hash_seed() -> Iterator[None]:
    former = os.environ.get("PYTHONHASHSEED")
    os.environ["PYTHONHASHSEED"] = "0"
    try:
        yield
    finally:
        del os.environ["PYTHONHASHSEED"]
        if former is not None:
            os.environ["PYTHONHASHSEED"] = former


GROUP: Final = Group(
    name="operations",
    about=f"""\
The control plane of one daemon in this process, lease TTL {DEFAULT_TTL_SECONDS} s, on a real etcd of one member and on
embedded segments; both have their files on the same disk.

*Split*: of a new topic of two segments with one subscription. The floor takes turns with it, and is what that very
split has done, once more on other keys and other segments, one call after the other: three commits with the same
values and compares, the two listings, two creates, one terminate. A split that had to wait before its second commit,
because less than two thirds of its lease were left, is not among them, nor is its floor. Such splits have a line of
their own, of ones that were asked for at the worst moment. With renewals in time it is up to a third of a second, and
happens to one split in {DEFAULT_TTL_SECONDS}.

*Stall*: a writer in the same process writes one message of {len(MESSAGE.payload)} bytes after the other; from the
moment that its segment is terminated to the moment that a child has accepted its message. It learns where to go on
from the view. The floor of each turn is the median of {APPENDS} appends after it. *Served at once* opens the child by
itself, which is the least a stall can be unless the child is open already. *Ownership claimed* asks `SegmentOwners`,
as daemons do. *etcd {DELAY_SECONDS * 1_000:.0f} ms away*: every call to the store takes so much longer during the
split, and whatever is watched comes half of that later.

*Simulation*: what `make sim` runs, one process. A step is a write to the store, after which the invariants are checked.
""",
    rows=rows,
    readings=readings,
)
