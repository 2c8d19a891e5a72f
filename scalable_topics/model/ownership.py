"""Who serves a segment that is stored on one of our own daemons."""

from msgspec import Struct

from scalable_topics.model.errors import InvalidArgument
from scalable_topics.model.limits import is_long


class SegmentOwner(Struct, frozen=True, rename="camel", kw_only=True):
    """The owner lives while the broker key of `broker_id` has the create revision `broker_session`. `owner_term` rises
    at each take-over and fences what the former owner still does.
    """

    broker_id: str
    broker_session: int
    owner_term: int

    def __post_init__(self) -> None:
        if not (is_long(self.broker_session) and is_long(self.owner_term) and self.owner_term):
            raise InvalidArgument("brokerSession and ownerTerm must be longs, and ownerTerm 1 or more")
