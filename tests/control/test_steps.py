"""The state machine of operations, without a shell: given this operation, when these events, then exactly these
instructions.
"""

import asyncio
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from scalable_topics.control import phases
from scalable_topics.control.executor import Executor
from scalable_topics.control.phases import children, parents
from scalable_topics.control.steps import (
    DELETE_PATIENCE_SECONDS,
    PREPARE_TIMEOUT_SECONDS,
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
from scalable_topics.model.errors import WrongState
from scalable_topics.model.layout import Replacements, SegmentLayout, initial_layout
from scalable_topics.model.operation import Operation, OperationKind, Outcome, Phase
from scalable_topics.model.positions import Position
from scalable_topics.model.record import TopicRecord, TopicState
from scalable_topics.model.replacements import merge, rebucket, split
from scalable_topics.model.segment import CreatedBy
from scalable_topics.segments.port import NOTHING
from tests.control.worlds import TOPIC, World, created, daemons
from tests.virtual_time import run_virtual

INCARNATION = "0123456789abcdef"
NOBODY = frozenset[int]()


def operation(kind: OperationKind, replacements: Replacements = ()) -> Operation:
    return Operation(
        id="op",
        kind=kind,
        phase=Phase.PREPARING,
        replacements=replacements,
        reason="",
        by="me",
        started_at_ms=2,
    )


def begun(kind: OperationKind, plan: Callable[[SegmentLayout], Replacements], *, segments: int = 2) -> TopicRecord:
    """After commit 1."""
    record = TopicRecord(incarnation=INCARNATION, layout=initial_layout(segments, at_ms=1))
    return phases.begin(TOPIC, record, operation(kind, plan(record.layout)))


def splitting() -> TopicRecord:
    """0 becomes 2 and 3."""
    return begun(OperationKind.SPLIT, lambda layout: split(layout, {0: 2}, at_ms=2))


def merging() -> TopicRecord:
    """0 and 1 become 2."""
    return begun(OperationKind.MERGE, lambda layout: merge(layout, [0, 1], at_ms=2))


def rebucketing() -> TopicRecord:
    """0 becomes 2, 1 becomes 3."""
    return begun(OperationKind.REBUCKET, lambda layout: rebucket(layout, [0, 1], 7, at_ms=2))


def creating() -> TopicRecord:
    layout = initial_layout(2, at_ms=1)
    return phases.initial_record(INCARNATION, layout, operation(OperationKind.CREATE), {})


def deleting() -> TopicRecord:
    record = TopicRecord(incarnation=INCARNATION, layout=initial_layout(2, at_ms=1))
    return phases.start_deleting(TOPIC, record, operation(OperationKind.DELETE))


def makes(record: TopicRecord, *, attempt: int = 1) -> list[Instruction]:
    assert record.operation is not None
    return [MakeSegment(child, attempt) for child in children(record.operation.replacements)]


def check(run: Run, *steps: tuple[Event, list[Instruction]]) -> Run:
    """When these events, then exactly these instructions after each."""
    for event, expected in steps:
        run, instructions = advance(run, event)
        assert instructions == expected, f"after {event}"
    return run


def made(*segment_ids: int, attempt: int = 1) -> list[tuple[Event, list[Instruction]]]:
    """All of them but the last."""
    return [(SegmentMade(segment_id, attempt), []) for segment_id in segment_ids]


def test_a_split_from_its_beginning_to_its_end() -> None:
    record = splitting()
    run = check(
        begin_run(record),
        (Began(0.0), makes(record)),
        (SegmentMade(3, 1), []),
        (SegmentMade(2, 1), [CommitSealing()]),
        (SealingCommitted(), [Terminate(0)]),
        (ParentTerminated(0, (0, 7)), [CommitDone({0: (0, 7)})]),
        (Committed(), []),
    )
    assert run.stage is Stage.ENDED


def test_a_merge_waits_for_both_parents() -> None:
    record = merging()
    check(
        begin_run(record),
        (Began(0.0), makes(record)),
        (SegmentMade(2, 1), [CommitSealing()]),
        (SealingCommitted(), [Terminate(0), Terminate(1)]),
        (ParentTerminated(1, (0, 4)), []),
        (ParentTerminated(0, NOTHING), [CommitDone({1: (0, 4), 0: NOTHING})]),
        (Committed(), []),
    )


def test_a_rebucket_of_many_is_one_change() -> None:
    record = rebucketing()
    check(
        begin_run(record),
        (Began(0.0), makes(record)),
        *made(2),
        (SegmentMade(3, 1), [CommitSealing()]),
        (SealingCommitted(), [Terminate(0), Terminate(1)]),
    )


def test_a_create_makes_what_the_record_lists_and_has_no_point_of_no_return() -> None:
    record = creating()
    first, second = record.layout.segments.values()
    run = check(
        begin_run(record),
        (Began(0.0), [MakeSegment(first, 1), MakeSegment(second, 1)]),
        (SegmentMade(0, 1), []),
        (AbortAsked("somebody"), []),
        (OwnerUnreachable(1, "down", 1.0), []),
        (OwnerUnreachable(1, "down", 10 * PREPARE_TIMEOUT_SECONDS), []),
        (SegmentMade(1, 1), [CommitDone({})]),
        (Committed(), []),
    )
    assert run.stage is Stage.ENDED


def test_a_create_whose_name_is_taken_says_so_instead_of_waiting_for_ever() -> None:
    run = check(begin_run(creating()), (Began(0.0), [MakeSegment(s, 1) for s in creating().layout.segments.values()]))
    with pytest.raises(IllegalEvent, match="NameTaken"):
        advance(run, NameTaken(0, "not ours"))


def test_a_delete_removes_the_record_when_every_segment_is_gone() -> None:
    record = deleting()
    first, second = record.layout.segments.values()
    run = check(
        begin_run(record),
        (Began(0.0), [DeleteSegment(first), DeleteSegment(second)]),
        (SegmentDeleted(1), []),
        (SegmentDeleted(1), []),
        (SegmentDeleted(0), [CommitRemoval()]),
        (Committed(), []),
    )
    assert run.stage is Stage.ENDED


def test_a_delete_has_little_patience_with_owners_for_what_is_left_is_garbage() -> None:
    record = deleting()
    check(
        begin_run(record),
        (Began(5.0), [DeleteSegment(segment) for segment in record.layout.segments.values()]),
        (OwnerUnreachable(0, "down", 5.0 + DELETE_PATIENCE_SECONDS - 0.1), []),
        (OwnerUnreachable(0, "down", 5.0 + DELETE_PATIENCE_SECONDS), [CommitRemoval()]),
        (SegmentDeleted(0), []),
        (OwnerUnreachable(1, "down", 99.0), []),
        (Committed(), []),
    )


def test_a_topic_without_segments_of_its_own_is_just_removed() -> None:
    record = deleting()
    legacy = {
        key: replace(segment, created_by=CreatedBy.LEGACY, legacy_topic_name="persistent://t/n/x")
        for key, segment in record.layout.segments.items()
    }
    run = replace(begin_run(record), segments=legacy)
    check(run, (Began(0.0), [CommitRemoval()]), (Committed(), []))


@pytest.mark.parametrize("after", [0, 1], ids=["at once", "when one child was made"])
def test_an_abort_while_children_are_made(after: int) -> None:
    record = splitting()
    run = check(
        begin_run(record),
        (Began(0.0), makes(record)),
        *made(2)[:after],
        (AbortAsked("an operator"), [CommitAbort("an operator", NOBODY)]),
        (AbortAsked("another"), []),
        (SegmentMade(3, 1), []),
        (NameTaken(3, "late"), []),
        (OwnerUnreachable(3, "down", 99.0), []),
        (Committed(), []),
    )
    assert run.stage is Stage.ENDED


def test_an_abort_while_commit_2_is_on_its_way_waits_for_its_answer() -> None:
    record = splitting()
    assert record.operation is not None
    announcing = check(
        begin_run(record),
        (Began(0.0), makes(record)),
        *made(2),
        (SegmentMade(3, 1), [CommitSealing()]),
        (AbortAsked("an operator"), []),
    )
    check(announcing, (RecordChanged(record.operation), [CommitAbort("an operator", NOBODY)]), (Committed(), []))
    check(announcing, (SealingCommitted(), [Terminate(0)]))
    sealed = replace(record.operation, phase=Phase.SEALING)
    check(announcing, (RecordChanged(sealed), [Terminate(0)]))


def test_an_abort_while_other_ids_are_taken_is_not_forgotten() -> None:
    record = splitting()
    other = phases.take_other_ids(TOPIC, record, {2})
    assert other.operation is not None
    check(
        begin_run(record),
        (Began(0.0), makes(record)),
        (NameTaken(2, "not ours"), []),
        (SegmentMade(3, 1), [CommitOtherIds(frozenset({2}))]),
        (AbortAsked("an operator"), []),
        (OtherIdsTaken(other.operation), [CommitAbort("an operator", NOBODY)]),
        (Committed(), []),
    )


def test_after_sealing_an_abort_changes_nothing() -> None:
    sealing = check(begin_run(phases.seal(merging())), (Began(0.0), [Terminate(0), Terminate(1)]))
    run = check(
        sealing,
        (AbortAsked("an operator"), []),
        (OwnerUnreachable(0, "down", 10 * PREPARE_TIMEOUT_SECONDS), []),
        (ParentTerminated(0, NOTHING), []),
        (ParentTerminated(1, NOTHING), [CommitDone({0: NOTHING, 1: NOTHING})]),
        (AbortAsked("an operator"), []),
        (Committed(), []),
        (AbortAsked("an operator"), []),
    )
    assert run.stage is Stage.ENDED


def test_a_name_that_is_taken_costs_new_ids_and_all_children_are_made_again() -> None:
    record = splitting()
    other = phases.take_other_ids(TOPIC, record, {2})
    assert other.operation is not None
    assert [child.segment_id for child in children(other.operation.replacements)] == [4, 5]
    check(
        begin_run(record),
        (Began(0.0), makes(record)),
        (NameTaken(2, "not ours"), []),
        (SegmentMade(3, 1), [CommitOtherIds(frozenset({2}))]),
        (OtherIdsTaken(other.operation), makes(other, attempt=2)),
        (NameTaken(2, "late"), []),
        (SegmentMade(3, 1), []),
        (SegmentMade(4, 2), []),
        (SegmentMade(5, 2), [CommitSealing()]),
    )


def test_an_abort_leaves_what_is_not_ours_alone() -> None:
    record = splitting()
    check(
        begin_run(record),
        (Began(0.0), makes(record)),
        (NameTaken(2, "not ours"), []),
        (AbortAsked("an operator"), [CommitAbort("an operator", frozenset({2}))]),
    )


def test_a_record_that_changed_makes_every_child_again() -> None:
    record = splitting()
    assert record.operation is not None
    check(
        begin_run(record),
        (Began(0.0), makes(record)),
        *made(2),
        (SegmentMade(3, 1), [CommitSealing()]),
        (RecordChanged(record.operation), makes(record, attempt=2)),
        (SegmentMade(2, 1), []),
        (SegmentMade(3, 1), []),
        (SegmentMade(3, 2), []),
        (SegmentMade(2, 2), [CommitSealing()]),
        (SealingCommitted(), [Terminate(0)]),
    )


def test_an_owner_that_is_unreachable_for_60_seconds_ends_a_preparing_operation() -> None:
    record = splitting()
    run = check(
        begin_run(record),
        (Began(100.0), makes(record)),
        (OwnerUnreachable(2, "down", 101.0), []),
        (OwnerUnreachable(3, "down", 140.0), []),
        (OwnerUnreachable(2, "down", 101.0 + PREPARE_TIMEOUT_SECONDS - 0.1), []),
    )
    after, instructions = advance(run, OwnerUnreachable(2, "down", 101.0 + PREPARE_TIMEOUT_SECONDS))
    assert [type(instruction) for instruction in instructions] == [CommitAbort]
    assert "unreachable for 60 s: down" in str(instructions[0])
    assert after.stage is Stage.ABORTING


def test_one_lost_answer_is_not_60_seconds_however_long_the_operation_has_taken() -> None:
    record = splitting()
    assert record.operation is not None
    check(
        begin_run(record),
        (Began(0.0), makes(record)),
        (OwnerUnreachable(2, "once", 10.0), []),
        *made(2),
        (SegmentMade(3, 1), [CommitSealing()]),
        (RecordChanged(record.operation), makes(record, attempt=2)),
        (OwnerUnreachable(2, "once more", 100.0), []),
        *made(2, attempt=2),
        (OwnerUnreachable(3, "its turn", 159.0), []),
        (SegmentMade(3, 2), [CommitSealing()]),
    )


def test_late_and_repeated_events_change_nothing() -> None:
    record = merging()
    run = check(
        begin_run(record),
        (Began(0.0), makes(record)),
        (SegmentMade(9, 1), []),
        (SegmentMade(2, 1), [CommitSealing()]),
        (SegmentMade(2, 1), []),
        (NameTaken(2, "late"), []),
        (SealingCommitted(), [Terminate(0), Terminate(1)]),
        (SegmentMade(2, 1), []),
        (ParentTerminated(0, NOTHING), []),
        (ParentTerminated(0, NOTHING), []),
        (ParentTerminated(1, NOTHING), [CommitDone({0: NOTHING, 1: NOTHING})]),
        (ParentTerminated(1, NOTHING), []),
        (OwnerUnreachable(1, "late", 500.0), []),
        (Committed(), []),
        (ParentTerminated(0, NOTHING), []),
        (SegmentDeleted(0), []),
    )
    assert run.stage is Stage.ENDED


def test_what_was_found_in_sealing_goes_forward() -> None:
    record = phases.seal(splitting())
    run = check(
        begin_run(record),
        (Began(0.0), [Terminate(0)]),
        (OwnerUnreachable(0, "down", 600.0), []),
        (ParentTerminated(0, (0, 1)), [CommitDone({0: (0, 1)})]),
        (Committed(), []),
    )
    assert run.stage is Stage.ENDED


ILLEGAL: dict[str, tuple[list[Event], Event]] = {
    "commit 3 that nobody sent": ([Began(0.0)], Committed()),
    "commit 2 that nobody sent": ([Began(0.0)], SealingCommitted()),
    "a parent ended before commit 2": ([Began(0.0)], ParentTerminated(0, NOTHING)),
    "a parent ended while commit 2 is under way": (
        [Began(0.0), SegmentMade(2, 1), SegmentMade(3, 1)],
        ParentTerminated(0, NOTHING),
    ),
    "other ids after the point of no return": (
        [Began(0.0), SegmentMade(2, 1), SegmentMade(3, 1), SealingCommitted()],
        OtherIdsTaken(operation(OperationKind.DELETE)),
    ),
    "a stranger ended": (
        [Began(0.0), SegmentMade(2, 1), SegmentMade(3, 1), SealingCommitted()],
        ParentTerminated(1, NOTHING),
    ),
}


@pytest.mark.parametrize(("before", "event"), ILLEGAL.values(), ids=ILLEGAL)
def test_what_cannot_happen_is_a_defect_and_says_so(before: list[Event], event: Event) -> None:
    run = begin_run(splitting())
    for each in before:
        run, _ = advance(run, each)
    with pytest.raises(IllegalEvent, match=f"{type(event).__name__}.*in stage {run.stage}"):
        advance(run, event)


def test_without_an_operation_there_is_nothing_to_run() -> None:
    with pytest.raises(WrongState, match="no operation"):
        begin_run(TopicRecord(incarnation=INCARNATION, layout=initial_layout(1, at_ms=1)))


def test_an_illegal_event_is_told_with_the_story_that_led_to_it() -> None:
    async def told() -> None:
        world = World()
        async with daemons(world, "a") as members:
            led = (await created(members, segments=2)).topic
            change = operation(OperationKind.SPLIT, split(led.now.layout, {0: 2}, at_ms=2))
            await led.update(lambda record: phases.begin(TOPIC, record, change))
            executor = Executor(led)
            running = asyncio.ensure_future(executor.run())
            await asyncio.sleep(0)
            executor._say(Committed())
            with pytest.raises(IllegalEvent) as raised:
                await running
            story = str(raised.value).partition("the story: ")[2]
            assert story.startswith("MAKING Began | MAKING MakeSegment 2 | MAKING MakeSegment 3 | MAKING Committed"), (
                story
            )
            assert executor.story[0] == "MAKING Began"

    run_virtual(told())


class Shell:
    """The store and the owners as the machine sees them, with answers that come in any order, late and repeated, and
    with everything that others do meanwhile. Each choice is one number.
    """

    def __init__(self, record: TopicRecord) -> None:
        self.record = record
        self.kind = self._operation().kind
        self.run = begin_run(record)
        self.now = 0.0
        self.pending: list[tuple[Instruction, int]] = []
        """With the subscriptions that were listed for it."""
        self.listed = 0
        self.answers: list[Event] = []
        self.told: list[Event] = []
        """By owners: these may come again."""
        self.taken: set[int] = set()
        self.cursors: dict[int, int] = {}
        """Which subscriptions a child was made with."""
        self.ended_at: dict[int, Position] = {}
        self.outcomes: list[Outcome] = []
        self.begin()

    def _operation(self) -> Operation:
        assert self.record.operation is not None
        return self.record.operation

    @property
    def under_way(self) -> bool:
        return self.record.operation is not None

    def begin(self) -> None:
        """A leader takes it up; what the one before was told is lost."""
        self.run, self.pending, self.answers, self.told = begin_run(self.record), [], [], []
        self.tell(Began(self.now))

    def tell(self, event: Event) -> None:
        self.run, instructions = advance(self.run, event)
        if any(isinstance(instruction, MakeSegment) for instruction in instructions):
            self.listed = self.record.subscriptions_revision
        self.pending += [(instruction, self.listed) for instruction in instructions]
        if isinstance(event, SegmentMade | NameTaken | ParentTerminated | SegmentDeleted | AbortAsked):
            self.told.append(event)

    def step(self, choice: int) -> None:
        what, which = choice % 10, choice // 10
        if what <= 2 and self.pending:
            instruction, listed = self.pending.pop(which % len(self.pending))
            self.answers.append(self.carry_out(instruction, listed))
        elif what <= 5 and self.answers:
            self.tell(self.answers.pop(which % len(self.answers)))
        elif what == 6 and self.told:
            self.tell(self.told[which % len(self.told)])
        elif what == 7 and self.under_way:
            self.record = replace(self.record, subscriptions_revision=self.record.subscriptions_revision + 1)
        elif what == 8:
            self.disturb(which)
        elif what == 9 and which % 4 == 0 and self.under_way:
            self.begin()

    def disturb(self, which: int) -> None:
        match which % 4:
            case 0 if self.kind is not OperationKind.DELETE:
                self.tell(AbortAsked("somebody"))
            case 1:
                self.now += which
                self.tell(OwnerUnreachable(2 + which % 3, "down", self.now))
            case 2 if self.under_way and self.kind is not OperationKind.CREATE:
                free = {child.segment_id for child in children(self._operation().replacements)} - self.cursors.keys()
                self.taken |= set(sorted(free)[:1])
            case _:
                pass

    def carry_out(self, instruction: Instruction, listed: int) -> Event:
        match instruction:
            case MakeSegment(segment=segment, attempt=attempt):
                if segment.segment_id in self.taken:
                    return NameTaken(segment.segment_id, "not ours")
                self.cursors[segment.segment_id] = max(listed, self.cursors.get(segment.segment_id, -1))
                return SegmentMade(segment.segment_id, attempt)
            case CommitSealing():
                return self.commit_sealing()
            case CommitOtherIds(foreign=foreign):
                assert foreign <= self.taken, "an id was burnt that was ours"
                self.record = phases.take_other_ids(TOPIC, self.record, foreign)
                return OtherIdsTaken(self._operation())
            case Terminate(segment_id=segment_id):
                assert self._operation().phase is Phase.SEALING, "terminated before commit 2"
                assert segment_id in parents(self._operation().replacements)
                return ParentTerminated(segment_id, self.ended_at.setdefault(segment_id, (0, segment_id)))
            case DeleteSegment(segment=segment):
                return SegmentDeleted(segment.segment_id)
            case CommitDone(ends=ends):
                if self.kind is not OperationKind.CREATE:
                    assert self._operation().phase is Phase.SEALING
                    assert set(ends) == set(parents(self._operation().replacements)), "commit 3 before all had ended"
                    assert ends == self.ended_at
                return self.end(phases.finish(self.record, ends, at_ms=3), Outcome.DONE)
            case CommitAbort(reason=reason, foreign=foreign):
                assert not self.ended_at, "aborted, and a parent was terminated"
                assert foreign <= self.taken
                return self.end(phases.abort(TOPIC, self.record, reason, foreign=foreign, at_ms=3), Outcome.ABORTED)
            case CommitRemoval():
                return self.end(replace(self.record, operation=None), Outcome.DONE)

    def commit_sealing(self) -> Event:
        """The shell compares the record with the one that it listed the subscriptions after."""
        if self.record.subscriptions_revision != self.listed:
            return RecordChanged(self._operation())
        for child in children(self._operation().replacements):
            assert child.segment_id not in self.taken, "announced what is not ours"
            assert self.cursors.get(child.segment_id) == self.listed, "announced a child without all its cursors"
        self.record = phases.seal(self.record)
        return SealingCommitted()

    def end(self, record: TopicRecord, outcome: Outcome) -> Event:
        self.outcomes.append(outcome)
        self.record = record
        return Committed()

    def finish(self) -> None:
        """From here on everything is answered."""
        for _ in range(1_000):
            if self.run.stage is Stage.ENDED:
                return
            if self.answers:
                self.tell(self.answers.pop(0))
            elif self.pending:
                instruction, listed = self.pending.pop(0)
                self.answers.append(self.carry_out(instruction, listed))
            else:
                raise AssertionError(f"it waits for nobody: {self.run}")
        raise AssertionError("it does not end")


BEGINNINGS = {"split": splitting, "merge": merging, "rebucket": rebucketing, "create": creating, "delete": deleting}


@pytest.mark.parametrize("kind", BEGINNINGS)
@given(choices=st.lists(st.integers(0, 999), max_size=80))
def test_in_any_order_nothing_is_terminated_early_and_it_ends_once(kind: str, choices: list[int]) -> None:
    shell = Shell(BEGINNINGS[kind]())
    for choice in choices:
        shell.step(choice)
    shell.finish()
    for event in tuple(shell.told):
        shell.tell(event)
    assert len(shell.outcomes) == 1
    assert not shell.under_way
    assert shell.record.state is not TopicState.CREATING
    if shell.outcomes == [Outcome.ABORTED]:
        assert shell.record.layout.epoch == 0
        assert not shell.ended_at
