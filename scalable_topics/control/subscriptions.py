"""Subscriptions of a led topic: made, deleted, sought, so that none ever misses a segment (PROTOCOL 5).

The record comes first and bumps the topic's revision; then the cursors; then READY, which compares the revision. If a
layout changed in between, READY is refused and the segments are looked at again. Every step may be repeated, so the
next leader simply goes on with whatever is CREATING, SEEKING or DELETING.
"""

import asyncio
import logging
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Final, TypeVar

from msgspec.structs import replace

from scalable_topics.control import phases
from scalable_topics.control.failpoints import Failpoint
from scalable_topics.control.led_topic import LedTopic
from scalable_topics.control.lost_segments import make_lost_segment
from scalable_topics.metadata.patience import TRANSIENT, Backoff, in_words
from scalable_topics.metadata.repository import Conflict, Stored
from scalable_topics.metadata.store import Delete
from scalable_topics.model.errors import LeaseLost, NotFound, UnknownOutcome, WrongState
from scalable_topics.model.operation import FinishedOperation, OperationKind, Outcome
from scalable_topics.model.positions import Sentinel
from scalable_topics.model.record import TopicState, remember
from scalable_topics.model.segment import SegmentAddress, SegmentInfo
from scalable_topics.model.subscription import (
    DrainedMarker,
    InitialPosition,
    SubscriptionRecord,
    SubscriptionState,
    SubscriptionType,
    validate_name,
)
from scalable_topics.policy.seek import SeekAction, plan_seek
from scalable_topics.segments.port import Call, PublishedFrom, StartAt, SubscriptionFacts

T = TypeVar("T")

MARKERS_PER_WRITE: Final = 100

log = logging.getLogger(__name__)

Known = Stored[SubscriptionRecord]


class Subscriptions:
    """Of one topic. Works on one subscription wait for each other; those on different ones do not."""

    def __init__(self, topic: LedTopic) -> None:
        self._topic = topic
        self._locks: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)
        self._late_until: dict[str, float] = {}

    async def create(self, name: str, kind: SubscriptionType, position: InitialPosition) -> SubscriptionRecord:
        """READY when this returns. One that exists is answered as it is; of another type it is `WrongState`."""
        validate_name(name)
        self._ensure_active()
        async with self._locks[name]:
            known = await self._read(name)
            if known is None:
                await self._settle(name)
                made = SubscriptionRecord(
                    type=kind,
                    state=SubscriptionState.CREATING,
                    initial_position=position,
                    created_at_ms=self._topic.around.now_ms(),
                    operation_id=self._topic.around.new_id(),
                )
                await self._topic.reach(Failpoint.BEFORE_COMMIT_1)
                known = await self._write(name, lambda _: made)
                await self._topic.reach(Failpoint.COMMIT_1_ANSWER_LOST)
            if known is None or known.value.state is SubscriptionState.DELETING:
                raise WrongState(
                    "it is being deleted", subject=self._subject(name), remedy="try again when that is finished"
                )
            if known.value.type is not kind:
                raise WrongState(
                    f"it exists as {known.value.type}", subject=self._subject(name), remedy="choose another name"
                )
            return await self._go_on(name, known)

    async def delete(self, name: str) -> None:
        """It is gone everywhere when this returns. `NotFound` if there is none."""
        async with self._locks[name]:
            await self._existing(name)
            known = await self._write(name, lambda now: now and replace(now, state=SubscriptionState.DELETING))
            if known is not None:
                await self._delete(name)

    async def seek(self, name: str, to_ms: int | None, *, request_key: str | None = None) -> FinishedOperation | None:
        """Move every cursor to a time; None = past everything there is now (skip-all). READY again when this returns.

        The same `request_key` seeks once. Answers what is remembered of it.
        """
        async with self._locks[name]:
            done = self._topic.finished(request_key=request_key) if request_key is not None else None
            if done is not None:
                return done
            known = await self._existing(name)
            if known.value.state is not SubscriptionState.SEEKING:
                self._ensure_ready(name, known)
                operation_id = self._topic.around.new_id()

                def begin(now: SubscriptionRecord | None) -> SubscriptionRecord | None:
                    if now is None or now.operation_id == operation_id:
                        return now
                    return replace(
                        now,
                        state=SubscriptionState.SEEKING,
                        seek_generation=now.seek_generation + 1,
                        seek_to_ms=to_ms,
                        operation_id=operation_id,
                        request_key=request_key,
                    )

                known = await self._write(name, begin) or known
            await self._go_on(name, known)
            return self._topic.finished(operation_id=known.value.operation_id)

    async def drop_strays(self, segment: SegmentInfo, names: Iterable[str]) -> None:
        """Cursors that were found and belong to no subscription: a call that made one came late, after its deletion."""
        address = self._topic.address(segment)
        for name in names:
            async with self._locks[name]:
                if await self._read(name) is None:
                    log.info("a stray cursor goes subscription=%s segment=%s", name, address.logical)
                    await self._delete_cursor(name, address)

    async def go_on(self) -> None:
        """What the leader before has left half done; called when a term starts."""
        for name in await self._all():
            async with self._locks[name]:
                known = await self._read(name)  # as it is now that nobody else works on it
                if known is None:
                    continue
                if known.value.state is SubscriptionState.DELETING:
                    await self._delete(name)
                else:
                    await self._go_on(name, known)

    async def _go_on(self, name: str, known: Known) -> SubscriptionRecord:
        """Bring it to READY from wherever it is."""
        while known.value.state is not SubscriptionState.READY:
            record = self._topic.record
            work = self._seek if known.value.state is SubscriptionState.SEEKING else self._give_cursors
            await work(name, known)
            ready = replace(
                known.value, state=SubscriptionState.READY, operation_id=None, request_key=None, seek_to_ms=None
            )
            if self._topic.record.mod_revision != record.mod_revision:
                continue  # a layout may have changed: its segments need cursors too
            try:
                await self._write_once(name, known, ready)
            except Conflict:
                await self._topic.reload()
                known = await self._existing(name)
            except TRANSIENT as error:
                if isinstance(error, LeaseLost):
                    raise
                log.warning("not READY yet subscription=%s topic=%s: %s", name, self._topic.topic, in_words(error))
                await self._topic.reload()
                known = await self._existing(name)
            else:
                await self._topic.reach(Failpoint.COMMIT_3_ANSWER_LOST)
                return ready
        return known.value

    async def _give_cursors(self, name: str, known: Known) -> None:
        announced = phases.announced_segments(self._topic.now)
        listed = self._topic.now.layout.segments
        latest = known.value.initial_position is InitialPosition.LATEST
        for segment_id, segment in announced.items():
            at = Sentinel.LATEST if latest and segment_id in listed else Sentinel.EARLIEST
            await self._give_cursor(name, known, segment, at)
            await self._topic.reach(Failpoint.CURSOR_MISSING)

    async def _give_cursor(self, name: str, known: Known, segment: SegmentInfo, at: StartAt) -> None:
        """A segment that is sealed and out of scope is drained from the start, and a marker says so."""
        address = self._topic.address(segment)
        operation_id = known.value.operation_id or self._topic.around.new_id()
        try:
            facts = await self._insist(
                name,
                operation_id,
                lambda call: self._topic.around.segments.create_subscription(address, name, call, at=at),
            )
        except NotFound:
            await self._mend(segment)
            return
        if at is Sentinel.LATEST and not segment.is_active and _is_at_the_end(segment, facts):
            await self._mark_drained(name, known, segment)

    async def _mark_drained(self, name: str, known: Known, segment: SegmentInfo) -> None:
        marker = DrainedMarker(seek_generation=known.value.seek_generation, at_ms=self._topic.around.now_ms())
        await self._topic.around.repository.mark_drained(
            self._topic.leadership, self._topic.record, segment.segment_id, name, marker, known=known
        )

    async def _seek(self, name: str, known: Known) -> None:
        await self._drop_markers(name)
        for segment in phases.announced_segments(self._topic.now).values():
            await self._move(name, known.value, segment)

    async def _move(self, name: str, subscription: SubscriptionRecord, segment: SegmentInfo) -> None:
        """Pitfall 91: a segment that is gone is passed over, one that does not answer is waited for."""
        address, segments = self._topic.address(segment), self._topic.around.segments
        operation_id = subscription.operation_id or ""
        plan = None
        if subscription.seek_to_ms is not None:
            plan = plan_seek(
                created_at_ms=segment.created_at_ms,
                sealed_at_ms=segment.sealed_at_ms,
                timestamp_ms=subscription.seek_to_ms,
            )
        to: StartAt = PublishedFrom(plan.timestamp_ms) if plan is not None and plan.timestamp_ms else Sentinel.EARLIEST
        try:
            if plan is None or plan.action is SeekAction.SKIP_ALL:
                await self._insist(name, operation_id, lambda call: segments.skip_all(address, name, call))
            else:
                await self._insist(name, operation_id, lambda call: segments.seek(address, name, to, call))
        except NotFound:
            await self._mend(segment)

    async def _mend(self, segment: SegmentInfo) -> None:
        """After "not found". A sealed segment that is gone has nothing to read; a child that is still to be made gets
        its cursors then, because the subscription has changed the record; a lost ACTIVE one is made again, with a
        cursor at its beginning.
        """
        listed = self._topic.now.layout.segments.get(segment.segment_id)
        if listed is not None and listed.is_active and not listed.is_legacy:
            await make_lost_segment(self._topic, listed)

    async def _delete(self, name: str) -> None:
        await self._settle(name)
        for segment in phases.announced_segments(self._topic.now).values():
            await self._delete_cursor(name, self._topic.address(segment))
        await self._drop_markers(name)
        await self._write(name, lambda _: None)

    async def _delete_cursor(self, name: str, address: SegmentAddress) -> None:
        try:
            await self._insist(
                name,
                self._topic.around.new_id(),
                lambda call: self._topic.around.segments.delete_subscription(address, name, call),
            )
        except NotFound:
            return  # it went with its segment

    async def _insist(self, name: str, operation_id: str, work: Callable[[Call], Awaitable[T]]) -> T:
        """A call that got no answer may still be carried out, until its deadline: remember until when."""

        def failed(_: str) -> None:
            loop = asyncio.get_running_loop()
            self._late_until[name] = loop.time() + self._topic.around.settings.call_seconds

        try:
            return await self._topic.insist(operation_id, work, failed=failed)
        except asyncio.CancelledError:
            failed("whoever asked has gone away")
            raise

    async def _settle(self, name: str) -> None:
        """Before the contrary of what was asked last: wait until nothing of it can come late. Calls of leaders before
        us are kept out by their terms.
        """
        until = self._late_until.pop(name, 0.0)
        await asyncio.sleep(max(0.0, until - asyncio.get_running_loop().time()))

    async def _drop_markers(self, name: str) -> None:
        """In batches, so that no transaction is too long."""
        paths = self._topic.around.repository.paths
        markers = await self._topic.around.repository.drained(self._topic.topic)
        keys = [paths.drained(self._topic.topic, segment_id, name) for segment_id, of in markers if of == name]
        for at in range(0, len(keys), MARKERS_PER_WRITE):
            companions = tuple(Delete(key) for key in keys[at : at + MARKERS_PER_WRITE])
            while True:
                try:
                    await self._topic.write(self._topic.record, self._topic.now, companions=companions)
                    break
                except Conflict:
                    await self._topic.reload()

    async def _write(
        self, name: str, change: Callable[[SubscriptionRecord | None], SubscriptionRecord | None]
    ) -> Known | None:
        """Whatever else changes meanwhile; answers what is there afterwards."""
        backoff = Backoff()
        while True:
            self._topic.ensure_leading()
            try:
                known = await self._read(name)
                now = known.value if known is not None else None
                wanted = change(now)
                if wanted == now:
                    return known
                await self._write_once(name, known, wanted)
            except Conflict:
                await self._topic.reload()
            except TRANSIENT as error:
                if isinstance(error, LeaseLost):
                    raise
                log.warning("not written yet subscription=%s topic=%s: %s", name, self._topic.topic, in_words(error))
                await backoff.wait()
                if isinstance(error, UnknownOutcome):
                    await self._topic.reload()

    async def _write_once(self, name: str, known: Known | None, wanted: SubscriptionRecord | None) -> None:
        """A seek that ends is remembered in the same transaction."""
        record = self._topic.record
        ended = known.value if known is not None and known.value.state is SubscriptionState.SEEKING else None
        value = record.value
        if ended is not None and wanted is not None and wanted.state is SubscriptionState.READY:
            value = remember(value, self._finished(name, ended))
        written = await self._topic.around.repository.write_subscription(
            self._topic.leadership, replace(record, value=value), name, wanted, known=known
        )
        self._topic.learn(written)

    def _finished(self, name: str, seek: SubscriptionRecord) -> FinishedOperation:
        return FinishedOperation(
            id=seek.operation_id or "",
            kind=OperationKind.SKIP_ALL if seek.seek_to_ms is None else OperationKind.SEEK,
            outcome=Outcome.DONE,
            finished_at_ms=self._topic.around.now_ms(),
            request_key=seek.request_key,
            subscription=name,
        )

    async def _all(self) -> Mapping[str, Known]:
        return await self._topic.around.repository.subscriptions(self._topic.topic)

    async def _read(self, name: str) -> Known | None:
        return await self._topic.around.repository.subscription(self._topic.topic, name)

    async def _existing(self, name: str) -> Known:
        known = await self._read(name)
        if known is None:
            raise NotFound("there is no such subscription", subject=self._subject(name))
        return known

    def _ensure_active(self) -> None:
        state = self._topic.now.state
        if state is not TopicState.ACTIVE:
            raise WrongState(f"the topic is {state}", subject=str(self._topic.topic), remedy="wait until it is ACTIVE")

    def _ensure_ready(self, name: str, known: Known) -> None:
        if known.value.state is not SubscriptionState.READY:
            raise WrongState(
                f"it is {known.value.state}", subject=self._subject(name), remedy="try again when it is READY"
            )

    def _subject(self, name: str) -> str:
        return f"subscription {name} of {self._topic.topic}"


def _is_at_the_end(segment: SegmentInfo, facts: SubscriptionFacts) -> bool:
    return segment.terminated_at is not None and facts.mark_delete >= segment.terminated_at
