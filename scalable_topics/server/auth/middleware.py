"""Security in front of every route.

A handler says with `@acts(Action.SPLIT)` what it does; the table says who may. A route whose handler does not say so is
refused when the daemon starts, and would be refused to everybody.
"""

import asyncio
from collections.abc import Callable
from typing import Final, TypeVar

from aiohttp import web
from aiohttp.typedefs import Handler, Middleware

from scalable_topics.model.errors import Forbidden, ScalableTopicsError
from scalable_topics.model.names import Domain, TopicName
from scalable_topics.server.auth.audit import audit_record, write_audit
from scalable_topics.server.auth.authorizer import CLUSTER, Resource, of_namespace, of_tenant, of_topic
from scalable_topics.server.auth.caller import Caller, anonymous
from scalable_topics.server.auth.errors import Unauthenticated
from scalable_topics.server.auth.forwarding import BOUND_HEADERS, CALL_HEADER, HOP_HEADER, HOPS, Call
from scalable_topics.server.auth.redaction import redact_others
from scalable_topics.server.auth.security import Security
from scalable_topics.server.auth.table import TABLE, Action, Rule, Scope
from scalable_topics.server.errors import RefusedWithBody

F = TypeVar("F", bound=Callable[..., object])

_ACTION: Final = "scalable_topics_action"
_CALLER: Final = web.RequestKey("caller", Caller)
_PASSED_ON: Final = ("Content-Type", "Accept", *BOUND_HEADERS)
_NAMES: Final = {
    Scope.CLUSTER: (),
    Scope.TENANT: ("tenant",),
    Scope.NAMESPACE: ("tenant", "namespace"),
    Scope.TOPIC: ("tenant", "namespace", "topic"),
}


def acts(action: Action) -> Callable[[F], F]:
    """Declare what a handler does. The same function may serve several routes, if they all mean the same."""

    def declare(handler: F) -> F:
        setattr(handler, _ACTION, action)
        return handler

    return declare


def secure(app: web.Application, security: Security) -> None:
    """Put security in front of every route that `app` has when it starts. To be called after `answer_errors` is in."""
    app.middlewares.append(security_middleware(security))
    redact_others()

    async def check(app: web.Application) -> None:
        if problems := undeclared_routes(app):
            raise RuntimeError("; ".join(problems))

    app.on_startup.append(check)


def undeclared_routes(app: web.Application) -> list[str]:
    """What is wrong with routes: no action, or a path that does not name what the action is done to."""
    problems = []
    for route in app.router.routes():
        path = route.resource.canonical if route.resource is not None else "?"
        action: Action | None = getattr(route.handler, _ACTION, None)
        if action is None:
            problems.append(f"{route.method} {path} declares no action")
        elif missing := [name for name in _NAMES[TABLE[action].scope] if f"{{{name}}}" not in path]:
            problems.append(f"{route.method} {path} does {action} and does not name its {', '.join(missing)}")
    return problems


def caller_of(request: web.Request) -> Caller:
    """Who asks. Known in every handler."""
    return request[_CALLER]


def was_forwarded(request: web.Request) -> bool:
    """Whether another daemon sent it on: then it goes no further."""
    return HOP_HEADER in request.headers or caller_of(request).via is not None


async def forward_headers(security: Security, request: web.Request, *, receiver: str) -> dict[str, str]:
    """The headers of the same request to another daemon; no other header of the client is passed on.

    To be sent with the same method and body to `URL(web_url + request.raw_path, encoded=True)`; `receiver` is
    `process_identity(...)` of that daemon's `BrokerInfo`. Raises `Unauthenticated` for a request that has come from a
    daemon already.
    """
    if was_forwarded(request):
        raise Unauthenticated("a forwarded request is not forwarded again", remedy="ask the leader itself")
    headers = {name: _joined(request, name) for name in _PASSED_ON if name in request.headers}
    headers[HOP_HEADER] = str(HOPS)
    if "Authorization" in request.headers:
        headers["Authorization"] = _joined(request, "Authorization")
    if security.signer is not None:
        headers[CALL_HEADER] = security.signer.sign(caller_of(request), await _call(request), receiver=receiver)
    return headers


def security_middleware(security: Security) -> Middleware:
    """Authenticate, authorize, do, write down. Everything that is refused is refused before the handler sees it."""

    @web.middleware
    async def secured(request: web.Request, handler: Handler) -> web.StreamResponse:
        if request.match_info.http_exception is not None:
            return await handler(request)  # no such route: there is nothing to protect
        action: Action | None = getattr(request.match_info.handler, _ACTION, None)
        if action is None:
            raise Forbidden("nobody may: this route declares no action", subject=request.path)
        attempt = _Attempt(security, request, action)
        try:
            await attempt.admit()
            response = await handler(request)
        except BaseException as error:
            attempt.ended(error)
            raise
        attempt.answered(response.status)
        return response

    return secured


class _Attempt:
    """One request on its way through."""

    def __init__(self, security: Security, request: web.Request, action: Action) -> None:
        self._security = security
        self._request = request
        self._action = action
        self._row = TABLE[action]
        self._caller = anonymous(request.remote)
        self._because: str | None = None
        self._began = security.clock()

    async def admit(self) -> None:
        self._request[_CALLER] = self._caller
        if self._row.rule is Rule.ANYONE:
            return
        self._caller = self._request[_CALLER] = await self._authenticated()
        verdict = await self._security.ensure(self._caller, self._action, _resource(self._request, self._row.scope))
        self._because = verdict.because

    def answered(self, status: int) -> None:
        self._write("done" if status < 400 else "refused", status)

    def ended(self, error: BaseException) -> None:
        if isinstance(error, RefusedWithBody):
            self._write(error.error.kind)
        elif isinstance(error, ScalableTopicsError):
            self._write(error.kind)
        elif isinstance(error, web.HTTPException):
            self._write("done" if error.status < 400 else "refused", error.status)
        elif isinstance(error, asyncio.CancelledError):
            self._write("unknown")
        else:
            self._write("failed")

    async def _authenticated(self) -> Caller:
        request, signer = self._request, self._security.signer
        if signer is None or CALL_HEADER not in request.headers:
            return self._security.from_client(request.headers.getall("Authorization", []), address=request.remote)
        return self._security.from_daemon(signer, _joined(request, CALL_HEADER), await _call(request))

    def _write(self, outcome: str, status: int | None = None) -> None:
        if not self._row.changes:
            return
        try:
            resource = _resource(self._request, self._row.scope)
        except ScalableTopicsError:
            resource = CLUSTER  # it names nothing that could be changed
        record = audit_record(
            self._caller,
            self._action,
            resource,
            outcome=outcome,
            status=status,
            because=self._because,
            dry_run=self._request.query.get("dryRun") == "true",
            request_key=self._request.headers.get("Idempotency-Key"),
            duration_ms=round((self._security.clock() - self._began) * 1000),
        )
        write_audit(record)


def _resource(request: web.Request, scope: Scope) -> Resource:
    found = request.match_info
    match scope:
        case Scope.CLUSTER:
            return CLUSTER
        case Scope.TENANT:
            return of_tenant(found["tenant"])
        case Scope.NAMESPACE:
            return of_namespace(found["tenant"], found["namespace"])
        case Scope.TOPIC:
            return of_topic(TopicName(Domain.TOPIC, found["tenant"], found["namespace"], found["topic"]))


async def _call(request: web.Request) -> Call:
    bound = {name: _joined(request, name) for name in BOUND_HEADERS if name in request.headers}
    return Call(method=request.method, target=request.raw_path, body=await request.read(), headers=bound)


def _joined(request: web.Request, name: str) -> str:
    return ", ".join(request.headers.getall(name))
