"""One operation as a state machine: events in, instructions out. It does no I/O and reads no clock.

The record in the store is the truth about the phase; a run begins from it, whoever led before. Every instruction may
be carried out twice. What owners and people tell may come late or twice; a commit is answered once, at any time.

```
MAKING --all children made--> ANNOUNCING --commit 2--> SEALING --all parents ended--> COMMITTING --commit 3--> ENDED
  |  ^                            |
  |  +-- the record changed ------+        a topic's CREATE goes from MAKING to COMMITTING
  +--> ABORTING --> ENDED                  a topic's DELETE is DELETING until its segments are gone
```
"""

from collections.abc import Mapping
from enum import StrEnum
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from scalable_topics.control.phases import children, parents
from scalable_topics.model.errors import WrongState
from scalable_topics.model.operation import Operation, OperationKind, Phase
from scalable_topics.model.positions import Position
from scalable_topics.model.record import TopicRecord
from scalable_topics.model.segment import SegmentInfo

PREPARE_TIMEOUT_SECONDS: Final = 60.0
"""How long an owner may be unreachable before a PREPARING operation is given up."""
DELETE_PATIENCE_SECONDS: Final = 10.0
"""How long a deletion waits for owners; what is left then stays in `/garbage` until somebody can delete it."""
STORY_LENGTH: Final = 200


class Stage(StrEnum):
    MAKING = "MAKING"
    ANNOUNCING = "ANNOUNCING"
    SEALING = "SEALING"
    COMMITTING = "COMMITTING"
    ABORTING = "ABORTING"
    DELETING = "DELETING"
    ENDED = "ENDED"


class Began(Struct, frozen=True):
    """The operation stands in the store, and this leader takes it up."""

    at: float


class SegmentMade(Struct, frozen=True):
    segment_id: int
    attempt: int
    """Of the `MakeSegment` that this answers: an earlier one knew of fewer subscriptions."""


class NameTaken(Struct, frozen=True):
    """There is something of this name that is not ours and cannot become it."""

    segment_id: int
    why: str


class OwnerUnreachable(Struct, frozen=True):
    """A call got no answer. It is being repeated; this only tells the time."""

    segment_id: int
    why: str
    at: float


class RecordChanged(Struct, frozen=True):
    """Commit 2 was refused: the record is not what the children were made for."""

    operation: Operation


class SealingCommitted(Struct, frozen=True):
    pass


class OtherIdsTaken(Struct, frozen=True):
    """The children have other ids now."""

    operation: Operation


class ParentTerminated(Struct, frozen=True):
    segment_id: int
    end: Position


class SegmentDeleted(Struct, frozen=True):
    segment_id: int


class Committed(Struct, frozen=True):
    """Commit 3, or the last commit of an abort or of a deletion."""


class AbortAsked(Struct, frozen=True):
    reason: str


Event = (
    Began
    | SegmentMade
    | NameTaken
    | OwnerUnreachable
    | RecordChanged
    | SealingCommitted
    | OtherIdsTaken
    | ParentTerminated
    | SegmentDeleted
    | Committed
    | AbortAsked
)


class MakeSegment(Struct, frozen=True):
    """With a cursor of every recorded subscription at its beginning. Report `SegmentMade` or `NameTaken`."""

    segment: SegmentInfo
    attempt: int


class CommitSealing(Struct, frozen=True):
    """Comparing the record that the subscriptions were listed from. Report `SealingCommitted` or `RecordChanged`."""


class CommitOtherIds(Struct, frozen=True):
    """Report `OtherIdsTaken`."""

    foreign: frozenset[int]


class Terminate(Struct, frozen=True):
    """Report `ParentTerminated`."""

    segment_id: int


class DeleteSegment(Struct, frozen=True):
    """Report `SegmentDeleted`."""

    segment: SegmentInfo


class CommitDone(Struct, frozen=True):
    """Report `Committed`; there is nothing that could refuse it but the end of this leadership."""

    ends: Mapping[int, Position]


class CommitAbort(Struct, frozen=True):
    """Report `Committed`."""

    reason: str
    foreign: frozenset[int]


class CommitRemoval(Struct, frozen=True):
    """Report `Committed`."""


Instruction = (
    MakeSegment | CommitSealing | CommitOtherIds | Terminate | DeleteSegment | CommitDone | CommitAbort | CommitRemoval
)


class IllegalEvent(WrongState):
    """Something was reported that cannot happen here: a defect. `story` tells how it came about."""

    kind = "illegal-event"

    def __init__(self, run: "Run", event: Event, story: tuple[str, ...]) -> None:
        super().__init__(
            f"{event} in stage {run.stage}; the story: {' | '.join(story)}", subject=f"operation {run.operation.id}"
        )


class Run(Struct, frozen=True, kw_only=True):
    """How far one leader has come with an operation."""

    operation: Operation
    segments: Mapping[int, SegmentInfo]
    """Of a CREATE or DELETE: the topic's own."""
    stage: Stage = Stage.MAKING
    waiting: frozenset[int] = frozenset()
    """For whom: segments to be made, terminated or deleted."""
    began_at: float = 0.0
    attempt: int = 0
    """How often the children were ordered."""
    unreachable_since: Mapping[int, float] = {}
    """Owners that have not answered in this attempt, and when that was first told."""
    ends: Mapping[int, Position] = {}
    foreign: frozenset[int] = frozenset()
    abort_reason: str | None = None


def begin_run(record: TopicRecord) -> Run:
    """From the record as it stands in the store."""
    if record.operation is None:
        raise WrongState("there is no operation under way")
    return Run(operation=record.operation, segments=record.layout.segments)


def advance(run: Run, event: Event) -> tuple[Run, list[Instruction]]:
    """One step: what the run becomes, and what has to be done now."""
    match run.stage, event:
        case Stage.MAKING, Began(at=at):
            return _take_up(replace(run, began_at=at))
        case Stage.MAKING, SegmentMade(segment_id=segment_id, attempt=attempt) if attempt == run.attempt:
            return _answered(run, segment_id)
        case Stage.MAKING, NameTaken(segment_id=segment_id) if segment_id in run.waiting and _may_abort(run):
            return _answered(replace(run, foreign=run.foreign | {segment_id}), segment_id)
        case Stage.MAKING, OwnerUnreachable(segment_id=segment_id, why=why, at=at) if segment_id in run.waiting:
            since = run.unreachable_since.get(segment_id, at)
            if _may_abort(run) and at - since >= PREPARE_TIMEOUT_SECONDS:
                return _abort(run, f"an owner was unreachable for {PREPARE_TIMEOUT_SECONDS:.0f} s: {why}")
            return replace(run, unreachable_since={**run.unreachable_since, segment_id: since}), []
        case Stage.MAKING, AbortAsked(reason=reason) if _may_abort(run):
            return _abort(run, reason)
        case Stage.ANNOUNCING, AbortAsked(reason=reason):
            return replace(run, abort_reason=reason), []  # commit 2 may have happened: its answer decides
        case Stage.ANNOUNCING, RecordChanged(operation=operation):
            if run.abort_reason is not None and operation.phase is Phase.PREPARING:
                return _abort(replace(run, operation=operation), run.abort_reason)
            return _take_up(replace(run, operation=operation))
        case Stage.ANNOUNCING, OtherIdsTaken(operation=operation):
            run = replace(run, operation=operation, foreign=frozenset())
            return _take_up(run) if run.abort_reason is None else _abort(run, run.abort_reason)
        case Stage.ANNOUNCING, SealingCommitted():
            return _seal(replace(run, operation=replace(run.operation, phase=Phase.SEALING)))
        case Stage.SEALING, ParentTerminated(segment_id=segment_id, end=end) if segment_id in run.waiting:
            run = replace(run, waiting=run.waiting - {segment_id}, ends={**run.ends, segment_id: end})
            if run.waiting:
                return run, []
            return replace(run, stage=Stage.COMMITTING), [CommitDone(run.ends)]
        case Stage.DELETING, SegmentDeleted(segment_id=segment_id):
            run = replace(run, waiting=run.waiting - {segment_id})
            return (run, []) if run.waiting else (replace(run, stage=Stage.COMMITTING), [CommitRemoval()])
        case Stage.DELETING, OwnerUnreachable(at=at) if at - run.began_at >= DELETE_PATIENCE_SECONDS:
            return replace(run, stage=Stage.COMMITTING, waiting=frozenset()), [CommitRemoval()]
        case ((Stage.COMMITTING | Stage.ABORTING), Committed()):
            return replace(run, stage=Stage.ENDED), []
        case _ if _is_late(run, event):
            return run, []
        case _:
            raise IllegalEvent(run, event, ())


def _is_late(run: Run, event: Event) -> bool:
    """It was true once, and does not matter any more."""
    match event:
        case SegmentMade() | OwnerUnreachable() | SegmentDeleted():
            return True
        case NameTaken(segment_id=segment_id):
            return run.stage is not Stage.MAKING or segment_id not in run.waiting
        case ParentTerminated(segment_id=segment_id):
            return segment_id in run.ends
        case AbortAsked():
            return run.stage in {Stage.MAKING, Stage.SEALING, Stage.COMMITTING, Stage.ABORTING, Stage.ENDED}
        case _:
            return False


def _take_up(run: Run) -> tuple[Run, list[Instruction]]:
    if run.operation.kind is OperationKind.DELETE:
        gone = {key: segment for key, segment in run.segments.items() if not segment.is_legacy}
        run = replace(run, stage=Stage.DELETING, waiting=frozenset(gone))
        if not gone:
            return replace(run, stage=Stage.COMMITTING), [CommitRemoval()]
        return run, [DeleteSegment(segment) for segment in gone.values()]
    if run.operation.phase is Phase.SEALING:
        return _seal(run)
    wanted = _to_make(run)
    waiting = frozenset(segment.segment_id for segment in wanted)
    run = replace(run, stage=Stage.MAKING, waiting=waiting, attempt=run.attempt + 1, unreachable_since={})
    return run, [MakeSegment(segment, run.attempt) for segment in wanted]


def _to_make(run: Run) -> tuple[SegmentInfo, ...]:
    if run.operation.kind is OperationKind.CREATE:
        return tuple(run.segments.values())
    return children(run.operation.replacements)


def _answered(run: Run, segment_id: int) -> tuple[Run, list[Instruction]]:
    run = replace(run, waiting=run.waiting - {segment_id})
    return (run, []) if run.waiting else _all_made(run)


def _all_made(run: Run) -> tuple[Run, list[Instruction]]:
    if run.operation.kind is OperationKind.CREATE:
        return replace(run, stage=Stage.COMMITTING), [CommitDone({})]
    instruction = CommitOtherIds(run.foreign) if run.foreign else CommitSealing()
    return replace(run, stage=Stage.ANNOUNCING), [instruction]


def _seal(run: Run) -> tuple[Run, list[Instruction]]:
    wanted = parents(run.operation.replacements)
    run = replace(run, stage=Stage.SEALING, waiting=frozenset(wanted), ends={})
    return run, [Terminate(segment_id) for segment_id in wanted]


def _may_abort(run: Run) -> bool:
    return run.operation.phase is Phase.PREPARING and bool(run.operation.replacements)


def _abort(run: Run, reason: str) -> tuple[Run, list[Instruction]]:
    return replace(run, stage=Stage.ABORTING, waiting=frozenset()), [CommitAbort(reason, run.foreign)]
