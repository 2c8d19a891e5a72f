"""What autoscaling looks at, and what it can answer."""

from collections.abc import Mapping
from enum import StrEnum

from msgspec import Struct

from scalable_topics.model.errors import InvalidArgument
from scalable_topics.model.layout import SegmentLayout
from scalable_topics.model.load import Rates, validate_rates
from scalable_topics.model.subscription import SubscriptionType


class KnownLoad(Struct, frozen=True, gc=False):
    """The load of a segment whose reporter is alive, and for how long it has been what it is."""

    rates: Rates
    cold_ms: float = 0

    def __post_init__(self) -> None:
        validate_rates(self.rates)
        if not self.cold_ms >= 0:
            raise InvalidArgument(f"a load cannot have lasted {self.cold_ms} ms")


class ConsumerCount(Struct, frozen=True):
    """Consumers of one subscription; `restored` ones are known from before a failover and not back yet."""

    type: SubscriptionType
    connected: int
    restored: int = 0

    def __post_init__(self) -> None:
        if self.connected < 0 or self.restored < 0:
            raise InvalidArgument(
                f"a subscription cannot have {self.connected} connected and {self.restored} restored consumers"
            )


class TopicView(Struct, frozen=True, kw_only=True):
    """Everything a decision may depend on, besides the policy.

    A segment without an entry in `load` is *unknown*: not hot, not cold, not zero, never the busiest. Times since
    the last operation are None when there was none, and `demand_low_ms` (how long fewer buckets would have been
    enough) when nobody knows. `standing_ms` is how long a segment has been there (`standing_times`); one without an
    entry is not known to have stood at all, and its depth is not forgiven.
    """

    layout: SegmentLayout
    load: Mapping[int, KnownLoad] = {}
    consumers: Mapping[str, ConsumerCount] = {}
    record_bytes: int = 0
    since_last_split_ms: float | None = None
    since_last_merge_ms: float | None = None
    since_last_rebucket_ms: float | None = None
    demand_low_ms: float | None = None
    standing_ms: Mapping[int, float] = {}

    def __post_init__(self) -> None:
        if not self.layout.active:
            raise InvalidArgument(
                "a topic without active segments cannot be scaled", remedy="create or migrate it first"
            )


def standing_times(layout: SegmentLayout, *, now_ms: int) -> dict[int, float]:
    """How long each active segment has stood; one made in the future, by another clock, not at all."""
    return {segment.segment_id: max(0, now_ms - segment.created_at_ms) for segment in layout.active}


class Reason(StrEnum):
    """Why a change is made; the four metrics are reasons of their own."""

    CONSUMER_COUNT = "consumer-count"
    AT_MAX_SEGMENTS = "at-max-segments"
    BELOW_SPLIT_RATE_FLOOR = "below-split-rate-floor"
    MSG_RATE_IN = "msgRateIn"
    BYTES_RATE_IN = "bytesRateIn"
    MSG_RATE_OUT = "msgRateOut"
    BYTES_RATE_OUT = "bytesRateOut"
    COLD = "cold"
    IDLE_BUCKETS = "idle-buckets"


class Split(Struct, frozen=True, tag_field="decision", tag="split"):
    ways: Mapping[int, int]
    """Segment -> number of children."""
    reason: Reason


class Merge(Struct, frozen=True, tag_field="decision", tag="merge", rename="camel"):
    segment_ids: tuple[int, int]
    """In range order."""
    reason: Reason


class Rebucket(Struct, frozen=True, tag_field="decision", tag="rebucket", rename="camel"):
    segment_ids: tuple[int, ...]
    """Ascending."""
    bucket_count: int
    reason: Reason


class NoAction(Struct, frozen=True, tag_field="decision", tag="none"):
    pass


Decision = Split | Merge | Rebucket | NoAction
