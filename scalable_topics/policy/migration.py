"""How a regular topic becomes a scalable one (PIP-475), and how it is served before it does."""

from collections.abc import Iterable, Sequence
from typing import Final

from msgspec import Struct

from scalable_topics.model.errors import CapReached, InvalidArgument, NotFound, Unsupported, WrongState
from scalable_topics.model.hash_range import RING_SIZE, equal_ranges
from scalable_topics.model.layout import SegmentLayout, legacy_layout
from scalable_topics.model.limits import MAX_LONG
from scalable_topics.model.names import Domain, TopicName
from scalable_topics.model.record import RECORD_LIMIT_BYTES, MigratedFrom, TopicRecord, encode_record
from scalable_topics.model.replacements import migrate
from scalable_topics.model.segment import CreatedBy, new_segment

_LONGEST_POSITION: Final = (MAX_LONG, MAX_LONG)


class MigrationPlan(Struct, frozen=True):
    """Everything a migration will do, before it does anything.

    `before` holds the old partitions as segments; `after` is the layout that replaces them, old partitions sealed
    as parents.
    """

    topic: TopicName
    before: SegmentLayout
    after: SegmentLayout
    migrated_from: MigratedFrom
    subscriptions: tuple[str, ...]
    """Made on every child: the union over all partitions, sorted."""


def plan_migration(
    topic: TopicName, partitions: int, *, bucket_budget: int, subscriptions: Iterable[Iterable[str]], now_ms: int
) -> MigrationPlan:
    """0 partitions = the topic is not partitioned. `subscriptions`: those of each partition."""
    before = legacy_layout(_legacy_names(topic, partitions), at_ms=now_ms)
    change = migrate(before, bucket_budget=bucket_budget, at_ms=now_ms)
    after = before.apply(change, at_ms=now_ms)
    # Where partitions end is known only when they have been terminated, and then it is too late to find no room for it.
    ended = before.apply(change, at_ms=now_ms, terminated=dict.fromkeys(before.segments, _LONGEST_POSITION))
    size = len(encode_record(TopicRecord(incarnation="0" * 16, layout=ended)))
    if size > RECORD_LIMIT_BYTES:
        raise CapReached(
            f"the record of a migration of {partitions} partitions would be {size} bytes, above {RECORD_LIMIT_BYTES}",
            subject=str(topic),
            remedy="every partition becomes a segment; about 3,000 of them fit",
        )
    union = {subscription for of_partition in subscriptions for subscription in of_partition}
    return MigrationPlan(topic.to_scalable(), before, after, MigratedFrom(str(topic), partitions), tuple(sorted(union)))


class Connection(Struct, frozen=True):
    """A client attached to one partition; `v5` if it says that it follows layouts."""

    partition: int
    v5: bool


class OldClients(WrongState):
    """Clients that would not follow the topic are still attached."""

    def __init__(self, connections: Sequence[Connection], *, subject: str | None = None) -> None:
        where = sorted({connection.partition for connection in connections})
        super().__init__(
            f"{len(connections)} connection(s) of old clients on partitions {where}",
            subject=subject,
            remedy="upgrade them, or force it",
        )
        self.connections = tuple(connections)


def precheck(*, record_exists: bool, topic_exists: bool, connections: Sequence[Connection], force: bool) -> None:
    """Raise what keeps a migration from starting."""
    if record_exists:
        raise WrongState("the topic is scalable already")
    if not topic_exists:
        raise NotFound("there is no such topic")
    old = [connection for connection in connections if not connection.v5]
    if old and not force:
        raise OldClients(old)


def synthetic_layout(topic: TopicName, partitions: int) -> SegmentLayout:
    """How a regular topic looks to a V5 client: one active segment per partition, routed by modulo. Its ranges are
    cosmetic.

    Never stored, and never comes back once the topic has a record.
    """
    names = _legacy_names(topic, partitions)
    made = (
        new_segment(index, hash_range, created_by=CreatedBy.LEGACY, epoch=0, at_ms=0, buckets=1, legacy_topic_name=name)
        for index, (hash_range, name) in enumerate(zip(equal_ranges(len(names)), names, strict=True))
    )
    return SegmentLayout(0, len(names), {segment.segment_id: segment for segment in made})


def _legacy_names(topic: TopicName, partitions: int) -> list[str]:
    if topic.domain is not Domain.PERSISTENT:
        raise Unsupported("only a persistent:// topic is a regular topic", subject=str(topic))
    if topic.partition is not None:
        raise InvalidArgument(
            f"it is one partition of {topic.to_scalable().local!r}", subject=str(topic), remedy="name the whole topic"
        )
    if not 0 <= partitions <= RING_SIZE:
        raise InvalidArgument(
            f"a topic cannot have {partitions} partitions", subject=str(topic), remedy=f"give 0 to {RING_SIZE}"
        )
    return [str(topic.partition_name(index)) for index in range(partitions)] or [str(topic)]
