"""One seed: a cluster under faults while people, writers and readers work on a topic; then calm, and the verdict."""

import asyncio
import time
from collections import Counter
from collections.abc import Awaitable, Callable

from msgspec import Struct
from msgspec.structs import replace

from scalable_topics.control.controller import Request, TopicController
from scalable_topics.model.errors import ScalableTopicsError
from scalable_topics.model.names import TopicName
from scalable_topics.model.operation import FinishedOperation
from scalable_topics.model.record import TopicState
from scalable_topics.model.segment import segment_address
from scalable_topics.model.subscription import InitialPosition, SubscriptionType
from scalable_topics.segments.port import Stamp
from tests.simulation.clients import History, Reader, Writer
from tests.simulation.cluster import Daemon, World
from tests.simulation.invariants import FOREIGN, Checker, Violation
from tests.virtual_time import jump, run_virtual

TOPIC = TopicName.parse("topic://t/n/orders")
NAMES = ("a", "b", "c")
WATCHED = "always"
"""A subscription that is read and checked; the others only come and go."""
CALM_SECONDS = 150.0


class Outcome(Struct):
    seed: int
    steps: int
    requests: Counter[str]
    seconds: float
    simulated_seconds: float
    story: list[str]


class Scenario:
    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.world = World(seed)
        self.rng = self.world.rng
        self.checker = Checker(self.world)
        self.history = History()
        self.requests: Counter[str] = Counter()
        self.accepted: dict[str, FinishedOperation] = {}
        self.writers = [Writer(self.world, TOPIC, f"w{number}", self.history) for number in range(2)]
        self.reader = Reader(self.world, TOPIC, WATCHED, self.history)

    async def run(self) -> None:
        for name in NAMES:
            Daemon(self.world, name).start()
        await self._create()
        async with asyncio.TaskGroup() as tasks:
            clients = [tasks.create_task(writer.run()) for writer in self.writers]
            clients.append(tasks.create_task(self.reader.run()))
            people = [tasks.create_task(self._ask_for_things()), tasks.create_task(self._break_things())]
            await asyncio.sleep(45)
            for task in people:
                task.cancel()
            await asyncio.wait(people)
            await self._calm()
            for task in clients:
                task.cancel()
        await self._verdict()
        for daemon in self.world.daemons.values():
            await daemon.stop()

    async def _create(self) -> None:
        daemon = self.rng.choice(list(self.world.daemons.values()))
        await daemon.service.create(TOPIC, segments=self.rng.choice([1, 2, 3]), request=Request(by="me"))
        async with asyncio.timeout(60):
            _, controller = await self._leader()
            while controller.record.state is not TopicState.ACTIVE:
                await asyncio.sleep(0.1)
        await controller.subscriptions.create(WATCHED, SubscriptionType.STREAM, InitialPosition.EARLIEST)

    async def _leader(self) -> tuple[Daemon, TopicController]:
        while True:
            found = self.world.leader_of(TOPIC)
            if found is not None:
                return found
            await asyncio.sleep(0.2)

    async def _ask_for_things(self) -> None:
        async with asyncio.TaskGroup() as tasks:
            while True:
                await asyncio.sleep(self.rng.random() * 4)
                daemon, controller = await self._leader()
                tasks.create_task(self._ask(daemon, controller))

    async def _ask(self, daemon: Daemon, controller: TopicController) -> None:
        what, work = self._choose(controller)
        self.world.say(f"asked {daemon.name}: {what}")
        try:
            async with asyncio.timeout(self.rng.choice([0.5, 20, 20, 20])):
                done = await work()
        except (ScalableTopicsError, TimeoutError) as error:
            self.requests[type(error).__name__] += 1
            self.world.say(f"{what}: {type(error).__name__} {error}")
        else:
            self.requests["done"] += 1
            if isinstance(done, FinishedOperation):
                self.accepted[done.id] = done
            self.world.say(f"{what}: done")

    def _choose(self, controller: TopicController) -> tuple[str, Callable[[], Awaitable[object]]]:
        rng, active = self.rng, controller.record.layout.active
        request = Request(by="me", key=rng.choice([None, self.world.new_id()]), wait_seconds=rng.choice([None, 5]))
        match rng.randrange(10):
            case 0 | 1 | 2 if len(active) < 12:
                ways = {rng.choice(active).segment_id: rng.choice([2, 2, 3])}
                return f"split {ways}", lambda: controller.split(ways, request)
            case 3 | 4 if len(active) > 1:
                index = rng.randrange(len(active) - 1)
                ids = [active[index].segment_id, active[index + 1].segment_id]
                return f"merge {ids}", lambda: controller.merge(ids, request)
            case 5:
                ids, buckets = [rng.choice(active).segment_id], rng.randrange(1, 4)
                return f"rebucket {ids} to {buckets}", lambda: controller.rebucket(ids, buckets, request)
            case 6 if controller.executor is not None:
                operation = controller.executor.operation_id
                return f"abort {operation}", lambda: self._abort(controller, operation)
            case 7:
                name = f"s{rng.randrange(3)}"
                position = rng.choice(list(InitialPosition))
                create = controller.subscriptions.create
                return f"subscribe {name} at {position}", lambda: create(name, SubscriptionType.STREAM, position)
            case 8:
                name = f"s{rng.randrange(3)}"
                to_ms = rng.choice([None, 1, self.world.now_ms() - 5_000])
                return f"seek {name} to {to_ms}", lambda: controller.subscriptions.seek(name, to_ms)
            case _:
                name = f"s{rng.randrange(3)}"
                return f"unsubscribe {name}", lambda: controller.subscriptions.delete(name)

    @staticmethod
    async def _abort(controller: TopicController, operation_id: str) -> None:
        controller.abort(operation_id, "somebody asked")

    async def _break_things(self) -> None:
        async with asyncio.TaskGroup() as tasks:
            while True:
                await asyncio.sleep(self.rng.random() * 6)
                tasks.create_task(self._break())

    async def _break(self) -> None:
        if len(self.world.daemons) < 2:
            return
        daemon = self.rng.choice(list(self.world.daemons.values()))
        leader = self.world.leader_of(TOPIC)
        if leader is not None and self.rng.random() < 0.5:
            daemon = leader[0]
        seconds = self.rng.choice([0.3, 3, 12, 16])
        match self.rng.randrange(6):
            case 0:
                await self._kill(daemon, seconds)
            case 1:
                self.world.say(f"{daemon.name} is paused for {seconds} s")
                daemon.process.pause()
                await asyncio.sleep(seconds)
                daemon.process.resume()
            case 2:
                self.world.say(f"{daemon.name} is cut off for {seconds} s")
                daemon.cut(True)
                await asyncio.sleep(seconds)
                daemon.cut(False)
            case 3:
                self.world.say(f"storm for {seconds} s")
                self._storm(True)
                await asyncio.sleep(seconds)
                self._storm(False)
            case 4:
                await self._owner_down(seconds)
            case 5 if self.rng.random() < 0.3:
                await self._take_a_name()
            case _:
                jump(self.rng.random() * 4)  # the whole machine stands still

    async def _kill(self, daemon: Daemon, seconds: float) -> None:
        if self.world.daemons.get(daemon.name) is not daemon:
            return
        self.world.say(f"{daemon.name} is killed for {seconds} s")
        del self.world.daemons[daemon.name]
        await daemon.kill()
        await asyncio.sleep(seconds)
        if daemon.name not in self.world.daemons:
            Daemon(self.world, daemon.name).start()

    def _storm(self, on: bool) -> None:
        self.world.storm = on
        for daemon in self.world.daemons.values():
            daemon.storm(on)

    async def _owner_down(self, seconds: float) -> None:
        try:
            record = await self.world.record(TOPIC)
        except ScalableTopicsError:
            return
        segment = self.rng.choice(list(record.layout.segments.values()))
        physical = segment_address(TOPIC, segment, incarnation=record.incarnation).physical
        self.world.say(f"the owner of segment {segment.segment_id} is down for {seconds} s")
        self.world.take_down(physical)
        await asyncio.sleep(seconds)
        self.world.bring_up(physical)

    async def _take_a_name(self) -> None:
        """Somebody else makes a segment under the name that the next split would use."""
        try:
            record = await self.world.record(TOPIC)
            segment = self.rng.choice(record.layout.active)
            half = segment.hash_range.split(2)[0]
        except ScalableTopicsError:
            return
        child = replace(segment, segment_id=record.layout.next_segment_id, hash_range=half)
        address = segment_address(TOPIC, child, incarnation=record.incarnation)
        await self.checker.make_foreign(address, Stamp(record.incarnation, child.segment_id, FOREIGN))

    async def _calm(self) -> None:
        """Faults stop; in bounded time everything is whole by itself (9)."""
        self.world.say("calm")
        self._storm(False)
        self.world.bring_all_up()
        for name in NAMES:
            daemon = self.world.daemons.get(name)
            if daemon is None:
                Daemon(self.world, name).start()
            else:
                daemon.process.resume()
                daemon.cut(False)
        await asyncio.sleep(20)  # what lands late is a fault as well
        try:
            async with asyncio.timeout(CALM_SECONDS):
                while True:
                    try:
                        self.checker.check_calm()
                        break
                    except Violation:
                        await asyncio.sleep(1)
        except TimeoutError:
            self.checker.raise_first()
            self.checker.check_calm()
            raise

    async def _verdict(self) -> None:
        self.checker.raise_first()
        for daemon in self.world.daemons.values():
            daemon.check_alive()
        self.checker.check_calm()
        self.checker.check_foreign()
        for operation_id, done in self.accepted.items():
            if self.checker.ended.get(operation_id, done.outcome) is not done.outcome:
                raise Violation(f"8: {done} was answered, and ended as {self.checker.ended[operation_id]}")
        for _ in range(40):
            if not await self.reader.read_round():
                break
        attempted = {what: key for writer in self.writers for what, key in writer.attempted.items()}
        self.history.check(WATCHED, attempted)
        if len(self.history.sent) < 20:
            raise Violation(f"9: writers could hardly write: {len(self.history.sent)}")


def run_seed(seed: int) -> Outcome:
    """Raises `Violation` (or whatever broke) with the seed and the story."""
    scenario = Scenario(seed)
    started = time.perf_counter()
    simulated = 0.0

    async def timed() -> None:
        nonlocal simulated
        loop = asyncio.get_running_loop()
        began = loop.time()
        await scenario.run()
        simulated = loop.time() - began

    try:
        run_virtual(timed())
    except BaseException as error:
        error.add_note("\n".join([*scenario.world.story[-60:], f"replay: make sim SEEDS={seed}"]))
        raise
    return Outcome(
        seed,
        scenario.checker.steps,
        scenario.requests,
        time.perf_counter() - started,
        simulated,
        scenario.world.story,
    )
