"""The crash matrix on real processes: every operation, at every failpoint it passes, under every fault. Afterwards the
topic is whole without anybody's help, and the operation done once or never begun.

`python -m tests.cluster.matrix` runs all cells; `--only TEXT` those whose name holds the text.
"""

import argparse
import asyncio
import signal
import sys
import time
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from enum import StrEnum
from itertools import product
from typing import TypeVar

from msgspec import Struct

from scalable_topics.control.failpoints import Failpoint
from scalable_topics.metadata.local_etcd import EtcdCluster, etcd_cluster
from scalable_topics.model.names import TopicName
from scalable_topics.model.operation import FinishedOperation, Outcome
from scalable_topics.model.segment import SegmentState
from scalable_topics.model.subscription import SubscriptionState
from tests.chaos.network import Weather
from tests.cluster.harness import Cluster, DaemonProcess, Trap, cluster, trap_of, until
from tests.cluster.traffic import History, Reader, Writer, admin_path, make_topic
from tests.cluster.whole import opened, problems, settled

KEY = "the-one-request"
SUBSCRIPTION = "watched"
LATE = "late"
"""The subscription that is made by the work itself."""
MESSAGES = 10
"""Acknowledged before the work begins, and again after the fault."""
CELL_SECONDS = 150.0

T = TypeVar("T")


class Fault(StrEnum):
    KILL = "kill"
    PAUSE = "pause"
    CUT = "cut"
    OWNER_DOWN = "owner-down"


class Work(StrEnum):
    CREATE = "create"
    SPLIT = "split"
    MERGE = "merge"
    REBUCKET = "rebucket"
    SUBSCRIBE = "subscribe"
    DELETE = "delete"
    PRUNE = "prune"


F = Failpoint
_PREPARE = (F.CURSOR_MISSING, F.ONE_CHILD_MADE)
_COMMIT_1 = (F.BEFORE_COMMIT_1, F.COMMIT_1_ANSWER_LOST)
_END = (F.ALL_TERMINATED, F.COMMIT_3_ANSWER_LOST, F.COMMITTED_NOT_PUSHED)
_CHANGE = (*_COMMIT_1, *_PREPARE, F.COMMIT_2_ANSWER_LOST, F.TERMINATE_SENT, F.ONE_PARENT_TERMINATED, *_END)
PASSED = {
    Work.CREATE: (*_PREPARE, *_END),
    Work.SPLIT: _CHANGE,
    Work.MERGE: _CHANGE,
    Work.REBUCKET: _CHANGE,
    Work.SUBSCRIBE: (*_COMMIT_1, F.CURSOR_MISSING, F.COMMIT_3_ANSWER_LOST),
    Work.DELETE: (F.CLEAN_UP_HALF_DONE,),
    Work.PRUNE: (*_COMMIT_1, F.CLEAN_UP_HALF_DONE),
}
REQUEST = {
    Work.CREATE: ("PUT", "?segments=2"),
    Work.SPLIT: ("POST", "/split/0?ways=2"),
    Work.MERGE: ("POST", "/merge/0/1"),
    Work.REBUCKET: ("POST", "/rebucket/0?bucketCount=2"),
    Work.SUBSCRIBE: ("PUT", f"/subscriptions/{LATE}"),
    Work.DELETE: ("DELETE", ""),
    Work.PRUNE: ("POST", "/collect"),
}
KEYED = {Work.SPLIT, Work.MERGE, Work.REBUCKET}
"""Asked again with the same key, they are done once."""


class Cell(Struct, frozen=True):
    work: Work
    failpoint: Failpoint
    fault: Fault

    def __str__(self) -> str:
        return f"{self.work}/{self.failpoint}/{self.fault}"


CELLS = tuple(Cell(work, failpoint, fault) for work in Work for failpoint, fault in product(PASSED[work], Fault))


class Run(Struct):
    """A cell as it is run, with its story."""

    cell: Cell
    c: Cluster
    story: list[str]
    history: History
    topic: TopicName = TopicName.parse("topic://t/n/x0")

    def tell(self, what: str) -> None:
        self.story.append(f"{asyncio.get_running_loop().time():.2f} {what}")

    @property
    def path(self) -> str:
        return admin_path(self.topic)

    async def run(self) -> list[str]:
        """What is wrong in the end."""
        trap = trap_of(self.c, self.cell.failpoint)
        if self.cell.work is not Work.CREATE:
            await self.prepare()
        writer, reader = (
            Writer(self.c, self.topic, "w", self.history),
            Reader(self.c, self.topic, SUBSCRIPTION, self.history),
        )
        async with asyncio.TaskGroup() as tasks:
            busy = []
            if self.cell.work not in {Work.CREATE, Work.DELETE}:
                await self.written(writer)
                if self.cell.work is Work.PRUNE:
                    await self.seal_and_drain(writer, reader)
                busy = [tasks.create_task(writer.run()), tasks.create_task(reader.run())]
            trap.arm()
            asking = tasks.create_task(self.keep_asking())
            await until(trap.reached, "the failpoint is reached")
            leader = await self.leader()
            self.tell(f"{leader.name} leads and is at {self.cell.failpoint}")
            await self.strike(leader, trap)
            if busy:
                await self.written(writer)
            asking.cancel()
            for task in busy:
                task.cancel()
        return await self.verdict(reader)

    async def prepare(self) -> None:
        """A topic with a subscription, and, if an owner is to die, with segments on the daemon that does not lead."""
        segments = 2 if self.cell.work is Work.MERGE else 1
        for number in range(12):
            self.topic = TopicName.parse(f"topic://t/n/x{number}")
            await make_topic(self.c, self.topic, segments=segments)
            assert (await self.c.ask("PUT", f"{self.path}/subscriptions/{SUBSCRIPTION}")).status == 204
            await Writer(self.c, self.topic, "first", self.history).send()
            if self.cell.fault is not Fault.OWNER_DOWN:
                return
            leader = await self.leader()
            owners = [await self.c.owner(self.topic, segment_id) for segment_id in range(segments)]
            if any(owner is not None and owner is not leader for owner in owners):
                return
            assert (await self.c.ask("DELETE", self.path)).status in {204, 404}
            self.history.acknowledged.clear()
        raise AssertionError("twelve topics in a row had all their owners on their leader")

    async def written(self, writer: Writer) -> None:
        goal = writer.sent + MESSAGES
        if not writer.sent:
            while writer.sent < goal:
                await writer.send()
            return

        async def enough() -> bool:
            return writer.sent >= goal

        await until(enough, "the writer gets on")

    async def seal_and_drain(self, writer: Writer, reader: Reader) -> None:
        assert (await self.c.ask("POST", f"{self.path}/split/0", headers={"Idempotency-Key": "before"})).status == 200
        await writer.send()
        while await reader.read_round():
            pass
        if self.cell.failpoint is F.CLEAN_UP_HALF_DONE:
            assert (await self.c.ask("POST", f"{self.path}/collect")).status == 200

    async def keep_asking(self) -> None:
        """The request, until it is answered: a client that does not give up, with one key."""
        method, rest = REQUEST[self.cell.work]
        while True:
            with suppress(AssertionError):
                answer = await self.c.ask(
                    method, f"{self.path}{rest}", headers={"Idempotency-Key": KEY}, attempt_seconds=5, seconds=60
                )
                self.tell(f"{self.cell.work} was answered {answer.status} {answer.reason}")
                if self.cell.work is not Work.PRUNE:
                    return
            await asyncio.sleep(0.2)

    async def leader(self) -> DaemonProcess:
        found: list[DaemonProcess] = []

        async def known() -> bool:
            leader = await self.c.leader(self.topic)
            found[:] = [leader] if leader is not None else []
            return bool(found)

        await until(known, "somebody leads")
        return found[0]

    async def strike(self, leader: DaemonProcess, trap: Trap) -> None:
        successor = self.c.other(leader)
        match self.cell.fault:
            case Fault.KILL:
                await leader.kill()
            case Fault.PAUSE:
                await leader.pause()
            case Fault.CUT:
                leader.link.change(Weather.STALLED)
            case Fault.OWNER_DOWN:
                await successor.kill()
        in_a_transaction = f", {leader.lost_locks} times first in a transaction" if leader.lost_locks else ""
        self.tell(f"{self.cell.fault}{in_a_transaction}")
        trap.release()
        if self.cell.fault is not Fault.OWNER_DOWN:
            await until(lambda: self.succeeded(successor), f"{successor.name} has taken over and finished")
            self.tell(f"{successor.name} has finished")
        else:
            await until(lambda: settled(self.c, self.topic), "the operation has ended")
        self.c.heal()
        if self.cell.fault in {Fault.PAUSE, Fault.CUT}:
            await until(lambda: self.c.has_session(leader), f"{leader.name} is back")
            self.tell(f"{leader.name} is back")

    async def succeeded(self, successor: DaemonProcess) -> bool:
        gone = await self.c.repository.topic(self.topic) is None
        leads = gone or await self.c.leader(self.topic) is successor
        return leads and await settled(self.c, self.topic)

    async def verdict(self, reader: Reader) -> list[str]:
        if self.cell.work in KEYED:
            await self.ask_again()
        await until(lambda: settled(self.c, self.topic), "everything has ended")
        found = []
        async with opened(self.c) as segments:
            found += await problems(self.c, self.topic, segments)
        if self.cell.work not in {Work.CREATE, Work.DELETE}:
            await until(lambda: self.caught_up(reader), "the reader has read everything")
            found += self.history.problems()
        found += await self.done_once()
        found += [f"{one.name} died" for one in self.c.daemons if one.died]
        found += [f"{one.name}: {line}" for one in self.c.daemons for line in one.errors()]
        return found

    async def ask_again(self) -> None:
        method, rest = REQUEST[self.cell.work]
        answer = await self.c.ask(method, f"{self.path}{rest}", headers={"Idempotency-Key": KEY}, attempt_seconds=5)
        self.tell(f"asked again with the same key: {answer.status} {answer.reason}")
        assert answer.status == 200, answer

    async def caught_up(self, reader: Reader) -> bool:
        """Everything that was acknowledged is delivered, or nothing more comes."""
        read = await reader.read_round()
        got = {word for word, _, _ in self.history.delivered[SUBSCRIPTION]}
        return not read and self.history.acknowledged.keys() <= got

    async def done_once(self) -> list[str]:
        known = await self.c.repository.topic(self.topic)
        if known is None:
            return [] if self.cell.work is Work.DELETE else ["the topic is gone"]
        record = known.value
        if self.cell.work is Work.DELETE:
            return ["the topic is still there"]
        ended = [one for one in record.recent_operations if one.request_key == KEY]
        if self.cell.work in KEYED:
            sealed = record.layout.segments[0].state is SegmentState.SEALED
            return _ended_once(ended, sealed=sealed)
        if self.cell.work is Work.SUBSCRIBE:
            late = await self.c.repository.subscription(self.topic, LATE)
            return [] if late is not None and late.value.state is SubscriptionState.READY else [f"{LATE} is {late}"]
        if self.cell.work is Work.PRUNE and 0 in record.layout.segments:
            return ["segment 0 was never pruned"]
        return []


def _ended_once(ended: Sequence[FinishedOperation], *, sealed: bool) -> list[str]:
    done = [one for one in ended if one.outcome is Outcome.DONE]
    if len(done) != 1 or not sealed:
        return [f"not done once: {ended}"]
    return []


async def run_cell(cell: Cell, *, etcd: EtcdCluster | None = None, root: str = "/scalable-topics") -> None:
    """Raises `AssertionError` with the whole story if anything is wrong in the end."""
    story: list[str] = []
    try:
        wrong = await _run(cell, story, etcd, root)
    except Exception as error:
        raise AssertionError("\n  ".join([f"{cell}: {_why(error)}", *story])) from error
    if wrong:
        raise AssertionError("\n  ".join([f"{cell}: {'; '.join(wrong)}", *story]))


async def _run(cell: Cell, story: list[str], etcd: EtcdCluster | None, root: str) -> list[str]:
    async with cluster(etcd=etcd, root=root, failpoint=cell.failpoint) as c:
        try:
            async with asyncio.timeout(CELL_SECONDS):
                return await Run(cell, c, story, History()).run()
        finally:
            story += [f"log of {one.name}: {_tail(one)}" for one in c.daemons]


def _tail(daemon: DaemonProcess) -> str:
    lines = daemon.log.read_text().splitlines() if daemon.log.exists() else []
    return "\n    ".join(lines[-40:])


def _why(error: BaseException) -> str:
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return repr(error) if not isinstance(error, AssertionError) else str(error)


async def run_all(cells: Sequence[Cell], *, parallel: int, told: Callable[[str], None]) -> list[str]:
    """On one etcd, each under a root of its own. Answers the stories of those that failed."""
    failures: list[str] = []
    room = asyncio.Semaphore(parallel)

    async def one(number: int, cell: Cell, etcd: EtcdCluster) -> None:
        async with room:
            began = time.monotonic()
            try:
                await run_cell(cell, etcd=etcd, root=f"/cell-{number}")
            except AssertionError as error:
                failures.append(str(error))
                told(f"FAILED {error}")
            else:
                told(f"passed {cell} in {time.monotonic() - began:.1f} s")

    async with etcd_cluster(1) as etcd, asyncio.TaskGroup() as tasks:
        for number, cell in enumerate(cells):
            tasks.create_task(one(number, cell, etcd))
    return failures


async def _until_sigterm(work: Coroutine[object, object, T]) -> T:
    """So that whoever ends the run early leaves no process behind."""
    task = asyncio.ensure_future(work)
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    return await task


def _print(line: str) -> None:
    print(line, flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.cluster.matrix", description=__doc__)
    parser.add_argument("--only", default="", help="cells whose name holds this, such as split/ or /kill")
    parser.add_argument("--parallel", type=int, default=3)
    options = parser.parse_args()
    cells = [cell for cell in CELLS if options.only in str(cell)]
    failures = asyncio.run(_until_sigterm(run_all(cells, parallel=options.parallel, told=_print)))
    print(f"{len(cells)} cells, {len(failures)} failed")
    for failure in failures:
        print(failure.splitlines()[0])
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
