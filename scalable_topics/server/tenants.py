"""Pulsar's endpoints for tenants and permissions, on our own store; and the daemons that live now."""

from collections.abc import Awaitable, Callable
from typing import Final, TypeVar

import msgspec
from aiohttp import web
from msgspec import Struct
from yarl import URL

from scalable_topics.metadata.repository import Conflict, Stored
from scalable_topics.model.administration import Permissions, TenantInfo
from scalable_topics.model.errors import InvalidArgument, NotFound, Unavailable, WrongState
from scalable_topics.model.names import Domain, TopicName, decode
from scalable_topics.server.auth.authorizer import of_namespace, of_tenant, of_topic
from scalable_topics.server.auth.middleware import acts
from scalable_topics.server.auth.table import Action
from scalable_topics.server.auth.tokens import MAX_ROLE_CHARS
from scalable_topics.server.bodies import json_response, read_body
from scalable_topics.server.keys import DAEMON, SECURITY
from scalable_topics.server.leading import flag, namespace_of, topic_of

TENANTS: Final = "/admin/v2/tenants"
OF_NAMESPACE: Final = "/admin/v2/namespaces/{tenant}/{namespace}/permissions"
OF_TOPIC: Final = (
    "/admin/v2/scalable/{tenant}/{namespace}/{topic}/permissions",
    "/admin/v2/persistent/{tenant}/{namespace}/{topic}/permissions",
)
"""The second is where Pulsar's admin tools ask."""
ACTIONS: Final = ("produce", "consume", "functions", "sources", "sinks", "packages")
"""Pulsar's. All are kept; the first two mean something here."""
ATTEMPTS: Final = 5
"""Of a write that somebody else's gets in the way of."""

T = TypeVar("T")

_tenant: Final = msgspec.json.Decoder(TenantInfo)
_actions: Final = msgspec.json.Decoder(tuple[str, ...])


class BrokerAnswer(Struct, frozen=True, rename="camel"):
    broker_id: str
    web_url: str
    roles: tuple[str, ...]


@acts(Action.LIST_TENANTS)
async def list_tenants(request: web.Request) -> web.Response:
    of = request.app[DAEMON]
    prefix = of.paths.tenant("")
    found = (await of.store.scan(prefix)).items
    return json_response(sorted(decode(one.key.removeprefix(prefix)) for one in found))


@acts(Action.GET_TENANT)
async def read_tenant(request: web.Request) -> web.Response:
    name = _tenant_of(request)
    known = await request.app[DAEMON].repository.tenant(name)
    if known is None:
        raise NotFound("there is no such tenant", subject=name)
    return json_response(known.value)


@acts(Action.CREATE_TENANT)
async def create_tenant(request: web.Request) -> web.Response:
    """409 if there is one."""

    def make(now: TenantInfo | None) -> TenantInfo:
        if now is not None:
            raise WrongState("it exists already", subject=f"tenant {_tenant_of(request)}")
        return body

    body = await read_body(request, _tenant) if request.can_read_body else TenantInfo()
    return await _change_tenant(request, make)


@acts(Action.UPDATE_TENANT)
async def update_tenant(request: web.Request) -> web.Response:
    body = await read_body(request, _tenant)
    return await _change_tenant(request, lambda now: body if _existing(now, request) else None)


@acts(Action.DELETE_TENANT)
async def delete_tenant(request: web.Request) -> web.Response:
    """409 while it has topics."""
    of, name = request.app[DAEMON], _tenant_of(request)
    index = of.paths.index_of(name, "").removesuffix("/")
    if (await of.store.scan(index)).items:
        raise WrongState("it has topics", subject=f"tenant {name}", remedy="delete them first")
    return await _change_tenant(request, lambda now: None if _existing(now, request) else now)


@acts(Action.GET_NAMESPACE_PERMISSIONS)
async def read_namespace_permissions(request: web.Request) -> web.Response:
    known = await request.app[DAEMON].repository.permissions(*namespace_of(request))
    return json_response(known.value if known is not None else {})


@acts(Action.GRANT_NAMESPACE_PERMISSION)
async def grant_on_namespace(request: web.Request) -> web.Response:
    """The actions of the body, and no others from now on."""
    return await _change_namespace(request, await _granted(request))


@acts(Action.REVOKE_NAMESPACE_PERMISSION)
async def revoke_on_namespace(request: web.Request) -> web.Response:
    return await _change_namespace(request, ())


@acts(Action.GET_TOPIC_PERMISSIONS)
async def read_topic_permissions(request: web.Request) -> web.Response:
    """The topic's own; what its namespace grants comes on top."""
    known = await request.app[DAEMON].repository.topic_permissions(topic_of(request))
    return json_response(known.value if known is not None else {})


@acts(Action.GRANT_TOPIC_PERMISSION)
async def grant_on_topic(request: web.Request) -> web.Response:
    return await _change_topic(request, await _granted(request))


@acts(Action.REVOKE_TOPIC_PERMISSION)
async def revoke_on_topic(request: web.Request) -> web.Response:
    return await _change_topic(request, ())


@acts(Action.LIST_BROKERS)
async def list_brokers(request: web.Request) -> web.Response:
    """`host:port` of each daemon that lives, as Pulsar answers; `?details=true` tells more of each."""
    known = await request.app[DAEMON].repository.brokers()
    brokers = [one.value for _, one in sorted(known.items())]
    if flag(request, "details"):
        return json_response([BrokerAnswer(one.broker_id, one.web_url, one.roles) for one in brokers])
    return json_response([URL(one.web_url).authority for one in brokers])


async def _change_tenant(
    request: web.Request, change: Callable[[TenantInfo | None], TenantInfo | None]
) -> web.Response:
    repository, name = request.app[DAEMON].repository, _tenant_of(request)

    async def write(wanted: TenantInfo | None, known: Stored[TenantInfo] | None) -> object:
        return await repository.set_tenant(name, wanted, known=known)

    await _changed(lambda: repository.tenant(name), change, write)
    request.app[SECURITY].authorizer.forget(of_tenant(name))
    return web.Response(status=204)


async def _change_namespace(request: web.Request, actions: tuple[str, ...]) -> web.Response:
    repository, (tenant, namespace) = request.app[DAEMON].repository, namespace_of(request)
    who = _role_of(request)

    async def write(wanted: Permissions | None, known: Stored[Permissions] | None) -> object:
        return await repository.set_permissions(tenant, namespace, wanted, known=known)

    await _changed(lambda: repository.permissions(tenant, namespace), lambda now: _with(now, who, actions), write)
    request.app[SECURITY].authorizer.forget(of_namespace(tenant, namespace))
    return web.Response(status=204)


async def _change_topic(request: web.Request, actions: tuple[str, ...]) -> web.Response:
    repository, topic, who = request.app[DAEMON].repository, topic_of(request), _role_of(request)

    async def write(wanted: Permissions | None, known: Stored[Permissions] | None) -> object:
        return await repository.set_topic_permissions(topic, wanted, known=known)

    await _changed(lambda: repository.topic_permissions(topic), lambda now: _with(now, who, actions), write)
    request.app[SECURITY].authorizer.forget(of_topic(topic))
    return web.Response(status=204)


async def _changed(
    read: Callable[[], Awaitable[Stored[T] | None]],
    change: Callable[[T | None], T | None],
    write: Callable[[T | None, Stored[T] | None], Awaitable[object]],
) -> None:
    """Read, change, write, and again when somebody was faster."""
    for _ in range(ATTEMPTS):
        known = await read()
        before = known.value if known is not None else None
        wanted = change(before)
        if wanted == before:
            return
        try:
            await write(wanted, known)
        except Conflict:
            continue
        return
    raise Unavailable("others change it all the time", remedy="try again")


def _with(granted: Permissions | None, who: str, actions: tuple[str, ...]) -> Permissions | None:
    others = {name: had for name, had in (granted or {}).items() if name != who}
    return {**others, **({who: actions} if actions else {})} or None


async def _granted(request: web.Request) -> tuple[str, ...]:
    actions = await read_body(request, _actions)
    unknown = [one for one in actions if one not in ACTIONS]
    if unknown or not actions:
        what = f"{unknown[0]!r} is not an action" if unknown else "no action is given"
        raise InvalidArgument(what, remedy=f"send a list of some of {', '.join(ACTIONS)}")
    return tuple(dict.fromkeys(actions))


def _existing(now: TenantInfo | None, request: web.Request) -> bool:
    if now is None:
        raise NotFound("there is no such tenant", subject=_tenant_of(request))
    return True


def _tenant_of(request: web.Request) -> str:
    return TopicName(Domain.TOPIC, request.match_info["tenant"], "any", "any").tenant


def _role_of(request: web.Request) -> str:
    name = request.match_info["role"]
    if not name.strip() or not name.isprintable() or len(name) > MAX_ROLE_CHARS:
        raise InvalidArgument(f"{name!r} is not a role", remedy="no token could name it")
    return name


ROUTES: Final = (
    web.get(TENANTS, list_tenants, allow_head=False),
    web.get(f"{TENANTS}/{{tenant}}", read_tenant, allow_head=False),
    web.put(f"{TENANTS}/{{tenant}}", create_tenant),
    web.post(f"{TENANTS}/{{tenant}}", update_tenant),
    web.delete(f"{TENANTS}/{{tenant}}", delete_tenant),
    web.get(OF_NAMESPACE, read_namespace_permissions, allow_head=False),
    web.post(f"{OF_NAMESPACE}/{{role}}", grant_on_namespace),
    web.delete(f"{OF_NAMESPACE}/{{role}}", revoke_on_namespace),
    *(web.get(path, read_topic_permissions, allow_head=False) for path in OF_TOPIC),
    *(web.post(f"{path}/{{role}}", grant_on_topic) for path in OF_TOPIC),
    *(web.delete(f"{path}/{{role}}", revoke_on_topic) for path in OF_TOPIC),
    web.get("/admin/v2/brokers", list_brokers, allow_head=False),
)
