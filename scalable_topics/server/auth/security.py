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
    ) -> None:
        self.authenticates = settings.authenticates
        self.clock = clock
        self.authorizer = Authorizer(source, super_users=frozenset(settings.super_user_roles), clock=clock)
        self._token_key = _token_key(settings, clock)
        self._secrets = (
            KeyFile(settings.cluster_secret, cluster_secrets, what="cluster secret", clock=clock)
            if settings.cluster_secret is not None
            else None
        )
        self._tokens: TokenVerifier | None = None
        if self._token_key is not None:
            key_file = self._token_key
            self._tokens = TokenVerifier(
                lambda: key_file.value,
                wall_clock=wall_clock,
                role_claim=settings.token_auth_claim,
                audience=settings.token_audience,
                leeway_seconds=settings.token_leeway_seconds,
            )
        self.signer: CallSigner | None = None
        """None = there is no cluster secret: tokens are passed on as they are."""
        if self._secrets is not None:
            secret_file = self._secrets
            self.signer = CallSigner(
                lambda: secret_file.value,
                broker_id=broker_id,
                identity=process_identity(broker_id, process),
                wall_clock=wall_clock,
            )

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
