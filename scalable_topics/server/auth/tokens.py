"""Tokens as Pulsar has them: a JWT whose `sub` is the role.

PyJWT answers one question, whether the key has signed these bytes. The rest is here: what may be presented at all,
which algorithm (the key's, never the token's word), and what the claims must say at this moment. A refusal is one of a
few fixed sentences, so that no part of a token comes into a log or an answer.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Final

import msgspec
from jwt import PyJWS, PyJWTError

from scalable_topics.server.auth.errors import Unauthenticated
from scalable_topics.server.auth.keys import VerificationKey

MAX_TOKEN_CHARS: Final = 8_000
MAX_ROLE_CHARS: Final = 256
DEFAULT_ROLE_CLAIM: Final = "sub"

_COMPACT: Final = re.compile(r"[A-Za-z0-9_-]+\.[A-Za-z0-9_-]+\.[A-Za-z0-9_-]+", re.ASCII)
_BEARER: Final = re.compile(r"bearer +(\S+)", re.ASCII | re.IGNORECASE)
_claims: Final = msgspec.json.Decoder(dict[str, object])


def bearer_token(authorization: Sequence[str]) -> str | None:
    """The token in the values of the `Authorization` header; None = there is no such header."""
    if not authorization:
        return None
    if len(authorization) > 1:
        raise _refused("there is more than one Authorization header")
    match = _BEARER.fullmatch(authorization[0].strip())
    if match is None:
        raise _refused("the Authorization header holds no bearer token")
    return match[1]


class TokenVerifier:
    """Turns a token into the role it proves."""

    def __init__(
        self,
        key: Callable[[], VerificationKey],
        *,
        wall_clock: Callable[[], float],
        role_claim: str = DEFAULT_ROLE_CLAIM,
        audience: str | None = None,
        leeway_seconds: float = 0,
    ) -> None:
        self._key = key
        self._wall_clock = wall_clock
        self._role_claim = role_claim
        self._audience = audience
        """None: the claim `aud` is not looked at, as in Pulsar."""
        self._leeway_seconds = leeway_seconds

    def role_of(self, token: str) -> str:
        """`Unauthenticated`, and nothing else, for whatever is not a good token of this key at this moment."""
        claims = self._signed_claims(token)
        self._ensure_current(claims)
        if self._audience is not None:
            audience = claims.get("aud")
            if self._audience != audience and not (isinstance(audience, list) and self._audience in audience):
                raise _refused("the token is meant for somebody else")
        role = claims.get(self._role_claim)
        if not isinstance(role, str) or not role.strip() or len(role) > MAX_ROLE_CHARS or not role.isprintable():
            raise _refused("the token names no role")
        return role

    def _signed_claims(self, token: str) -> Mapping[str, object]:
        if len(token) > MAX_TOKEN_CHARS:
            raise _refused("the token is too long")
        if not _COMPACT.fullmatch(token):
            raise _refused("the token is malformed")
        key = self._key()
        algorithms = PyJWS(algorithms=[key.algorithm])
        for candidate in key.candidates:
            try:
                return _claims.decode(algorithms.decode(token, candidate, algorithms=[key.algorithm]))
            except PyJWTError:
                continue
            except (ValueError, TypeError, RecursionError):
                raise _refused("the token is malformed") from None
        raise _refused("the token is not signed by a key of this cluster")

    def _ensure_current(self, claims: Mapping[str, object]) -> None:
        now = self._wall_clock()
        expires, begins = _instant(claims, "exp"), _instant(claims, "nbf")
        if expires is not None and now >= expires + self._leeway_seconds:
            raise _refused("the token has expired")
        if begins is not None and now < begins - self._leeway_seconds:
            raise _refused("the token is not valid yet")


def _instant(claims: Mapping[str, object], name: str) -> float | None:
    """Seconds since 1970. A claim that is there and is no time says nothing about when the token is good: refused."""
    if name not in claims:
        return None
    value = claims[name]
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise _refused("the token is malformed")
    try:
        return float(value)
    except OverflowError:
        raise _refused("the token is malformed") from None


def _refused(what: str) -> Unauthenticated:
    return Unauthenticated(what, remedy="send Authorization: Bearer with a token that is valid now")
