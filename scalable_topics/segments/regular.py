"""Regular topics, partitioned or not: what applications have before they migrate.

They live in the same store as segments, under their own names, and are served, terminated and described in the same
way: `segment_address` of a legacy segment is the name of a topic here.
"""

import asyncio
from collections.abc import Sequence
from functools import partial

from msgspec import Struct

from scalable_topics.model.errors import InvalidArgument, NotFound, WrongState
from scalable_topics.model.names import Domain, TopicName
from scalable_topics.model.positions import Sentinel
from scalable_topics.model.segment import SegmentAddress
from scalable_topics.segments import cursors, lifecycle, log
from scalable_topics.segments.backend import Backend
from scalable_topics.segments.port import StartAt, SubscriptionFacts
from scalable_topics.segments.rows import Rows


class RegularTopic(Struct, frozen=True, order=True):
    name: str
    partitions: int
    """0 = it is not partitioned."""


class RegularTopics:
    def __init__(self, backend: Backend) -> None:
        self._backend = backend

    async def create(self, topic: TopicName, *, partitions: int = 0) -> None:
        """Make a topic, and all its partitions; a partition that is missing is made by calling this for its own name.

        `WrongState` if there is one.
        """
        name = _name(topic)
        if partitions < 0 or (partitions and topic.partition is not None):
            raise InvalidArgument(f"{partitions} partitions", subject=name, remedy="give 0 or more, and no partition")
        now_ms = self._backend.now_ms()
        if not await self._backend.write(name, partial(_create, name=name, partitions=partitions, now_ms=now_ms)):
            raise WrongState("there is such a topic", subject=name)
        for index in range(partitions):
            partition = str(topic.partition_name(index))
            await self._backend.write(partition, partial(lifecycle.create_regular, name=partition, now_ms=now_ms))

    async def partitions(self, topic: TopicName) -> int:
        """0 = it is not partitioned; `NotFound` if there is none."""
        name = _name(topic)
        found = await self._backend.read(name, partial(_partitions, name=name))
        if found is None:
            raise NotFound("there is no such topic", subject=name)
        return found

    async def delete(self, topic: TopicName) -> None:
        """With its partitions. It may be made again. `NotFound` if there is none."""
        partitions = await self.partitions(topic)
        for name in (*(str(topic.partition_name(index)) for index in range(partitions)), _name(topic)):
            await self._backend.write(name, partial(_delete, name=name))

    async def list(self, tenant: str, namespace: str) -> tuple[RegularTopic, ...]:
        """Partitioned ones as one topic; a partition shows by itself only if its partitioned topic is gone."""
        prefix = f"{Domain.PERSISTENT}://{tenant}/{namespace}/"
        found = [topic for part in await self._backend.read_all(partial(_list, prefix=prefix)) for topic in part]
        partitioned = {topic.name for topic in found if topic.partitions}
        return tuple(sorted(topic for topic in found if topic.name.rpartition("-partition-")[0] not in partitioned))

    async def subscribe(
        self, topic: TopicName, subscription: str, *, at: StartAt = Sentinel.LATEST
    ) -> tuple[SubscriptionFacts, ...]:
        """Make a subscription, on every partition if there are any. One that exists stays where it is."""
        work = partial(cursors.subscribe, subscription=subscription, at=at)
        names = await self._names(topic)
        return tuple(await asyncio.gather(*(self._backend.write(name, partial(work, name=name)) for name in names)))

    async def fence_writers(self, topic: TopicName, writer: str | None) -> None:
        """From now on only this producer may append, on every partition; None = everybody again.

        The embedded counterpart of a producer with the access mode ExclusiveWithFencing.
        """
        for name in await self._names(topic):
            await self._backend.write(name, partial(log.fence_writers, name=name, writer=writer))

    async def _names(self, topic: TopicName) -> Sequence[str]:
        partitions = await self.partitions(topic)
        return [str(topic.partition_name(index)) for index in range(partitions)] or [_name(topic)]


def regular_address(topic: TopicName) -> SegmentAddress:
    """Where the messages of a topic, or of one partition, are."""
    return SegmentAddress(_name(topic), _name(topic))


def _name(topic: TopicName) -> str:
    if topic.domain is not Domain.PERSISTENT:
        raise InvalidArgument(f"{topic} is not a regular topic", remedy="use a persistent:// name")
    return str(topic)


def _create(rows: Rows, name: str, partitions: int, now_ms: int) -> bool:
    if rows.partitions(name) is not None or rows.segment(name) is not None:
        return False
    if partitions:
        rows.put_partitions(name, partitions)
        return True
    return lifecycle.create_regular(rows, name, now_ms=now_ms)


def _delete(rows: Rows, name: str) -> None:
    rows.put_partitions(name, None)
    lifecycle.delete_regular(rows, name)


def _partitions(rows: Rows, name: str) -> int | None:
    partitions = rows.partitions(name)
    if partitions is None and rows.segment(name) is not None:
        return 0
    return partitions


def _list(rows: Rows, prefix: str) -> list[RegularTopic]:
    plain = [RegularTopic(row.name, 0) for row in rows.segments(prefix) if row.stamp is None]
    return plain + [RegularTopic(name, partitions) for name, partitions in rows.partitioned(prefix)]
