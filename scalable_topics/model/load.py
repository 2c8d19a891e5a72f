"""Load of a segment: four rates, and the record in which its owner reports them."""

from enum import StrEnum
from math import isfinite
from typing import Final

from msgspec import Struct

from scalable_topics.model.errors import InvalidArgument


class Metric(StrEnum):
    """The four rates, in the order in which ties are decided."""

    MSG_RATE_IN = "msgRateIn"
    BYTES_RATE_IN = "bytesRateIn"
    MSG_RATE_OUT = "msgRateOut"
    BYTES_RATE_OUT = "bytesRateOut"


METRICS: Final = tuple(Metric)

Rates = tuple[float, float, float, float]
"""One value per metric, in the order of `METRICS`; messages/s and bytes/s."""


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
        if self.changed_at_ms < 0 or self.reporter_session < 0:
            raise InvalidArgument("changedAtMs and reporterSession must be 0 or more")

    @property
    def rates(self) -> Rates:
        return (self.msg_rate_in, self.bytes_rate_in, self.msg_rate_out, self.bytes_rate_out)


def validate_rates(rates: Rates) -> None:
    if len(rates) != len(METRICS):
        raise InvalidArgument(f"expected {len(METRICS)} rates, got {len(rates)}", remedy=f"give {', '.join(METRICS)}")
    for metric, rate in zip(METRICS, rates, strict=True):
        if not isfinite(rate) or rate < 0:
            raise InvalidArgument(f"{metric} {rate} is not a rate", remedy="rates are finite numbers of 0 or more")
