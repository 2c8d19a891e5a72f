"""The crash matrix: every operation, at every failpoint it passes, under every fault. Afterwards the topic must be
whole without anybody's help, and the operation done once or never begun.
"""

import asyncio
from collections.abc import Awaitable, Callable
from enum import StrEnum
from itertools import product

from msgspec import Struct

from scalable_topics.control.controller import Request, TopicController
from scalable_topics.control.failpoints import Failpoint
from scalable_topics.model.errors import NotFound, ScalableTopicsError
from scalable_topics.model.record import TopicState
from scalable_topics.model.segment import segment_address
from scalable_topics.model.subscription import InitialPosition, SubscriptionType
from tests.simulation.clients import History, Reader, Writer
from tests.simulation.cluster import Daemon, FailpointHit, World
from tests.simulation.invariants import Checker, Violation
from tests.simulation.scenario import CALM_SECONDS, TOPIC, WATCHED
from tests.virtual_time import run_virtual


class Fault(StrEnum):
    KILL = "kill"
    PAUSE = "pause until a successor has finished"
    CUT = "store cut"
    OWNER_DOWN = "owner down"


class Work(StrEnum):
    CREATE = "create"
    SPLIT = "split"
    MERGE = "merge"
    REBUCKET = "rebucket"
    SUBSCRIBE = "subscribe"
    PRUNE = "prune"
    DELETE = "delete"


F = Failpoint
_PREPARE = (F.CURSOR_MISSING, F.ONE_CHILD_MADE)
_CHANGE = (
    F.BEFORE_COMMIT_1,
    F.COMMIT_1_ANSWER_LOST,
    *_PREPARE,
    F.COMMIT_2_ANSWER_LOST,
    F.TERMINATE_SENT,
    F.ONE_PARENT_TERMINATED,
    F.ALL_TERMINATED,
    F.COMMIT_3_ANSWER_LOST,
    F.COMMITTED_NOT_PUSHED,
)
PASSED = {
    Work.CREATE: (*_PREPARE, F.ALL_TERMINATED, F.COMMIT_3_ANSWER_LOST, F.COMMITTED_NOT_PUSHED),
    Work.SPLIT: _CHANGE,
    Work.MERGE: _CHANGE,
    Work.REBUCKET: _CHANGE,
    Work.SUBSCRIBE: (F.BEFORE_COMMIT_1, F.COMMIT_1_ANSWER_LOST, F.CURSOR_MISSING, F.COMMIT_3_ANSWER_LOST),
    Work.PRUNE: (F.BEFORE_COMMIT_1, F.COMMIT_1_ANSWER_LOST, F.CLEAN_UP_HALF_DONE),
    Work.DELETE: (F.CLEAN_UP_HALF_DONE,),
}


class Cell(Struct, frozen=True):
    work: Work
    failpoint: Failpoint
    fault: Fault

    def __str__(self) -> str:
        return f"{self.work} / {self.failpoint} / {self.fault}"


CELLS = tuple(Cell(work, failpoint, fault) for work in Work for failpoint, fault in product(PASSED[work], Fault))


class _Cell:
    def __init__(self, cell: Cell) -> None:
        self.cell = cell
        self.world = World(hash_of(cell))
        self.checker = Checker(self.world)
        self.history = History()
        self.hit = FailpointHit(cell.failpoint, self._strike)
        self.armed = False
        self.victim: Daemon | None = None
        self.struck = asyncio.Event()

    async def run(self) -> None:
        names = ("a", "b")
        for name in names:
            Daemon(self.world, name, failpoints=_Armed(self)).start()
        self.armed = self.cell.work is Work.CREATE
        first = next(iter(self.world.daemons.values()))
        await first.service.create(TOPIC, segments=2, request=Request(by="me"))
        if not self.armed:
            await self._ready()
        writer, reader = self._clients()
        async with asyncio.TaskGroup() as tasks:
            working: list[asyncio.Task[None]] = []
            if self.cell.work is not Work.CREATE:
                await self._prepare(reader)
                if self.cell.work is not Work.DELETE:
                    working = [tasks.create_task(writer.run()), tasks.create_task(reader.run())]
                await asyncio.sleep(1)
                self.armed = True
                working.append(tasks.create_task(self._work()))
            async with asyncio.timeout(120):
                await self.struck.wait()
            await self._heal(names)
            for task in working:
                task.cancel()
        await self._verdict(writer, reader)
        for daemon in self.world.daemons.values():
            await daemon.stop()

    def _clients(self) -> tuple[Writer, Reader]:
        return Writer(self.world, TOPIC, "w", self.history), Reader(self.world, TOPIC, WATCHED, self.history)

    async def _prepare(self, reader: Reader) -> None:
        controller = await self._ready()
        await controller.subscriptions.create(WATCHED, SubscriptionType.STREAM, InitialPosition.EARLIEST)
        if self.cell.work is Work.PRUNE:
            await controller.split({0: 2}, Request(by="me"))
            await reader.read_round()

    async def _ready(self) -> TopicController:
        async with asyncio.timeout(60):
            while True:
                found = self.world.leader_of(TOPIC)
                if found is not None and found[1].record.state is TopicState.ACTIVE:
                    return found[1]
                await asyncio.sleep(0.1)

    async def _work(self) -> None:
        controller, request = await self._ready(), Request(by="me")
        asked: dict[Work, Callable[[], Awaitable[object]]] = {
            Work.SPLIT: lambda: controller.split({0: 2}, request),
            Work.MERGE: lambda: controller.merge([0, 1], request),
            Work.REBUCKET: lambda: controller.rebucket([0], 3, request),
            Work.SUBSCRIBE: lambda: controller.subscriptions.create(
                "other", SubscriptionType.STREAM, InitialPosition.EARLIEST
            ),
            Work.DELETE: lambda: controller.delete(request),
            Work.PRUNE: lambda: self._prune(controller),
        }
        try:
            await asked[self.cell.work]()
        except ScalableTopicsError as error:
            self.world.say(f"{self.cell.work}: {type(error).__name__} {error}")

    @staticmethod
    async def _prune(controller: TopicController) -> None:
        for _ in range(3):
            await controller.collect()
            await asyncio.sleep(20)

    async def _strike(self) -> None:
        """Called by the victim itself, in the middle of its work."""
        found = self.world.leader_of(TOPIC)
        victim = self.victim = found[0] if found is not None else self._owner_of_the_key()
        self.world.say(f"{victim.name} is at {self.cell.failpoint}: {self.cell.fault}")
        match self.cell.fault:
            case Fault.KILL:
                self.world.daemons.pop(victim.name)
                asyncio.get_running_loop().call_soon(lambda: _later(victim.kill()))
            case Fault.PAUSE:
                victim.process.pause()
            case Fault.CUT:
                victim.cut(True)
            case Fault.OWNER_DOWN:
                record = await self.world.record(TOPIC)
                for segment in record.layout.segments.values():
                    self.world.take_down(segment_address(TOPIC, segment, incarnation=record.incarnation).physical)
        self.struck.set()
        if self.cell.fault is Fault.KILL:
            await asyncio.Event().wait()

    def _owner_of_the_key(self) -> Daemon:
        return next(daemon for daemon in self.world.daemons.values() if TOPIC in daemon.elections.led)

    async def _heal(self, names: tuple[str, ...]) -> None:
        await asyncio.sleep(1 if self.cell.fault is Fault.OWNER_DOWN else 35)  # a successor has had time to finish
        self.world.bring_all_up()
        if self.victim is not None:
            self.victim.process.resume()
            self.victim.cut(False)
        for name in names:
            if name not in self.world.daemons:
                Daemon(self.world, name).start()
        async with asyncio.timeout(CALM_SECONDS):
            while not await self._is_calm():
                self.checker.raise_first()
                await asyncio.sleep(1)

    async def _is_calm(self) -> bool:
        if self.cell.work is Work.DELETE and await self.world.repository.topic(TOPIC) is None:
            return True
        try:
            self.checker.check_calm()
        except Violation:
            return False
        return True

    async def _verdict(self, writer: Writer, reader: Reader) -> None:
        self.checker.raise_first()
        for daemon in self.world.daemons.values():
            daemon.check_alive()
        if not self.hit.reached:
            raise Violation(f"the failpoint was never reached: {self.cell}")
        try:
            record = await self.world.record(TOPIC)
        except NotFound:
            if self.cell.work is Work.DELETE:
                return
            raise
        if self.cell.work is Work.DELETE:
            raise Violation("9: the topic is still there")
        self.checker.check_calm()
        if record.layout.epoch > 3:
            raise Violation(f"8: done more than once: {record.recent_operations}")
        for _ in range(20):
            if not await reader.read_round():
                break
        self.history.check(WATCHED, dict(writer.attempted))


class _Armed:
    """The failpoint of a cell, once the cell says so."""

    def __init__(self, cell: _Cell) -> None:
        self._cell = cell

    async def reach(self, failpoint: Failpoint, topic: object) -> None:
        if self._cell.armed:
            await self._cell.hit.reach(failpoint, topic)  # type: ignore[arg-type]


_running: set[asyncio.Future[None]] = set()


def _later(work: Awaitable[None]) -> None:
    task = asyncio.ensure_future(work)
    _running.add(task)
    task.add_done_callback(_running.discard)


def hash_of(cell: Cell) -> int:
    return CELLS.index(cell)


def run_cell(cell: Cell) -> None:
    """Raises with the story when the cell fails."""
    running: list[_Cell] = []

    async def run() -> None:
        running.append(_Cell(cell))
        await running[0].run()

    try:
        run_virtual(run())
    except BaseException as error:
        error.add_note("\n".join([str(cell), *(running[0].world.story[-40:] if running else [])]))
        raise
