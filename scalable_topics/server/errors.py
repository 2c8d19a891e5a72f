"""What an error looks like over HTTP. The one place where kinds of errors become statuses."""

import logging
from collections.abc import Awaitable, Callable, Mapping
from types import MappingProxyType
from typing import Final

from aiohttp import web
from msgspec import Struct
from msgspec.structs import replace

from scalable_topics.control.owners import OwnedElsewhere
from scalable_topics.model.codec import encode_json
from scalable_topics.model.errors import ScalableTopicsError
from scalable_topics.server.bodies import SegmentBody

UNEXPECTED: Final = 500
RETRY_AFTER_SECONDS: Final = 1

STATUS: Final[Mapping[str, int]] = MappingProxyType(
    {
        "not-found": 404,
        "gone": 404,
        "wrong-state": 409,
        "conflict": 409,
        "terminated": 409,
        "writers-fenced": 409,
        "unusable": 409,
        "foreign-stamp": 409,
        "tombstoned": 409,
        "stale-generation": 409,
        "detached": 409,
        "out-of-order": 409,
        "invalid-argument": 412,
        "cap-reached": 412,
        "unsupported": 412,
        "too-large": 413,
        "unauthenticated": 401,
        "forbidden": 403,
        "owned-elsewhere": 307,
        "unavailable": 503,
        "unknown-outcome": 503,
        "not-leading": 503,
        "deposed": 503,
        "stale-term": 503,
        "fenced": 503,
        "lease-lost": 503,
        "compacted": 503,
        "no-space": 503,
        "must-stop": 503,
        "decode": UNEXPECTED,
        "damaged": UNEXPECTED,
        "illegal-event": UNEXPECTED,
        "error": UNEXPECTED,
    }
)
"""By `ScalableTopicsError.kind`. 404 unknown, 409 wrong state, 412 malformed or a cap reached, 503 the store or the
leader is away: try again. `not-leading` becomes 307 for who asked not to be forwarded (`leading`).
"""

log = logging.getLogger(__name__)


class ErrorBody(Struct, frozen=True, rename="camel", kw_only=True, omit_defaults=True):
    """Every answer that is no success."""

    reason: str
    """The error's kind."""
    what: str
    subject: str | None = None
    remedy: str | None = None
    broker_id: str | None = None
    """Of `owned-elsewhere` and `not-leading`: who serves or leads it."""
    web_url: str | None = None
    """Where that one is to be asked."""
    children: tuple[SegmentBody, ...] = ()
    """Of `terminated`: where each part of the range is written to now."""


class RefusedWithBody(Exception):
    """A refusal that has more to say than its error."""

    def __init__(self, error: ScalableTopicsError, body: ErrorBody) -> None:
        super().__init__(str(error))
        self.error = error
        self.body = body


def body_of(error: ScalableTopicsError) -> ErrorBody:
    body = ErrorBody(reason=error.kind, what=error.what, subject=error.subject, remedy=error.remedy)
    if isinstance(error, OwnedElsewhere):
        return replace(body, broker_id=error.broker_id, web_url=error.web_url)
    return body


def response(body: ErrorBody, *, status: int, location: str | None = None) -> web.Response:
    headers = {"Retry-After": str(RETRY_AFTER_SECONDS)} if status == 503 else {}
    if status == STATUS["unauthenticated"]:
        headers["WWW-Authenticate"] = "Bearer"
    if location is not None:
        headers["Location"] = location
    return web.Response(status=status, body=encode_json(body), content_type="application/json", headers=headers)


def status_of(error: ScalableTopicsError) -> int:
    return STATUS[error.kind]


Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


@web.middleware
async def answer_errors(request: web.Request, handler: Handler) -> web.StreamResponse:
    """JSON for every refusal, also for those of aiohttp itself."""
    try:
        return await handler(request)
    except RefusedWithBody as refused:
        location = _location(request, refused.body)
        status = 307 if location is not None else status_of(refused.error)
        return response(refused.body, status=status, location=location)
    except ScalableTopicsError as error:
        body = body_of(error)
        if status_of(error) == UNEXPECTED:
            log.exception("refused %s %s", request.method, request.path)
        return response(body, status=status_of(error), location=_location(request, body))
    except TimeoutError:
        body = ErrorBody(reason="unavailable", what="it took too long", remedy="try again")
        return response(body, status=STATUS["unavailable"])
    except web.HTTPException as error:
        if error.status < 400:
            raise
        return response(ErrorBody(reason="http", what=error.reason), status=error.status)
    except Exception:
        log.exception("unexpected failure %s %s", request.method, request.path)
        body = ErrorBody(reason="error", what="unexpected failure", remedy="look into the log of this daemon")
        return response(body, status=UNEXPECTED)


def _location(request: web.Request, body: ErrorBody) -> str | None:
    """The same request, at the daemon that the body names."""
    return f"{body.web_url.rstrip('/')}{request.rel_url.raw_path_qs}" if body.web_url else None
