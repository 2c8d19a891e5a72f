"""`/admin/v2/scalable/{tenant}/{namespace}/{topic}`: make, read, change and delete a scalable topic."""

from typing import Final

import msgspec
from aiohttp import web
from msgspec.structs import replace

from scalable_topics.control.controller import Request, TopicController, etag
from scalable_topics.control.service import NotLeading
from scalable_topics.model.errors import InvalidArgument, NotFound
from scalable_topics.model.names import Domain, TopicName
from scalable_topics.model.record import encode_record
from scalable_topics.model.subscription import InitialPosition, SubscriptionType
from scalable_topics.server.bodies import CollectAnswer, json_response, read_body, whole_number
from scalable_topics.server.daemon import Daemon
from scalable_topics.server.errors import RefusedWithBody, body_of
from scalable_topics.server.keys import DAEMON

TOPIC: Final = "/admin/v2/scalable/{tenant}/{namespace}/{topic}"
SUBSCRIPTION: Final = f"{TOPIC}/subscriptions/{{subscription}}"
QUEUE_SECONDS: Final = 30.0
"""How long a change may wait for its turn."""

_properties: Final = msgspec.json.Decoder(dict[str, str])


def topic_of(request: web.Request) -> TopicName:
    found = request.match_info
    return TopicName(Domain.TOPIC, found["tenant"], found["namespace"], found["topic"])


async def create(request: web.Request) -> web.Response:
    """204 when its segments are there. Any daemon does it."""
    service = request.app[DAEMON].control
    text = request.query.get("segments", request.query.get("numInitialSegments", "1"))
    properties = await read_body(request, _properties) if request.can_read_body else {}
    topic, segments = topic_of(request), whole_number(text, name="segments")
    await service.create(topic, segments=segments, request=_asked(request), properties=properties)
    await service.wait_active(topic)
    return web.Response(status=204)


async def read(request: web.Request) -> web.Response:
    """The record, as the store has it at this moment."""
    topic = topic_of(request)
    known = await request.app[DAEMON].repository.topic(topic)
    if known is None:
        raise NotFound("there is no such topic", subject=str(topic))
    headers = {"ETag": f'"{etag(known.value)}"'}
    return web.Response(body=encode_record(known.value), content_type="application/json", headers=headers)


async def delete(request: web.Request) -> web.Response:
    controller = await _controller(request)
    await controller.delete(_asked(request))
    return web.Response(status=204)


async def split(request: web.Request) -> web.Response:
    controller = await _controller(request)
    ways = whole_number(request.query.get("ways", "2"), name="ways")
    return json_response(await controller.split({_segment_id(request, "id"): ways}, _asked(request)))


async def merge(request: web.Request) -> web.Response:
    controller = await _controller(request)
    segment_ids = _segment_id(request, "a"), _segment_id(request, "b")
    return json_response(await controller.merge(segment_ids, _asked(request)))


async def rebucket(request: web.Request) -> web.Response:
    controller = await _controller(request)
    text = request.query.get("bucketCount")
    if text is None:
        raise InvalidArgument("no bucketCount is given", remedy="add ?bucketCount=N")
    buckets = whole_number(text, name="bucketCount")
    return json_response(await controller.rebucket([_segment_id(request, "id")], buckets, _asked(request)))


async def collect(request: web.Request) -> web.Response:
    """One round of the collector, now."""
    controller = await _controller(request)
    swept = await controller.collector.round()
    return json_response(CollectAnswer(swept.pruned, swept.deleted, swept.orphans))


async def subscribe(request: web.Request) -> web.Response:
    """204 when it is READY. One that is there already is left as it is."""
    controller = await _controller(request)
    kind = SubscriptionType.parse(request.query.get("type", SubscriptionType.STREAM))
    position = _position(request.query.get("position", InitialPosition.EARLIEST))
    await controller.subscriptions.create(request.match_info["subscription"], kind, position)
    return web.Response(status=204)


async def unsubscribe(request: web.Request) -> web.Response:
    controller = await _controller(request)
    await controller.subscriptions.delete(request.match_info["subscription"])
    return web.Response(status=204)


async def seek(request: web.Request) -> web.Response:
    text = request.query.get("timestamp")
    if text is None:
        raise InvalidArgument("no timestamp is given", remedy="add ?timestamp=MILLISECONDS, or use skip-all")
    return await _seek(request, whole_number(text, name="timestamp"))


async def skip_all(request: web.Request) -> web.Response:
    return await _seek(request, None)


async def _seek(request: web.Request, to_ms: int | None) -> web.Response:
    controller = await _controller(request)
    name, key = request.match_info["subscription"], request.headers.get("Idempotency-Key")
    await controller.subscriptions.seek(name, to_ms, request_key=key)
    return web.Response(status=204)


async def _controller(request: web.Request) -> TopicController:
    """Of this daemon, if it leads the topic; otherwise a refusal that names the leader."""
    daemon, topic = request.app[DAEMON], topic_of(request)
    try:
        return daemon.control.controller(topic)
    except NotLeading as error:
        if await daemon.repository.topic(topic) is None:
            raise NotFound("there is no such topic", subject=str(topic)) from None
        leader = _leader_elsewhere(daemon, topic)
        if leader is None:
            raise
        body = replace(body_of(error), broker_id=leader[0], web_url=leader[1])
        raise RefusedWithBody(error, body) from None


def _leader_elsewhere(daemon: Daemon, topic: TopicName) -> tuple[str, str] | None:
    leader = daemon.leader_of(topic)
    if leader is None or leader.broker_id == daemon.settings.broker_id:
        return None
    return leader.broker_id, leader.web_url


def _asked(request: web.Request) -> Request:
    tag = request.headers.get("If-Match")
    return Request(
        by="rest",
        reason=request.query.get("reason", ""),
        key=request.headers.get("Idempotency-Key"),
        if_match=tag.strip('"') if tag is not None else None,
        force=request.query.get("force") == "true",
        wait_seconds=QUEUE_SECONDS,
    )


def _segment_id(request: web.Request, name: str) -> int:
    return whole_number(request.match_info[name], name="segment")


def _position(text: str) -> InitialPosition:
    try:
        return InitialPosition(text)
    except ValueError:
        raise InvalidArgument(
            f"{text!r} is not a position", remedy=f"use one of {', '.join(InitialPosition)}"
        ) from None


ROUTES: Final = (
    web.put(TOPIC, create),
    web.get(TOPIC, read, allow_head=False),
    web.delete(TOPIC, delete),
    web.post(f"{TOPIC}/split/{{id}}", split),
    web.post(f"{TOPIC}/merge/{{a}}/{{b}}", merge),
    web.post(f"{TOPIC}/rebucket/{{id}}", rebucket),
    web.post(f"{TOPIC}/collect", collect),
    web.put(SUBSCRIPTION, subscribe),
    web.delete(SUBSCRIPTION, unsubscribe),
    web.post(f"{SUBSCRIPTION}/seek", seek),
    web.post(f"{SUBSCRIPTION}/skip-all", skip_all),
)
