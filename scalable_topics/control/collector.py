"""What is drained is forgotten, what is garbage is deleted, and what nobody lists is reported (PROTOCOL 3 and 4).

Nothing is deleted because it merely looks unlisted: only what stands in a list of garbage is. An entry leaves its list
after two checks that found nothing, further apart than any call can be late.
"""

import logging
from collections.abc import Iterable
from math import nan
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from scalable_topics.control import phases
from scalable_topics.control.failpoints import Failpoint
from scalable_topics.control.garbage import ProofsOfAbsence
from scalable_topics.control.led_topic import OWNER_ERRORS, LedTopic
from scalable_topics.metadata.patience import in_words
from scalable_topics.metadata.store import DeletePrefix
from scalable_topics.model.errors import NotFound
from scalable_topics.model.garbage import parse_garbage
from scalable_topics.model.journal import JournalRow
from scalable_topics.model.quantities import is_finite
from scalable_topics.model.record import TopicRecord, TopicState
from scalable_topics.model.segment import SegmentInfo, SegmentState
from scalable_topics.model.subscription import DrainedMarker, SubscriptionState
from scalable_topics.policy.retention import retention_minutes, sweep
from scalable_topics.segments.port import SegmentFacts

RETENTION_PROPERTY: Final = "retentionMinutes"
FOR_EVER: Final = -1.0
MAX_PRUNED_AT_ONCE: Final = 50
"""A few writes for each, and an etcd takes 128 in one transaction."""

log = logging.getLogger(__name__)


class Swept(Struct, frozen=True, kw_only=True):
    """What one round did."""

    drained: int = 0
    """Markers written."""
    pruned: tuple[int, ...] = ()
    deleted: tuple[str, ...] = ()
    """Garbage that is proven to be gone."""
    orphans: tuple[str, ...] = ()
    """Physical segments with our stamp that nobody lists. Reported, never deleted."""


class Collector:
    def __init__(self, topic: LedTopic) -> None:
        self._topic = topic
        around = topic.around
        self._proofs = ProofsOfAbsence(around.segments, apart_seconds=around.settings.absent_check_seconds)
        self.orphans: tuple[str, ...] = ()
        """As the last round found them."""

    async def round(self) -> Swept:
        """Raises `Deposed`, and what the store raises; an owner that does not answer is left for the next round."""
        if self._topic.now.state is not TopicState.ACTIVE:
            return Swept()
        drained = await self._find_drained()
        pruned = await self._prune()
        deleted = await self._delete_garbage()
        self.orphans = await self._find_orphans()
        return Swept(drained=drained, pruned=pruned, deleted=deleted, orphans=self.orphans)

    async def _find_drained(self) -> int:
        """Only what an owner confirms, for a subscription as it is now, is written down."""
        repository = self._topic.around.repository
        subscriptions = await repository.subscriptions(self._topic.topic)
        markers = await repository.drained(self._topic.topic)
        written = 0
        for segment in self._sealed():
            behind = {
                name: known
                for name, known in subscriptions.items()
                if known.value.state is SubscriptionState.READY and (segment.segment_id, name) not in markers
            }
            if not behind:
                continue
            try:
                facts = await self._topic.call("", lambda _, at=segment: self._describe(at))  # type: ignore[misc]
            except (*OWNER_ERRORS, NotFound) as error:
                log.info(
                    "not looked at segment=%d topic=%s: %s", segment.segment_id, self._topic.topic, in_words(error)
                )
                continue
            for name, known in behind.items():
                if name in facts.subscriptions and facts.is_drained(name):
                    mark_delete = facts.subscriptions[name].mark_delete
                    marker = DrainedMarker(
                        seek_generation=known.value.seek_generation,
                        at_ms=self._topic.around.now_ms(),
                        position=f"{mark_delete[0]}:{mark_delete[1]}",
                    )
                    await repository.mark_drained(
                        self._topic.leadership, self._topic.record, segment.segment_id, name, marker, known=known
                    )
                    written += 1
        return written

    async def _describe(self, segment: SegmentInfo) -> SegmentFacts:
        address = self._topic.address(segment)
        return await self._topic.call("", lambda _: self._topic.around.segments.describe(address))

    async def _prune(self) -> tuple[int, ...]:
        """Compares the record that the markers were read after: a subscription made meanwhile keeps everything."""
        known = self._topic.record
        if not self._sealed() or known.value.operation is not None:
            return ()
        repository = self._topic.around.repository
        subscriptions = await repository.subscriptions(self._topic.topic)
        markers = await repository.drained(self._topic.topic)
        drained = {
            name: {
                segment_id
                for (segment_id, of), marker in markers.items()
                if of == name and marker.value.seek_generation == one.value.seek_generation
            }
            for name, one in subscriptions.items()
        }
        found = sweep(
            known.value.layout,
            now_ms=self._topic.around.now_ms(),
            retention_minutes=await self._retention_minutes(),
            drained=drained,
        )
        gone = found.prune[:MAX_PRUNED_AT_ONCE]
        if not gone:
            return ()
        pruned = phases.prune(self._topic.topic, known.value, gone)
        paths = repository.paths
        keys = tuple(DeletePrefix(f"{paths.segments(self._topic.topic)}{segment_id}/") for segment_id in gone)
        row = JournalRow(
            at_ms=self._topic.around.now_ms(),
            what="PRUNE",
            by="collector",
            reason="drained by every subscription, and the retention has lapsed",
            epoch=pruned.layout.epoch,
            details={"segments": list(gone)},
        )
        await self._topic.reach(Failpoint.BEFORE_COMMIT_1)
        await self._topic.write(known, pruned, journal=row, companions=keys)
        await self._topic.reach(Failpoint.COMMIT_1_ANSWER_LOST)
        return gone

    async def _retention_minutes(self) -> float:
        name = self._topic.topic
        policies = await self._topic.around.repository.namespace_policies(name.tenant, name.namespace)
        return retention_minutes(
            topic=self._own_retention(),
            namespace=policies.value.retention_minutes if policies is not None else None,
            broker=self._topic.around.settings.retention_minutes,
        )

    def _own_retention(self) -> float | None:
        """What the topic's property says. One that is no number keeps everything, and says so: nothing is deleted on
        a misunderstanding.
        """
        text = self._topic.now.properties.get(RETENTION_PROPERTY)
        if text is None:
            return None
        try:
            minutes = float(text)
        except ValueError:
            minutes = nan
        if not is_finite(minutes):
            log.warning("%s=%r is no number, nothing is pruned topic=%s", RETENTION_PROPERTY, text, self._topic.topic)
            return FOR_EVER
        return minutes

    async def _delete_garbage(self) -> tuple[str, ...]:
        gone = [physical for physical in self._topic.now.garbage if await self._is_gone(physical)]
        if gone:

            def change(record: TopicRecord) -> TopicRecord:
                return replace(record, garbage=tuple(name for name in record.garbage if name not in gone))

            await self._topic.update(change)
            for physical in gone:
                self._proofs.forget(physical)
        return tuple(gone)

    async def _is_gone(self, physical: str) -> bool:
        gone = await self._proofs.delete(physical, lambda work: self._topic.call("garbage", work))
        await self._topic.reach(Failpoint.CLEAN_UP_HALF_DONE)
        return gone

    async def _find_orphans(self) -> tuple[str, ...]:
        before = set(self._listed())
        prefix = f"segment://{str(self._topic.topic).partition('://')[2]}/"
        try:
            found = await self._topic.call("", lambda _: self._topic.around.segments.list(prefix))
        except OWNER_ERRORS as error:
            log.info("segments not listed topic=%s: %s", self._topic.topic, in_words(error))
            return self.orphans
        known = before | set(self._listed())
        incarnation = self._topic.now.incarnation
        orphans = tuple(
            one.physical
            for one in found
            if one.stamp is not None and one.stamp.incarnation == incarnation and one.physical not in known
        )
        for physical in orphans:
            if physical not in self.orphans:
                log.warning("an orphan: nobody lists it, and it is not deleted physical=%s", physical)
        return orphans

    def _listed(self) -> Iterable[str]:
        record = self._topic.now
        yield from (parse_garbage(entry).physical for entry in record.garbage)
        for segment in phases.every_segment(record).values():
            yield self._topic.address(segment).physical

    def _sealed(self) -> list[SegmentInfo]:
        segments = self._topic.now.layout.segments.values()
        return [segment for segment in segments if segment.state is SegmentState.SEALED]
