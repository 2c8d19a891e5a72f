"""What operators set beside topics: tenants, permissions, policies of a namespace."""

from collections.abc import Mapping
from enum import StrEnum

from msgspec import Struct

from scalable_topics.model.autoscale_policy import AutoScalePolicyOverride


class Action(StrEnum):
    """What a role may be granted, in Pulsar's words; the others of Pulsar's are kept and mean nothing here."""

    PRODUCE = "produce"
    CONSUME = "consume"


class TenantInfo(Struct, frozen=True, rename="camel"):
    """Pulsar's tenant: whose roles may administer it, and where it may live."""

    admin_roles: tuple[str, ...] = ()
    allowed_clusters: tuple[str, ...] = ()


Permissions = Mapping[str, tuple[str, ...]]
"""Role -> actions, of a namespace or of a topic."""


class NamespacePolicies(Struct, frozen=True, rename="camel"):
    """What an operator sets for a namespace; None = the broker's own setting."""

    scalable_topic_auto_scale_policy: AutoScalePolicyOverride | None = None
    retention_minutes: float | None = None
