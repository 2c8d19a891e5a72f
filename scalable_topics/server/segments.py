"""`/segments/{tenant}/{namespace}/{topic}/{id}`: append to a segment, read it, acknowledge it, look at it.

Whoever asks names the incarnation of the topic it means: a topic that was deleted and made again under the same name
never sees a call that was meant for its former life.
"""

from collections.abc import Sequence
from typing import Final

import msgspec
from aiohttp import web
from msgspec.structs import replace

from scalable_topics.control.phases import every_segment
from scalable_topics.model.errors import DecodeError, InvalidArgument, NotFound
from scalable_topics.model.hashing import segment_hash
from scalable_topics.model.names import TopicName
from scalable_topics.model.operation import Phase
from scalable_topics.model.positions import Sentinel
from scalable_topics.model.record import TopicRecord, decode_record
from scalable_topics.model.segment import SegmentInfo, segment_address
from scalable_topics.segments.errors import Terminated
from scalable_topics.segments.port import EXCLUSIVE, Appended, Entry, Message, ServedSegment, StartAt
from scalable_topics.server.auth.middleware import acts
from scalable_topics.server.auth.table import Action
from scalable_topics.server.bodies import (
    AckBody,
    AppendAnswer,
    AppendBody,
    AppendedBody,
    CursorBody,
    DescribeAnswer,
    ReadAnswer,
    SegmentBody,
    entry_body,
    json_response,
    read_body,
    to_message,
    whole_number,
)
from scalable_topics.server.daemon import Daemon
from scalable_topics.server.errors import RefusedWithBody, body_of
from scalable_topics.server.keys import DAEMON
from scalable_topics.server.leading import topic_of

SEGMENT: Final = "/segments/{tenant}/{namespace}/{topic}/{id}"
MAX_READ: Final = 1_000
CONSUMER: Final = "http"
"""As whom acknowledgements over HTTP attach, one after the other."""

_append: Final = msgspec.json.Decoder(AppendBody)
_ack: Final = msgspec.json.Decoder(AckBody)


@acts(Action.APPEND)
async def append(request: web.Request) -> web.Response:
    """All messages or none, durable when answered. A sequence that is stored already answers where it is.

    `terminated` names the segments to write to instead, which accept messages at once.
    """
    body = await read_body(request, _append)
    messages = [to_message(message) for message in body.messages]

    async def work(served: ServedSegment, segment: SegmentInfo) -> Sequence[Appended]:
        _ensure_in_range(messages, segment)
        return await served.append(messages)

    topic, segment_id, incarnation = _target(request)
    daemon = request.app[DAEMON]
    try:
        appended = await daemon.owners.use(topic, segment_id, work, incarnation=incarnation)
    except Terminated as error:
        children = await _heirs(daemon, topic, segment_id, incarnation)
        told = tuple(_told(daemon, topic, child) for child in children)
        raise RefusedWithBody(error, replace(body_of(error), children=told)) from None
    return json_response(AppendAnswer(tuple(AppendedBody(one.position, one.duplicate) for one in appended)))


@acts(Action.READ)
async def read(request: web.Request) -> web.Response:
    """Stored messages from a position on: `?from=earliest|latest|LEDGER:ENTRY&max=`. Moves no cursor."""
    start = _start(request.query.get("from", "earliest"))
    most = min(MAX_READ, whole_number(request.query.get("max", "100"), name="max"))

    async def work(served: ServedSegment, _: SegmentInfo) -> Sequence[Entry]:
        return await served.read(start, max_entries=most)

    topic, segment_id, incarnation = _target(request)
    entries = await request.app[DAEMON].owners.use(topic, segment_id, work, incarnation=incarnation)
    return json_response(ReadAnswer(tuple(entry_body(entry) for entry in entries)))


@acts(Action.ACKNOWLEDGE)
async def ack(request: web.Request) -> web.Response:
    """Acknowledge everything up to a position, as the only consumer of the subscription."""
    body = await read_body(request, _ack)

    async def work(served: ServedSegment, _: SegmentInfo) -> None:
        attachment = await served.attach(body.subscription, CONSUMER, EXCLUSIVE)
        try:
            await attachment.ack_through(body.through)
        finally:
            await attachment.close()

    topic, segment_id, incarnation = _target(request)
    await request.app[DAEMON].owners.use(topic, segment_id, work, incarnation=incarnation)
    return web.Response(status=204)


@acts(Action.DESCRIBE_SEGMENT)
async def describe(request: web.Request) -> web.Response:
    """What it is and how far everybody has read. Any daemon answers."""
    topic, segment_id, incarnation = _target(request)
    daemon = request.app[DAEMON]
    record = await _record(daemon, topic, incarnation)
    segment = every_segment(record).get(segment_id)
    if segment is None:
        raise NotFound("there is no such segment", subject=f"segment {segment_id} of {topic}")
    address = segment_address(topic, segment, incarnation=record.incarnation)
    facts = await daemon.segments.describe(address)
    cursors = {name: CursorBody(one.mark_delete, one.backlog) for name, one in facts.subscriptions.items()}
    return json_response(DescribeAnswer(address.physical, facts.terminated, facts.last, cursors))


async def _heirs(daemon: Daemon, topic: TopicName, segment_id: int, incarnation: str) -> Sequence[SegmentInfo]:
    """Who takes the messages of a terminated segment now. The view knows at once, as a rule; if not, the store does."""
    item = daemon.view.state.items.get(daemon.paths.record(topic))
    try:
        seen = decode_record(item.value, subject=str(topic)) if item is not None else None
    except DecodeError:
        seen = None
    if seen is not None and seen.incarnation == incarnation and (heirs := heirs_of(seen, segment_id)):
        return heirs
    return heirs_of(await _record(daemon, topic, incarnation), segment_id)


def heirs_of(record: TopicRecord, segment_id: int) -> Sequence[SegmentInfo]:
    """The children of a segment that is SEALED, or whose SEALING operation announces them; none if there are none."""
    listed = record.layout.segments.get(segment_id)
    if listed is not None and not listed.is_active:
        return [record.layout.segments[child] for child in listed.child_ids]
    operation = record.operation
    if operation is None or operation.phase is not Phase.SEALING:
        return ()
    return next((one.children for one in operation.replacements if segment_id in one.parents), ())


def _told(daemon: Daemon, topic: TopicName, segment: SegmentInfo) -> SegmentBody:
    owner = daemon.owners.owner_in_view(topic, segment.segment_id)
    return SegmentBody(segment.segment_id, segment.hash_range, owner.web_url if owner is not None else None)


async def _record(daemon: Daemon, topic: TopicName, incarnation: str) -> TopicRecord:
    known = await daemon.repository.topic(topic)
    if known is None or known.value.incarnation != incarnation:
        raise NotFound("there is no such topic, or it was made anew", subject=str(topic), remedy="read it again")
    return known.value


def _target(request: web.Request) -> tuple[TopicName, int, str]:
    incarnation = request.query.get("incarnation")
    if not incarnation:
        raise InvalidArgument("no incarnation is given", remedy="read the topic, and add ?incarnation= of its record")
    return topic_of(request), whole_number(request.match_info["id"], name="segment"), incarnation


def _ensure_in_range(messages: Sequence[Message], segment: SegmentInfo) -> None:
    """A key in a wrong segment would lose its order."""
    if segment.is_legacy:
        return
    for message in messages:
        if message.key_hash is not None and segment_hash(message.key_hash) not in segment.hash_range:
            raise InvalidArgument(
                f"the key {message.key!r} does not belong to {segment.hash_range}",
                subject=f"segment {segment.segment_id}",
                remedy="route by the topic's newest layout",
            )


def _start(text: str) -> StartAt:
    if text in {"earliest", "latest"}:
        return Sentinel(text.upper())
    ledger, _, entry = text.partition(":")
    return whole_number(ledger, name="ledger"), whole_number(entry, name="entry")


ROUTES: Final = (
    web.post(f"{SEGMENT}/append", append),
    web.get(f"{SEGMENT}/read", read, allow_head=False),
    web.post(f"{SEGMENT}/ack", ack),
    web.get(f"{SEGMENT}/describe", describe, allow_head=False),
)
