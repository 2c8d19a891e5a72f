"""The topic's record: everything the store keeps in the topic's own key, as one JSON document.

Field names are PIP-468's. What this version does not know is not thrown away: a field added by a later version
survives a read-modify-write by this one, for as long as the thing it was attached to exists. Encoding is canonical,
so equal records are equal bytes.
"""

from collections.abc import Mapping
from enum import StrEnum
from typing import Final

import msgspec
from msgspec import Struct
from msgspec.structs import fields, replace

from scalable_topics.model.autoscale_policy import AutoScalePolicyOverride
from scalable_topics.model.codec import decode_json, encode_json, refuse_repeated_names
from scalable_topics.model.errors import DecodeError, InvalidArgument, ScalableTopicsError, WrongState
from scalable_topics.model.layout import SegmentLayout
from scalable_topics.model.layout_rules import UNBORN_EPOCH
from scalable_topics.model.legacy_runs import LegacyRun, fold, unfold
from scalable_topics.model.limits import is_long
from scalable_topics.model.operation import FinishedOperation, Operation, OperationKind
from scalable_topics.model.segment import SegmentInfo
from scalable_topics.model.unknown import Unknown, find_unknown, restore_unknown

RECORD_LIMIT_BYTES: Final = 1 << 20
"""Nothing larger is committed; etcd would take 1.5 MiB."""
AUTOSCALE_RECORD_LIMIT_BYTES: Final = 1 << 19
"""Autoscaling stops here, so that an operator still has room to mend things."""
MAX_RECENT_OPERATIONS: Final = 32
"""How many finished operations a record remembers (PROTOCOL 2)."""


class TopicState(StrEnum):
    CREATING = "CREATING"
    ACTIVE = "ACTIVE"
    MIGRATING = "MIGRATING"
    DELETING = "DELETING"


class MigratedFrom(Struct, frozen=True, rename="camel"):
    """The regular topic this one was; 0 partitions = it was not partitioned."""

    topic: str
    partitions: int

    def __post_init__(self) -> None:
        if not is_long(self.partitions):
            raise InvalidArgument(f"{self.partitions} is not a number of partitions", remedy="give 0 or more")


class TopicRecord(Struct, frozen=True, kw_only=True):
    """One topic, whole. `unknown` is what a later version wrote and we carry along."""

    incarnation: str
    """Random id of one life of the topic: 16 lower-case hex digits."""
    state: TopicState = TopicState.ACTIVE
    layout: SegmentLayout = SegmentLayout()
    properties: Mapping[str, str] = {}
    auto_scale_policy: AutoScalePolicyOverride | None = None
    operation: Operation | None = None
    recent_operations: tuple[FinishedOperation, ...] = ()
    """Oldest first; `remember` adds to them."""
    garbage: tuple[str, ...] = ()
    """Physical segments that may be deleted."""
    subscriptions_revision: int = 0
    load_source: str | None = None
    """Who reports the load of this topic; None = the owners of its segments."""
    migrated_from: MigratedFrom | None = None
    unknown: Unknown | None = None

    def __post_init__(self) -> None:
        if len(self.incarnation) != 16 or not set(self.incarnation) <= _HEX_DIGITS:
            raise InvalidArgument(f"{self.incarnation!r} is not an incarnation", remedy="give 16 lower-case hex digits")
        if not is_long(self.subscriptions_revision):
            raise InvalidArgument(f"subscriptionsRevision {self.subscriptions_revision} is not a long of 0 or more")
        if len(self.recent_operations) > MAX_RECENT_OPERATIONS:
            raise InvalidArgument(
                f"{len(self.recent_operations)} recent operations, above {MAX_RECENT_OPERATIONS}",
                remedy="add one with `remember`, which drops the oldest",
            )


def remember(record: TopicRecord, finished: FinishedOperation) -> TopicRecord:
    """The record with one more finished operation, the oldest dropped when there are `MAX_RECENT_OPERATIONS` already.

    The only way to add one. An operation ends once: an id that is remembered already is refused.
    """
    if any(earlier.id == finished.id for earlier in record.recent_operations):
        raise WrongState(f"operation {finished.id!r} has ended already", remedy="look it up in recentOperations")
    return replace(record, recent_operations=_newest((*record.recent_operations, finished)))


def _newest(operations: tuple[FinishedOperation, ...]) -> tuple[FinishedOperation, ...]:
    return operations[-MAX_RECENT_OPERATIONS:]


_STATE_OF: Final = {OperationKind.CREATE: TopicState.CREATING, OperationKind.DELETE: TopicState.DELETING}
_HEX_DIGITS: Final = frozenset("0123456789abcdef")


class _Document(Struct, rename="camel", kw_only=True):
    """The record as JSON sees it: the layout's fields beside the others, under PIP-468's names, in a fixed order."""

    epoch: int
    next_segment_id: int
    segments: dict[int, SegmentInfo]
    properties: Mapping[str, str]
    auto_scale_policy: Mapping[str, object] | None = None
    incarnation: str
    state: TopicState
    operation: Operation | None = None
    recent_operations: tuple[FinishedOperation, ...] = ()
    garbage: tuple[str, ...] = ()
    subscriptions_revision: int = 0
    load_source: str | None = None
    migrated_from: MigratedFrom | None = None
    legacy_partitions: tuple[LegacyRun, ...] = ()


_decoder: Final = msgspec.json.Decoder(_Document)
_anything: Final = msgspec.json.Decoder()


def encode_record(record: TopicRecord) -> bytes:
    """The one spelling of this record."""
    document = _document(record)
    if record.unknown is None:
        return encode_json(document)
    return encode_json(restore_unknown(msgspec.to_builtins(document, str_keys=True), record.unknown))


def decode_record(data: bytes, *, subject: str = "topic record") -> TopicRecord:
    """Read a record and check all of it; `DecodeError` tells everything that is wrong.

    Ids and old partitions are understood whether or not runs of them are written as such. Of more finished operations
    than a record remembers the newest are kept.
    """
    document = decode_json(data, _decoder, subject=subject)
    try:
        record = _record(document)
        _check(record)
    except ScalableTopicsError as error:
        raise DecodeError(error.what, subject=subject, remedy=error.remedy) from error
    # What encodes to the very same bytes holds nothing unknown; only something else is worth a second, slower look.
    canonical = encode_json(document)
    if canonical == data:
        return record
    refuse_repeated_names(data, subject=subject)
    raw = decode_json(data, _anything, subject=subject)
    known = _anything.decode(canonical)
    if raw["segments"].keys() != known["segments"].keys():
        # "-0" is a second spelling of 0 to a lenient reader, and would outlive its segment as an unknown field.
        raise DecodeError("a segment is filed under an odd spelling of its id", subject=subject)
    return replace(record, unknown=find_unknown(raw, known))


def _check(record: TopicRecord) -> None:
    """What must hold of the parts together."""
    record.layout.check()
    if (record.layout.epoch == UNBORN_EPOCH) is not (record.state is TopicState.MIGRATING):
        raise InvalidArgument(f"a record in state {record.state} cannot be at epoch {record.layout.epoch}")
    operation = record.operation
    if operation is None:
        return
    whole = _STATE_OF.get(operation.kind, record.state)
    if record.state is not whole:
        raise InvalidArgument(f"a record in state {record.state} cannot have a {operation.kind} under way")
    if operation.replacements:
        after = record.layout.apply(operation.replacements, at_ms=operation.started_at_ms)
        if after.next_segment_id > record.layout.next_segment_id:
            raise InvalidArgument(f"operation {operation.id!r} makes segments whose ids were never burnt")


def _record(document: _Document) -> TopicRecord:
    segments = unfold(document.segments, document.legacy_partitions)
    return TopicRecord(
        layout=SegmentLayout(document.epoch, document.next_segment_id, segments),
        recent_operations=_newest(document.recent_operations),
        **{name: getattr(document, name) for name in _SHARED},
    )


def _document(record: TopicRecord) -> _Document:
    layout = record.layout
    remarks = record.unknown.within.get("segments") if record.unknown else None
    segments, legacy_partitions = fold(layout.segments, apart=set(map(int, remarks.within)) if remarks else ())
    return _Document(
        epoch=layout.epoch,
        next_segment_id=layout.next_segment_id,
        segments=segments,
        legacy_partitions=legacy_partitions,
        recent_operations=record.recent_operations,
        **{name: getattr(record, name) for name in _SHARED},
    )


_SHARED: Final = tuple(
    field.name
    for field in fields(_Document)
    if field.name not in {"epoch", "next_segment_id", "segments", "legacy_partitions", "recent_operations"}
)
"""What a record and its document call by the same name."""
