"""Carries out what `steps` asks for: the one executor of every operation, with all the I/O.

It can be started on any record that has an operation under way, at any time, by any leader: it takes up where the
record says things are.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Final

from scalable_topics.control import phases
from scalable_topics.control.failpoints import Failpoint
from scalable_topics.control.led_topic import LedTopic
from scalable_topics.control.lost_segments import make_lost_segment
from scalable_topics.control.steps import (
    STORY_LENGTH,
    AbortAsked,
    Began,
    CommitAbort,
    CommitDone,
    CommitOtherIds,
    CommitRemoval,
    CommitSealing,
    Committed,
    DeleteSegment,
    Event,
    IllegalEvent,
    Instruction,
    MakeSegment,
    NameTaken,
    OtherIdsTaken,
    OwnerUnreachable,
    ParentTerminated,
    RecordChanged,
    Run,
    SealingCommitted,
    SegmentDeleted,
    SegmentMade,
    Stage,
    Terminate,
    advance,
    begin_run,
)
from scalable_topics.metadata.patience import TRANSIENT, Backoff, in_words
from scalable_topics.metadata.repository import Conflict, Deposed, Stored
from scalable_topics.metadata.session import Role
from scalable_topics.model.errors import LeaseLost, NotFound, UnknownOutcome, WrongState
from scalable_topics.model.journal import JournalRow
from scalable_topics.model.operation import FinishedOperation, Operation, OperationKind, Outcome, Phase
from scalable_topics.model.ownership import SegmentOwner
from scalable_topics.model.positions import Position
from scalable_topics.model.record import TopicRecord
from scalable_topics.model.segment import SegmentInfo
from scalable_topics.model.subscription import SubscriptionState
from scalable_topics.policy.ranking import ranked
from scalable_topics.segments.errors import Unusable

LEASE_CHECK_SECONDS: Final = 0.05
MOST_FIRST_OWNERS: Final = 40

log = logging.getLogger(__name__)


class Executor:
    """One operation, from wherever it is to its end."""

    def __init__(self, topic: LedTopic) -> None:
        self._topic = topic
        self._run: Run = begin_run(topic.now)
        self._events: asyncio.Queue[Event] = asyncio.Queue()
        self._story: deque[str] = deque(maxlen=STORY_LENGTH)
        self._listed: Stored[TopicRecord] = topic.record
        """The record before the subscriptions were listed: what commit 2 compares."""
        self._subscriptions: tuple[str, ...] = ()
        self._controllers: dict[str, int] = {}

    @property
    def stage(self) -> Stage:
        return self._run.stage

    @property
    def story(self) -> tuple[str, ...]:
        """What happened so far, oldest first."""
        return tuple(self._story)

    @property
    def operation_id(self) -> str:
        return self._run.operation.id

    def ask_to_abort(self, reason: str) -> None:
        """Raises `WrongState` from SEALING on: then it can only go forward."""
        if self._run.operation.phase is not Phase.PREPARING or not self._run.operation.replacements:
            raise WrongState(
                f"operation {self.operation_id} is {self.stage}",
                subject=str(self._topic.topic),
                remedy="only a PREPARING change of segments can be aborted; this one goes forward by itself",
            )
        self._events.put_nowait(AbortAsked(reason))

    async def run(self) -> FinishedOperation:
        """Raises `Deposed` when this leadership ends first; then the next leader goes on."""
        try:
            async with asyncio.TaskGroup() as tasks:
                self._events.put_nowait(Began(asyncio.get_running_loop().time()))
                carrying = set[asyncio.Task[None]]()
                while self._run.stage is not Stage.ENDED:
                    for instruction in await self._step():
                        carrying.add(tasks.create_task(self._carry_out(instruction)))
                for task in carrying:
                    task.cancel()
        except* Deposed as group:
            raise first_of(group) from group
        except* Exception as group:
            raise first_of(group) from group
        return self._outcome()

    async def _step(self) -> list[Instruction]:
        event = await self._events.get()
        self._tell(event)
        try:
            self._run, instructions = advance(self._run, event)
        except IllegalEvent:
            raise IllegalEvent(self._run, event, self.story) from None
        if any(isinstance(instruction, MakeSegment) for instruction in instructions):
            await self._list_subscriptions()
        for instruction in instructions:
            self._tell(instruction)
        return instructions

    def _tell(self, what: Event | Instruction) -> None:
        line = f"{self._run.stage} {type(what).__name__}"
        subject = getattr(what, "segment_id", None)
        segment = getattr(what, "segment", None)
        if segment is not None:
            subject = segment.segment_id
        self._story.append(line if subject is None else f"{line} {subject}")
        log.debug("topic=%s operation=%s %s", self._topic.topic, self.operation_id, self._story[-1])

    def _outcome(self) -> FinishedOperation:
        if self._run.operation.kind is OperationKind.DELETE:
            return deleted(self._run.operation, at_ms=self._topic.around.now_ms())
        finished = self._topic.finished(operation_id=self.operation_id)
        if finished is None:
            raise IllegalEvent(self._run, Committed(), self.story)
        return finished

    async def _carry_out(self, instruction: Instruction) -> None:
        match instruction:
            case MakeSegment(segment=segment, attempt=attempt):
                await self._make(segment, attempt)
            case CommitSealing():
                await self._commit_sealing()
            case CommitOtherIds(foreign=foreign):
                await self._commit_other_ids(foreign)
            case Terminate(segment_id=segment_id):
                await self._terminate(self._topic.now.layout.segment(segment_id))
            case DeleteSegment(segment=segment):
                await self._delete(segment)
            case CommitDone(ends=ends):
                await self._commit_done(ends)
            case CommitAbort(reason=reason, foreign=foreign):
                await self._commit_abort(reason, foreign)
            case CommitRemoval():
                await self._commit_removal()

    def _say(self, event: Event) -> None:
        self._events.put_nowait(event)

    def _unreachable(self, segment_id: int, why: str) -> None:
        self._say(OwnerUnreachable(segment_id, why, asyncio.get_running_loop().time()))

    async def _list_subscriptions(self) -> None:
        """The record first, then the subscriptions: one that is made in between changes the record."""
        backoff = Backoff()
        while True:
            self._topic.ensure_leading()
            self._listed = self._topic.record
            try:
                found, self._controllers = await asyncio.gather(
                    self._topic.around.repository.subscriptions(self._topic.topic), self._list_controllers()
                )
            except TRANSIENT as error:
                log.warning("subscriptions not listed yet topic=%s: %s", self._topic.topic, in_words(error))
                await backoff.wait()
                continue
            self._subscriptions = tuple(
                name for name, one in found.items() if one.value.state is not SubscriptionState.DELETING
            )
            return

    async def _list_controllers(self) -> dict[str, int]:
        """Daemons that may own segments, with their sessions; none where segments are not stored on our daemons."""
        if not self._topic.around.daemons_own_segments:
            return {}
        brokers = await self._topic.around.repository.brokers()
        return {name: one.create_revision for name, one in brokers.items() if Role.CONTROLLER in one.value.roles}

    async def _make(self, segment: SegmentInfo, attempt: int) -> None:
        address, stamp = self._topic.address(segment), self._topic.stamp(segment, self.operation_id)
        names = self._subscriptions
        await self._topic.reach(Failpoint.CURSOR_MISSING)
        try:
            facts = await self._topic.insist(
                self.operation_id,
                lambda call: self._topic.around.segments.create(address, stamp, names, call),
                failed=lambda why: self._unreachable(segment.segment_id, why),
            )
        except Unusable as error:
            self._say(NameTaken(segment.segment_id, str(error)))
            return
        missing = set(names) - facts.subscriptions.keys()
        if missing:
            raise WrongState(f"it was made without cursors of {sorted(missing)}", subject=address.logical)
        for name in sorted(facts.subscriptions.keys() - set(names)):  # deleted since an earlier attempt
            await self._topic.insist(
                self.operation_id,
                lambda call, name=name: self._topic.around.segments.delete_subscription(address, name, call),  # type: ignore[misc]
                failed=lambda why: self._unreachable(segment.segment_id, why),
            )
        await self._topic.reach(Failpoint.ONE_CHILD_MADE)
        self._say(SegmentMade(segment.segment_id, attempt))

    async def _commit_sealing(self) -> None:
        while not self._topic.around.may_seal():
            self._topic.ensure_leading()
            await asyncio.sleep(LEASE_CHECK_SECONDS)
        backoff = Backoff()
        while True:
            self._topic.ensure_leading()
            if self._phase_now() is Phase.SEALING:
                break
            if self._topic.record.mod_revision != self._listed.mod_revision:
                self._say(RecordChanged(phases.running(self._topic.now)))
                return
            writes, compares = self._topic.around.repository.owner_writes(self._topic.topic, self._first_owners())
            sealed = phases.seal(self._listed.value)
            try:
                await self._topic.write(self._listed, sealed, companions=writes, compares=compares)
            except Conflict:
                await self._topic.reload()
                if self._phase_now() is Phase.PREPARING:  # also when it was a chosen owner that has gone
                    self._say(RecordChanged(phases.running(self._topic.now)))
                    return
            except TRANSIENT as error:
                if isinstance(error, LeaseLost):
                    raise
                log.warning("commit 2 not written yet topic=%s: %s", self._topic.topic, in_words(error))
                await backoff.wait()
                if isinstance(error, UnknownOutcome):
                    await self._topic.reload()
        await self._topic.reach(Failpoint.COMMIT_2_ANSWER_LOST)
        self._say(SealingCommitted())

    def _first_owners(self) -> dict[int, SegmentOwner]:
        """By rank, so that they spread. Those beyond what one transaction takes are claimed when they are needed."""
        owners: dict[int, SegmentOwner] = {}
        for child in phases.children(self._run.operation.replacements)[:MOST_FIRST_OWNERS]:
            for name in ranked(self._topic.address(child).physical, self._controllers)[:1]:
                session = self._controllers[name]
                owners[child.segment_id] = SegmentOwner(broker_id=name, broker_session=session, owner_term=1)
        return owners

    def _phase_now(self) -> Phase:
        return phases.running(self._topic.now).phase

    async def _commit_other_ids(self, foreign: frozenset[int]) -> None:
        operation = self._run.operation

        def change(record: TopicRecord) -> TopicRecord:
            if phases.running(record).replacements != operation.replacements:
                return record
            return phases.take_other_ids(self._topic.topic, record, foreign)

        self._say(OtherIdsTaken(phases.running(await self._topic.update(change))))

    async def _terminate(self, segment: SegmentInfo) -> None:
        address = self._topic.address(segment)
        await self._topic.reach(Failpoint.TERMINATE_SENT)
        while True:
            try:
                end = await self._topic.insist(
                    self.operation_id,
                    lambda call: self._topic.around.segments.terminate(address, call),
                    failed=lambda why: self._unreachable(segment.segment_id, why),
                )
            except NotFound:
                await make_lost_segment(self._topic, segment)
                continue
            break
        await self._topic.reach(Failpoint.ONE_PARENT_TERMINATED)
        self._say(ParentTerminated(segment.segment_id, end))

    async def _delete(self, segment: SegmentInfo) -> None:
        address = self._topic.address(segment)
        await self._topic.insist(
            self.operation_id,
            lambda call: self._topic.around.segments.delete(address, call),
            failed=lambda why: self._unreachable(segment.segment_id, why),
        )
        await self._topic.reach(Failpoint.CLEAN_UP_HALF_DONE)
        self._say(SegmentDeleted(segment.segment_id))

    async def _commit_done(self, ends: Mapping[int, Position]) -> None:
        await self._topic.reach(Failpoint.ALL_TERMINATED)
        operation, at_ms = self._run.operation, self._topic.around.now_ms()

        def change(record: TopicRecord) -> TopicRecord:
            if self._is_over(record):
                return record
            return phases.finish(record, ends, at_ms=at_ms)

        row = JournalRow(
            at_ms=at_ms,
            what=operation.kind,
            by=operation.by,
            reason=operation.reason,
            operation_id=operation.id,
            epoch=self._topic.now.layout.epoch + (operation.kind is not OperationKind.CREATE),
            details=_details(operation.replacements),
        )
        await self._topic.update(change, journal=row)
        await self._topic.reach(Failpoint.COMMIT_3_ANSWER_LOST)
        self._say(Committed())

    async def _commit_abort(self, reason: str, foreign: frozenset[int]) -> None:
        operation, at_ms = self._run.operation, self._topic.around.now_ms()

        def change(record: TopicRecord) -> TopicRecord:
            if self._is_over(record):
                return record
            return phases.abort(self._topic.topic, record, reason, foreign=foreign, at_ms=at_ms)

        row = JournalRow(
            at_ms=at_ms, what=f"{operation.kind} ABORTED", by=operation.by, reason=reason, operation_id=operation.id
        )
        await self._topic.update(change, journal=row)
        self._say(Committed())

    async def _commit_removal(self) -> None:
        backoff = Backoff()
        while True:
            self._topic.ensure_leading()
            try:
                await self._topic.around.repository.remove_topic(self._topic.leadership, self._topic.record)
                break
            except Conflict:
                await self._topic.reload()
            except TRANSIENT as error:
                if isinstance(error, LeaseLost):
                    raise
                log.warning("not removed yet topic=%s: %s", self._topic.topic, in_words(error))
                await backoff.wait()
                if isinstance(error, UnknownOutcome) and await self._is_removed():
                    break
        self._say(Committed())

    async def _is_removed(self) -> bool:
        try:
            await self._topic.reload()
        except NotFound:
            return True
        return False

    def _is_over(self, record: TopicRecord) -> bool:
        return any(finished.id == self.operation_id for finished in record.recent_operations)


def deleted(operation: Operation, *, at_ms: int) -> FinishedOperation:
    """The end of a deletion, which leaves no record to remember it."""
    return FinishedOperation(
        id=operation.id,
        kind=OperationKind.DELETE,
        outcome=Outcome.DONE,
        finished_at_ms=at_ms,
        request_key=operation.request_key,
    )


def first_of(group: ExceptionGroup[Exception]) -> Exception:
    """What somebody is told of a group: its first error."""
    error = group.exceptions[0]
    while isinstance(error, ExceptionGroup):
        error = error.exceptions[0]
    return error


def _details(replacements: Sequence[object]) -> dict[str, object]:
    return {"replacements": len(replacements)} if replacements else {}
