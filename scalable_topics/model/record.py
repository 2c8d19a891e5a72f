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
from msgspec.structs import replace

from scalable_topics.model.autoscale_policy import AutoScalePolicyOverride
from scalable_topics.model.codec import decode_json, encode_json, refuse_repeated_names
from scalable_topics.model.errors import DecodeError, InvalidArgument
from scalable_topics.model.layout import SegmentLayout
from scalable_topics.model.operation import FinishedOperation, Operation
from scalable_topics.model.segment import SegmentInfo
from scalable_topics.model.unknown import Unknown, find_unknown, restore_unknown

RECORD_LIMIT_BYTES: Final = 1 << 20
"""Nothing larger is committed; etcd would take 1.5 MiB."""
AUTOSCALE_RECORD_LIMIT_BYTES: Final = 1 << 19
"""Autoscaling stops here, so that an operator still has room to mend things."""


class TopicState(StrEnum):
    CREATING = "CREATING"
    ACTIVE = "ACTIVE"
    MIGRATING = "MIGRATING"
    DELETING = "DELETING"


class MigratedFrom(Struct, frozen=True, rename="camel"):
    """The regular topic this one was; 0 partitions = it was not partitioned."""

    topic: str
    partitions: int


class TopicRecord(Struct, frozen=True, kw_only=True):
    """One topic, whole. `unknown` is what a later version wrote and we carry along."""

    incarnation: str = "0" * 16
    """Random id of one life of the topic: 16 lower-case hex digits."""
    state: TopicState = TopicState.ACTIVE
    layout: SegmentLayout = SegmentLayout()
    properties: Mapping[str, str] = {}
    auto_scale_policy: AutoScalePolicyOverride | None = None
    operation: Operation | None = None
    recent_operations: tuple[FinishedOperation, ...] = ()
    garbage: tuple[str, ...] = ()
    """Physical segments that may be deleted."""
    subscriptions_revision: int = 0
    load_source: str | None = None
    """Who reports the load of this topic; None = the owners of its segments."""
    migrated_from: MigratedFrom | None = None
    unknown: Unknown | None = None

    def __post_init__(self) -> None:
        if len(self.incarnation) != 16 or not set(self.incarnation) <= _HEX_DIGITS:
            raise InvalidArgument(f"{self.incarnation!r} is not an incarnation", remedy="16 lower-case hex digits")


_HEX_DIGITS: Final = frozenset("0123456789abcdef")


class _Document(Struct, rename="camel", kw_only=True):
    """The record as JSON sees it."""

    epoch: int
    next_segment_id: int
    segments: dict[int, SegmentInfo]
    properties: dict[str, str]
    auto_scale_policy: dict[str, object] | None = None
    incarnation: str
    state: TopicState
    operation: Operation | None = None
    recent_operations: tuple[FinishedOperation, ...] = ()
    garbage: tuple[str, ...] = ()
    subscriptions_revision: int = 0
    load_source: str | None = None
    migrated_from: MigratedFrom | None = None


_decoder: Final = msgspec.json.Decoder(_Document)
_anything: Final = msgspec.json.Decoder()


def encode_record(record: TopicRecord) -> bytes:
    """The one spelling of this record."""
    document = _document(record)
    if record.unknown is None:
        return encode_json(document)
    return encode_json(restore_unknown(msgspec.to_builtins(document, str_keys=True), record.unknown))


def decode_record(data: bytes, *, subject: str = "topic record") -> TopicRecord:
    """Read a record and check its layout; `DecodeError` tells everything that is wrong with it."""
    document = decode_json(data, _decoder, subject=subject)
    layout = SegmentLayout(document.epoch, document.next_segment_id, document.segments)
    try:
        layout.check()
        record = TopicRecord(
            incarnation=document.incarnation,
            state=document.state,
            layout=layout,
            properties=document.properties,
            auto_scale_policy=document.auto_scale_policy,
            operation=document.operation,
            recent_operations=document.recent_operations,
            garbage=document.garbage,
            subscriptions_revision=document.subscriptions_revision,
            load_source=document.load_source,
            migrated_from=document.migrated_from,
        )
    except InvalidArgument as error:
        raise DecodeError(error.what, subject=subject, remedy=error.remedy) from error
    # What encodes to the very same bytes holds nothing unknown; only something else is worth a second, slower look.
    canonical = encode_json(_document(record))
    if canonical == data:
        return record
    refuse_repeated_names(data, subject=subject)
    raw = decode_json(data, _anything, subject=subject)
    return replace(record, unknown=find_unknown(raw, _anything.decode(canonical)))


def _document(record: TopicRecord) -> _Document:
    return _Document(
        epoch=record.layout.epoch,
        next_segment_id=record.layout.next_segment_id,
        segments=dict(record.layout.segments),
        properties=dict(record.properties),
        auto_scale_policy=None if record.auto_scale_policy is None else dict(record.auto_scale_policy),
        incarnation=record.incarnation,
        state=record.state,
        operation=record.operation,
        recent_operations=record.recent_operations,
        garbage=record.garbage,
        subscriptions_revision=record.subscriptions_revision,
        load_source=record.load_source,
        migrated_from=record.migrated_from,
    )
