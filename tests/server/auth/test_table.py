"""One test per cell of the table: each action, each kind of caller.

The expectation is written out here a second time, in other terms than the table's, so that neither can change alone.
"""

from typing import Final

import pytest

from scalable_topics.model.administration import Action as Grant
from scalable_topics.model.administration import TenantInfo
from scalable_topics.model.errors import Forbidden, InvalidArgument
from scalable_topics.model.names import TopicName
from scalable_topics.server.auth.authorizer import CLUSTER, Authorizer, Resource, of_namespace, of_tenant, of_topic
from scalable_topics.server.auth.caller import Caller, anonymous, daemon, role
from scalable_topics.server.auth.table import TABLE, Action, Scope
from tests.server.auth.makers import Clock, Grants

TOPIC = TopicName.parse("topic://t/n/orders")
OTHER_TOPIC = TopicName.parse("topic://t/n/other")

ALL: Final = frozenset(
    {
        "anonymous",
        "stranger",
        "namespace-producer",
        "namespace-consumer",
        "topic-producer",
        "topic-consumer",
        "other-topic",
        "other-namespace",
        "other-tenant-admin",
        "packages-only",
        "tenant-admin",
        "super-user",
        "daemon",
    }
)
SUPER = frozenset({"super-user", "daemon"})
ADMIN = SUPER | {"tenant-admin"}
PRODUCERS = ADMIN | {"namespace-producer", "topic-producer"}
CONSUMERS = ADMIN | {"namespace-consumer", "topic-consumer"}
NAMESPACE_USERS = ADMIN | {"namespace-producer", "namespace-consumer"}
TOPIC_USERS = PRODUCERS | CONSUMERS

WHO_MAY: Final[dict[Action, frozenset[str]]] = {
    Action.CHECK_HEALTH: ALL,
    Action.READ_METRICS: ALL,
    Action.READ_API_DESCRIPTION: ALL,
    Action.LIST_TOPICS: NAMESPACE_USERS,
    Action.CREATE_TOPIC: ADMIN,
    Action.DELETE_TOPIC: ADMIN,
    Action.GET_METADATA: TOPIC_USERS,
    Action.GET_STATS: TOPIC_USERS,
    Action.GET_SEGMENT_STATS: TOPIC_USERS,
    Action.MIGRATE: PRODUCERS,
    Action.SUBSCRIBE: CONSUMERS,
    Action.UNSUBSCRIBE: CONSUMERS,
    Action.SEEK: CONSUMERS,
    Action.SKIP_ALL: CONSUMERS,
    Action.SPLIT: ADMIN,
    Action.MERGE: ADMIN,
    Action.REBUCKET: ADMIN,
    Action.LIST_OPERATIONS: TOPIC_USERS,
    Action.ABORT_OPERATION: ADMIN,
    Action.COLLECT: SUPER,
    Action.GET_AUTO_SCALE_POLICY: ADMIN,
    Action.SET_AUTO_SCALE_POLICY: ADMIN,
    Action.REMOVE_AUTO_SCALE_POLICY: ADMIN,
    Action.GET_NAMESPACE_AUTO_SCALE_POLICY: ADMIN,
    Action.SET_NAMESPACE_AUTO_SCALE_POLICY: ADMIN,
    Action.REMOVE_NAMESPACE_AUTO_SCALE_POLICY: ADMIN,
    Action.GET_RETENTION: ADMIN,
    Action.SET_RETENTION: ADMIN,
    Action.REMOVE_RETENTION: ADMIN,
    Action.CREATE_SEGMENT: SUPER,
    Action.TERMINATE_SEGMENT: SUPER,
    Action.DELETE_SEGMENT: SUPER,
    Action.CREATE_SEGMENT_SUBSCRIPTION: SUPER,
    Action.DELETE_SEGMENT_SUBSCRIPTION: SUPER,
    Action.GET_SEGMENT_BACKLOG: SUPER,
    Action.SEEK_SEGMENT: SUPER,
    Action.SKIP_ALL_OF_SEGMENT: SUPER,
    Action.APPEND: PRODUCERS,
    Action.READ: CONSUMERS,
    Action.ACKNOWLEDGE: CONSUMERS,
    Action.DESCRIBE_SEGMENT: TOPIC_USERS,
    Action.LIST_BROKERS: SUPER,
    Action.LIST_TENANTS: SUPER,
    Action.GET_TENANT: SUPER,
    Action.CREATE_TENANT: SUPER,
    Action.UPDATE_TENANT: SUPER,
    Action.DELETE_TENANT: SUPER,
    Action.GET_NAMESPACE_PERMISSIONS: ADMIN,
    Action.GRANT_NAMESPACE_PERMISSION: ADMIN,
    Action.REVOKE_NAMESPACE_PERMISSION: ADMIN,
    Action.GET_TOPIC_PERMISSIONS: ADMIN,
    Action.GRANT_TOPIC_PERMISSION: ADMIN,
    Action.REVOKE_TOPIC_PERMISSION: ADMIN,
    Action.WATCH_TOPIC: TOPIC_USERS,
    Action.WATCH_NAMESPACE: NAMESPACE_USERS,
    Action.REGISTER_CONSUMER: CONSUMERS,
}

RESOURCES: Final = {
    Scope.CLUSTER: CLUSTER,
    Scope.TENANT: of_tenant("t"),
    Scope.NAMESPACE: of_namespace("t", "n"),
    Scope.TOPIC: of_topic(TOPIC),
}
BOTH = (Grant.PRODUCE, Grant.CONSUME)


def granted() -> Authorizer:
    grants = Grants()
    grants.tenants["t"] = TenantInfo(admin_roles=("tenant-admin",))
    grants.tenants["u"] = TenantInfo(admin_roles=("other-tenant-admin",))
    grants.namespaces["t", "n"] = {
        "namespace-producer": ("produce",),
        "namespace-consumer": ("consume",),
        "packages-only": ("packages", "functions", "sources", "sinks"),
        "anonymous": BOTH,
    }
    grants.namespaces["t", "m"] = {"other-namespace": BOTH}
    grants.topics[TOPIC] = {"topic-producer": ("produce",), "topic-consumer": ("consume",)}
    grants.topics[OTHER_TOPIC] = {"other-topic": BOTH}
    return Authorizer(grants, super_users=frozenset({"super-user"}), clock=Clock())


def caller(name: str) -> Caller:
    match name:
        case "anonymous":
            return anonymous()
        case "daemon":
            return daemon("b1")
        case _:
            return role(name)


def test_every_action_has_a_row_and_an_expectation() -> None:
    assert TABLE.keys() == WHO_MAY.keys() == set(Action)


@pytest.mark.parametrize("name", sorted(ALL))
@pytest.mark.parametrize("action", Action)
async def test_cell(action: Action, name: str) -> None:
    authorizer, resource = granted(), RESOURCES[TABLE[action].scope]

    if name in WHO_MAY[action]:
        assert (await authorizer.ensure(caller(name), action, resource)).allowed
    else:
        with pytest.raises(Forbidden):
            await authorizer.ensure(caller(name), action, resource)


@pytest.mark.parametrize("action", Action)
async def test_a_resource_of_another_scope_is_refused(action: Action) -> None:
    for scope, resource in RESOURCES.items():
        if scope is not TABLE[action].scope:
            with pytest.raises(InvalidArgument):
                await granted().decide(caller("super-user"), action, resource)


@pytest.mark.parametrize("action", Action)
def test_what_changes_something_is_audited(action: Action) -> None:
    reads = ("get-", "list-", "read", "check-", "watch-", "describe-")
    traffic = {Action.APPEND, Action.ACKNOWLEDGE}

    assert TABLE[action].changes is not (action.startswith(reads) or action in traffic)


@pytest.mark.parametrize("stream", [Action.WATCH_TOPIC, Action.WATCH_NAMESPACE, Action.REGISTER_CONSUMER])
def test_pitfall_90_streams_are_authorized_as_rest_is(stream: Action) -> None:
    same = {
        Action.WATCH_TOPIC: Action.GET_METADATA,
        Action.WATCH_NAMESPACE: Action.LIST_TOPICS,
        Action.REGISTER_CONSUMER: Action.SUBSCRIBE,
    }

    assert TABLE[stream].rule is TABLE[same[stream]].rule
    assert TABLE[stream].scope is TABLE[same[stream]].scope


def test_resources_are_named_as_people_name_them() -> None:
    named: list[Resource] = list(RESOURCES.values())

    assert [str(one) for one in named] == ["cluster", "tenant t", "namespace t/n", "topic://t/n/orders"]
