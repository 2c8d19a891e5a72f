"""Writing a fact: fenced, compared, together with what belongs to it, and never left in doubt by one lost answer.

This is the one place where unknown outcomes are resolved (PROTOCOL 2). A write whose answer was lost is sent again as
it was. Its compares decide: if the first one did not happen, this one does, and the first can no longer; if it did,
this one is refused, and what the store found instead shows that it is ours.
"""

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import Final, Generic, TypeVar

import msgspec
from msgspec import Struct

from scalable_topics.metadata.leadership import Leadership
from scalable_topics.metadata.patience import TRANSIENT, Backoff, in_words
from scalable_topics.metadata.store import (
    Answer,
    Compare,
    CreateRevisionIs,
    Delete,
    KeyValue,
    MetadataStore,
    ModRevisionIs,
    Put,
    Write,
)
from scalable_topics.model.codec import decode_json, encode_json
from scalable_topics.model.errors import LeaseLost, UnknownOutcome, WrongState

RESOLVE_SECONDS: Final = 15.0
"""How long a lost answer is asked after; then the caller is told that it is still unknown."""

T = TypeVar("T")
Happened = Callable[[KeyValue | None], bool]

log = logging.getLogger(__name__)


class Stored(Struct, Generic[T], frozen=True):
    """A fact and the revisions that a later write of it compares."""

    value: T
    create_revision: int
    mod_revision: int


class Deposed(WrongState):
    """This leadership is over: stop at once, and compensate nothing. Nothing was written, unless an answer was lost on
    the way and the next leader has gone on from what we wrote.
    """

    kind = "deposed"


class Conflict(WrongState):
    """Somebody else was faster: read again. Nothing was written, unless an answer was lost on the way and somebody has
    gone on from what we wrote.
    """

    kind = "conflict"


class Kind(Generic[T]):
    """How facts of one type are written down."""

    def __init__(self, of: type[T]) -> None:
        self._decoder = msgspec.json.Decoder(of)

    def decode(self, data: bytes, *, subject: str) -> T:
        return decode_json(data, self._decoder, subject=subject)

    def encode(self, value: T) -> bytes:
        return encode_json(value)


class Change(Struct, frozen=True, kw_only=True):
    """One transaction: a fact (`key`), what it compares, and what is written with it."""

    subject: str
    """For errors: whose fact this is."""
    key: str
    value: bytes | None
    """None = it is deleted."""
    expected: ModRevisionIs | CreateRevisionIs | None
    """Of the fact itself; None = whatever is there is written over, which is for facts that only ever say one thing."""
    lease: int = 0
    leadership: Leadership | None = None
    """Whose write this is; None = any daemon's."""
    compares: tuple[Compare, ...] = ()
    companions: tuple[Write, ...] = ()
    happened: Happened | None = None
    """Given the fact as found after a lost answer: was it our write that made it so? By default: it says what we
    wrote.
    """

    def was_made(self, found: KeyValue | None) -> bool:
        if self.happened is not None:
            return self.happened(found)
        return found is None if self.value is None else found is not None and found.value == self.value


class Applied(Struct, frozen=True):
    """A write that happened. `revision` is of the fact as it is now."""

    revision: int
    doubted: bool = False
    """Its answer was lost, and the store was asked again."""
    later: KeyValue | None = None
    """Until the store was asked again, the fact was written once more: this is what it has become."""


class Transactions:
    """Reads and writes of facts, with what is raised when a write did not happen. `Repository` gives them types."""

    def __init__(self, store: MetadataStore) -> None:
        self.store = store

    async def read(self, key: str, kind: Kind[T], *, subject: str) -> Stored[T] | None:
        """None = it is not there. `DecodeError` names the subject of what cannot be read."""
        items = (await self.store.get(key)).items
        return stored(items[0], kind, subject=subject) if items else None

    async def scan(self, prefix: str) -> tuple[KeyValue, ...]:
        """Everything under a prefix, at one revision, ascending."""
        return (await self.store.scan(prefix)).items

    async def apply(self, change: Change) -> "Applied":
        """It happened.

        Raises `Deposed`, `Conflict`, whatever `commit` raises; `UnknownOutcome` only when the store stayed away for
        longer than `RESOLVE_SECONDS` after an answer was lost: then read before doing anything else.
        """
        fence = change.leadership.fence() if change.leadership is not None else ()
        expected = (change.expected,) if change.expected is not None else ()
        compares = (*expected, *fence, *change.compares)
        fact: Write = Delete(change.key) if change.value is None else Put(change.key, change.value, change.lease)
        answer, doubted = await self._commit((fact, *change.companions), compares, subject=change.subject)
        if answer.succeeded:
            return Applied(answer.revision)
        found = answer.found[0] if expected else None
        if doubted and expected and change.was_made(found):
            if found is None or found.value == change.value:
                return Applied(found.mod_revision if found is not None else answer.revision, doubted)
            return Applied(found.mod_revision, doubted, found)
        if change.leadership is not None and not change.leadership.is_held_by(answer.found[len(expected)]):
            raise Deposed(
                f"term {change.leadership.term} is over", subject=change.subject, remedy="leave it to the next leader"
            )
        raise Conflict("it changed meanwhile", subject=change.subject, remedy="read it again")

    async def _commit(
        self, writes: Sequence[Write], compares: Sequence[Compare], *, subject: str
    ) -> tuple[Answer, bool]:
        """An answer, and whether an earlier one to the same was lost."""
        loop = asyncio.get_running_loop()
        backoff, give_up_at = Backoff(), 0.0
        while True:
            try:
                return await self.store.commit(writes, compares=compares), bool(give_up_at)
            except TRANSIENT as error:
                if isinstance(error, LeaseLost) or not (give_up_at or isinstance(error, UnknownOutcome)):
                    raise
                log.warning("the answer to a write was lost, asking again subject=%s: %s", subject, in_words(error))
                give_up_at = give_up_at or loop.time() + RESOLVE_SECONDS
                if loop.time() >= give_up_at:
                    raise UnknownOutcome(
                        f"whether it was written is not known: {in_words(error)}",
                        subject=subject,
                        remedy="read it before doing anything else",
                    ) from error
            await backoff.wait()


def stored(item: KeyValue, kind: Kind[T], *, subject: str) -> Stored[T]:
    return Stored(kind.decode(item.value, subject=subject), item.create_revision, item.mod_revision)


def unchanged(key: str, known: Stored[T] | None) -> ModRevisionIs:
    """Nobody has written it since it was read; None = it was absent."""
    return ModRevisionIs(key, known.mod_revision if known is not None else 0)


def same_life(key: str, known: Stored[T]) -> CreateRevisionIs:
    """PROTOCOL's I: it is still the same life of the topic."""
    return CreateRevisionIs(key, known.create_revision)


def written(value: T, known: Stored[T] | None, applied: Applied, kind: Kind[T], *, subject: str) -> Stored[T]:
    """What a later write compares, after this one: what we wrote, or what somebody has made of it since."""
    if applied.later is not None:
        return stored(applied.later, kind, subject=subject)
    return Stored(value, known.create_revision if known is not None else applied.revision, applied.revision)
