"""PROTOCOL 12, as far as it exists: looked at after every commit of the store, and again when everything is calm."""

import asyncio
from collections.abc import Iterator, Sequence

import msgspec

from scalable_topics.control.phases import announced_segments, children, every_segment, parents
from scalable_topics.metadata.store import Compare, CreateRevisionIs, KeyValue, LeaseIs, Put, Write
from scalable_topics.model.errors import ScalableTopicsError
from scalable_topics.model.garbage import parse_garbage
from scalable_topics.model.hash_range import FULL_RANGE, tiling_problem
from scalable_topics.model.names import TopicName
from scalable_topics.model.operation import Operation, OperationKind, Outcome, Phase
from scalable_topics.model.record import TopicRecord, TopicState
from scalable_topics.model.segment import SegmentAddress, SegmentInfo, SegmentState, segment_address
from scalable_topics.model.subscription import SubscriptionRecord, SubscriptionState
from scalable_topics.segments.port import Call, Stamp
from scalable_topics.segments.rows import SegmentRow
from tests.simulation.cluster import PATHS, World, decoded

FOREIGN = "somebody else"


class Violation(AssertionError):
    pass


class Checker:
    """Every invariant has a number; the numbers are PROTOCOL 12's."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.records: dict[TopicName, TopicRecord] = {}
        self.steps = 0
        self.terminated: dict[str, str] = {}
        """Physical segments that were terminated, and in which operation."""
        self.ended: dict[str, Outcome] = {}
        self.foreign: set[str] = set()
        self.first: Exception | None = None
        """What was violated first."""
        world.store.check = self.after_commit

    def after_commit(self, writes: Sequence[Write], compares: Sequence[Compare], revision: int) -> None:
        """Called inside whoever commits, so what is found is kept: a daemon would take it for a failure of its own."""
        try:
            self._after_commit(writes, compares, revision)
        except Exception as error:
            self.first = self.first or error
            raise

    def raise_first(self) -> None:
        if self.first is not None:
            raise self.first

    def _after_commit(self, writes: Sequence[Write], compares: Sequence[Compare], revision: int) -> None:
        self.steps += 1
        for write in writes:
            found = PATHS.topic_of(write.key) if isinstance(write, Put) else None
            if isinstance(write, Put) and found is not None and found[1] == "":
                self._after_record(found[0], decoded(write.value), compares, revision)
        for topic in list(self.records):
            self.check_topic(topic)

    def _after_record(self, topic: TopicName, record: TopicRecord, compares: Sequence[Compare], revision: int) -> None:
        before = self.records.get(topic)
        if self._at(PATHS.record(topic)) is None:
            raise Violation(f"5: the record of {topic} is not there after it was written")
        fresh = before is None or before.incarnation != record.incarnation
        if not fresh and not _is_fenced(topic, compares):
            raise Violation(f"5: {topic} was written at {revision} without a fence: {compares}")
        if not fresh and before is not None:
            record.layout.check_follows(before.layout)
            self._check_operation(topic, before, record)
            self._check_prune(topic, before, record)
        self.records[topic] = record

    def _check_operation(self, topic: TopicName, before: TopicRecord, now: TopicRecord) -> None:
        was, running = before.operation, now.operation
        for finished in now.recent_operations:
            if self.ended.setdefault(finished.id, finished.outcome) is not finished.outcome:
                raise Violation(f"8: operation {finished.id} ended twice, as {self.ended[finished.id]} and {finished}")
        if was is not None and running is not None and was.id == running.id:
            if was.phase is Phase.SEALING and running != was:
                raise Violation(f"8: {was} of {topic} changed after its point of no return, to {running}")
        elif was is not None:
            outcome = self.ended.get(was.id)
            if outcome is None and was.kind is not OperationKind.DELETE:
                raise Violation(f"8: operation {was.id} of {topic} is gone and did not end")
            if outcome is Outcome.ABORTED and was.phase is Phase.SEALING:
                raise Violation(f"8: operation {was.id} of {topic} was aborted in SEALING")
            if outcome is Outcome.DONE and was.replacements:
                self._check_applied(topic, was, now)
        if running is not None and (was is None or was.id != running.id) and running.id in self.ended:
            raise Violation(f"8: operation {running.id} of {topic} begins again")

    def _check_applied(self, topic: TopicName, operation: Operation, now: TopicRecord) -> None:
        for child in children(operation.replacements):
            if now.layout.segments.get(child.segment_id) != child:
                raise Violation(f"1: child {child.segment_id} of {topic} is not what was announced")
        for parent in parents(operation.replacements):
            row = self._row(topic, now, now.layout.segments[parent])
            if row is not None and not row.terminated:
                raise Violation(f"2: parent {parent} of {topic} is SEALED and still accepts messages")

    def _check_prune(self, topic: TopicName, before: TopicRecord, now: TopicRecord) -> None:
        gone = before.layout.segments.keys() - now.layout.segments.keys()
        for segment_id in gone:
            if before.layout.segments[segment_id].state is not SegmentState.SEALED:
                raise Violation(f"10: segment {segment_id} of {topic} was pruned while ACTIVE")
            for name, subscription in self._subscriptions(topic):
                row = self._row(topic, before, before.layout.segments[segment_id])
                if row is None or subscription.state is SubscriptionState.DELETING:
                    continue
                cursor = self.world.disk.rows.cursor(row.id, name)
                if cursor is None or cursor.mark_delete < row.next_entry - 1:
                    raise Violation(f"10: segment {segment_id} of {topic} was pruned with a backlog of {name}")

    def check_topic(self, topic: TopicName) -> None:
        if self._at(PATHS.record(topic)) is None:
            self.records.pop(topic, None)
            return
        record = self.records[topic]
        if record.state is TopicState.ACTIVE:
            self._check_coverage(topic, record)
            self._check_cursors(topic, record)
        self._check_accounting(topic, record)

    def _check_coverage(self, topic: TopicName, record: TopicRecord) -> None:
        problem = tiling_problem([segment.hash_range for segment in record.layout.active], FULL_RANGE)
        if problem:
            raise Violation(f"1: {topic}: {problem}")
        for segment in record.layout.active:
            if not self._accepts(topic, record, segment) and not self._has_heirs(topic, record, segment):
                raise Violation(f"1: segment {segment.segment_id} of {topic} accepts nothing, and nobody takes over")

    def _has_heirs(self, topic: TopicName, record: TopicRecord, segment: SegmentInfo) -> bool:
        operation = record.operation
        if operation is None or operation.phase is not Phase.SEALING:
            return False
        heirs = [r.children for r in operation.replacements if segment.segment_id in r.parents]
        return bool(heirs) and all(self._accepts(topic, record, child) for child in heirs[0])

    def _accepts(self, topic: TopicName, record: TopicRecord, segment: SegmentInfo) -> bool:
        row = self._row(topic, record, segment)
        return row is not None and not row.terminated

    def _check_cursors(self, topic: TopicName, record: TopicRecord) -> None:
        segments = announced_segments(record)
        for name, subscription in self._subscriptions(topic):
            if subscription.state is not SubscriptionState.READY:
                continue
            for segment in segments.values():
                row = self._row(topic, record, segment)
                if row is None or self.world.disk.rows.cursor(row.id, name) is not None:
                    continue
                if self._at(PATHS.drained(topic, segment.segment_id, name)) is None:
                    raise Violation(f"7: {name} has no cursor on segment {segment.segment_id} of {topic}")

    def _check_accounting(self, topic: TopicName, record: TopicRecord) -> None:
        listed = [self._physical(topic, record, one) for one in every_segment(record).values()]
        known = [*listed, *(parse_garbage(entry).physical for entry in record.garbage)]
        if len(set(known)) != len(known):
            raise Violation(f"8: a segment of {topic} is listed twice: {sorted(known)}")
        for row in self.world.disk.rows.segments(f"segment://{topic.tenant}/{topic.namespace}/{topic.local}/"):
            ours = row.stamp is not None and row.stamp.incarnation == record.incarnation
            if ours and row.deleted_at_ms is None and row.name not in known and row.name not in self.foreign:
                raise Violation(f"8: {row.name} is nobody's")

    async def make_foreign(self, address: SegmentAddress, stamp: Stamp) -> None:
        """A segment that looks like ours and is not: nobody may touch it."""
        loop = asyncio.get_running_loop()
        call = Call(incarnation=stamp.incarnation, operation_id=FOREIGN, term=1, deadline=loop.time() + 1)
        try:
            await self.world.truth.create(address, stamp, (), call)
        except ScalableTopicsError:
            return
        self.foreign.add(address.physical)
        self.world.say(f"somebody made {address.physical}")

    def check_foreign(self) -> None:
        for physical in sorted(self.foreign):
            row = self.world.disk.rows.segment(physical)
            if row is None or row.deleted_at_ms is not None or row.terminated or row.next_entry:
                raise Violation(f"5: {physical} is somebody else's, and was touched: {row}")
            if self.world.disk.rows.cursors(row.id):
                raise Violation(f"5: {physical} is somebody else's, and was given cursors")

    def check_calm(self) -> None:
        """When faults have stopped for long enough (9)."""
        for topic, record in self.records.items():
            if record.operation is not None or record.state is not TopicState.ACTIVE:
                raise Violation(f"9: {topic} is {record.state} with {record.operation}")
            recorded = dict(self._subscriptions(topic))
            for name, subscription in recorded.items():
                if subscription.state is not SubscriptionState.READY:
                    raise Violation(f"9: subscription {name} of {topic} is {subscription.state}")
            for segment in record.layout.segments.values():
                row = self._row(topic, record, segment)
                cursors = {cursor.name for cursor in self.world.disk.rows.cursors(row.id)} if row else set()
                if cursors - recorded.keys():
                    raise Violation(
                        f"9: segment {segment.segment_id} has cursors of nobody: {cursors - recorded.keys()}"
                    )
            leaders = [d.name for d in self.world.daemons.values() if topic in d.elections.led]
            if len(leaders) != 1:
                raise Violation(f"9: {topic} is led by {leaders}")

    def _subscriptions(self, topic: TopicName) -> Iterator[tuple[str, SubscriptionRecord]]:
        prefix = PATHS.subscriptions(topic)
        for key in self.world.store._keys_under(prefix):
            name, item = PATHS.subscription_of(topic, key), self._at(key)
            if name is not None and item is not None:
                yield name, _subscription(item)

    def _at(self, key: str) -> KeyValue | None:
        return self.world.store._at(key, self.world.store._revision)

    def _row(self, topic: TopicName, record: TopicRecord, segment: SegmentInfo) -> SegmentRow | None:
        row = self.world.disk.rows.segment(self._physical(topic, record, segment))
        return row if row is not None and row.deleted_at_ms is None else None

    def _physical(self, topic: TopicName, record: TopicRecord, segment: SegmentInfo) -> str:
        return segment_address(topic, segment, incarnation=record.incarnation).physical


def _subscription(item: KeyValue) -> SubscriptionRecord:
    return msgspec.json.decode(item.value, type=SubscriptionRecord)


def _is_fenced(topic: TopicName, compares: Sequence[Compare]) -> bool:
    key = PATHS.controller(topic)
    term = any(isinstance(c, CreateRevisionIs) and c.key == key and c.revision > 0 for c in compares)
    return term and any(isinstance(c, LeaseIs) and c.key == key and c.lease > 0 for c in compares)
