"""The port to whatever stores segments. Everything above it is written against this page, and nothing else.

`SegmentStore` is what a topic's leader calls; `SegmentData` is what the daemon that serves a segment calls. Leader
and owner may be two processes, and the adapter may have a real Pulsar behind it, so nothing here assumes more than
a name. Adapters: `memory` (simulation) and `embedded` (SQLite, one machine); `pulsar` comes later.

Positions are normalised: a position names a message that exists or existed, or is `NOTHING`, which lies before every
message. An adapter whose store answers anything else (Pulsar's `84:-1`) translates it before it gets here, so that
`mark_delete >= terminated` is the whole test for drained.
"""

from collections.abc import Collection, Mapping, Sequence
from typing import Final, Protocol

from msgspec import Struct

from scalable_topics.model.errors import InvalidArgument, NotFound
from scalable_topics.model.hash_range import FULL_RANGE, HashRange
from scalable_topics.model.load import Rates
from scalable_topics.model.positions import Position, Sentinel
from scalable_topics.model.segment import SegmentAddress

NOTHING: Final[Position] = (-1, -1)
"""Before the first message: the end of an empty segment, the mark-delete of a cursor that acknowledged none."""
MAX_CALL_SECONDS: Final = 10
"""How far ahead a deadline may lie (PROTOCOL 4)."""
MAX_MESSAGE_BYTES: Final = 5 << 20
"""Key, properties and payload of one message together: what a Pulsar broker takes with its default settings."""


class Call(Struct, frozen=True, kw_only=True):
    """Who asks, in which operation, and until when it makes sense. Carried by every call that changes something."""

    incarnation: str
    operation_id: str
    term: int
    deadline: float
    """On the event loop's clock (`loop.time()`), at most `MAX_CALL_SECONDS` ahead. Nothing is begun after it."""

    def __post_init__(self) -> None:
        if self.term <= 0:
            raise InvalidArgument(f"{self.term} is not a term", remedy="terms are create revisions, 1 or more")


class Stamp(Struct, frozen=True):
    """What a segment was made for. It is stored with it, and decides whether one that exists already is ours."""

    incarnation: str
    segment_id: int
    operation_id: str


class PublishedFrom(Struct, frozen=True):
    """The first message that was published at this time or later."""

    timestamp_ms: int


StartAt = Sentinel | Position | PublishedFrom
"""The first message that a cursor is to deliver. A position beyond the last message means the next one."""


class SubscriptionFacts(Struct, frozen=True):
    """Where a cursor stands. Everything up to `mark_delete` is acknowledged; `backlog` counts what is not."""

    mark_delete: Position
    backlog: int


class SegmentFacts(Struct, frozen=True, kw_only=True):
    """What a segment is and how far everybody is, read at one instant."""

    stamp: Stamp | None
    """None = a regular topic, which nobody stamped."""
    terminated: Position | None
    """The final position, `NOTHING` when it ended empty; None = it accepts messages."""
    last: Position
    """Of the last message that was ever stored."""
    subscriptions: Mapping[str, SubscriptionFacts]

    @property
    def is_empty(self) -> bool:
        """Was never a message stored?"""
        return self.last == NOTHING

    def is_drained(self, subscription: str) -> bool:
        """Is every message there will ever be acknowledged? A subscription that is not there is `NotFound`."""
        facts = self.subscriptions.get(subscription)
        if facts is None:
            raise NotFound(f"there is no cursor of {subscription!r}: that is not the same as drained")
        return self.terminated is not None and facts.mark_delete >= self.terminated


class ConnectedProducer(Struct, frozen=True):
    """A producer as it is connected now, with what its client said of itself."""

    name: str
    metadata: Mapping[str, str] = {}


class SubscriptionStats(Struct, frozen=True, kw_only=True):
    backlog: int
    backlog_bytes: int
    """Estimated from the mean size of the messages."""
    unacked: int = 0
    """Delivered and not acknowledged yet."""
    consumers: tuple[str, ...] = ()


class SegmentStats(Struct, frozen=True, kw_only=True):
    """Of one segment. Rates and connections are known only to the daemon that serves it."""

    rates: Rates | None
    """None = unknown here, which is not zero."""
    messages: int
    storage_bytes: int
    subscriptions: Mapping[str, SubscriptionStats]
    producers: tuple[ConnectedProducer, ...] = ()


class ListedSegment(Struct, frozen=True):
    physical: str
    stamp: Stamp | None
    terminated: bool


class SegmentStore(Protocol):
    """What the leader of a topic does with segments.

    Every call may be repeated, by the same leader or by its successor, and may arrive late: create happens once,
    terminate lasts for ever, delete leaves a tombstone, an existing subscription is left as it is, and a seek, skip
    or advance that was carried out is not carried out again.

    Any call may raise:
    - `NotFound`: there is no such segment (or subscription). It says nothing about drained.
    - `Unavailable`: nobody answered in time, and nothing was changed. Try again.
    - `UnknownOutcome`: a change may or may not have happened. Repeat it, or describe.
    Those with a `Call` may also raise:
    - `StaleTerm`: a later leader has been here. Nothing was changed; stop.
    - `ForeignStamp`: the segment belongs to another life of the topic. Nothing was changed.
    """

    async def create(
        self,
        address: SegmentAddress,
        stamp: Stamp,
        subscriptions: Collection[str],
        call: Call,
        *,
        must_be_empty: bool = True,
    ) -> SegmentFacts:
        """Make it, with cursors at its beginning. If it exists with this very stamp it is accepted, and cursors it
        lacks are added.

        Raises `Unusable` when it exists and has another stamp, is terminated or deleted, or, if it `must_be_empty`,
        holds messages: burn the id and take the next one.
        """

    async def terminate(self, address: SegmentAddress, call: Call) -> Position:
        """From now on no message is accepted. Answers the final position: of the last message, or `NOTHING`."""

    async def delete(self, address: SegmentAddress, call: Call, *, made_by: str | None = None) -> None:
        """It is gone with its messages and cursors, and a create that comes late will not bring it back.

        With `made_by` only if the operation in its stamp is that one; otherwise `ForeignStamp`.

        Fine if it never was there. `WrongState` for a regular topic: those are never ours to delete.
        """

    async def create_subscription(
        self, address: SegmentAddress, name: str, call: Call, *, at: StartAt = Sentinel.EARLIEST
    ) -> SubscriptionFacts:
        """Make a cursor. One that exists stays where it is."""

    async def delete_subscription(self, address: SegmentAddress, name: str, call: Call) -> None:
        """Fine if there is no such cursor; `NotFound` only for the segment."""

    async def seek(self, address: SegmentAddress, name: str, to: StartAt, call: Call) -> SubscriptionFacts:
        """Move a cursor, forwards or back; all acknowledgements beyond it are forgotten, its consumers are detached.

        A cursor obeys each operation id once, so a repeated seek does not move it again.
        """

    async def skip_all(self, address: SegmentAddress, name: str, call: Call) -> SubscriptionFacts:
        """A seek to the end."""

    async def advance(self, address: SegmentAddress, name: str, mark_delete: Position, call: Call) -> SubscriptionFacts:
        """Acknowledge everything up to a position (a CHECKPOINT group's oldest safe one). Never moves back."""

    async def describe(self, address: SegmentAddress) -> SegmentFacts: ...

    async def stats(self, address: SegmentAddress) -> SegmentStats: ...

    async def list(self, prefix: str = "") -> tuple[ListedSegment, ...]:
        """All physical segments whose name starts like this, in the order of their names; deleted ones are absent."""

    async def close(self) -> None:
        """Everything that was acknowledged is kept. Calls under way are finished, or end with `Unavailable`."""


class Message(Struct, frozen=True, kw_only=True):
    """What a producer sends. `key_hash` is the raw 32-bit hash of the ordering key, else of the key (`model/hashing`);
    None = neither, and then it belongs to bucket 0.

    A sequence makes a repeated append harmless; per producer and segment it must rise, gaps are fine. None = the
    producer cannot repeat.
    """

    payload: bytes
    producer: str = ""
    sequence: int | None = None
    key: str | None = None
    ordering_key: bytes | None = None
    key_hash: int | None = None
    properties: Mapping[str, str] = {}
    event_time_ms: int = 0


class Entry(Struct, frozen=True):
    """A stored message. Publish times never fall within a segment."""

    position: Position
    published_at_ms: int
    message: Message


class Delivery(Struct, frozen=True):
    entry: Entry
    redeliveries: int = 0
    """How often it was handed out before, as far as this owner knows."""


class Appended(Struct, frozen=True):
    position: Position | None
    """None = it was stored before, and has been pruned since. A sequence so old that everything of its producer around
    it is pruned counts as stored.
    """
    duplicate: bool = False


class Shared(Struct, frozen=True):
    """Any number of consumers, each message to one of them."""


class Slice(Struct, frozen=True):
    """One consumer alone for a range of the bucket ring."""

    buckets: HashRange


EXCLUSIVE: Final = Slice(FULL_RANGE)
"""One consumer alone for everything."""

AttachMode = Shared | Slice


class Attachment(Protocol):
    """One consumer on one subscription of one segment. Whatever it holds unacknowledged when it ends is delivered to
    others. Once it was fenced or detached every method raises `StaleGeneration`, `Fenced`, `Detached` or `NotFound`,
    and changes nothing.
    """

    def permit(self, count: int) -> None:
        """Allow that many more deliveries."""

    async def receive(self, max_entries: int = 100) -> Sequence[Delivery]:
        """The next deliveries. None at all = end of segment: it is terminated, and everything in this slice
        (if shared: everything) was delivered and acknowledged. May be cancelled; nothing is lost.
        """

    async def ack(self, positions: Collection[Position]) -> None:
        """Returns when it is durable. Repeating is fine."""

    async def ack_through(self, position: Position) -> None:
        """Everything up to a position; only for `EXCLUSIVE`: from a slice it would take other people's messages."""

    def nack(self, positions: Collection[Position]) -> None:
        """Deliver these again, to whoever may have them."""

    async def close(self) -> None: ...


class ServedSegment(Protocol):
    """A segment as its owner serves it. Each change is checked against the owner's term inside its transaction, so a
    former owner changes nothing: it gets `Fenced`.
    """

    async def append(self, messages: Sequence[Message]) -> tuple[Appended, ...]:
        """All or nothing; answered when durable. A sequence that was stored before is not stored again, and answers
        its former position, also after termination.

        Raises `Terminated`, `WritersFenced`, `OutOfOrder`, `TooLarge`, `NoSpace`: nothing was stored.
        """

    async def read(self, start: StartAt, *, max_entries: int = 100) -> tuple[Entry, ...]:
        """Up to that many stored messages from a start on; what was pruned is passed over. Moves no cursor."""

    async def wait_beyond(self, position: Position) -> bool:
        """Wait for a message after a position. False = there will be none: the segment is terminated there."""

    async def attach(self, subscription: str, consumer: str, mode: AttachMode, *, generation: int = 0) -> Attachment:
        """Begin to consume. `NotFound`: subscriptions are made by the leader, never by attaching.

        Generations are of slices: a higher one takes over from whoever holds an overlapping slice, who is then
        refused everything; a lower one is refused as `StaleGeneration`, also after a restart. The same consumer with
        the same generation replaces its former attachment. Generation 0 is for consumers that no controller manages:
        it takes over from nobody. `WrongState` = somebody is attached in another mode, or was there first.
        """

    def connect_producer(self, producer: ConnectedProducer) -> None:
        """Counted in the stats until it is disconnected."""

    def disconnect_producer(self, producer: ConnectedProducer) -> None: ...

    async def prune(self, *, retention_seconds: float, max_entries: int = 1_000) -> int:
        """Drop messages that are older than the retention and acknowledged by every subscription; how many went.

        Without a subscription nothing is dropped: nothing proves that nobody waits for it.
        """

    async def close(self) -> None:
        """Ends all attachments. The segment stays as it is."""


class SegmentData(Protocol):
    async def serve(self, address: SegmentAddress, *, owner_term: int) -> ServedSegment:
        """Open a segment as its owner, under the `ownerTerm` that the metadata store recorded (PROTOCOL 1).

        From its return on nobody with a lower term changes anything here. `Fenced` = somebody has a higher one.
        """
