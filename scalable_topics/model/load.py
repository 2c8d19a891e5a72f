"""Load of a segment: four rates, the record in which its owner reports them, and the sign that it still would."""

from enum import StrEnum
from typing import Any, Final

import msgspec
from msgspec import Struct

from scalable_topics.model.codec import decode_json, encode_json
from scalable_topics.model.errors import InvalidArgument
from scalable_topics.model.limits import is_long
from scalable_topics.model.quantities import is_finite


class Metric(StrEnum):
    """The four rates, in the order in which ties are decided."""

    MSG_RATE_IN = "msgRateIn"
    BYTES_RATE_IN = "bytesRateIn"
    MSG_RATE_OUT = "msgRateOut"
    BYTES_RATE_OUT = "bytesRateOut"


METRICS: Final = tuple(Metric)

Rates = tuple[float, float, float, float]
"""One value per metric, in the order of `METRICS`; messages/s and bytes/s."""


def by_metric(*columns: Rates) -> "zip[tuple[Any, ...]]":
    """(metric, value, …) for each metric: rates and limits side by side."""
    return zip(METRICS, *columns, strict=True)


class Thresholds(Struct, frozen=True):
    """The lines at which somebody would act: above a split threshold, below a merge threshold."""

    split: Rates
    merge: Rates


class SegmentLoadStats(Struct, frozen=True, rename="camel", kw_only=True):
    """PIP-483's load record, with what PROTOCOL 8 adds so that silence can be told from death.

    `changed_at_ms` moves only with a material change. The rates are valid only while the broker key of `reporter`
    still has the create revision `reporter_session`.
    """

    msg_rate_in: float
    bytes_rate_in: float
    msg_rate_out: float
    bytes_rate_out: float
    changed_at_ms: int
    reporter: str
    reporter_session: int

    def __post_init__(self) -> None:
        validate_rates(self.rates)
        if not (is_long(self.changed_at_ms) and is_long(self.reporter_session)):
            raise InvalidArgument("changedAtMs and reporterSession must be longs of 0 or more")

    @property
    def rates(self) -> Rates:
        return (self.msg_rate_in, self.bytes_rate_in, self.msg_rate_out, self.bytes_rate_out)


def validate_rates(rates: Rates) -> None:
    if len(rates) != len(METRICS):
        raise InvalidArgument(f"expected {len(METRICS)} rates, got {len(rates)}", remedy=f"give {', '.join(METRICS)}")
    for metric, rate in by_metric(rates):
        if not is_finite(rate) or rate < 0:
            raise InvalidArgument(f"{metric} {rate} is not a rate", remedy="rates are finite numbers of 0 or more")


class SweepHeartbeat(Struct, frozen=True, rename="camel", kw_only=True):
    """What a daemon writes after each sweep over its segments: its sampler works, and this is its clock."""

    swept_at_ms: int
    """The daemon's own wall clock."""
    interval_ms: int
    """How long until the next sweep."""

    def __post_init__(self) -> None:
        if not (is_long(self.swept_at_ms) and is_long(self.interval_ms) and self.interval_ms > 0):
            raise InvalidArgument(
                f"a sweep at {self.swept_at_ms} with an interval of {self.interval_ms} ms",
                remedy="sweptAtMs is a long of 0 or more, intervalMs one of 1 or more",
            )


_decoder: Final = msgspec.json.Decoder(SegmentLoadStats)
_heartbeat_decoder: Final = msgspec.json.Decoder(SweepHeartbeat)


def encode_load(load: SegmentLoadStats) -> bytes:
    return encode_json(load)


def decode_load(data: bytes, *, subject: str = "load record") -> SegmentLoadStats:
    return decode_json(data, _decoder, subject=subject)


def encode_heartbeat(heartbeat: SweepHeartbeat) -> bytes:
    return encode_json(heartbeat)


def decode_heartbeat(data: bytes, *, subject: str = "sweep heartbeat") -> SweepHeartbeat:
    return decode_json(data, _heartbeat_decoder, subject=subject)
