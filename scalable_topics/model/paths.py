"""Where things are kept in the metadata store: every key, in one place.

Names are percent-encoded, so a name is always exactly one path element and no name can reach into another's
subtree.
"""

from typing import Final

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

    def topic_of(self, key: str) -> tuple[TopicName, str] | None:
        """The topic that a key belongs to, and what of it: "" is its record. None = the key is no topic's."""
        parts = key.removeprefix(self.topics).split("/", 3)
        if not key.startswith(self.topics) or len(parts) < 3:
            return None
        tenant, namespace, local = (decode(part) for part in parts[:3])
        return TopicName(Domain.TOPIC, tenant, namespace, local), "".join(parts[3:])

    def broker_of(self, key: str) -> str | None:
        """The daemon whose broker key this is."""
        name = key.removeprefix(self.brokers)
        return decode(name) if key.startswith(self.brokers) and "/" not in name else None

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
        parts = key.removeprefix(f"{self.root}/index/").split("/")
        return TopicName(Domain.TOPIC, *map(decode, parts)) if len(parts) == 3 else None

    def journal(self, topic: TopicName, sequence: int) -> str:
        return f"{self.root}/journal/{_element(topic)}/{sequence:020d}"

    def garbage(self, incarnation: str) -> str:
        return f"{self.root}/garbage/{incarnation}"

    def broker(self, broker_id: str) -> str:
        return f"{self.root}/brokers/{encode(broker_id)}"

    def reporter(self, broker_id: str) -> str:
        return f"{self.broker(broker_id)}/reporter"

    def policies(self, tenant: str, namespace: str) -> str:
        return f"{self.root}/namespaces/{encode(tenant)}/{encode(namespace)}/policies"


def _element(topic: TopicName) -> str:
    return f"{encode(topic.tenant)}/{encode(topic.namespace)}/{encode(topic.local)}"
