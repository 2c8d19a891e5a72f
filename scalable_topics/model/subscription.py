"""Subscriptions: what kind they are."""

from enum import StrEnum

from scalable_topics.model.errors import InvalidArgument


class SubscriptionType(StrEnum):
    """STREAM: ordered, assigned by the controller. CHECKPOINT: the same, positions kept by the application. QUEUE:
    unordered.
    """

    STREAM = "STREAM"
    CHECKPOINT = "CHECKPOINT"
    QUEUE = "QUEUE"

    @classmethod
    def parse(cls, text: str) -> "SubscriptionType":
        try:
            return cls(text)
        except ValueError:
            raise InvalidArgument(
                f"{text!r} is not a subscription type", remedy=f"use one of {', '.join(cls)}"
            ) from None
