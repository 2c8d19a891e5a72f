"""What the statistics of many segments add up to."""

from collections.abc import Iterable, Mapping

from msgspec import Struct

from scalable_topics.model.subscription import SubscriptionType
from scalable_topics.policy.routing import outer_producer_name


class TopicTotals(Struct, frozen=True, rename="camel"):
    """Rates to three decimals, sizes in bytes."""

    msg_rate_in: float = 0
    bytes_rate_in: float = 0
    storage_size: int = 0
    backlog_size: int = 0

    @property
    def average_msg_size(self) -> float:
        return round(self.bytes_rate_in / self.msg_rate_in, 3) if self.msg_rate_in else 0


def total(segments: Iterable[TopicTotals]) -> TopicTotals:
    parts = list(segments)
    return TopicTotals(
        round(sum(part.msg_rate_in for part in parts), 3),
        round(sum(part.bytes_rate_in for part in parts), 3),
        sum(part.storage_size for part in parts),
        sum(part.backlog_size for part in parts),
    )


class ProducerTotals(Struct, frozen=True, rename="camel"):
    msg_rate_in: float
    bytes_rate_in: float


def fold_producers(by_segment: Mapping[int, Mapping[str, ProducerTotals]]) -> dict[str, ProducerTotals]:
    """Inner producers, one per segment, as the producers that applications made."""
    folded: dict[str, ProducerTotals] = {}
    for segment_id, producers in by_segment.items():
        for inner_name, part in producers.items():
            name = outer_producer_name(inner_name, segment_id)
            so_far = folded.get(name, ProducerTotals(0, 0))
            folded[name] = ProducerTotals(
                so_far.msg_rate_in + part.msg_rate_in, so_far.bytes_rate_in + part.bytes_rate_in
            )
    return folded


class SubscriptionTotals(Struct, frozen=True, rename="camel"):
    msg_backlog: int = 0
    unacked_messages: int = 0
    backlog_size: int = 0


def total_subscription(segments: Iterable[SubscriptionTotals]) -> SubscriptionTotals:
    parts = list(segments)
    return SubscriptionTotals(
        sum(part.msg_backlog for part in parts),
        sum(part.unacked_messages for part in parts),
        sum(part.backlog_size for part in parts),
    )


def shown_type(recorded: SubscriptionType | None) -> SubscriptionType:
    """A subscription that is only seen on segments was made by attaching to them, which only queue consumers do."""
    return recorded or SubscriptionType.QUEUE
