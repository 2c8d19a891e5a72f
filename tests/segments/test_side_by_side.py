"""Memory and embedded are driven side by side through thousands of random calls, and must answer the same.

Because they run the same rules, both are also held against a third, naive one: lists and sets of what was said. And a
refusal must leave everything as it was, which is what lets a group commit go on after one.
"""

import asyncio
import tempfile
from collections.abc import Awaitable, Callable, Coroutine
from pathlib import Path
from typing import Any, TypeVar

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test
from msgspec import Struct
from msgspec.structs import replace

from scalable_topics.model.errors import ScalableTopicsError
from scalable_topics.model.hash_range import HashRange
from scalable_topics.model.positions import Sentinel
from scalable_topics.segments.attachments import ConsumerAttachment
from scalable_topics.segments.embedded import open_segments
from scalable_topics.segments.memory import MemoryDisk, memory_segments
from scalable_topics.segments.port import (
    EXCLUSIVE,
    NOTHING,
    Appended,
    Message,
    PublishedFrom,
    SegmentFacts,
    Shared,
    Slice,
    StartAt,
)
from scalable_topics.segments.served import Served
from scalable_topics.segments.store import Segments
from tests.segments.worlds import address, at, call, entries_of, stamp

T = TypeVar("T")

ids = st.integers(1, 2)
terms = st.sampled_from([1, 1, 1, 2, 3])
operations = st.sampled_from(["op-1", "op-1", "op-2", "op-3"])
subscriptions = st.sampled_from("st")
name_lists = st.lists(subscriptions, unique=True)
entries = st.integers(0, 12)
starts: st.SearchStrategy[StartAt] = st.one_of(
    st.sampled_from(Sentinel), entries.map(lambda entry: (0, entry)), st.integers(0, 30).map(PublishedFrom)
)
modes = st.sampled_from([EXCLUSIVE, Shared(), Slice(HashRange(0, 0x7FFF)), Slice(HashRange(0x8000, 0xFFFF))])
sent = st.builds(
    Message,
    payload=st.binary(max_size=2),
    producer=st.sampled_from("pq"),
    sequence=st.one_of(st.none(), st.integers(0, 9)),
    key_hash=st.one_of(st.none(), st.integers(0, 2**32 - 1)),
    properties=st.dictionaries(st.just("a"), st.text(max_size=1)),
)


class Naive(Struct):
    """One segment, as somebody with a notebook would remember it."""

    stored: list[Message] = []
    acked: dict[str, set[int]] = {}
    terminated: bool = False


class Side:
    def __init__(self, store: Segments) -> None:
        self.store = store
        self.served: dict[int, Served] = {}
        self.attachments: list[ConsumerAttachment] = []


class SideBySide(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.runner = asyncio.Runner()
        self.now_ms = 10
        self.directory = tempfile.TemporaryDirectory()
        self.disk = MemoryDisk()
        self.naive: dict[int, Naive] = {}
        self.pruned = False
        self.attached: list[tuple[int, str]] = []

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        return self.runner.run(work)

    def clock(self) -> int:
        return self.now_ms

    @initialize()
    def begin(self) -> None:
        async def start() -> list[Side]:
            embedded = await open_segments(Path(self.directory.name), shards=1, now_ms=self.clock)
            return [Side(memory_segments(self.disk, now_ms=self.clock)), Side(embedded)]

        self.sides = self.run(start())
        for segment in (1, 2):
            self.create(segment, "op-1", 1, ["s", "t"], True)
            self.serve(segment, 1)
        self.append(1, [Message(payload=b"", producer="p", sequence=number) for number in range(4)], 0)
        self.attach(1, "s", "a", Shared(), 0)
        self.attach(1, "t", "a", EXCLUSIVE, 1)

    def both(self, ask: Callable[[Side], Awaitable[Any]]) -> Any:
        """Ask both the same; they must say the same, or refuse in the same words."""

        async def one(side: Side) -> Any:
            before = repr(vars(self.disk.rows)) if side is self.sides[0] else ""
            try:
                return await ask(side)
            except ScalableTopicsError as error:
                if side is self.sides[0]:
                    assert repr(vars(self.disk.rows)) == before, "a refusal has changed something"
                return type(error), error.what

        memory, embedded = (self.run(one(side)) for side in self.sides)
        assert memory == embedded
        return memory

    @rule(
        segment=ids, operation=operations, term=terms, names=st.lists(subscriptions, unique=True), empty=st.booleans()
    )
    def create(self, segment: int, operation: str, term: int, names: list[str], empty: bool) -> None:
        async def ask(side: Side) -> SegmentFacts:
            return await side.store.create(
                address(segment), stamp(segment, operation), names, call(operation, term=term), must_be_empty=empty
            )

        if isinstance(self.both(ask), SegmentFacts):
            naive = self.naive.setdefault(segment, Naive([], {}))
            for name in names:
                naive.acked.setdefault(name, self._gone(segment))

    @rule(segment=ids, term=terms)
    def terminate(self, segment: int, term: int) -> None:
        answer = self.both(lambda side: side.store.terminate(address(segment), call(term=term)))
        if self._worked(answer):
            self.naive[segment].terminated = True
            assert answer == self._last(segment)

    @rule(segment=ids, term=terms, sure=st.integers(0, 9))
    def delete(self, segment: int, term: int, sure: int) -> None:
        if not sure and self.both(lambda side: side.store.delete(address(segment), call(term=term))) is None:
            self.naive.pop(segment, None)

    @rule(segment=ids, name=subscriptions, term=terms, at=starts)
    def subscribe(self, segment: int, name: str, term: int, at: StartAt) -> None:
        answer = self.both(lambda side: side.store.create_subscription(address(segment), name, call(term=term), at=at))
        if self._worked(answer) and name not in self.naive[segment].acked:
            self.naive[segment].acked[name] = _through(answer.mark_delete)

    @rule(segment=ids, name=subscriptions, term=terms)
    def unsubscribe(self, segment: int, name: str, term: int) -> None:
        if self.both(lambda side: side.store.delete_subscription(address(segment), name, call(term=term))) is None:
            self.naive[segment].acked.pop(name, None)

    @rule(segment=ids, name=subscriptions, term=terms, operation=operations, to=starts)
    def seek(self, segment: int, name: str, term: int, operation: str, to: StartAt) -> None:
        before = self._facts(segment)
        answer = self.both(lambda side: side.store.seek(address(segment), name, to, call(operation, term=term)))
        if self._worked(answer) and before is not None and answer != before.subscriptions[name]:
            self.naive[segment].acked[name] = _through(answer.mark_delete)

    @rule(segment=ids, name=subscriptions, term=terms, entry=entries)
    def advance(self, segment: int, name: str, term: int, entry: int) -> None:
        answer = self.both(lambda side: side.store.advance(address(segment), name, (0, entry), call(term=term)))
        if self._worked(answer):
            self.naive[segment].acked[name] |= set(range(entry + 1))

    @rule(segment=ids, owner_term=st.integers(1, 3))
    def serve(self, segment: int, owner_term: int) -> None:
        async def ask(side: Side) -> None:
            side.served[segment] = await side.store.serve(address(segment), owner_term=owner_term)

        self.both(ask)

    @rule(segment=ids, batch=st.lists(sent, min_size=1, max_size=3), passed_ms=st.integers(-2, 3))
    def append(self, segment: int, batch: list[Message], passed_ms: int) -> None:
        self.now_ms += passed_ms
        answers = self.both(lambda side: side.served[segment].append(batch)) if self._is_served(segment) else ()
        if self._worked(answers) and isinstance(answers, tuple):
            naive = self.naive[segment]
            for message, answer in zip(batch, answers, strict=False):
                self._check_appended(naive, message, answer)

    def _check_appended(self, naive: Naive, message: Message, answer: Appended) -> None:
        known = [
            entry
            for entry, other in enumerate(naive.stored)
            if message.sequence is not None and (other.producer, other.sequence) == (message.producer, message.sequence)
        ]
        if not known and self.pruned and answer == Appended(None, duplicate=True):
            return  # so old that what was stored around it is gone: it counts as stored
        assert answer.duplicate is bool(known)
        if known:
            assert answer.position in {(0, known[0]), None}
            assert answer.position is not None or self.pruned
        else:
            assert not naive.terminated
            assert answer.position == (0, len(naive.stored))
            naive.stored.append(message)

    @rule(segment=ids, name=subscriptions, consumer=st.sampled_from("ab"), mode=modes, generation=st.integers(0, 3))
    def attach(self, segment: int, name: str, consumer: str, mode: Shared | Slice, generation: int) -> None:
        async def ask(side: Side) -> None:
            attachment = await side.served[segment].attach(name, consumer, mode, generation=generation)
            side.attachments.append(attachment)

        if self._is_served(segment) and self.both(ask) is None:
            self.attached.append((segment, name))

    @rule(data=st.data(), permits=st.integers(0, 8))
    def receive(self, data: st.DataObject, permits: int) -> None:
        number = self._choose(data)
        if number is None:
            return
        expected: list[int] = []
        more = [False]

        async def at_once(side: Side) -> tuple[list[int], bool]:
            """All that is there. Memory never waits for anything but news, so what is not there at once is not."""
            more[0] = True
            side.attachments[number].permit(permits)
            while True:
                receiving = asyncio.create_task(side.attachments[number].receive())
                for _ in range(3):
                    await asyncio.sleep(0)
                if not receiving.done():
                    receiving.cancel()
                    await asyncio.wait([receiving])
                    more[0] = False
                    return expected, False
                deliveries = receiving.result()
                if not deliveries:
                    return expected, True
                expected.extend(entries_of(deliveries))

        async def as_many(side: Side) -> tuple[list[int], bool]:
            """The same number, and then the end or the refusal if there was one."""
            side.attachments[number].permit(permits)
            got: list[int] = []
            async with asyncio.timeout(5):
                while len(got) < len(expected):
                    got += entries_of(await side.attachments[number].receive())
                return got, more[0] and not await side.attachments[number].receive()

        got = self.both(lambda side: at_once(side) if side is self.sides[0] else as_many(side))
        segment, name = self.attached[number]
        if isinstance(got[0], list):
            assert not set(got[0]) & self.naive[segment].acked[name], "what is acknowledged is not delivered again"

    @rule(data=st.data(), chosen=st.lists(entries, max_size=3))
    def acknowledge(self, data: st.DataObject, chosen: list[int]) -> None:
        number = self._choose(data)
        if number is not None and self.both(lambda side: side.attachments[number].ack(at(*chosen))) is None:
            segment, name = self.attached[number]
            self.naive[segment].acked[name] |= set(chosen)

    @rule(data=st.data(), entry=entries)
    def acknowledge_through(self, data: st.DataObject, entry: int) -> None:
        number = self._choose(data)
        if number is not None and self.both(lambda side: side.attachments[number].ack_through((0, entry))) is None:
            segment, name = self.attached[number]
            self.naive[segment].acked[name] |= set(range(entry + 1))

    @rule(data=st.data(), chosen=st.lists(entries, max_size=3))
    def nack_or_detach(self, data: st.DataObject, chosen: list[int]) -> None:
        number = self._choose(data)

        async def ask(side: Side) -> None:
            if number is not None and chosen:
                side.attachments[number].nack(at(*chosen))
            elif number is not None:
                await side.attachments[number].close()

        self.both(ask)

    @rule(segment=ids, retention_ms=st.integers(0, 4), most=st.integers(1, 5))
    def prune(self, segment: int, retention_ms: int, most: int) -> None:
        if self._is_served(segment):
            ask = lambda side: side.served[segment].prune(retention_seconds=retention_ms / 1_000, max_entries=most)  # noqa: E731
            self.pruned |= bool(self._worked(self.both(ask)))

    @rule(segment=ids, start=starts)
    def read(self, segment: int, start: StartAt) -> None:
        if self._is_served(segment):
            found = self.both(lambda side: side.served[segment].read(start, max_entries=5))
            if self._worked(found) and isinstance(found, tuple) and found and not isinstance(found[0], type):
                assert [self.naive[segment].stored[one.position[1]] for one in found] == [one.message for one in found]

    @invariant()
    def they_agree_with_each_other_and_with_the_notebook(self) -> None:
        if not hasattr(self, "sides"):
            return
        self.both(lambda side: side.store.list())
        for segment in (1, 2):
            facts = self._facts(segment)
            naive = self.naive.get(segment)
            assert (facts is None) is (naive is None)
            if facts is None or naive is None:
                continue
            assert facts.last == self._last(segment)
            assert facts.terminated == (self._last(segment) if naive.terminated else None)
            assert facts.subscriptions.keys() == naive.acked.keys()
            for name, cursor in facts.subscriptions.items():
                open_entries = [entry for entry in range(len(naive.stored)) if entry not in naive.acked[name]]
                assert cursor.backlog == len(open_entries)
                first_open = open_entries[0] if open_entries else len(naive.stored)
                assert cursor.mark_delete == ((0, first_open - 1) if first_open else NOTHING)

    def teardown(self) -> None:
        async def end() -> None:
            for side in getattr(self, "sides", []):
                await side.store.close()

        self.run(end())
        self.runner.close()
        self.directory.cleanup()

    def _facts(self, segment: int) -> SegmentFacts | None:
        async def ask(side: Side) -> tuple[SegmentFacts, object]:
            facts = await side.store.describe(address(segment))
            return facts, replace(await side.store.stats(address(segment)), rates=None)

        answer = self.both(ask)
        return answer[0] if isinstance(answer[0], SegmentFacts) else None

    def _choose(self, data: st.DataObject) -> int | None:
        return data.draw(st.integers(max(0, len(self.attached) - 3), len(self.attached) - 1)) if self.attached else None

    def _is_served(self, segment: int) -> bool:
        return segment in self.sides[0].served

    def _worked(self, answer: Any) -> bool:
        refused = isinstance(answer, tuple) and bool(answer) and isinstance(answer[0], type)
        return bool(answer) and not refused

    def _last(self, segment: int) -> tuple[int, int]:
        stored = self.naive[segment].stored
        return (0, len(stored) - 1) if stored else NOTHING

    def _gone(self, segment: int) -> set[int]:
        """What a cursor at the beginning does not see, because it was pruned."""
        first = self.run(self._first_entry(segment))
        return set(range(first))

    async def _first_entry(self, segment: int) -> int:
        row = self.disk.rows.segment(address(segment).physical)
        assert row is not None
        return row.first_entry


def _through(mark_delete: tuple[int, int]) -> set[int]:
    return set(range(mark_delete[1] + 1))


def test_memory_and_embedded_answer_the_same() -> None:
    run_state_machine_as_test(SideBySide, settings=settings(max_examples=60, stateful_step_count=40))
