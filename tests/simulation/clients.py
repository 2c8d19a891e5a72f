"""Applications: writers that follow the layout, and readers that must see everything, in order."""

import asyncio
from collections import defaultdict

from msgspec import Struct

from scalable_topics.control.phases import every_segment
from scalable_topics.model.errors import NotFound, ScalableTopicsError
from scalable_topics.model.hashing import raw_hash, segment_hash
from scalable_topics.model.names import TopicName
from scalable_topics.model.operation import Phase
from scalable_topics.model.record import TopicRecord, TopicState
from scalable_topics.model.segment import SegmentAddress, SegmentInfo, segment_address
from scalable_topics.segments.errors import Terminated
from scalable_topics.segments.port import EXCLUSIVE, Attachment, Message
from tests.simulation.cluster import World
from tests.simulation.invariants import Violation

KEYS_PER_WRITER = 3


class Sent(Struct, frozen=True):
    producer: str
    sequence: int
    key: str
    ready: frozenset[str]
    """Subscriptions that were READY before it was sent."""


def route(record: TopicRecord, hash_value: int, *, sealed: frozenset[int] = frozenset()) -> SegmentInfo:
    """Where a message goes; `sealed`: whom the writer has been told are terminated."""
    segment = record.layout.find_active(hash_value)
    operation = record.operation
    if segment.segment_id in sealed and operation is not None and operation.phase is Phase.SEALING:
        for replacement in operation.replacements:
            if segment.segment_id in replacement.parents:
                return next(child for child in replacement.children if hash_value in child.hash_range)
    return segment


class History:
    """What was acknowledged, and what was delivered, per subscription, in this order."""

    def __init__(self) -> None:
        self.sent: list[Sent] = []
        self.delivered: defaultdict[str, list[tuple[str, int]]] = defaultdict(list)

    def check(self, subscription: str, keys: dict[tuple[str, int], str]) -> None:
        """2: nothing lost. 3: first deliveries of each key in the order of their acknowledgement."""
        seen: dict[tuple[str, int], int] = {}
        for index, what in enumerate(self.delivered[subscription]):
            seen.setdefault(what, index)
        last: dict[str, int] = {}
        for sent in self.sent:
            what = sent.producer, sent.sequence
            if what not in seen:
                if subscription in sent.ready:
                    raise Violation(f"2: {subscription} never got {sent}")
                continue
            if seen[what] < last.get(sent.key, -1):
                raise Violation(f"3: {subscription} got {sent} before an earlier message of its key")
            last[sent.key] = seen[what]
        unknown = [what for what in seen if what not in keys]
        if unknown:
            raise Violation(f"2: {subscription} got what nobody sent: {unknown[:3]}")


class Writer:
    def __init__(self, world: World, topic: TopicName, name: str, history: History) -> None:
        self.world = world
        self.topic = topic
        self.name = name
        self.history = history
        self.sequence = 0
        self.attempted: dict[tuple[str, int], str] = {}
        self._known: TopicRecord | None = None
        self._sealed: set[int] = set()

    async def run(self) -> None:
        """Keeps a record for as long as it works, as a client keeps the last frame."""
        while True:
            await asyncio.sleep(self.world.rng.random() * 0.8)
            self.sequence += 1
            key = f"{self.name}-{self.sequence % KEYS_PER_WRITER}"
            self.attempted[self.name, self.sequence] = key
            await self._send(key, self.sequence)

    async def _send(self, key: str, sequence: int) -> None:
        ready = frozenset(
            name
            for name, one in (await self.world.repository.subscriptions(self.topic)).items()
            if one.value.state == "READY"
        )
        raw = raw_hash(key)
        message = Message(payload=b"x", producer=self.name, sequence=sequence, key=key, key_hash=raw)
        while True:
            if self._known is None:
                self._known = await self._read()
            segment = route(self._known, segment_hash(raw), sealed=frozenset(self._sealed))
            address = segment_address(self.topic, segment, incarnation=self._known.incarnation)
            try:
                served = await self.world.served(address)
                await served.append([message])
            except Terminated:
                self._sealed.add(segment.segment_id)
                self._known = await self._read()
                if route(self._known, segment_hash(raw), sealed=frozenset(self._sealed)) == segment:
                    raise Violation(
                        f"1: {self.name} was told that segment {segment.segment_id} is terminated,"
                        " and nobody tells where to write instead"
                    ) from None
            except ScalableTopicsError as error:
                if not isinstance(error, NotFound):
                    self.world.forget_served(address)
                self._known = None
                await asyncio.sleep(0.3)
            else:
                self.history.sent.append(Sent(self.name, sequence, key, ready))
                return

    async def _read(self) -> TopicRecord:
        while True:
            record = await self.world.record(self.topic)
            if record.state is TopicState.ACTIVE:
                return record
            await asyncio.sleep(0.3)


class Reader:
    """One consumer of a STREAM subscription, without a controller: parents first, then children."""

    def __init__(self, world: World, topic: TopicName, subscription: str, history: History) -> None:
        self.world = world
        self.topic = topic
        self.subscription = subscription
        self.history = history
        self._generation = 0
        self._drained: set[str] = set()
        """Physical segments that were seen drained, which they stay: nobody seeks this subscription."""

    async def run(self) -> None:
        while True:
            await asyncio.sleep(0.5 + self.world.rng.random())
            try:
                await self.read_round()
            except ScalableTopicsError:
                continue

    async def read_round(self) -> bool:
        """Whatever may be read now; answers whether anything was."""
        record = await self.world.record(self.topic)
        found = await self.world.repository.subscription(self.topic, self.subscription)
        if found is None or found.value.state != "READY":
            return False
        drained: dict[int, bool] = {}
        moved = False
        for segment in every_segment(record).values():
            if not all(drained.get(parent, True) for parent in segment.parent_ids):
                drained[segment.segment_id] = False
                continue
            address = segment_address(self.topic, segment, incarnation=record.incarnation)
            if address.physical in self._drained:
                continue
            try:
                moved |= await self._drain(address)
                facts = await self.world.truth.describe(address)
                drained[segment.segment_id] = facts.is_drained(self.subscription)
                if drained[segment.segment_id]:
                    self._drained.add(address.physical)
            except ScalableTopicsError:
                markers = await self.world.repository.drained(self.topic)
                drained[segment.segment_id] = (segment.segment_id, self.subscription) in markers
        return moved

    async def _drain(self, address: SegmentAddress) -> bool:
        served = await self.world.served(address)
        facts = await self.world.truth.describe(address)
        cursor = facts.subscriptions.get(self.subscription)
        if cursor is None or cursor.backlog == 0:
            return False
        self._generation += 1
        attachment: Attachment = await served.attach(
            self.subscription, "reader", EXCLUSIVE, generation=self._generation
        )
        moved = False
        try:
            attachment.permit(200)
            while True:
                try:
                    async with asyncio.timeout(0.01):
                        deliveries = await attachment.receive()
                except TimeoutError:
                    return moved
                if not deliveries:
                    return moved
                moved = True
                for delivery in deliveries:
                    message = delivery.entry.message
                    self.history.delivered[self.subscription].append((message.producer, message.sequence or 0))
                await attachment.ack([delivery.entry.position for delivery in deliveries])
        finally:
            await attachment.close()
