"""Many people ask for many things at once, of daemons that lead and of daemons that have just lost that, while answers
get lost. Afterwards everything that was answered must be explained by one order of what was done: replayed on a model,
it gives the very same layout.
"""

import asyncio
import random
from collections import defaultdict
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, TypeVar

import pytest
from msgspec import Struct

from scalable_topics.control.controller import Request, TopicController, etag
from scalable_topics.control.led_topic import ControlSettings, Gone
from scalable_topics.control.phases import children
from scalable_topics.metadata.memory import MemoryStore
from scalable_topics.metadata.repository import Deposed, Repository
from scalable_topics.metadata.store import Answer, Compare, Write
from scalable_topics.model.errors import (
    CapReached,
    InvalidArgument,
    NotFound,
    ScalableTopicsError,
    Unavailable,
    UnknownOutcome,
    WrongState,
)
from scalable_topics.model.layout import Replacements, SegmentLayout
from scalable_topics.model.operation import FinishedOperation, Operation, OperationKind, Outcome
from scalable_topics.model.record import TopicRecord, decode_record
from scalable_topics.model.replacements import merge, rebucket, split
from scalable_topics.model.segment import segment_address
from scalable_topics.model.subscription import InitialPosition, SubscriptionState, SubscriptionType
from scalable_topics.policy.retention import is_drained
from scalable_topics.segments.memory import memory_segments
from scalable_topics.segments.port import NOTHING, SegmentStore
from tests.control.worlds import ME, PATHS, TOPIC, Daemon, World, created, daemons
from tests.virtual_time import run_virtual

T = TypeVar("T")

SETTINGS = ControlSettings(gc_interval_seconds=15, retention_minutes=-1)
"""House-keeping goes on with what a caller has left half done; nothing is pruned."""
CALLERS, REQUESTS_EACH, ATTEMPTS = 5, 4, 4
NAMES = ("s0", "s1")


class WatchedStore(MemoryStore):
    """Remembers every version of the topic's record, and every state of its subscriptions, with the time."""

    def __init__(self) -> None:
        super().__init__()
        self.records: list[tuple[float, TopicRecord]] = []
        self.subscriptions: defaultdict[str, list[tuple[float, str | None]]] = defaultdict(list)

    async def commit(self, writes: Sequence[Write], *, compares: Sequence[Compare] = ()) -> Answer:
        answer = await super().commit(writes, compares=compares)
        if answer.succeeded and writes:
            await self._remember()
        return answer

    async def _remember(self) -> None:
        now = asyncio.get_running_loop().time()
        for item in (await super().get(PATHS.record(TOPIC))).items:
            record = decode_record(item.value, subject="record")
            if not self.records or self.records[-1][1] != record:
                self.records.append((now, record))
        for name, found in (await Repository(MemoryView(self), PATHS).subscriptions(TOPIC)).items():
            if not self.subscriptions[name] or self.subscriptions[name][-1][1] != found.value.state:
                self.subscriptions[name].append((now, found.value.state))
        known = await Repository(MemoryView(self), PATHS).subscriptions(TOPIC)
        for name, history in self.subscriptions.items():
            if name not in known and history[-1][1] is not None:
                history.append((now, None))


def MemoryView(store: MemoryStore) -> MemoryStore:  # noqa: N802
    return store
