"""Subscriptions: what kind they are, and what the store keeps of them."""

from enum import StrEnum
from typing import Final

from msgspec import Struct

from scalable_topics.model.errors import InvalidArgument
from scalable_topics.model.limits import is_long

MAX_NAME_LENGTH: Final = 255


def validate_name(name: str) -> None:
    """Of a subscription or a consumer. Any text but with spaces around it, which nobody could ask for again."""
    if not name or name != name.strip() or len(name) > MAX_NAME_LENGTH or not name.isprintable():
        raise InvalidArgument(
            f"{name[:64]!r} is not a name of a subscription",
            remedy=f"give 1 to {MAX_NAME_LENGTH} printable characters without spaces around them",
        )


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


class SubscriptionState(StrEnum):
    """Clients attach to READY ones only (PROTOCOL 5)."""

    CREATING = "CREATING"
    READY = "READY"
    SEEKING = "SEEKING"
    DELETING = "DELETING"


class InitialPosition(StrEnum):
    """What is in scope: EARLIEST = sealed segments too, LATEST = only what is written from now on."""

    EARLIEST = "earliest"
    LATEST = "latest"


class SubscriptionRecord(Struct, frozen=True, rename="camel", kw_only=True):
    """A subscription as the store keeps it. `seek_generation` makes the drained markers of an earlier one void."""

    type: SubscriptionType
    state: SubscriptionState
    initial_position: InitialPosition
    created_at_ms: int
    seek_generation: int = 0
    operation_id: str | None = None
    """Of the create, seek or delete that is under way."""
    request_key: str | None = None
    """Of the request that asked for it (PROTOCOL 10)."""
    seek_to_ms: int | None = None
    """Where a SEEKING one is going; None = past everything, which is what skip-all asks for."""

    def __post_init__(self) -> None:
        if not (is_long(self.created_at_ms) and is_long(self.seek_generation)):
            raise InvalidArgument("createdAtMs and seekGeneration must be longs of 0 or more")
        if self.seek_to_ms is not None and not (self.state is SubscriptionState.SEEKING and is_long(self.seek_to_ms)):
            raise InvalidArgument(
                f"a subscription that is {self.state} cannot seek to {self.seek_to_ms}",
                remedy="only a SEEKING one has seekToMs, a long of 0 or more",
            )


class DrainedMarker(Struct, frozen=True, rename="camel", kw_only=True):
    """Every message of a sealed segment was acknowledged on this subscription, as its owner confirmed."""

    seek_generation: int
    at_ms: int
    position: str | None = None
    """The mark-delete position that proved it; None = the segment was empty or out of scope."""

    def __post_init__(self) -> None:
        if not (is_long(self.at_ms) and is_long(self.seek_generation)):
            raise InvalidArgument("atMs and seekGeneration must be longs of 0 or more")


class ConsumerRegistration(Struct, frozen=True, rename="camel", kw_only=True):
    """A consumer that takes part in an ordered subscription. A second process under the same name has another nonce."""

    nonce: str
    registered_at_ms: int

    def __post_init__(self) -> None:
        if not self.nonce or not is_long(self.registered_at_ms):
            raise InvalidArgument("a registration needs a nonce and a time")


class UnitState(StrEnum):
    OWNED = "OWNED"
    RELEASING = "RELEASING"


class AssignedUnit(Struct, frozen=True, rename="camel", kw_only=True):
    """A segment, or a slice of its buckets (both ends included), and who may deliver it (PROTOCOL 6)."""

    segment_id: int
    first_bucket: int
    last_bucket: int
    consumer: str
    state: UnitState
    generation: int

    def __post_init__(self) -> None:
        numbers = (self.segment_id, self.first_bucket, self.last_bucket, self.generation)
        if not all(map(is_long, numbers)) or self.first_bucket > self.last_bucket:
            raise InvalidArgument(f"{numbers} is no unit", remedy="give a segment, its buckets and a generation")


class AssignmentRecord(Struct, frozen=True, rename="camel"):
    """The whole assignment of one subscription: one key, so that it changes at one revision."""

    generation: int
    units: tuple[AssignedUnit, ...]

    def __post_init__(self) -> None:
        if not is_long(self.generation):
            raise InvalidArgument("the generation of an assignment is a long of 0 or more")
