"""What each commit of an operation makes of a topic's record (PROTOCOL 3). Pure: a record in, the next record out.

commit 1 `begin`, commit 2 `seal`, commit 3 `finish`; `abort` and `take_other_ids` while it is PREPARING. The children
are decided at commit 1 and applied verbatim at commit 3.
"""

from collections.abc import Collection, Mapping
from typing import Final

from msgspec.structs import replace

from scalable_topics.model.errors import CapReached, WrongState
from scalable_topics.model.garbage import garbage_entry
from scalable_topics.model.layout import Replacement, Replacements, SegmentLayout
from scalable_topics.model.limits import MAX_LONG
from scalable_topics.model.names import TopicName
from scalable_topics.model.operation import FinishedOperation, Operation, OperationKind, Outcome, Phase
from scalable_topics.model.positions import Position
from scalable_topics.model.record import RECORD_LIMIT_BYTES, TopicRecord, TopicState, encode_record, remember
from scalable_topics.model.segment import SegmentInfo, segment_address

_LONGEST_END: Final[Position] = (MAX_LONG, MAX_LONG)


def begin(topic: TopicName, record: TopicRecord, operation: Operation) -> TopicRecord:
    """Commit 1. Every veto is decided here: at commit 3 there is nobody left who could say no.

    Raises `WrongState` while another operation runs and `CapReached` if the final record could not be written.
    """
    if record.operation is not None:
        raise WrongState(
            f"operation {record.operation.id} ({record.operation.kind}) is under way",
            subject=str(topic),
            remedy="wait for it, or abort it while it is PREPARING",
        )
    if record.state is not TopicState.ACTIVE:
        raise WrongState(f"the topic is {record.state}", subject=str(topic), remedy="wait until it is ACTIVE")
    begun = replace(record, layout=record.layout.announce(operation.replacements), operation=operation)
    ends = dict.fromkeys((p for r in operation.replacements for p in r.parents), _LONGEST_END)
    final = finish(replace(begun, operation=replace(operation, phase=Phase.SEALING)), ends, at_ms=MAX_LONG)
    largest = max(len(encode_record(begun)), len(encode_record(final)))
    if largest > RECORD_LIMIT_BYTES:
        raise CapReached(
            f"the record would be {largest} bytes, above {RECORD_LIMIT_BYTES}",
            subject=str(topic),
            remedy="prune drained segments, or merge some",
        )
    return begun


def seal(record: TopicRecord) -> TopicRecord:
    """Commit 2, the point of no return: only now may a parent be terminated."""
    return replace(record, operation=replace(running(record), phase=Phase.SEALING))


def finish(record: TopicRecord, ends: Mapping[int, Position], *, at_ms: int) -> TopicRecord:
    """Commit 3. `ends`: where each parent ended, as its owner said."""
    operation = running(record)
    if operation.kind is OperationKind.CREATE:
        record = replace(record, state=TopicState.ACTIVE)
    else:
        layout = record.layout.apply(operation.replacements, at_ms=at_ms, terminated=dict(ends))
        record = replace(record, layout=layout)
    return _ended(record, Outcome.DONE, at_ms=at_ms)


def abort(topic: TopicName, record: TopicRecord, reason: str, *, foreign: Collection[int], at_ms: int) -> TopicRecord:
    """Its children go to garbage, except those whose names are somebody else's; their ids stay burnt."""
    operation = running(record)
    if operation.phase is not Phase.PREPARING or not operation.replacements:
        raise WrongState(
            f"operation {operation.id} ({operation.kind}) is {operation.phase}",
            subject=str(topic),
            remedy="only a PREPARING change of segments can be aborted; this one goes forward by itself",
        )
    made = children(operation.replacements)
    garbage = _garbage(topic, record, made, made_by=operation.id, but=foreign)
    return _ended(replace(record, garbage=garbage), Outcome.ABORTED, at_ms=at_ms, reason=reason)


def take_other_ids(topic: TopicName, record: TopicRecord, foreign: Collection[int]) -> TopicRecord:
    """The same change with children of other ids, because some names are taken by what is not ours."""
    operation = running(record)
    shift = record.layout.next_segment_id - min(child.segment_id for child in children(operation.replacements))
    moved = tuple(
        Replacement(
            replacement.parent_runs,
            tuple(replace(child, segment_id=child.segment_id + shift) for child in replacement.children),
        )
        for replacement in operation.replacements
    )
    made = children(operation.replacements)
    garbage = _garbage(topic, record, made, made_by=operation.id, but=foreign)
    return replace(
        record,
        layout=record.layout.announce(moved),
        operation=replace(operation, replacements=moved),
        garbage=garbage,
    )


def prune(topic: TopicName, record: TopicRecord, segment_ids: Collection[int]) -> TopicRecord:
    """Forget drained segments; what stored them is garbage. Old topics of a migration are nobody's to delete."""
    gone = [record.layout.segment(segment_id) for segment_id in sorted(segment_ids)]
    garbage = _garbage(topic, record, [segment for segment in gone if not segment.is_legacy])
    return replace(record, layout=record.layout.prune(segment_ids), garbage=garbage)


def start_deleting(topic: TopicName, record: TopicRecord, operation: Operation) -> TopicRecord:
    """Supersedes whatever was under way; its children go to garbage. A deletion that is under way stays as it is."""
    if record.operation is not None:
        if record.operation.kind is OperationKind.DELETE:
            return record
        garbage = _garbage(topic, record, children(record.operation.replacements), made_by=record.operation.id)
        record = _ended(record, Outcome.SUPERSEDED, at_ms=operation.started_at_ms, reason="the topic is deleted")
        record = replace(record, garbage=garbage)
    return replace(record, state=TopicState.DELETING, operation=operation)


def running(record: TopicRecord) -> Operation:
    if record.operation is None:
        raise WrongState("there is no operation under way")
    return record.operation


def children(replacements: Replacements) -> tuple[SegmentInfo, ...]:
    return tuple(child for replacement in replacements for child in replacement.children)


def parents(replacements: Replacements) -> tuple[int, ...]:
    return tuple(parent for replacement in replacements for parent in replacement.parents)


def every_segment(record: TopicRecord) -> dict[int, SegmentInfo]:
    """Listed ones, and all children of what is under way, whether or not they have been made."""
    made = children(record.operation.replacements) if record.operation is not None else ()
    return {**record.layout.segments, **{child.segment_id: child for child in made}}


def announced_segments(record: TopicRecord) -> dict[int, SegmentInfo]:
    """Listed ones, and the children that are past the point of no return: every subscription has a cursor on each.

    Children that are still PREPARING are the executor's alone: their names may yet turn out to be somebody else's.
    """
    if record.operation is None or record.operation.phase is not Phase.SEALING:
        return dict(record.layout.segments)
    return every_segment(record)


def _ended(record: TopicRecord, outcome: Outcome, *, at_ms: int, reason: str = "") -> TopicRecord:
    operation = running(record)
    finished = FinishedOperation(
        id=operation.id,
        kind=operation.kind,
        outcome=outcome,
        finished_at_ms=at_ms,
        request_key=operation.request_key,
        parent_runs=parents(operation.replacements),
        reason=reason,
    )
    return remember(replace(record, operation=None), finished)


def _garbage(
    topic: TopicName,
    record: TopicRecord,
    segments: Collection[SegmentInfo],
    *,
    made_by: str | None = None,
    but: Collection[int] = (),
) -> tuple[str, ...]:
    """What was garbage, and these."""
    addresses = [
        segment_address(topic, segment, incarnation=record.incarnation)
        for segment in segments
        if segment.segment_id not in but
    ]
    return (*record.garbage, *(garbage_entry(address.physical, made_by=made_by) for address in addresses))


def initial_record(
    incarnation: str, layout: SegmentLayout, operation: Operation, properties: Mapping[str, str]
) -> TopicRecord:
    """What creates a topic: its segments are listed before they are made."""
    return TopicRecord(
        incarnation=incarnation,
        state=TopicState.CREATING,
        layout=layout,
        operation=operation,
        properties=dict(properties),
    )
