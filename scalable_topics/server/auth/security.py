"""The parts put together, from what the operator set."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from msgspec import Struct

from scalable_topics.model.errors import InvalidArgument
from scalable_topics.server.auth.authorizer import Authorizer, GrantSource, Resource, Verdict
from scalable_topics.server.auth.caller import Caller, CallerKind, anonymous, role
from scalable_topics.server.auth.errors import Unauthenticated
from scalable_topics.server.auth.forwarding import Call, CallSigner
from scalable_topics.server.auth.keys import KeyFile, VerificationKey, cluster_secrets, public_key, secret_key
from scalable_topics.server.auth.table import TABLE, Action, Rule
from scalable_topics.server.auth.tokens import DEFAULT_ROLE_CLAIM, TokenVerifier, bearer_token

AUTHENTICATION_IS_OFF: Final = Verdict(allowed=True, because="authentication is off")
AUTHORIZATION_IS_OFF: Final = Verdict(allowed=True, because="authorization is off")


class SecuritySettings(Struct, frozen=True, kw_only=True):
    """Paths, never keys: nothing here is secret. Without a token key authentication is off."""

    token_secret_key: Path | None = None
    """HS256."""
    token_public_key: Path | None = None
    """RS256."""
    token_auth_claim: str = DEFAULT_ROLE_CLAIM
    token_audience: str | None = None
    token_leeway_seconds: float = 0
    """How far the clocks of whoever makes tokens and of this daemon may differ."""
    super_user_roles: tuple[str, ...] = ()
    cluster_secret: Path | None = None
    """Shared by the daemons; one per line, the first one signs."""

    def __post_init__(self) -> None:
        if self.token_secret_key is not None and self.token_public_key is not None:
            raise InvalidArgument("there are two token keys", remedy="set tokenSecretKey or tokenPublicKey, not both")
        if not self.token_auth_claim:
            raise InvalidArgument("the role claim is empty", remedy="leave it out for sub")
        if not self.token_leeway_seconds >= 0:
            raise InvalidArgument("the leeway of tokens is negative")

    @property
    def authenticates(self) -> bool:
        return self.token_secret_key is not None or self.token_public_key is not None


class HeldKeys:
    """Keys that the configuration holds itself, instead of the files of `SecuritySettings`. Never shown."""

    __slots__ = ("cluster_secrets", "token_key")

    def __init__(
        self, token_key: VerificationKey | None = None, cluster_secrets: tuple[bytes, ...] | None = None
    ) -> None:
        self.token_key = token_key
        self.cluster_secrets = cluster_secrets


class Security:
    """Who asks, and may they? Key files that cannot be read or are no keys are refused here, at the start."""

    def __init__(
        self,
        settings: SecuritySettings,
        source: GrantSource,
        *,
        broker_id: str,
        process: str,
        wall_clock: Callable[[], float],
        clock: Callable[[], float],
        held: HeldKeys | None = None,
        authorizes: bool = True,
    ) -> None:
        """`held` goes before files. Unless it `authorizes`, whoever has a token may do everything."""
        self._held = held or HeldKeys()
        self.authenticates = settings.authenticates or self._held.token_key is not None
        self.authorizes = authorizes
        self.clock = clock
        self.authorizer = Authorizer(source, super_users=frozenset(settings.super_user_roles), clock=clock)
        self._token_key = _token_key(settings, clock)
        self._secrets = (
            KeyFile(settings.cluster_secret, cluster_secrets, what="cluster secret", clock=clock)
            if settings.cluster_secret is not None
            else None
        )
        self._tokens: TokenVerifier | None = None
        if self.authenticates:
            self._tokens = TokenVerifier(
                self._key_in_force,
                wall_clock=wall_clock,
                role_claim=settings.token_auth_claim,
                audience=settings.token_audience,
                leeway_seconds=settings.token_leeway_seconds,
            )
        self.signer: CallSigner | None = None
        """None = there is no cluster secret: tokens are passed on as they are."""
        if self._held.cluster_secrets is not None or self._secrets is not None:
            self.signer = CallSigner(
                self._secrets_in_force,
                broker_id=broker_id,
                identity=process_identity(broker_id, process),
                wall_clock=wall_clock,
            )

    def take(self, token_key: VerificationKey | None, super_users: Sequence[str]) -> None:
        """What an operator has changed, from the next request on. Switching authentication on or off is no such
        change: None leaves the key as it is.
        """
        if token_key is not None:
            self._held.token_key = token_key
        self.authorizer.set_super_users(frozenset(super_users))

    def _key_in_force(self) -> VerificationKey:
        if self._held.token_key is not None:
            return self._held.token_key
        assert self._token_key is not None, "there are tokens only with a key"  # noqa: S101
        return self._token_key.value

    def _secrets_in_force(self) -> tuple[bytes, ...]:
        if self._held.cluster_secrets is not None:
            return self._held.cluster_secrets
        assert self._secrets is not None, "there is a signer only with a secret"  # noqa: S101
        return self._secrets.value

    def reload(self) -> None:
        """Look at every key file now, as on SIGHUP."""
        for file in (self._token_key, self._secrets):
            if file is not None:
                file.reload()

    def from_client(self, authorization: Sequence[str], *, address: str | None) -> Caller:
        """By the values of the `Authorization` header. Anonymous while authentication is off."""
        if self._tokens is None:
            return anonymous(address)
        token = bearer_token(authorization)
        if token is None:
            raise Unauthenticated("there is no token", remedy="send Authorization: Bearer with a token")
        return role(self._tokens.role_of(token), address)

    def from_daemon(self, signer: CallSigner, value: str, call: Call) -> Caller:
        """By what a daemon has signed. A daemon that asks nobody for tokens cannot vouch for one that does."""
        caller = signer.verify(value, call)
        if self.authenticates and caller.kind is CallerKind.ANONYMOUS:
            raise Unauthenticated("the forwarding daemon knows no caller", remedy="give all daemons the same token key")
        return caller

    async def ensure(self, caller: Caller, action: Action, resource: Resource) -> Verdict:
        """`Unauthenticated` or `Forbidden` unless the caller may."""
        if not self.authenticates:
            return AUTHENTICATION_IS_OFF
        if caller.kind is CallerKind.ANONYMOUS and TABLE[action].rule is not Rule.ANYONE:
            raise Unauthenticated("there is no token", remedy="send Authorization: Bearer with a token")
        if not self.authorizes:
            return AUTHORIZATION_IS_OFF
        return await self.authorizer.ensure(caller, action, resource)


def process_identity(broker_id: str, process: str) -> str:
    """One life of one broker, as `BrokerInfo` has it: the receiver of a signed call."""
    return f"{broker_id} {process}"


def _token_key(settings: SecuritySettings, clock: Callable[[], float]) -> KeyFile[VerificationKey] | None:
    if settings.token_secret_key is not None:
        return KeyFile(settings.token_secret_key, secret_key, what="token secret key", clock=clock)
    if settings.token_public_key is not None:
        return KeyFile(settings.token_public_key, public_key, what="token public key", clock=clock)
    return None
