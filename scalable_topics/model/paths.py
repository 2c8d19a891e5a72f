"""Where things are kept in the metadata store: every key, in one place.

Names are percent-encoded, so a name is always exactly one path element and no name can reach into another's
subtree.
"""

from typing import Final

from scalable_topics.model.errors import InvalidArgument
from scalable_topics.model.names import Domain, TopicName, decode, encode

DEFAULT_ROOT: Final = "/scalable-topics"


class StorePaths:
    """The keys under one root."""

    def __init__(self, root: str = DEFAULT_ROOT) -> None:
        self.root = root.rstrip("/")

    @property
    def topics(self) -> str:
        """Prefix of everything that belongs to a topic."""
        return f"{self.root}/topics/"

    @property
    def brokers(self) -> str:
        return f"{self.root}/brokers/"

    @property
    def marker(self) -> str:
        """Whose store this is: format version, cluster name and generation."""
        return f"{self.root}/marker"

    def topic_of(self, key: str) -> tuple[TopicName, str] | None:
        """The topic that a key belongs to, and what of it: "" is its record.

        None = it is no topic's, or it is not spelled as we would spell it: then it is not ours either.
        """
        parts = key.removeprefix(self.topics).split("/", 3)
        if not key.startswith(self.topics) or len(parts) < 3:
            return None
        topic = _topic(parts[:3])
        return None if topic is None else (topic, "".join(parts[3:]))

    def broker_of(self, key: str) -> str | None:
        """The daemon whose broker key this is."""
        name = key.removeprefix(self.brokers)
        return _decoded(name) if key.startswith(self.brokers) and "/" not in name else None

    def reporter_of(self, key: str) -> str | None:
        """The daemon whose sweep heartbeat this is."""
        name, _, rest = key.removeprefix(self.brokers).partition("/")
        return _decoded(name) if key.startswith(self.brokers) and rest == "reporter" else None

    def record(self, topic: TopicName) -> str:
        return f"{self.root}/topics/{_element(topic)}"

    def controller(self, topic: TopicName) -> str:
        return f"{self.record(topic)}/controller"

    def subscription(self, topic: TopicName, subscription: str) -> str:
        return f"{self.record(topic)}/subscriptions/{encode(subscription)}"

    def assignment(self, topic: TopicName, subscription: str) -> str:
        return f"{self.subscription(topic, subscription)}/assignment"

    def consumer(self, topic: TopicName, subscription: str, consumer: str) -> str:
        return f"{self.subscription(topic, subscription)}/consumers/{encode(consumer)}"

    def load(self, topic: TopicName, segment_id: int) -> str:
        return f"{self.record(topic)}/segments/{segment_id}/load"

    def owner(self, topic: TopicName, segment_id: int) -> str:
        return f"{self.record(topic)}/segments/{segment_id}/owner"

    def drained(self, topic: TopicName, segment_id: int, subscription: str) -> str:
        return f"{self.record(topic)}/segments/{segment_id}/drained/{encode(subscription)}"

    def index(self, topic: TopicName) -> str:
        return f"{self.root}/index/{_element(topic)}"

    def index_of(self, tenant: str, namespace: str) -> str:
        """Prefix of the index entries of a namespace."""
        return f"{self.root}/index/{encode(tenant)}/{encode(namespace)}/"

    def topic_of_index(self, key: str) -> TopicName | None:
        prefix = f"{self.root}/index/"
        parts = key.removeprefix(prefix).split("/")
        return _topic(parts) if key.startswith(prefix) and len(parts) == 3 else None

    def subscriptions(self, topic: TopicName) -> str:
        """Prefix of everything about a topic's subscriptions."""
        return f"{self.record(topic)}/subscriptions/"

    def subscription_of(self, topic: TopicName, key: str) -> str | None:
        """The subscription whose own key this is."""
        return _after(self.subscriptions(topic), key)

    def consumers(self, topic: TopicName, subscription: str) -> str:
        """Prefix of the registrations of a subscription."""
        return f"{self.subscription(topic, subscription)}/consumers/"

    def consumer_of(self, topic: TopicName, subscription: str, key: str) -> str | None:
        """The consumer whose registration this is."""
        return _after(self.consumers(topic, subscription), key)

    def segments(self, topic: TopicName) -> str:
        """Prefix of everything about a topic's segments."""
        return f"{self.record(topic)}/segments/"

    def drained_of(self, topic: TopicName, key: str) -> tuple[int, str] | None:
        """The segment and the subscription whose drained marker this is."""
        segment, _, rest = key.removeprefix(self.segments(topic)).partition("/")
        subscription = _after("drained/", rest)
        if subscription is None or not segment.isascii() or not segment.isdecimal():
            return None
        found = int(segment), subscription
        return found if self.drained(topic, *found) == key else None

    def journal_of(self, topic: TopicName) -> str:
        """Prefix of a topic's journal."""
        return f"{self.root}/journal/{_element(topic)}/"

    def journal(self, topic: TopicName, sequence: int) -> str:
        return f"{self.journal_of(topic)}{sequence:020d}"

    def garbage(self, incarnation: str) -> str:
        return f"{self.root}/garbage/{incarnation}"

    def broker(self, broker_id: str) -> str:
        return f"{self.root}/brokers/{encode(broker_id)}"

    def reporter(self, broker_id: str) -> str:
        return f"{self.broker(broker_id)}/reporter"

    def tenant(self, tenant: str) -> str:
        return f"{self.root}/tenants/{encode(tenant)}"

    def policies(self, tenant: str, namespace: str) -> str:
        return f"{self.root}/namespaces/{encode(tenant)}/{encode(namespace)}/policies"

    def namespace_permissions(self, tenant: str, namespace: str) -> str:
        return f"{self.root}/namespaces/{encode(tenant)}/{encode(namespace)}/permissions"

    def topic_permissions(self, topic: TopicName) -> str:
        """Beside the topic, not under it: a grant may be older than its topic and outlives it."""
        return f"{self.root}/namespaces/{_element(topic)}/permissions"


def _after(prefix: str, key: str) -> str | None:
    """The one name that follows a prefix."""
    return _decoded(key.removeprefix(prefix)) if key.startswith(prefix) else None


def _decoded(element: str) -> str | None:
    """The name that is spelled like this; None = nobody spells a name like this."""
    try:
        name = decode(element)
        return name if encode(name) == element else None
    except InvalidArgument:
        return None


def _topic(elements: list[str]) -> TopicName | None:
    tenant, namespace, local = map(_decoded, elements)
    if tenant is None or namespace is None or local is None:
        return None
    try:
        return TopicName(Domain.TOPIC, tenant, namespace, local)
    except InvalidArgument:
        return None


def _element(topic: TopicName) -> str:
    return f"{encode(topic.tenant)}/{encode(topic.namespace)}/{encode(topic.local)}"
