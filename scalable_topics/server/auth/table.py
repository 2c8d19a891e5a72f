"""Who may do what: one row per action, and every endpoint and stream is an action.

The rows are those of Pulsar's own authorization, with three exceptions: split, merge and rebucket belong to the
tenant's admin (PIP-468), segment endpoints to super-users only, and a migration needs a produce grant (PIP-475).
What a rule allows is in `authorizer`; that every route has a row is checked at start by `middleware`.
"""

from collections.abc import Mapping
from enum import StrEnum
from types import MappingProxyType
from typing import Final

from msgspec import Struct


class Rule(StrEnum):
    """The least that is needed. A tenant's admin may all that grants allow, a super-user everything."""

    ANYONE = "anyone"
    """Not even a token."""
    LOOKUP = "lookup"
    """A produce or a consume grant."""
    PRODUCE = "produce"
    CONSUME = "consume"
    TENANT_ADMIN = "tenant-admin"
    SUPER_USER = "super-user"


class Scope(StrEnum):
    """What an action is done to, and so whose admins and which grants count."""

    CLUSTER = "cluster"
    TENANT = "tenant"
    NAMESPACE = "namespace"
    TOPIC = "topic"


class Action(StrEnum):
    """Everything that can be asked of a daemon."""

    CHECK_HEALTH = "check-health"
    READ_METRICS = "read-metrics"
    READ_API_DESCRIPTION = "read-api-description"

    LIST_TOPICS = "list-topics"
    CREATE_TOPIC = "create-topic"
    DELETE_TOPIC = "delete-topic"
    GET_METADATA = "get-metadata"
    GET_STATS = "get-stats"
    GET_SEGMENT_STATS = "get-segment-stats"
    MIGRATE = "migrate"

    SUBSCRIBE = "subscribe"
    UNSUBSCRIBE = "unsubscribe"
    SEEK = "seek"
    SKIP_ALL = "skip-all"

    SPLIT = "split"
    MERGE = "merge"
    REBUCKET = "rebucket"
    LIST_OPERATIONS = "list-operations"
    ABORT_OPERATION = "abort-operation"
    COLLECT = "collect"

    GET_AUTO_SCALE_POLICY = "get-auto-scale-policy"
    SET_AUTO_SCALE_POLICY = "set-auto-scale-policy"
    REMOVE_AUTO_SCALE_POLICY = "remove-auto-scale-policy"
    GET_NAMESPACE_AUTO_SCALE_POLICY = "get-namespace-auto-scale-policy"
    SET_NAMESPACE_AUTO_SCALE_POLICY = "set-namespace-auto-scale-policy"
    REMOVE_NAMESPACE_AUTO_SCALE_POLICY = "remove-namespace-auto-scale-policy"
    GET_RETENTION = "get-retention"
    SET_RETENTION = "set-retention"
    REMOVE_RETENTION = "remove-retention"

    CREATE_SEGMENT = "create-segment"
    TERMINATE_SEGMENT = "terminate-segment"
    DELETE_SEGMENT = "delete-segment"
    CREATE_SEGMENT_SUBSCRIPTION = "create-segment-subscription"
    DELETE_SEGMENT_SUBSCRIPTION = "delete-segment-subscription"
    GET_SEGMENT_BACKLOG = "get-segment-backlog"
    SEEK_SEGMENT = "seek-segment"
    SKIP_ALL_OF_SEGMENT = "skip-all-of-segment"

    APPEND = "append"
    READ = "read"
    ACKNOWLEDGE = "acknowledge"
    DESCRIBE_SEGMENT = "describe-segment"

    LIST_BROKERS = "list-brokers"

    LIST_TENANTS = "list-tenants"
    GET_TENANT = "get-tenant"
    CREATE_TENANT = "create-tenant"
    UPDATE_TENANT = "update-tenant"
    DELETE_TENANT = "delete-tenant"
    GET_NAMESPACE_PERMISSIONS = "get-namespace-permissions"
    GRANT_NAMESPACE_PERMISSION = "grant-namespace-permission"
    REVOKE_NAMESPACE_PERMISSION = "revoke-namespace-permission"
    GET_TOPIC_PERMISSIONS = "get-topic-permissions"
    GRANT_TOPIC_PERMISSION = "grant-topic-permission"
    REVOKE_TOPIC_PERMISSION = "revoke-topic-permission"

    WATCH_TOPIC = "watch-topic"
    """The stream of a topic's layouts."""
    WATCH_NAMESPACE = "watch-namespace"
    REGISTER_CONSUMER = "register-consumer"
    """The stream of a consumer's assignments."""


class Row(Struct, frozen=True):
    rule: Rule
    scope: Scope
    changes: bool
    """Whether each call leaves an audit line."""


def _reads(rule: Rule, scope: Scope = Scope.TOPIC) -> Row:
    return Row(rule, scope, changes=False)


def _changes(rule: Rule, scope: Scope = Scope.TOPIC) -> Row:
    return Row(rule, scope, changes=True)


TABLE: Final[Mapping[Action, Row]] = MappingProxyType(
    {
        Action.CHECK_HEALTH: _reads(Rule.ANYONE, Scope.CLUSTER),
        Action.READ_METRICS: _reads(Rule.ANYONE, Scope.CLUSTER),
        Action.READ_API_DESCRIPTION: _reads(Rule.ANYONE, Scope.CLUSTER),
        Action.LIST_TOPICS: _reads(Rule.LOOKUP, Scope.NAMESPACE),
        Action.CREATE_TOPIC: _changes(Rule.TENANT_ADMIN),
        Action.DELETE_TOPIC: _changes(Rule.TENANT_ADMIN),
        Action.GET_METADATA: _reads(Rule.LOOKUP),
        Action.GET_STATS: _reads(Rule.LOOKUP),
        Action.GET_SEGMENT_STATS: _reads(Rule.LOOKUP),
        Action.MIGRATE: _changes(Rule.PRODUCE),
        Action.SUBSCRIBE: _changes(Rule.CONSUME),
        Action.UNSUBSCRIBE: _changes(Rule.CONSUME),
        Action.SEEK: _changes(Rule.CONSUME),
        Action.SKIP_ALL: _changes(Rule.CONSUME),
        Action.SPLIT: _changes(Rule.TENANT_ADMIN),
        Action.MERGE: _changes(Rule.TENANT_ADMIN),
        Action.REBUCKET: _changes(Rule.TENANT_ADMIN),
        Action.LIST_OPERATIONS: _reads(Rule.LOOKUP),
        Action.ABORT_OPERATION: _changes(Rule.TENANT_ADMIN),
        Action.COLLECT: _changes(Rule.SUPER_USER),
        Action.GET_AUTO_SCALE_POLICY: _reads(Rule.TENANT_ADMIN),
        Action.SET_AUTO_SCALE_POLICY: _changes(Rule.TENANT_ADMIN),
        Action.REMOVE_AUTO_SCALE_POLICY: _changes(Rule.TENANT_ADMIN),
        Action.GET_NAMESPACE_AUTO_SCALE_POLICY: _reads(Rule.TENANT_ADMIN, Scope.NAMESPACE),
        Action.SET_NAMESPACE_AUTO_SCALE_POLICY: _changes(Rule.TENANT_ADMIN, Scope.NAMESPACE),
        Action.REMOVE_NAMESPACE_AUTO_SCALE_POLICY: _changes(Rule.TENANT_ADMIN, Scope.NAMESPACE),
        Action.GET_RETENTION: _reads(Rule.TENANT_ADMIN, Scope.NAMESPACE),
        Action.SET_RETENTION: _changes(Rule.TENANT_ADMIN, Scope.NAMESPACE),
        Action.REMOVE_RETENTION: _changes(Rule.TENANT_ADMIN, Scope.NAMESPACE),
        Action.CREATE_SEGMENT: _changes(Rule.SUPER_USER),
        Action.TERMINATE_SEGMENT: _changes(Rule.SUPER_USER),
        Action.DELETE_SEGMENT: _changes(Rule.SUPER_USER),
        Action.CREATE_SEGMENT_SUBSCRIPTION: _changes(Rule.SUPER_USER),
        Action.DELETE_SEGMENT_SUBSCRIPTION: _changes(Rule.SUPER_USER),
        Action.GET_SEGMENT_BACKLOG: _reads(Rule.SUPER_USER),
        Action.SEEK_SEGMENT: _changes(Rule.SUPER_USER),
        Action.SKIP_ALL_OF_SEGMENT: _changes(Rule.SUPER_USER),
        Action.APPEND: _reads(Rule.PRODUCE),
        Action.READ: _reads(Rule.CONSUME),
        Action.ACKNOWLEDGE: _reads(Rule.CONSUME),
        Action.DESCRIBE_SEGMENT: _reads(Rule.LOOKUP),
        Action.LIST_BROKERS: _reads(Rule.SUPER_USER, Scope.CLUSTER),
        Action.LIST_TENANTS: _reads(Rule.SUPER_USER, Scope.CLUSTER),
        Action.GET_TENANT: _reads(Rule.SUPER_USER, Scope.TENANT),
        Action.CREATE_TENANT: _changes(Rule.SUPER_USER, Scope.TENANT),
        Action.UPDATE_TENANT: _changes(Rule.SUPER_USER, Scope.TENANT),
        Action.DELETE_TENANT: _changes(Rule.SUPER_USER, Scope.TENANT),
        Action.GET_NAMESPACE_PERMISSIONS: _reads(Rule.TENANT_ADMIN, Scope.NAMESPACE),
        Action.GRANT_NAMESPACE_PERMISSION: _changes(Rule.TENANT_ADMIN, Scope.NAMESPACE),
        Action.REVOKE_NAMESPACE_PERMISSION: _changes(Rule.TENANT_ADMIN, Scope.NAMESPACE),
        Action.GET_TOPIC_PERMISSIONS: _reads(Rule.TENANT_ADMIN),
        Action.GRANT_TOPIC_PERMISSION: _changes(Rule.TENANT_ADMIN),
        Action.REVOKE_TOPIC_PERMISSION: _changes(Rule.TENANT_ADMIN),
        Action.WATCH_TOPIC: _reads(Rule.LOOKUP),
        Action.WATCH_NAMESPACE: _reads(Rule.LOOKUP, Scope.NAMESPACE),
        Action.REGISTER_CONSUMER: _changes(Rule.CONSUME),
    }
)
"""Appending, reading and acknowledging messages is traffic, not change: no audit line each."""
