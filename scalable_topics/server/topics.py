"""`/admin/v2/scalable/{tenant}/{namespace}[/{topic}]`: list, make, read and delete scalable topics."""

import asyncio
from collections.abc import Mapping
from typing import Final

import msgspec
from aiohttp import web
from msgspec import Struct

from scalable_topics.control.controller import TopicController, etag
from scalable_topics.metadata.view import ViewState
from scalable_topics.model.codec import decode_json
from scalable_topics.model.errors import DecodeError, InvalidArgument, NotFound
from scalable_topics.model.names import TopicName
from scalable_topics.model.record import TopicRecord, decode_record, encode_record
from scalable_topics.policy.property_index import topics_with
from scalable_topics.server.auth.middleware import acts
from scalable_topics.server.auth.table import Action
from scalable_topics.server.bodies import json_response, read_body, whole_number
from scalable_topics.server.daemon import Daemon
from scalable_topics.server.keys import DAEMON
from scalable_topics.server.known import store_or_view
from scalable_topics.server.leading import asked, by_leader, namespace_of, topic_of

NAMESPACE: Final = "/admin/v2/scalable/{tenant}/{namespace}"
TOPIC: Final = f"{NAMESPACE}/{{topic}}"
AT_ONCE: Final = 200
"""Records looked at before others get a turn: a namespace may hold ten thousand topics."""


class _Properties(Struct):
    """All that a filter needs of a record."""

    properties: dict[str, str] = {}


_body: Final = msgspec.json.Decoder(dict[str, str] | None)
_decoder: Final = msgspec.json.Decoder(_Properties)


@acts(Action.LIST_TOPICS)
async def list_topics(request: web.Request) -> web.Response:
    """All of a namespace, sorted; `?property=k=v`, repeatable, leaves those that have all of these."""
    of = request.app[DAEMON]
    tenant, namespace = namespace_of(request)
    wanted = _wanted(request)
    topics, headers = await store_or_view(
        of,
        lambda: of.repository.topics(tenant, namespace),
        lambda state: [
            topic
            for key in state.items
            if key.startswith(of.paths.index_of(tenant, namespace))
            and (topic := of.paths.topic_of_index(key)) is not None
        ],
    )
    if not wanted:
        return json_response(sorted(map(str, topics)), headers=headers)
    properties: dict[str, Mapping[str, str]] = {}
    for number, topic in enumerate(topics):
        if number % AT_ONCE == AT_ONCE - 1:
            await asyncio.sleep(0)
        properties[str(topic)] = await _properties(of, topic)
    return json_response(topics_with(properties, wanted), headers=headers)


@acts(Action.CREATE_TOPIC)
async def create(request: web.Request) -> web.Response:
    """204 when its segments are there. Any daemon does it. The body, if there is one, is its properties."""
    service = request.app[DAEMON].control
    text = request.query.get("segments", request.query.get("numInitialSegments", "1"))
    properties = await read_body(request, _body) if request.can_read_body else None
    topic, segments = topic_of(request), whole_number(text, name="segments")
    await service.create(topic, segments=segments, request=asked(request), properties=properties or {})
    await service.wait_active(topic)
    return web.Response(status=204)


@acts(Action.GET_METADATA)
async def read(request: web.Request) -> web.Response:
    """The record as the store has it at this moment, or marked as older."""
    record, headers = await read_record(request.app[DAEMON], topic_of(request))
    return web.Response(
        body=encode_record(record), content_type="application/json", headers={**headers, "ETag": f'"{etag(record)}"'}
    )


@acts(Action.DELETE_TOPIC)
@by_leader
async def delete(request: web.Request, controller: TopicController) -> web.Response:
    await controller.delete(asked(request))
    return web.Response(status=204)


async def read_record(of: Daemon, topic: TopicName) -> tuple[TopicRecord, Mapping[str, str]]:
    """And the headers that say how old it is. `NotFound` if there is none."""

    async def from_store() -> TopicRecord | None:
        known = await of.repository.topic(topic)
        return known.value if known is not None else None

    def from_view(state: ViewState) -> TopicRecord | None:
        item = state.items.get(of.paths.record(topic))
        return decode_record(item.value, subject=str(topic)) if item is not None else None

    record, headers = await store_or_view(of, from_store, from_view)
    if record is None:
        raise NotFound("there is no such topic", subject=str(topic))
    return record, headers


async def _properties(of: Daemon, topic: TopicName) -> Mapping[str, str]:
    """As the view has them; of a topic so new that it has none yet, as the store has them."""
    item = of.view.state.items.get(of.paths.record(topic))
    if item is None:
        known = await of.repository.topic(topic)
        return known.value.properties if known is not None else {}
    try:
        return decode_json(item.value, _decoder, subject=str(topic)).properties
    except DecodeError:
        return {}


def _wanted(request: web.Request) -> Mapping[str, str]:
    wanted: dict[str, str] = {}
    for text in request.query.getall("property", []):
        name, equals, value = text.partition("=")
        if not name or not equals:
            raise InvalidArgument(f"{text!r} is not a filter", remedy="write ?property=name=value")
        if wanted.setdefault(name, value) != value:
            raise InvalidArgument(f"no topic has two values of {name!r}", remedy="filter by one of them")
    return wanted


ROUTES: Final = (
    web.get(NAMESPACE, list_topics, allow_head=False),
    web.put(TOPIC, create),
    web.get(TOPIC, read, allow_head=False),
    web.delete(TOPIC, delete),
)
