"""Is a topic whole? Looked at from outside: the store's own records, and the files of the data directory.

What is checked are the invariants of PROTOCOL 12 that a state can show: coverage, cursors, accounting. Loss and order
are the history's (`traffic.History`).
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from scalable_topics.control.phases import every_segment
from scalable_topics.model.hash_range import FULL_RANGE, tiling_problem
from scalable_topics.model.names import TopicName
from scalable_topics.model.record import TopicRecord, TopicState
from scalable_topics.model.segment import SegmentInfo, segment_address
from scalable_topics.model.subscription import SubscriptionState
from scalable_topics.segments.embedded import open_segments
from scalable_topics.segments.port import SegmentFacts
from scalable_topics.segments.store import Segments
from tests.cluster.harness import Cluster
from tests.cluster.traffic import segment_path

PROBE = {"payload": "", "producer": "probe"}


@asynccontextmanager
async def opened(c: Cluster) -> AsyncIterator[Segments]:
    """The data directory, as one more process sees it."""
    segments = await open_segments(c.data)
    try:
        yield segments
    finally:
        await segments.close()


async def settled(c: Cluster, topic: TopicName) -> bool:
    """Is nothing under way any more?"""
    known = await c.repository.topic(topic)
    if known is None:
        return True
    subscriptions = await c.repository.subscriptions(topic)
    return (
        known.value.state is TopicState.ACTIVE
        and known.value.operation is None
        and all(one.value.state is SubscriptionState.READY for one in subscriptions.values())
    )


async def problems(c: Cluster, topic: TopicName, segments: Segments) -> list[str]:
    """Everything about a settled topic that is not as it must be."""
    prefix = f"segment://{str(topic).partition('://')[2]}/"
    before = await c.repository.topic(topic)
    physical = {one.physical for one in await segments.list(prefix)}
    after = await c.repository.topic(topic)
    known = {name for one in (before, after) if one is not None for name in _known(topic, one.value)}
    for garbage in (await c.repository.garbage()).values():
        known.update(garbage.value)
    found = [f"an orphan: {name}" for name in sorted(physical - known)]
    if after is None:
        return found
    return [*found, *await _problems_of(c, topic, after.value, segments)]


def _known(topic: TopicName, record: TopicRecord) -> list[str]:
    made = every_segment(record).values()
    names = [segment_address(topic, segment, incarnation=record.incarnation).physical for segment in made]
    listed_twice = set(names) & set(record.garbage)
    return [*names, *(name for name in record.garbage if name not in listed_twice)]


async def _problems_of(c: Cluster, topic: TopicName, record: TopicRecord, segments: Segments) -> list[str]:
    found = []
    tiling = tiling_problem((segment.hash_range for segment in record.layout.active), FULL_RANGE)
    if tiling is not None:
        found.append(f"the ACTIVE segments do not tile the ring: {tiling}")
    ids = [one.id for one in record.recent_operations]
    if len(ids) != len(set(ids)):
        found.append(f"an operation ended twice: {record.recent_operations}")
    subscriptions = await c.repository.subscriptions(topic)
    markers = await c.repository.drained(topic)
    physical = {one.physical for one in await segments.list(f"segment://{str(topic).partition('://')[2]}/")}
    for segment in record.layout.segments.values():
        address = segment_address(topic, segment, incarnation=record.incarnation)
        if address.physical not in physical:
            found.append(f"segment {segment.segment_id} is listed and does not exist")
            continue
        facts = await segments.describe(address)
        found += _ending(segment, facts)
        for name, one in subscriptions.items():
            marker = markers.get((segment.segment_id, name))
            drained = marker is not None and marker.value.seek_generation == one.value.seek_generation
            if one.value.state is SubscriptionState.READY and name not in facts.subscriptions and not drained:
                found.append(f"segment {segment.segment_id} has no cursor of {name}")
    probes = (_probe(c, topic, record, segment) for segment in record.layout.active)
    return [*found, *(problem for problem in await asyncio.gather(*probes) if problem)]


def _ending(segment: SegmentInfo, facts: SegmentFacts) -> list[str]:
    if segment.is_active:
        return [f"segment {segment.segment_id} is ACTIVE and terminated"] if facts.terminated is not None else []
    if facts.terminated != segment.terminated_at:
        return [f"segment {segment.segment_id} ended at {facts.terminated}, recorded is {segment.terminated_at}"]
    return []


async def _probe(c: Cluster, topic: TopicName, record: TopicRecord, segment: SegmentInfo) -> str | None:
    """Its owner, whoever that is by now, accepts a message."""
    path = segment_path(topic, segment.segment_id, "append", record.incarnation)
    answer = await c.ask("POST", path, body={"messages": [PROBE]})
    return None if answer.status == 200 else f"segment {segment.segment_id} accepts no message: {answer}"
