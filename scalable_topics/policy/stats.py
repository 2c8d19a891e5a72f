"""What the statistics of many segments add up to."""

from collections.abc import Iterable, Mapping

from msgspec import Struct

from scalable_topics.model.names import outer_producer_name
from scalable_topics.model.subscription import SubscriptionType


class SegmentTotals(Struct, frozen=True):
    """Of one segment. Rates are messages/s and bytes/s, sizes bytes."""

    msg_rate_in: float = 0
    bytes_rate_in: float = 0
    storage_size: int = 0
    backlog_size: int = 0


class TopicTotals(Struct, frozen=True, rename="camel"):
    """Of all segments; rates to three decimals."""

    msg_rate_in: float
    bytes_rate_in: float
    storage_size: int
    backlog_size: int
    average_msg_size: float


def total(segments: Iterable[SegmentTotals]) -> TopicTotals:
    parts = list(segments)
    messages = sum(part.msg_rate_in for part in parts)
    size = sum(part.bytes_rate_in for part in parts)
    return TopicTotals(
        round(messages, 3),
        round(size, 3),
        sum(part.storage_size for part in parts),
        sum(part.backlog_size for part in parts),
        # Divided before it is rounded: of a slow topic rounding leaves nothing to divide by.
        round(size / messages, 3) if messages else 0,
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
