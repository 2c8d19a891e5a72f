"""What the authorizer asks, remembers and forgets; the rules themselves are in test_table."""

import asyncio

import pytest

from scalable_topics.metadata.memory import MemoryStore
from scalable_topics.metadata.repository import Repository
from scalable_topics.model.administration import Permissions, TenantInfo
from scalable_topics.model.errors import Forbidden, Unavailable
from scalable_topics.model.names import TopicName
from scalable_topics.model.paths import StorePaths
from scalable_topics.server.auth.authorizer import (
    MAX_AGE_SECONDS,
    MAX_ENTRIES,
    MAX_STALE_SECONDS,
    Authorizer,
    Resource,
    StoredGrants,
    of_namespace,
    of_tenant,
    of_topic,
)
from scalable_topics.server.auth.caller import role
from scalable_topics.server.auth.table import Action
from tests.server.auth.makers import Clock, Grants

TOPIC = TopicName.parse("topic://t/n/orders")
ON_TOPIC = of_topic(TOPIC)


def made(grants: Grants, clock: Clock | None = None) -> Authorizer:
    return Authorizer(grants, super_users=frozenset({"root"}), clock=clock or Clock())


async def may(authorizer: Authorizer, name: str, action: Action = Action.GET_METADATA, on: Resource = ON_TOPIC) -> bool:
    return (await authorizer.decide(role(name), action, on)).allowed


async def test_it_tells_why() -> None:
    grants = Grants()
    grants.tenants["t"] = TenantInfo(admin_roles=("ada",))
    grants.namespaces["t", "n"] = {"ned": ("consume",)}
    grants.topics[TOPIC] = {"tom": ("produce",)}
    authorizer = made(grants)

    reasons = [(await authorizer.decide(role(name), Action.GET_METADATA, ON_TOPIC)).because for name in
               ("root", "ada", "ned", "tom", "eve")]  # fmt: skip

    assert reasons == [
        "super-user",
        "admin of tenant t",
        "consume grant on namespace t/n",
        "produce grant on topic://t/n/orders",
        "it needs a produce or consume grant, or an admin of tenant t",
    ]
    with pytest.raises(Forbidden) as caught:
        await authorizer.ensure(role("eve"), Action.SPLIT, ON_TOPIC)
    assert str(caught.value) == "topic://t/n/orders: 'eve' may not split (it needs an admin of tenant t)"


async def test_topic_grants_add_to_namespace_grants() -> None:
    grants = Grants()
    grants.namespaces["t", "n"] = {"pat": ("consume",)}
    grants.topics[TOPIC] = {"pat": ("produce",)}

    assert await may(made(grants), "pat", Action.MIGRATE)
    assert await may(made(grants), "pat", Action.SEEK)


async def test_nothing_is_asked_for_a_super_user_nor_more_than_needed() -> None:
    grants = Grants()
    grants.away = Unavailable("away")
    assert await may(made(grants), "root", Action.CREATE_SEGMENT)
    assert not await may(made(grants), "eve", Action.CREATE_SEGMENT)
    assert grants.asked == []

    grants.away = None
    assert not await may(made(grants), "eve", Action.SPLIT)
    assert grants.asked == ["tenant t"]


async def test_an_answer_is_remembered_for_a_moment() -> None:
    grants, clock = Grants(), Clock()
    grants.tenants["t"] = TenantInfo(admin_roles=("ada",))
    authorizer = made(grants, clock)

    assert await may(authorizer, "ada")
    grants.tenants.clear()
    clock.now += MAX_AGE_SECONDS - 0.1
    assert await may(authorizer, "ada")
    assert grants.asked == ["tenant t"]
    clock.now += 0.1
    assert not await may(authorizer, "ada")


async def test_a_revoked_grant_counts_no_more_once_it_is_forgotten() -> None:
    grants = Grants()
    grants.tenants["t"] = TenantInfo(admin_roles=("ada",))
    grants.namespaces["t", "n"] = {"ned": ("produce",)}
    grants.topics[TOPIC] = {"tom": ("produce",)}
    authorizer = made(grants)
    for name in ("ada", "ned", "tom"):
        assert await may(authorizer, name)

    grants.tenants.clear()
    grants.namespaces.clear()
    grants.topics.clear()
    for name, what in (("ada", of_tenant("t")), ("ned", of_namespace("t", "n")), ("tom", ON_TOPIC)):
        assert await may(authorizer, name)
        authorizer.forget(what)
        assert not await may(authorizer, name)

    grants.tenants["t"] = TenantInfo(admin_roles=("ada",))
    authorizer.forget()
    assert await may(authorizer, "ada")


class SlowGrants(Grants):
    def __init__(self) -> None:
        super().__init__()
        self.go_on = asyncio.Event()

    async def permissions(self, tenant: str, namespace: str) -> Permissions | None:
        read = await super().permissions(tenant, namespace)
        await self.go_on.wait()
        return read


async def test_what_was_being_read_when_it_was_forgotten_is_not_remembered() -> None:
    grants = SlowGrants()
    grants.namespaces["t", "n"] = {"ned": ("produce",)}
    authorizer = made(grants)

    async with asyncio.TaskGroup() as tasks:
        early = tasks.create_task(may(authorizer, "ned"))
        while "namespace t/n" not in grants.asked:
            await asyncio.sleep(0)
        grants.namespaces.clear()
        authorizer.forget(of_namespace("t", "n"))
        grants.go_on.set()

    assert early.result(), "it was asked before the grant was taken back"
    assert not await may(authorizer, "ned")


async def test_while_the_store_is_away_what_was_last_known_counts_for_a_while() -> None:
    grants, clock = Grants(), Clock()
    grants.tenants["t"] = TenantInfo(admin_roles=("ada",))
    authorizer = made(grants, clock)
    assert await may(authorizer, "ada")

    grants.away = Unavailable("away")
    clock.now += MAX_STALE_SECONDS - 0.1
    assert await may(authorizer, "ada")
    with pytest.raises(Unavailable):
        await may(authorizer, "eve")
    clock.now += 0.1
    with pytest.raises(Unavailable):
        await may(authorizer, "ada")


async def test_another_failure_of_the_store_is_no_permission() -> None:
    grants, clock = Grants(), Clock()
    grants.tenants["t"] = TenantInfo(admin_roles=("ada",))
    authorizer = made(grants, clock)
    assert await may(authorizer, "ada")

    grants.away = RuntimeError("damaged")
    clock.now += MAX_AGE_SECONDS
    with pytest.raises(RuntimeError):
        await may(authorizer, "ada")


async def test_memory_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("scalable_topics.server.auth.authorizer.MAX_ENTRIES", 3)
    grants = Grants()
    authorizer = made(grants)
    for number in range(10):
        await may(authorizer, "eve", Action.SET_RETENTION, of_namespace(f"t{number}", "n"))

    assert len(authorizer._known) == 3 < MAX_ENTRIES
    await may(authorizer, "eve", Action.SET_RETENTION, of_namespace("t9", "n"))
    assert grants.asked[-1] == "tenant t9"
    assert grants.asked.count("tenant t9") == 1


async def test_grants_are_read_from_the_store() -> None:
    repository = Repository(MemoryStore(), StorePaths("/r"))
    await repository.set_tenant("t", TenantInfo(admin_roles=("ada",)), known=None)
    await repository.set_permissions("t", "n", {"ned": ("produce",)}, known=None)
    await repository.set_topic_permissions(TOPIC, {"tom": ("consume",)}, known=None)
    authorizer = Authorizer(StoredGrants(repository), super_users=frozenset(), clock=Clock())

    assert [await may(authorizer, name) for name in ("ada", "ned", "tom", "eve")] == [True, True, True, False]
    assert not await may(authorizer, "ada", Action.SPLIT, of_topic(TopicName.parse("topic://u/n/orders")))
