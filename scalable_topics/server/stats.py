"""`GET /admin/v2/scalable/{tenant}/{namespace}/{topic}/stats`: the shape of a topic, in Pulsar's words.

Rates and backlogs are not in it: they are the segment owners' and come with the reporter.
"""

from collections.abc import Mapping
from typing import Final

from aiohttp import web
from msgspec import Struct

from scalable_topics.metadata.view import ViewState
from scalable_topics.model.names import TopicName
from scalable_topics.model.segment import SegmentState, segment_address
from scalable_topics.server.auth.middleware import acts
from scalable_topics.server.auth.table import Action
from scalable_topics.server.bodies import json_response
from scalable_topics.server.daemon import Daemon
from scalable_topics.server.keys import DAEMON
from scalable_topics.server.known import store_or_view
from scalable_topics.server.leading import topic_of
from scalable_topics.server.topics import TOPIC, read_record


class SegmentStats(Struct, frozen=True):
    name: str
    state: SegmentState


class SubscriptionStats(Struct, frozen=True, rename="camel"):
    consumer_count: int
    """Registered, whether or not connected at this moment."""


class StatsAnswer(Struct, frozen=True, rename="camel", kw_only=True):
    epoch: int
    total_segments: int
    active_segments: int
    sealed_segments: int
    segments: Mapping[int, SegmentStats]
    subscriptions: Mapping[str, SubscriptionStats]


@acts(Action.GET_STATS)
async def read_stats(request: web.Request) -> web.Response:
    of, topic = request.app[DAEMON], topic_of(request)
    record, age = await read_record(of, topic)
    counts, headers = await store_or_view(
        of, lambda: _counts_in_store(of, topic), lambda state: _counts_in_view(of, topic, state)
    )
    found = record.layout.segments
    active = sum(segment.is_active for segment in found.values())
    return json_response(
        StatsAnswer(
            epoch=record.layout.epoch,
            total_segments=len(found),
            active_segments=active,
            sealed_segments=len(found) - active,
            segments={
                number: SegmentStats(
                    segment_address(topic, segment, incarnation=record.incarnation).logical, segment.state
                )
                for number, segment in found.items()
            },
            subscriptions={name: SubscriptionStats(count) for name, count in sorted(counts.items())},
        ),
        headers={**age, **headers},
    )


async def _counts_in_store(of: Daemon, topic: TopicName) -> Mapping[str, int]:
    names = await of.repository.subscriptions(topic)
    return {name: len(await of.repository.consumers(topic, name)) for name in names}


def _counts_in_view(of: Daemon, topic: TopicName, state: ViewState) -> Mapping[str, int]:
    keys = [key for key in state.items if key.startswith(of.paths.subscriptions(topic))]
    names = [name for key in keys if (name := of.paths.subscription_of(topic, key)) is not None]
    return {name: sum(of.paths.consumer_of(topic, name, key) is not None for key in keys) for name in names}


ROUTES: Final = (web.get(f"{TOPIC}/stats", read_stats, allow_head=False),)
