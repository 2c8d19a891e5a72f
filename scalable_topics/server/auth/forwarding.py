"""What one daemon sends another in a client's name, so that the other can believe it.

With a cluster secret the sender signs who asked and what exactly: method, target, body, the headers that change its
meaning, from whom, to whom, when, and a number that is used once. The receiver believes nothing else: whoever writes
this header without the secret, or sends a seen one again, is refused. Without a secret nothing is signed or believed,
and the client's own token travels on.
"""

import base64
import hashlib
import hmac
import secrets
from collections.abc import Callable, Mapping
from typing import Final

import msgspec
from msgspec import Struct

from scalable_topics.server.auth.caller import Caller, CallerKind
from scalable_topics.server.auth.errors import Unauthenticated

CALL_HEADER: Final = "X-Scalable-Topics-Call"
"""The signed word of the sending daemon."""
HOP_HEADER: Final = "X-Scalable-Topics-Hop"
"""This request was forwarded once. Proves nothing; whoever sets it only keeps their own request from going further."""
BOUND_HEADERS: Final = ("Idempotency-Key", "If-Match", "X-No-Forward")
LIFETIME_SECONDS: Final = 30.0
"""Time on the way, plus what the clocks of two daemons may differ."""
MAX_CALL_CHARS: Final = 6_000
HOPS: Final = 1

_PURPOSE: Final = b"scalable-topics daemon-to-daemon call, version 1"


class Call(Struct, frozen=True, kw_only=True):
    """A request, as far as its meaning goes."""

    method: str
    target: str
    """Path and query exactly as on the wire."""
    body: bytes
    headers: Mapping[str, str]
    """`BOUND_HEADERS`, as far as they are there."""


class _Statement(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    sender: str
    receiver: str
    kind: CallerKind
    name: str
    address: str | None
    digest: str
    issued_at: float
    nonce: str
    hops: int


class CallSigner:
    """Signs as one daemon, and believes what the others have signed for it.

    `identity` is this process, not only this broker: what was meant for a former life is not believed by the next.
    """

    def __init__(
        self, keys: Callable[[], tuple[bytes, ...]], *, broker_id: str, identity: str, wall_clock: Callable[[], float]
    ) -> None:
        self._keys = keys
        self._broker_id = broker_id
        self._identity = identity
        self._wall_clock = wall_clock
        self._seen: dict[str, float] = {}

    def sign(self, caller: Caller, call: Call, *, receiver: str) -> str:
        """The value of `CALL_HEADER`, good for one call to the process `receiver`."""
        statement = _Statement(
            sender=self._broker_id,
            receiver=receiver,
            kind=caller.kind,
            name=caller.name,
            address=caller.address,
            digest=_digest(call),
            issued_at=self._wall_clock(),
            nonce=secrets.token_urlsafe(16),
            hops=HOPS,
        )
        text = base64.urlsafe_b64encode(msgspec.json.encode(statement)).decode().rstrip("=")
        return f"{text}.{_mac(self._keys()[0], text)}"

    def verify(self, value: str, call: Call) -> Caller:
        """Who asked. `Unauthenticated` unless a daemon of this cluster signed exactly this call, for this process, just
        now, and it has not come before.
        """
        statement = self._signed(value)
        now = self._wall_clock()
        if statement.receiver != self._identity or statement.hops != HOPS:
            raise _refused("the forwarded call is meant for another daemon")
        if abs(now - statement.issued_at) > LIFETIME_SECONDS:
            raise _refused("the forwarded call is too old, or the clocks of two daemons differ")
        if not hmac.compare_digest(statement.digest, _digest(call)):
            raise _refused("the forwarded call was changed on its way")
        self._use_once(statement, now)
        return Caller(kind=statement.kind, name=statement.name, address=statement.address, via=statement.sender)

    def _signed(self, value: str) -> _Statement:
        text, _, mac = value.partition(".")
        if len(value) > MAX_CALL_CHARS or not value.isascii():
            raise _refused("the forwarded call is not signed by a daemon of this cluster")
        # All are compared, whichever fits: time tells nothing.
        matches = [hmac.compare_digest(mac, _mac(key, text)) for key in self._keys()]
        if not any(matches):
            raise _refused("the forwarded call is not signed by a daemon of this cluster")
        try:
            return _statement.decode(base64.urlsafe_b64decode(text + "=" * (-len(text) % 4)))
        except ValueError:
            raise _refused("the forwarded call is of another version") from None

    def _use_once(self, statement: _Statement, now: float) -> None:
        while self._seen and next(iter(self._seen.values())) < now:
            del self._seen[next(iter(self._seen))]
        if statement.nonce in self._seen:
            raise _refused("the forwarded call has come before")
        self._seen[statement.nonce] = now + 2 * LIFETIME_SECONDS


_statement: Final = msgspec.json.Decoder(_Statement)


def _digest(call: Call) -> str:
    """Of everything in the call. Each part's length stands before it, so no two calls have the same parts together."""
    headers = {name.lower(): value for name, value in call.headers.items()}
    parts = [call.method.upper(), call.target, *(repr(headers.get(name.lower())) for name in BOUND_HEADERS)]
    digest = hashlib.sha256()
    for part in (*(part.encode("utf-8", "surrogateescape") for part in parts), call.body):
        digest.update(len(part).to_bytes(8, "big"))
        digest.update(part)
    return digest.hexdigest()


def _mac(key: bytes, text: str) -> str:
    """With a key of its own, so that what the secret signs elsewhere is never a call, nor the other way round."""
    own = hmac.digest(key, _PURPOSE, "sha256")
    return base64.urlsafe_b64encode(hmac.digest(own, text.encode(), "sha256")).decode().rstrip("=")


def _refused(what: str) -> Unauthenticated:
    return Unauthenticated(what, remedy="only daemons send this header, and all need the same cluster secret")
