"""What travels over HTTP in JSON. Positions are `[ledger, entry]`, payloads base64."""

from collections.abc import Mapping
from typing import TypeVar

import msgspec
from aiohttp import web
from msgspec import Struct

from scalable_topics.model.errors import DecodeError, InvalidArgument
from scalable_topics.model.hash_range import HashRange
from scalable_topics.model.hashing import raw_hash
from scalable_topics.model.positions import Position
from scalable_topics.segments.port import Entry, Message

T = TypeVar("T")


class SegmentBody(Struct, frozen=True, rename="camel"):
    """A segment as far as a writer needs it."""

    segment_id: int
    hash_range: HashRange
    web_url: str | None = None
    """Of the daemon that serves it, as far as whoever answers has heard."""


class MessageBody(Struct, frozen=True, rename="camel", kw_only=True, omit_defaults=True):
    payload: bytes
    producer: str = ""
    sequence: int | None = None
    key: str | None = None
    ordering_key: bytes | None = None
    properties: Mapping[str, str] = {}
    event_time_ms: int = 0


class AppendBody(Struct, frozen=True):
    messages: tuple[MessageBody, ...]


class AppendedBody(Struct, frozen=True):
    position: Position | None
    """None = it was stored before, and has been pruned since."""
    duplicate: bool


class AppendAnswer(Struct, frozen=True):
    appended: tuple[AppendedBody, ...]


class EntryBody(Struct, frozen=True, rename="camel"):
    position: Position
    published_at_ms: int
    message: MessageBody


class ReadAnswer(Struct, frozen=True):
    entries: tuple[EntryBody, ...]


class AckBody(Struct, frozen=True):
    """Everything up to a position."""

    subscription: str
    through: Position


class CursorBody(Struct, frozen=True, rename="camel"):
    mark_delete: Position
    backlog: int


class DescribeAnswer(Struct, frozen=True, rename="camel"):
    physical: str
    terminated: Position | None
    last: Position
    subscriptions: Mapping[str, CursorBody]


class ReadyLine(Struct, frozen=True, rename="camel"):
    """What a daemon prints when it can be asked."""

    broker_id: str
    web_url: str
    pid: int


class HealthAnswer(Struct, frozen=True, rename="camel", kw_only=True):
    broker_id: str
    session: bool
    """Does the store know this daemon, as far as it may believe?"""
    stale_seconds: float
    """Since it heard of the store."""
    leads: int
    serves: int


class CollectAnswer(Struct, frozen=True):
    pruned: tuple[int, ...]
    deleted: tuple[str, ...]
    orphans: tuple[str, ...]


def to_message(body: MessageBody) -> Message:
    ordering = body.ordering_key if body.ordering_key is not None else body.key
    return Message(
        payload=body.payload,
        producer=body.producer,
        sequence=body.sequence,
        key=body.key,
        ordering_key=body.ordering_key,
        key_hash=None if ordering is None else raw_hash(ordering),
        properties=body.properties,
        event_time_ms=body.event_time_ms,
    )


def entry_body(entry: Entry) -> EntryBody:
    message = entry.message
    body = MessageBody(
        payload=message.payload,
        producer=message.producer,
        sequence=message.sequence,
        key=message.key,
        ordering_key=message.ordering_key,
        properties=message.properties,
        event_time_ms=message.event_time_ms,
    )
    return EntryBody(entry.position, entry.published_at_ms, body)


async def read_body(request: web.Request, decoder: "msgspec.json.Decoder[T]") -> T:
    """`InvalidArgument` for what is not this body: it comes from a caller, not from our own store."""
    try:
        return decoder.decode(await request.read())
    except (ValueError, RecursionError, DecodeError) as error:
        raise InvalidArgument(f"the body is malformed: {error}") from error


def json_response(value: object, *, status: int = 200, headers: Mapping[str, str] | None = None) -> web.Response:
    return web.Response(
        status=status, body=msgspec.json.encode(value), content_type="application/json", headers=headers
    )


def whole_number(text: str, *, name: str) -> int:
    if not text.isascii() or not text.isdecimal() or len(text) > 19:
        raise InvalidArgument(f"{name} {text!r} is not a whole number", remedy="give 0 or more")
    return int(text)
