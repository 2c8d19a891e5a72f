"""Who is behind a request."""

from enum import StrEnum

from msgspec import Struct


class CallerKind(StrEnum):
    ROLE = "role"
    """Proved by a token."""
    DAEMON = "daemon"
    """A daemon of this cluster, on its own behalf. May what a super-user may."""
    ANONYMOUS = "anonymous"
    """Nobody was asked for a token: authentication is off, or the endpoint is open to anyone."""


class Caller(Struct, frozen=True, kw_only=True):
    """Whose rights decide, and where the request came in. The kind is not part of the name, so no token's role can
    pass for a daemon.
    """

    kind: CallerKind
    name: str = ""
    """The role of a token, the broker id of a daemon."""
    address: str | None = None
    """Of the client, as the daemon that it asked saw it."""
    via: str | None = None
    """The broker that forwarded the request."""

    def __str__(self) -> str:
        match self.kind:
            case CallerKind.ROLE:
                return self.name
            case CallerKind.DAEMON:
                return f"broker {self.name}"
            case CallerKind.ANONYMOUS:
                return "anonymous"


def anonymous(address: str | None = None) -> Caller:
    return Caller(kind=CallerKind.ANONYMOUS, address=address)


def role(name: str, address: str | None = None) -> Caller:
    return Caller(kind=CallerKind.ROLE, name=name, address=address)


def daemon(broker_id: str) -> Caller:
    return Caller(kind=CallerKind.DAEMON, name=broker_id)
