"""What is set for a namespace or a topic: the policy of autoscaling, and how long drained segments are kept.

Checked and stored here; who acts on it reads it from the store.
"""

from collections.abc import Callable
from typing import Final

import msgspec
from aiohttp import web
from msgspec import Struct
from msgspec.structs import replace

from scalable_topics.control.controller import TopicController
from scalable_topics.metadata.repository import Conflict
from scalable_topics.metadata.view import ViewState
from scalable_topics.model.administration import NamespacePolicies
from scalable_topics.model.autoscale_policy import AutoScalePolicyOverride, parse_override, resolve_policy
from scalable_topics.model.codec import decode_json
from scalable_topics.model.errors import InvalidArgument, Unavailable
from scalable_topics.model.record import TopicRecord
from scalable_topics.server.auth.middleware import acts
from scalable_topics.server.auth.table import Action
from scalable_topics.server.bodies import json_response, read_body
from scalable_topics.server.daemon import Daemon
from scalable_topics.server.keys import DAEMON
from scalable_topics.server.known import store_or_view
from scalable_topics.server.leading import by_leader, namespace_of, topic_of
from scalable_topics.server.topics import TOPIC, read_record

NAMESPACE: Final = "/admin/v2/namespaces/{tenant}/{namespace}"
ATTEMPTS: Final = 5
"""Of a write that somebody else's gets in the way of."""
FOR_EVER: Final = -1


class RetentionBody(
    Struct, frozen=True, rename={"minutes": "retentionTimeInMinutes", "megabytes": "retentionSizeInMB"}
):
    """As Pulsar has it. We keep by time only: a size other than 0 (not said) and -1 (no limit) is refused."""

    minutes: int
    megabytes: int = FOR_EVER


_anything: Final = msgspec.json.Decoder()
_retention: Final = msgspec.json.Decoder(RetentionBody)
_policies: Final = msgspec.json.Decoder(NamespacePolicies)


@acts(Action.GET_AUTO_SCALE_POLICY)
async def read_policy(request: web.Request) -> web.Response:
    """What the topic itself says; 204 = nothing."""
    record, headers = await read_record(request.app[DAEMON], topic_of(request))
    policy = record.auto_scale_policy
    return json_response(policy, headers=headers) if policy is not None else web.Response(status=204, headers=headers)


@acts(Action.SET_AUTO_SCALE_POLICY)
@by_leader
async def set_policy(request: web.Request, controller: TopicController) -> web.Response:
    """Refused if it contradicts itself, or what its namespace says."""
    override = parse_override(await read_body(request, _anything))
    topic = controller.topic.topic
    known = await request.app[DAEMON].repository.namespace_policies(topic.tenant, topic.namespace)
    resolve_policy(known.value.scalable_topic_auto_scale_policy if known is not None else None, override)
    return await _set_policy(controller, override)


@acts(Action.REMOVE_AUTO_SCALE_POLICY)
@by_leader
async def remove_policy(_: web.Request, controller: TopicController) -> web.Response:
    return await _set_policy(controller, None)


async def _set_policy(controller: TopicController, override: AutoScalePolicyOverride | None) -> web.Response:
    def change(record: TopicRecord) -> TopicRecord:
        return replace(record, auto_scale_policy=override)

    await controller.topic.update(change)
    return web.Response(status=204)


@acts(Action.GET_NAMESPACE_AUTO_SCALE_POLICY)
async def read_namespace_policy(request: web.Request) -> web.Response:
    policies, response = await _read(request)
    policy = policies.scalable_topic_auto_scale_policy
    return response(policy)


@acts(Action.SET_NAMESPACE_AUTO_SCALE_POLICY)
async def set_namespace_policy(request: web.Request) -> web.Response:
    override = parse_override(await read_body(request, _anything))
    resolve_policy(override)
    return await _change(request, lambda now: replace(now, scalable_topic_auto_scale_policy=override))


@acts(Action.REMOVE_NAMESPACE_AUTO_SCALE_POLICY)
async def remove_namespace_policy(request: web.Request) -> web.Response:
    return await _change(request, lambda now: replace(now, scalable_topic_auto_scale_policy=None))


@acts(Action.GET_RETENTION)
async def read_retention(request: web.Request) -> web.Response:
    policies, response = await _read(request)
    minutes = policies.retention_minutes
    return response(RetentionBody(int(minutes)) if minutes is not None else None)


@acts(Action.SET_RETENTION)
async def set_retention(request: web.Request) -> web.Response:
    body = await read_body(request, _retention)
    if body.minutes < FOR_EVER or body.minutes > 1 << 53:
        raise InvalidArgument(f"{body.minutes} is not a time", remedy="give minutes; 0 = none, -1 = for ever")
    if body.megabytes not in {0, FOR_EVER}:
        raise InvalidArgument(
            "segments are kept by time, not by size", remedy="leave retentionSizeInMB out, or give -1"
        )
    return await _change(request, lambda now: replace(now, retention_minutes=body.minutes))


@acts(Action.REMOVE_RETENTION)
async def remove_retention(request: web.Request) -> web.Response:
    return await _change(request, lambda now: replace(now, retention_minutes=None))


async def _read(request: web.Request) -> tuple[NamespacePolicies, Callable[[object], web.Response]]:
    """And what makes an answer of a part of them; None = 204."""
    of, (tenant, namespace) = request.app[DAEMON], namespace_of(request)

    async def from_store() -> NamespacePolicies | None:
        known = await of.repository.namespace_policies(tenant, namespace)
        return known.value if known is not None else None

    def from_view(state: ViewState) -> NamespacePolicies | None:
        item = state.items.get(of.paths.policies(tenant, namespace))
        return decode_json(item.value, _policies, subject=item.key) if item is not None else None

    policies, headers = await store_or_view(of, from_store, from_view)

    def response(part: object) -> web.Response:
        return web.Response(status=204, headers=headers) if part is None else json_response(part, headers=headers)

    return policies or NamespacePolicies(), response


async def _change(request: web.Request, change: Callable[[NamespacePolicies], NamespacePolicies]) -> web.Response:
    of, (tenant, namespace) = request.app[DAEMON], namespace_of(request)
    for _ in range(ATTEMPTS):
        if await _changed(of, tenant, namespace, change):
            return web.Response(status=204)
    raise Unavailable("others change it all the time", subject=f"{tenant}/{namespace}", remedy="try again")


async def _changed(
    of: Daemon, tenant: str, namespace: str, change: Callable[[NamespacePolicies], NamespacePolicies]
) -> bool:
    known = await of.repository.namespace_policies(tenant, namespace)
    before = known.value if known is not None else NamespacePolicies()
    wanted = change(before)
    if wanted == before:
        return True
    kept = wanted if wanted != NamespacePolicies() else None
    try:
        await of.repository.set_namespace_policies(tenant, namespace, kept, known=known)
    except Conflict:
        return False
    return True


ROUTES: Final = (
    web.get(f"{TOPIC}/autoScalePolicy", read_policy, allow_head=False),
    web.post(f"{TOPIC}/autoScalePolicy", set_policy),
    web.delete(f"{TOPIC}/autoScalePolicy", remove_policy),
    web.get(f"{NAMESPACE}/scalableTopicAutoScalePolicy", read_namespace_policy, allow_head=False),
    web.post(f"{NAMESPACE}/scalableTopicAutoScalePolicy", set_namespace_policy),
    web.delete(f"{NAMESPACE}/scalableTopicAutoScalePolicy", remove_namespace_policy),
    web.get(f"{NAMESPACE}/retention", read_retention, allow_head=False),
    web.post(f"{NAMESPACE}/retention", set_retention),
    web.delete(f"{NAMESPACE}/retention", remove_retention),
)
