"""A topic in the hands of its leader: the record as last known, how it is changed, and how its segments are called.

Everything that works on a topic shares one of these. All writes of the record go through `update`, which compares what
it read, so that works which interleave never undo each other.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Final, TypeVar

from msgspec import Struct

from scalable_topics.control.failpoints import Failpoint, Failpoints, NoFailpoints
from scalable_topics.metadata.leadership import Leadership
from scalable_topics.metadata.patience import TRANSIENT, Backoff, in_words
from scalable_topics.metadata.repository import Conflict, Deposed, Repository, Stored
from scalable_topics.metadata.store import Compare, Write
from scalable_topics.model.autoscale_policy import AutoScalePolicyOverride
from scalable_topics.model.errors import LeaseLost, NoSpace, NotFound, Unavailable, UnknownOutcome
from scalable_topics.model.journal import JournalRow
from scalable_topics.model.names import TopicName
from scalable_topics.model.operation import FinishedOperation
from scalable_topics.model.record import TopicRecord
from scalable_topics.model.segment import SegmentAddress, SegmentInfo, segment_address
from scalable_topics.segments.errors import StaleTerm
from scalable_topics.segments.port import MAX_CALL_SECONDS, Call, SegmentStore, Stamp

T = TypeVar("T")

OWNER_ERRORS: Final = (Unavailable, NoSpace, TimeoutError)
"""What a call to an owner may fail with and be repeated after."""

log = logging.getLogger(__name__)


class ControlSettings(Struct, frozen=True, kw_only=True):
    """Durations of the leader's work."""

    gc_interval_seconds: float = 300
    """How often drained segments are looked for and garbage is deleted (`scalableTopicGcIntervalSeconds`)."""
    retention_minutes: float = 0
    """How long a drained segment is kept where neither topic nor namespace say; negative = for ever."""
    call_seconds: float = MAX_CALL_SECONDS - 1
    """Deadline of one call to a segment's owner; a little less than owners accept, whose clock is not ours."""
    absent_check_seconds: float = 15
    """A deleted segment counts as gone after two checks that are this far apart: longer than any call can be late."""


class Surroundings(Struct, frozen=True, kw_only=True):
    """What the leader's work needs from the daemon it runs in."""

    repository: Repository
    segments: SegmentStore
    now_ms: Callable[[], int]
    """The wall clock, for what people read and for retention; never for ordering."""
    new_id: Callable[[], str]
    """A random name that nobody else uses: 16 lower-case hex digits."""
    may_seal: Callable[[], bool]
    """Is enough of the lease left to pass the point of no return (PROTOCOL 3: two thirds)?"""
    daemons_own_segments: bool = False
    """Are segments served by our own daemons? Then the children's first owners are named when they are announced, so
    that no writer waits for somebody to claim one.
    """
    autoscale: AutoScalePolicyOverride | None = None
    """The cluster's level of the autoscale policy: its caps hold for what people ask for too."""
    settings: ControlSettings = ControlSettings()
    failpoints: Failpoints = NoFailpoints()


class Gone(NotFound):
    """The topic has been removed: there is nothing left to lead."""

    kind = "gone"


class LedTopic:
    def __init__(
        self,
        leadership: Leadership,
        record: Stored[TopicRecord],
        around: Surroundings,
        *,
        leads: Callable[[], bool],
        on_finished: Callable[[FinishedOperation], None] = lambda _: None,
    ) -> None:
        """`leads`: may this leadership still be acted on? Asked before every step; the fences do not rely on it.
        `on_finished` is told every operation that ends under it, once the store has it.
        """
        self.leadership = leadership
        self.record = record
        self.around = around
        self.on_finished = on_finished
        self._leads = leads

    @property
    def topic(self) -> TopicName:
        return self.leadership.topic

    @property
    def now(self) -> TopicRecord:
        """The record as this leader last knew it."""
        return self.record.value

    def ensure_leading(self) -> None:
        if not self._leads():
            raise Deposed(f"term {self.leadership.term} is over", subject=str(self.topic))

    async def reach(self, failpoint: Failpoint) -> None:
        await self.around.failpoints.reach(failpoint, self.topic)

    def address(self, segment: SegmentInfo) -> SegmentAddress:
        return segment_address(self.topic, segment, incarnation=self.now.incarnation)

    def stamp(self, segment: SegmentInfo, operation_id: str) -> Stamp:
        return Stamp(self.now.incarnation, segment.segment_id, operation_id)

    async def update(
        self,
        change: Callable[[TopicRecord], TopicRecord],
        *,
        journal: JournalRow | None = None,
        companions: Sequence[Write] = (),
    ) -> TopicRecord:
        """Change the record, whatever else changes it meanwhile.

        `change` is called again on a newer record until its answer is written, so it must answer the record itself
        when there is nothing left to do; what it raises is raised. Raises `Deposed` and `Gone`; a store that is away is
        waited for.
        """
        backoff = Backoff()
        while True:
            self.ensure_leading()
            wanted = change(self.now)
            if wanted == self.now:
                return wanted
            try:
                return (await self.write(self.record, wanted, journal=journal, companions=companions)).value
            except Conflict:
                await self.reload()
            except TRANSIENT as error:
                if isinstance(error, LeaseLost):
                    raise
                log.warning("not written yet topic=%s: %s", self.topic, in_words(error))
                await backoff.wait()
                if isinstance(error, UnknownOutcome):
                    await self.reload()

    async def write(
        self,
        known: Stored[TopicRecord],
        wanted: TopicRecord,
        *,
        journal: JournalRow | None = None,
        companions: Sequence[Write] = (),
        compares: Sequence[Compare] = (),
    ) -> Stored[TopicRecord]:
        """Once, comparing with `known`. Raises what `Repository.update_topic` raises."""
        rows: tuple[Write, ...] = ()
        if journal is not None:
            repository = self.around.repository
            rows = repository.journal_writes(self.topic, journal, known=await repository.journal(self.topic))
        written = await self.around.repository.update_topic(
            self.leadership, known, wanted, companions=(*companions, *rows), compares=compares
        )
        self.learn(written)
        return written

    async def write_journal(self, row: JournalRow) -> None:
        """A row by itself, for what changes nothing in the record."""
        while True:
            self.ensure_leading()
            try:
                await self.write(self.record, self.now, journal=row)
            except Conflict:
                await self.reload()
            else:
                return

    def learn(self, record: Stored[TopicRecord]) -> None:
        """Two writes of ours may be answered in the wrong order."""
        if record.mod_revision > self.record.mod_revision:
            before, self.record = self.now.recent_operations, record
            if self.now.recent_operations != before:
                remembered = {one.id for one in before}
                for one in self.now.recent_operations:
                    if one.id not in remembered:
                        self.on_finished(one)

    async def reload(self) -> None:
        """Until the store answers."""
        backoff = Backoff()
        while True:
            self.ensure_leading()
            try:
                found = await self.around.repository.topic(self.topic)
            except TRANSIENT as error:
                log.warning("not read yet topic=%s: %s", self.topic, in_words(error))
                await backoff.wait()
                continue
            if found is None or found.value.incarnation != self.now.incarnation:
                raise Gone("it has been removed", subject=str(self.topic))
            self.learn(found)
            return

    async def call(self, operation_id: str, work: Callable[[Call], Awaitable[T]]) -> T:
        """One call to an owner, within its deadline. `StaleTerm` is told as `Deposed`: a later leader was there."""
        self.ensure_leading()
        seconds = self.around.settings.call_seconds
        call = Call(
            incarnation=self.now.incarnation,
            operation_id=operation_id,
            term=self.leadership.term,
            deadline=asyncio.get_running_loop().time() + seconds,
        )
        try:
            async with asyncio.timeout(seconds):
                return await work(call)
        except StaleTerm as error:
            raise Deposed(error.what, subject=str(self.topic), remedy="leave it to the next leader") from error

    async def insist(
        self,
        operation_id: str,
        work: Callable[[Call], Awaitable[T]],
        *,
        failed: Callable[[str], None] = lambda _: None,
    ) -> T:
        """A call that is repeated until it is answered; `failed` hears of every time that it was not."""
        backoff = Backoff()
        while True:
            try:
                return await self.call(operation_id, work)
            except OWNER_ERRORS as error:
                log.info("an owner does not answer topic=%s: %s", self.topic, in_words(error))
                failed(in_words(error))
            await backoff.wait()

    def finished(self, *, operation_id: str | None = None, request_key: str | None = None) -> FinishedOperation | None:
        """What is remembered of an operation, by its id or by the key of the request that asked for it."""
        return next((one for one in self._finished() if matches(one, operation_id, request_key)), None)

    def _finished(self) -> Iterable[FinishedOperation]:
        return reversed(self.now.recent_operations)


def matches(one: FinishedOperation, operation_id: str | None, request_key: str | None) -> bool:
    by_id = operation_id is not None and one.id == operation_id
    return by_id or (request_key is not None and one.request_key == request_key)
