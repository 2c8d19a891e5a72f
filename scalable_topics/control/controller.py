"""The controller of one topic, on the daemon that leads it: looks at what the leader before left, then does what is
asked, one operation at a time.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from typing import Final

from msgspec import Struct

from scalable_topics.control import phases
from scalable_topics.control.collector import Collector
from scalable_topics.control.executor import Executor, deleted, first_of
from scalable_topics.control.failpoints import Failpoint
from scalable_topics.control.led_topic import OWNER_ERRORS, LedTopic
from scalable_topics.control.lost_segments import make_lost_segment
from scalable_topics.control.subscriptions import Subscriptions
from scalable_topics.metadata.patience import TRANSIENT, in_words
from scalable_topics.metadata.repository import Conflict, Deposed
from scalable_topics.model.autoscale_policy import AutoScalePolicy
from scalable_topics.model.errors import NotFound, Unavailable, WrongState
from scalable_topics.model.layout import Replacements, SegmentLayout
from scalable_topics.model.operation import FinishedOperation, Operation, OperationKind, Phase
from scalable_topics.model.record import TopicRecord, TopicState
from scalable_topics.model.replacements import merge, rebucket, rollover, split
from scalable_topics.model.segment import SegmentInfo
from scalable_topics.model.subscription import SubscriptionState

CHECKS_AT_ONCE: Final = 16
RETRY_SECONDS: Final = 5.0

Plan = Callable[[SegmentLayout], Replacements]

log = logging.getLogger(__name__)


class Request(Struct, frozen=True, kw_only=True):
    """What comes with every change: who asks, why, and how a repetition is recognised."""

    by: str
    reason: str = ""
    key: str | None = None
    """Idempotency-Key: the same key, the same answer."""
    if_match: str | None = None
    """`incarnation:epoch` that the caller has seen; another one is refused."""
    force: bool = False
    """Pass over minSegments and maxSegments."""
    wait_seconds: float | None = None
    """How long it may stay in the queue; once begun it goes on without its caller."""


class Queued(Struct, frozen=True):
    kind: OperationKind
    request: Request


class TopicController:
    """To be `run` for as long as this daemon leads the topic."""

    def __init__(self, topic: LedTopic, *, policy: Callable[[], AutoScalePolicy] = AutoScalePolicy) -> None:
        self.topic = topic
        self.subscriptions = Subscriptions(topic)
        self.collector = Collector(topic)
        self._policy = policy
        self._turn = asyncio.Lock()
        self._executor: Executor | None = None
        self._executing: asyncio.Task[FinishedOperation | Exception] | None = None
        self._queue: list[Queued] = []
        self._tasks: asyncio.TaskGroup | None = None
        self._ready = asyncio.Event()
        self._gone = asyncio.Event()
        self._superseded: asyncio.Task[FinishedOperation | Exception] | None = None

    @property
    def record(self) -> TopicRecord:
        return self.topic.now

    @property
    def queued(self) -> Sequence[Queued]:
        """Waiting for their turn, in this order."""
        return tuple(self._queue)

    @property
    def executor(self) -> Executor | None:
        """Of the operation that is under way on this daemon."""
        return self._executor

    @property
    def ready(self) -> bool:
        """Has it looked at what the leader before left, and finished it?"""
        return self._ready.is_set()

    async def run(self) -> None:
        """Until this leadership ends (`Deposed`) or the topic is gone (returns)."""
        try:
            async with asyncio.TaskGroup() as tasks:
                self._tasks = tasks
                async with self._turn:
                    await self._start()
                self._ready.set()
                sweeping = tasks.create_task(self._sweep_for_ever(), name=f"sweeping {self.topic.topic}")
                await self._gone.wait()
                sweeping.cancel()
        except* Deposed as group:
            raise Deposed(f"term {self.topic.leadership.term} is over", subject=str(self.topic.topic)) from group
        except* Exception as group:
            raise first_of(group) from group
        finally:
            self._tasks = None
            self._ready.clear()

    async def wait_ready(self) -> None:
        await self._ready.wait()

    async def _start(self) -> None:
        """PROTOCOL 3: whoever wins the election looks at the operation first."""
        if self.record.operation is not None:
            log.info("taking up %s topic=%s", self.record.operation.kind, self.topic.topic)
            await self._execute()
            if self._gone.is_set():
                return
        await self.subscriptions.go_on()
        await self._roll_over(await self._look_at_segments())

    async def _sweep_for_ever(self) -> None:
        """What a store that fails leaves undone is done the next time; the end of this leadership ends it."""
        while True:
            await asyncio.sleep(self.topic.around.settings.gc_interval_seconds)
            self.topic.ensure_leading()
            try:
                await self._sweep()
            except TRANSIENT as error:
                log.warning("not swept, trying again later topic=%s: %s", self.topic.topic, in_words(error))

    async def _sweep(self) -> None:
        if self.record.state is not TopicState.ACTIVE:
            return
        await self.subscriptions.go_on()
        ended = await self._look_at_segments()
        if ended and self.record.operation is None:
            async with self._turn:
                await self._roll_over(ended)
        await self.collect()

    async def collect(self) -> None:
        """One round of the collector; also asked for by people."""
        try:
            await self.collector.round()
        except Conflict:
            await self.topic.reload()  # somebody was faster, and the next round sees it

    async def split(self, ways: Mapping[int, int], request: Request) -> FinishedOperation:
        return await self._change(OperationKind.SPLIT, self.plan_split(ways, request), request)

    async def merge(self, segment_ids: Sequence[int], request: Request) -> FinishedOperation:
        return await self._change(OperationKind.MERGE, self.plan_merge(segment_ids, request), request)

    async def rebucket(self, segment_ids: Sequence[int], buckets: int, request: Request) -> FinishedOperation:
        return await self._change(OperationKind.REBUCKET, self.plan_rebucket(segment_ids, buckets), request)

    def plan_split(self, ways: Mapping[int, int], request: Request) -> Plan:
        policy = self._policy()
        most = None if request.force else policy.max_segments
        window = policy.dag_depth_window_seconds
        at_ms = self.topic.around.now_ms()
        return lambda layout: split(layout, ways, at_ms=at_ms, max_segments=most, depth_window_seconds=window)

    def plan_merge(self, segment_ids: Sequence[int], request: Request) -> Plan:
        policy = self._policy()
        fewest = None if request.force else policy.min_segments
        window, at_ms = policy.dag_depth_window_seconds, self.topic.around.now_ms()
        return lambda layout: merge(
            layout,
            segment_ids,
            at_ms=at_ms,
            max_buckets=policy.entry_bucket_max_per_segment,
            min_segments=fewest,
            depth_window_seconds=window,
        )

    def plan_rebucket(self, segment_ids: Sequence[int], buckets: int) -> Plan:
        policy = self._policy()
        at_ms = self.topic.around.now_ms()
        return lambda layout: rebucket(
            layout,
            segment_ids,
            buckets,
            at_ms=at_ms,
            max_buckets=policy.entry_bucket_max_per_segment,
            depth_window_seconds=policy.dag_depth_window_seconds,
        )

    async def delete(self, request: Request) -> FinishedOperation:
        """Supersedes whatever is under way. When this returns the topic is gone, and what could not be deleted yet is
        in `/garbage`.
        """
        self._ensure_match(request)
        operation = self._operation(self.topic.around.new_id(), OperationKind.DELETE, (), request)
        if self._executing is not None and self.record.state is not TopicState.DELETING:
            self._superseded = self._executing
            self._superseded.cancel()
            await asyncio.wait([self._superseded])
        async with self._turn:
            if self._gone.is_set():
                raise NotFound("it has been removed", subject=str(self.topic.topic))
            await self.topic.update(lambda record: phases.start_deleting(self.topic.topic, record, operation))
            try:
                return await self._detached(self._execute)
            except Deposed:
                # The store may have told that the topic is gone before the answer to its removal came.
                found = await self.topic.around.repository.topic(self.topic.topic)
                if found is not None and found.value.incarnation == self.record.incarnation:
                    raise
            finished = deleted(operation, at_ms=self.topic.around.now_ms())
            self.topic.on_finished(finished)
            return finished

    def abort(self, operation_id: str, reason: str) -> None:
        """Legal only while it is PREPARING; then its children become garbage."""
        if self._executor is None or self._executor.operation_id != operation_id:
            raise NotFound(f"operation {operation_id} is not under way", subject=str(self.topic.topic))
        self._executor.ask_to_abort(reason)

    async def _change(self, kind: OperationKind, plan: Plan, request: Request) -> FinishedOperation:
        """Queued behind what is under way; begun only if the plan still fits when its turn comes."""
        self.topic.ensure_leading()
        if request.key is None:  # one with a key may have been done already: its turn will tell
            self._ensure_match(request)
        queued = Queued(kind, request)
        self._queue.append(queued)
        try:
            async with asyncio.timeout(request.wait_seconds):
                await self._turn.acquire()
        except TimeoutError:
            raise Unavailable(
                "its turn did not come in time, nothing was begun",
                subject=f"{kind} of {self.topic.topic}",
                remedy="ask again",
            ) from None
        finally:
            self._queue.remove(queued)
        return await self._detached(lambda: self._begin(kind, plan, request), release=True)

    async def _begin(self, kind: OperationKind, plan: Plan, request: Request) -> FinishedOperation:
        if request.key is not None:
            done = self.topic.finished(request_key=request.key)
            if done is not None:
                return done
        operation_id = self.topic.around.new_id()

        def change(record: TopicRecord) -> TopicRecord:
            """One id for all attempts: an earlier one, given up as lost, may have landed since."""
            if record.operation is not None and record.operation.id == operation_id:
                return record
            self._ensure_match(request)
            self._ensure_active(record)
            operation = self._operation(operation_id, kind, plan(record.layout), request)
            return phases.begin(self.topic.topic, record, operation)

        await self.topic.reach(Failpoint.BEFORE_COMMIT_1)
        await self.topic.update(change)
        await self.topic.reach(Failpoint.COMMIT_1_ANSWER_LOST)
        return await self._execute()

    async def _execute(self) -> FinishedOperation:
        executor = self._executor = Executor(self.topic)
        try:
            finished = await executor.run()
        except Deposed:
            raise
        except Exception as error:
            # Whatever it was, the operation stands in the record: this controller ends, and the next takes it up.
            self._end(error)
            raise
        finally:
            self._executor = None
        log.info(
            "%s %s topic=%s operation=%s term=%d",
            finished.kind,
            finished.outcome,
            self.topic.topic,
            finished.id,
            self.topic.leadership.term,
        )
        if finished.kind is OperationKind.DELETE:
            self._gone.set()
            self.topic.on_finished(finished)  # no record is left to tell it
        else:
            await self.topic.reach(Failpoint.COMMITTED_NOT_PUSHED)
        return finished

    async def _detached(
        self, work: Callable[[], Awaitable[FinishedOperation]], *, release: bool = False
    ) -> FinishedOperation:
        """As a task of the controller's: a caller who goes away does not stop what has begun."""

        async def guarded() -> FinishedOperation | Exception:
            try:
                return await work()
            except Deposed:
                raise
            except Exception as error:
                return error
            finally:
                if release:
                    self._turn.release()

        working = guarded()
        try:
            if self._tasks is None:
                raise RuntimeError("it has stopped")  # noqa: TRY301 - as a group says that is just ending
            task = self._tasks.create_task(working)
        except RuntimeError:
            working.close()
            if release:
                self._turn.release()
            raise Deposed(
                "this daemon stopped leading", subject=str(self.topic.topic), remedy="ask the next leader"
            ) from None
        self._executing = task
        task.add_done_callback(self._not_executing)
        try:
            answer = await asyncio.shield(task)
        except asyncio.CancelledError:
            if not task.cancelled():
                raise
            if task is self._superseded:
                raise WrongState("the topic is being deleted", subject=str(self.topic.topic)) from None
            raise Deposed(
                "this daemon stopped leading",
                subject=str(self.topic.topic),
                remedy="the next leader goes on; look again",
            ) from None
        if isinstance(answer, Exception):
            raise answer
        return answer

    def _end(self, error: Exception) -> None:
        async def fail() -> None:
            raise error

        if self._tasks is not None and self.ready:
            self._tasks.create_task(fail())

    def _not_executing(self, task: "asyncio.Task[FinishedOperation | Exception]") -> None:
        if self._executing is task:
            self._executing = None

    async def _look_at_segments(self) -> list[int]:
        """Every listed segment is there, with the cursors it should have; answers those that are ACTIVE and yet were
        found terminated.
        """
        limit = asyncio.Semaphore(CHECKS_AT_ONCE)
        repository = self.topic.around.repository
        subscriptions = await repository.subscriptions(self.topic.topic)
        markers = await repository.drained(self.topic.topic)
        names = {name for name, one in subscriptions.items() if one.value.state is SubscriptionState.READY}
        ended: list[int] = []

        async def look(segment: SegmentInfo) -> None:
            async with limit:
                wanted = {name for name in names if (segment.segment_id, name) not in markers}
                if await self._look_at(segment, wanted, subscriptions.keys()):
                    ended.append(segment.segment_id)

        async with asyncio.TaskGroup() as tasks:
            for segment in self.record.layout.segments.values():
                tasks.create_task(look(segment))
        return sorted(ended)

    async def _roll_over(self, segment_ids: Sequence[int]) -> None:
        """PROTOCOL 3: ACTIVE but found terminated, after a restored backup or by somebody's other tool."""
        if segment_ids and self.record.operation is None and self.record.state is TopicState.ACTIVE:
            request = Request(by="controller", reason="found terminated without an operation")
            await self._begin(OperationKind.ROLLOVER, self._plan_rollover(segment_ids), request)

    async def _look_at(self, segment: SegmentInfo, names: set[str], recorded: Collection[str]) -> bool:
        """Mend it; answers whether it was terminated though it is ACTIVE."""
        address, segments = self.topic.address(segment), self.topic.around.segments
        try:
            facts = await self.topic.call("", lambda _: segments.describe(address))
        except NotFound:
            if segment.is_active and not segment.is_legacy:
                await make_lost_segment(self.topic, segment)
            return False
        except OWNER_ERRORS as error:
            log.info("not looked at segment=%d topic=%s: %s", segment.segment_id, self.topic.topic, in_words(error))
            return False
        if not segment.is_legacy:
            await self.subscriptions.drop_strays(segment, sorted(facts.subscriptions.keys() - recorded))
        for name in sorted(names - facts.subscriptions.keys()):
            log.warning(
                "a cursor was missing topic=%s segment=%d subscription=%s", self.topic.topic, segment.segment_id, name
            )
            operation_id = self.topic.around.new_id()
            await self.topic.insist(
                operation_id,
                lambda call, name=name: segments.create_subscription(address, name, call),  # type: ignore[misc]
            )
        return segment.is_active and facts.terminated is not None and not segment.is_legacy

    def _plan_rollover(self, segment_ids: Sequence[int]) -> Plan:
        at_ms, window = self.topic.around.now_ms(), self._policy().dag_depth_window_seconds

        def plan(layout: SegmentLayout) -> Replacements:
            still = [segment_id for segment_id in segment_ids if layout.segment(segment_id).is_active]
            return rollover(layout, still, at_ms=at_ms, depth_window_seconds=window)

        return plan

    def _operation(
        self, operation_id: str, kind: OperationKind, replacements: Replacements, request: Request
    ) -> Operation:
        return Operation(
            id=operation_id,
            kind=kind,
            phase=Phase.PREPARING,
            replacements=replacements,
            reason=request.reason,
            by=request.by,
            started_at_ms=self.topic.around.now_ms(),
            request_key=request.key,
        )

    def _ensure_match(self, request: Request) -> None:
        tag = etag(self.record)
        if request.if_match is not None and request.if_match != tag:
            raise WrongState(
                f"it is at {tag}, not at {request.if_match}", subject=str(self.topic.topic), remedy="read it again"
            )

    def _ensure_active(self, record: TopicRecord) -> None:
        if record.state is not TopicState.ACTIVE:
            raise WrongState(
                f"the topic is {record.state}", subject=str(self.topic.topic), remedy="wait until it is ACTIVE"
            )


def etag(record: TopicRecord) -> str:
    return f"{record.incarnation}:{record.layout.epoch}"
