"""Requests that only a topic's leader can answer: done here where this daemon leads, otherwise forwarded once.

The first daemon sends the request on and hands the leader's answer back, so that no client needs to know who leads.
`X-No-Forward: 1` asks for a redirection instead. What has been forwarded goes no further: a daemon that was taken for
the leader and is not answers 503, and the client asks again.
"""

from collections.abc import Awaitable, Callable
from typing import Final

import aiohttp
from aiohttp import web
from msgspec.structs import replace
from yarl import URL

from scalable_topics.control.controller import Request, TopicController
from scalable_topics.control.service import NotLeading
from scalable_topics.metadata.session import BrokerInfo
from scalable_topics.model.errors import InvalidArgument, NotFound, Unavailable
from scalable_topics.model.names import Domain, TopicName
from scalable_topics.server.auth.middleware import caller_of, forward_headers, was_forwarded
from scalable_topics.server.auth.security import process_identity
from scalable_topics.server.daemon import Daemon
from scalable_topics.server.errors import RefusedWithBody, body_of
from scalable_topics.server.keys import DAEMON, SECURITY

QUEUE_SECONDS: Final = 30.0
"""How long a change may wait for its turn."""
FORWARD_SECONDS: Final = 120.0
"""How long a leader may take: its queue, and a change whose segments' owners are slow."""
CONNECT_SECONDS: Final = 2.0
NO_FORWARD: Final = "X-No-Forward"

_HANDED_BACK: Final = ("Content-Type", "ETag", "Retry-After", "WWW-Authenticate", "X-Stale-Seconds")

Led = Callable[[web.Request, TopicController], Awaitable[web.StreamResponse]]
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


def topic_of(request: web.Request) -> TopicName:
    found = request.match_info
    return TopicName(Domain.TOPIC, found["tenant"], found["namespace"], found["topic"])


def namespace_of(request: web.Request) -> tuple[str, str]:
    """`InvalidArgument` for names that no topic could have."""
    found = TopicName(Domain.TOPIC, request.match_info["tenant"], request.match_info["namespace"], "any")
    return found.tenant, found.namespace


def flag(request: web.Request, name: str) -> bool:
    text = request.query.get(name, "false")
    if text not in {"true", "false"}:
        raise InvalidArgument(f"{name} is {text!r}", remedy="use true or false")
    return text == "true"


def asked(request: web.Request) -> Request:
    """What every change is told of the request it comes from."""
    tag = request.headers.get("If-Match")
    return Request(
        by=str(caller_of(request)),
        reason=request.query.get("reason", ""),
        key=request.headers.get("Idempotency-Key"),
        if_match=tag.strip('"') if tag is not None else None,
        force=flag(request, "force"),
        wait_seconds=QUEUE_SECONDS,
    )


def by_leader(handler: Led) -> Handler:
    """A handler that gets the topic's controller; on a daemon without it the request goes to the leader."""

    async def handled(request: web.Request) -> web.StreamResponse:
        of, topic = request.app[DAEMON], topic_of(request)
        try:
            controller = of.control.controller(topic)
        except NotLeading as error:
            return await _elsewhere(request, of, topic, error)
        return await handler(request, controller)

    handled.__doc__ = handler.__doc__
    handled.__name__ = handler.__name__
    return handled


async def _elsewhere(request: web.Request, of: Daemon, topic: TopicName, error: NotLeading) -> web.StreamResponse:
    leader = of.leader_of(topic)
    if leader is None or leader.broker_id == of.settings.broker_id or was_forwarded(request):
        if await of.repository.topic(topic) is None:
            raise NotFound("there is no such topic", subject=str(topic)) from None
        raise error
    if request.headers.get(NO_FORWARD) == "1":
        body = replace(body_of(error), broker_id=leader.broker_id, web_url=leader.web_url)
        raise RefusedWithBody(error, body) from None
    return await _forwarded(request, of, leader)


async def _forwarded(request: web.Request, of: Daemon, leader: BrokerInfo) -> web.Response:
    if not request.raw_path.startswith("/"):
        raise InvalidArgument("the target of the request is no path", remedy="send the path and the query only")
    receiver = process_identity(leader.broker_id, leader.process)
    headers = await forward_headers(request.app[SECURITY], request, receiver=receiver)
    url = URL(f"{leader.web_url.rstrip('/')}{request.raw_path}", encoded=True)
    timeout = aiohttp.ClientTimeout(total=FORWARD_SECONDS, sock_connect=CONNECT_SECONDS)
    try:
        async with of.http.request(
            request.method,
            url,
            data=await request.read(),
            headers=headers,
            timeout=timeout,
            allow_redirects=False,
        ) as answer:
            handed = {name: answer.headers[name] for name in _HANDED_BACK if name in answer.headers}
            return web.Response(status=answer.status, body=await answer.read(), headers=handed)
    except (TimeoutError, aiohttp.ClientError, OSError) as failure:
        raise Unavailable(
            f"the leader {leader.broker_id} does not answer ({type(failure).__name__}), so it is not known whether it"
            " was done",
            subject=str(topic_of(request)),
            remedy="ask again, with the same Idempotency-Key; another daemon takes over if it stays away",
        ) from failure
