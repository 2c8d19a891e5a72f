"""Who may write for a topic: leadership as a value that every write compares.

Leadership is a key with a create revision, its *term*. Losing it needs no message: a transaction that compares the
term simply does not happen any more.
"""

from collections.abc import Sequence

from msgspec import Struct

from scalable_topics.metadata.session import BrokerInfo, Session
from scalable_topics.metadata.store import Compare, CreateRevisionIs, Delete, KeyValue, LeaseIs, MetadataStore, Put
from scalable_topics.model.codec import encode_json
from scalable_topics.model.errors import InvalidArgument
from scalable_topics.model.names import TopicName
from scalable_topics.model.paths import StorePaths


class LeaderInfo(Struct, frozen=True, rename="camel"):
    """What an election key says to clients."""

    broker_id: str
    broker_url: str
    web_url: str


class Leadership(Struct, frozen=True):
    """The right to write for one topic, captured by value: it cannot turn into somebody else's. `InvalidArgument` for
    what a key that is absent would give.
    """

    topic: TopicName
    key: str
    term: int
    lease: int

    def __post_init__(self) -> None:
        if self.term <= 0 or self.lease <= 0:
            raise InvalidArgument(
                f"term {self.term} of lease {self.lease} is no leadership",
                subject=str(self.topic),
                remedy="an absent key compares equal to 0",
            )

    def fence(self) -> tuple[Compare, ...]:
        """PROTOCOL's E: holds exactly while this leadership does."""
        return CreateRevisionIs(self.key, self.term), LeaseIs(self.key, self.lease)

    def is_held_by(self, item: KeyValue | None) -> bool:
        """The same question about an election key that was read."""
        return item is not None and (item.create_revision, item.lease) == (self.term, self.lease)


class ElectionKey(Struct, frozen=True):
    """What the store said of an election key, and at which revision; None = it is absent."""

    revision: int
    leader: KeyValue | None


async def campaign(
    store: MetadataStore, paths: StorePaths, topics: Sequence[TopicName], info: BrokerInfo, session: Session
) -> list[ElectionKey]:
    """Try to become the leader of each topic, and answer who it is now, in the same order; None = nobody, try again.

    One transaction for all of them, as a crashed daemon leaves many topics at once; what somebody else has taken
    meanwhile is left out of the next one. Raises what `commit` raises. After `UnknownOutcome` keys may be there, or
    come later: whoever sees one with the lease of a living session of ours leads, however it came about.
    """
    value = encode_json(LeaderInfo(info.broker_id, info.broker_url, info.web_url))
    fence = session.fence(paths, info.broker_id)
    open_ones = {topic: paths.controller(topic) for topic in topics}
    found: dict[TopicName, ElectionKey] = {}
    while open_ones:
        compares = (*(CreateRevisionIs(key, 0) for key in open_ones.values()), *fence)
        answer = await store.commit([Put(key, value, session.lease) for key in open_ones.values()], compares=compares)
        if answer.succeeded:
            for topic, key in open_ones.items():
                ours = KeyValue(key, value, answer.revision, answer.revision, session.lease)
                found[topic] = ElectionKey(answer.revision, ours)
            break
        seen = dict(zip(open_ones, answer.found, strict=False))  # the fence's keys come after them
        taken = [topic for topic, item in seen.items() if item is not None]
        for topic in taken or open_ones:
            found[topic] = ElectionKey(answer.revision, seen[topic])
        if not taken:
            break  # it was the fence: this daemon may not campaign
        for topic in taken:
            del open_ones[topic]
    return [found[topic] for topic in topics]


async def resign(store: MetadataStore, leadership: Leadership) -> None:
    """Give it back; what is no longer ours is left alone. Raises what `commit` raises."""
    await store.commit([Delete(leadership.key)], compares=leadership.fence())
