"""May this caller do that? Asks what operators have granted, as little as it must, and remembers it for a moment."""

from collections.abc import Awaitable, Callable
from typing import Final, Protocol, TypeVar

from msgspec import Struct

from scalable_topics.metadata.repository import Repository
from scalable_topics.model.administration import Action as Grant
from scalable_topics.model.administration import Permissions, TenantInfo
from scalable_topics.model.errors import Forbidden, InvalidArgument, Unavailable
from scalable_topics.model.names import TopicName
from scalable_topics.server.auth.caller import Caller, CallerKind
from scalable_topics.server.auth.table import TABLE, Action, Rule, Scope

MAX_AGE_SECONDS: Final = 5.0
"""How long a grant taken back elsewhere may still count, where nobody calls `forget`."""
MAX_STALE_SECONDS: Final = 300.0
"""How long what was last known serves while the store is away."""
MAX_ENTRIES: Final = 10_000

T = TypeVar("T")


class GrantSource(Protocol):
    """Where operators' settings are: our own store, or the broker beside us. `Unavailable` when it is away."""

    async def tenant(self, tenant: str) -> TenantInfo | None: ...

    async def permissions(self, tenant: str, namespace: str) -> Permissions | None: ...

    async def topic_permissions(self, topic: TopicName) -> Permissions | None: ...


class StoredGrants:
    """What our own store has."""

    def __init__(self, repository: Repository) -> None:
        self._repository = repository

    async def tenant(self, tenant: str) -> TenantInfo | None:
        known = await self._repository.tenant(tenant)
        return known.value if known is not None else None

    async def permissions(self, tenant: str, namespace: str) -> Permissions | None:
        known = await self._repository.permissions(tenant, namespace)
        return known.value if known is not None else None

    async def topic_permissions(self, topic: TopicName) -> Permissions | None:
        known = await self._repository.topic_permissions(topic)
        return known.value if known is not None else None


class Resource(Struct, frozen=True):
    """What an action is done to. A segment is not named: its topic's grants count."""

    tenant: str | None = None
    namespace: str | None = None
    topic: TopicName | None = None

    @property
    def scope(self) -> Scope:
        if self.topic is not None:
            return Scope.TOPIC
        if self.namespace is not None:
            return Scope.NAMESPACE
        return Scope.TENANT if self.tenant is not None else Scope.CLUSTER

    def __str__(self) -> str:
        match self.scope:
            case Scope.TOPIC:
                return str(self.topic)
            case Scope.NAMESPACE:
                return f"namespace {self.tenant}/{self.namespace}"
            case Scope.TENANT:
                return f"tenant {self.tenant}"
            case Scope.CLUSTER:
                return "cluster"


CLUSTER: Final = Resource()


def of_tenant(tenant: str) -> Resource:
    return Resource(tenant)


def of_namespace(tenant: str, namespace: str) -> Resource:
    return Resource(tenant, namespace)


def of_topic(topic: TopicName) -> Resource:
    return Resource(topic.tenant, topic.namespace, topic)


class Verdict(Struct, frozen=True):
    allowed: bool
    because: str
    """The right that was found, or the one that is missing."""


class Authorizer:
    """Decides by the table. What it remembers may be `MAX_AGE_SECONDS` old; whoever writes, or sees written, a tenant
    or permissions calls `forget`.
    """

    def __init__(self, source: GrantSource, *, super_users: frozenset[str], clock: Callable[[], float]) -> None:
        self._source = source
        self._super_users = super_users
        self._clock = clock
        self._known: dict[tuple[str, ...], tuple[float, object]] = {}
        self._generation = 0

    async def ensure(self, caller: Caller, action: Action, resource: Resource) -> Verdict:
        """`Forbidden` unless the caller may. Says nothing about whether the resource is there."""
        verdict = await self.decide(caller, action, resource)
        if not verdict.allowed:
            raise Forbidden(f"{str(caller)!r} may not {action}", subject=str(resource), remedy=verdict.because)
        return verdict

    async def decide(self, caller: Caller, action: Action, resource: Resource) -> Verdict:
        row = TABLE[action]
        if resource.scope is not row.scope:
            raise InvalidArgument(f"{action} is not done to a {resource.scope}", subject=str(resource))
        if row.rule is Rule.ANYONE:
            return Verdict(allowed=True, because="anyone may")
        match caller.kind:
            case CallerKind.ANONYMOUS:
                return Verdict(allowed=False, because="it needs a token")
            case CallerKind.DAEMON:
                return Verdict(allowed=True, because="a daemon of this cluster")
            case CallerKind.ROLE:
                return await self._by_role(caller.name, row.rule, resource)

    def set_super_users(self, super_users: frozenset[str]) -> None:
        self._super_users = super_users

    def forget(self, resource: Resource | None = None) -> None:
        """What was known of a tenant, a namespace or a topic itself; None = everything. What is being fetched now is
        not remembered either.
        """
        self._generation += 1
        if resource is None:
            self._known.clear()
        else:
            self._known.pop(_key(resource), None)

    async def _by_role(self, role: str, rule: Rule, resource: Resource) -> Verdict:
        if role in self._super_users:
            return Verdict(allowed=True, because="super-user")
        tenant, namespace, topic = resource.tenant, resource.namespace, resource.topic
        if rule is Rule.SUPER_USER or tenant is None:
            return Verdict(allowed=False, because="it needs a super-user")
        info = await self._cached(of_tenant(tenant), lambda: self._source.tenant(tenant))
        if info is not None and role in info.admin_roles:
            return Verdict(allowed=True, because=f"admin of tenant {tenant}")
        needed = _GRANTS.get(rule, frozenset())
        if not needed or namespace is None:
            return Verdict(allowed=False, because=f"it needs an admin of tenant {tenant}")
        where = of_namespace(tenant, namespace)
        granted = await self._cached(where, lambda: self._source.permissions(tenant, namespace))
        found = _granted(granted, role, needed)
        if found is None and topic is not None:
            where = of_topic(topic)
            granted = await self._cached(where, lambda: self._source.topic_permissions(topic))
            found = _granted(granted, role, needed)
        if found is None:
            words = " or ".join(sorted(needed, reverse=True))
            return Verdict(allowed=False, because=f"it needs a {words} grant, or an admin of tenant {tenant}")
        return Verdict(allowed=True, because=f"{found} grant on {where}")

    async def _cached(self, resource: Resource, fetch: Callable[[], Awaitable[T | None]]) -> T | None:
        key, now = _key(resource), self._clock()
        entry = self._known.get(key)
        if entry is not None and now - entry[0] < MAX_AGE_SECONDS:
            return entry[1]  # type: ignore[return-value]  # the key tells the type
        generation = self._generation
        try:
            value = await fetch()
        except Unavailable:
            if entry is None or generation != self._generation or now - entry[0] >= MAX_STALE_SECONDS:
                raise
            return entry[1]  # type: ignore[return-value]  # the key tells the type
        if generation == self._generation:
            self._known.pop(key, None)
            self._known[key] = (now, value)
            if len(self._known) > MAX_ENTRIES:
                del self._known[next(iter(self._known))]
        return value


_GRANTS: Final = {
    Rule.LOOKUP: frozenset({Grant.PRODUCE, Grant.CONSUME}),
    Rule.PRODUCE: frozenset({Grant.PRODUCE}),
    Rule.CONSUME: frozenset({Grant.CONSUME}),
}


def _granted(permissions: Permissions | None, role: str, needed: frozenset[Grant]) -> str | None:
    actions = (permissions or {}).get(role, ())
    return next((one for one in actions if one in needed), None)


def _key(resource: Resource) -> tuple[str, ...]:
    local = resource.topic.local if resource.topic is not None else None
    return tuple(part for part in (resource.tenant, resource.namespace, local) if part is not None)
