"""The dispatcher by itself: given these events, then exactly these instructions."""

from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scalable_topics.model.errors import InvalidArgument, WrongState
from scalable_topics.model.hash_range import FULL_RANGE, HashRange
from scalable_topics.segments import dispatch
from scalable_topics.segments.dispatch import (
    Acked,
    AckedThrough,
    Attached,
    Deliver,
    Dispatcher,
    End,
    Evict,
    Gone,
    Grown,
    Load,
    Loaded,
    LoadFailed,
    Nacked,
    Permitted,
)
from scalable_topics.segments.errors import StaleGeneration

LOW, HIGH = HashRange(0, 9), HashRange(10, 19)


def dispatcher(
    next_entry: int = 0, *, mark_delete: int = -1, acked: tuple[int, ...] = (), terminated: bool = False
) -> Any:
    return Dispatcher(mark_delete=mark_delete, acked=acked, next_entry=next_entry, terminated=terminated)


def hashed(*entries: int, bucket: int = 0) -> list[tuple[int, int]]:
    return [(entry, bucket) for entry in entries]


def test_what_is_permitted_is_loaded_and_delivered() -> None:
    one = dispatcher(5)

    assert one.handle(Attached(1, "a", FULL_RANGE, 1)) == []
    assert one.handle(Permitted(1, 2)) == [Load(0, 2)]
    assert one.handle(Permitted(1, 1)) == [], "there is one load at a time"
    assert one.handle(Loaded(hashed(0, 1), 1)) == [Deliver(1, ((0, 0), (1, 0))), Load(2, 1)]
    assert one.handle(LoadFailed()) == [Load(2, 1)]
    assert one.handle(Loaded(hashed(2), 2)) == [Deliver(1, ((2, 0),))]
    assert one.unacked == 3


def test_it_starts_behind_the_mark_and_passes_over_what_is_acknowledged() -> None:
    one = dispatcher(6, mark_delete=1, acked=(3,))
    one.handle(Attached(1, "a", None, 0))

    assert one.handle(Permitted(1, 9)) == [Load(2, 4)]
    assert one.handle(Acked([5])) == [], "acknowledged before it was loaded"
    assert one.handle(Loaded(hashed(2, 3, 4, 5), 5)) == [Deliver(1, ((2, 0), (4, 0)))]


def test_the_end_comes_when_everything_is_acknowledged_and_only_once() -> None:
    one = dispatcher(1)
    one.handle(Attached(1, "a", FULL_RANGE, 1))
    one.handle(Permitted(1, 5))
    one.handle(Loaded(hashed(0), 0))

    assert one.handle(Grown(1, terminated=True)) == []
    assert one.handle(Acked([0])) == [End(1)]
    assert one.handle(Acked([0])) == []
    assert dispatcher(0, terminated=True).handle(Attached(1, "a", None, 0)) == [End(1)]


def test_a_takeover_evicts_and_the_newcomer_gets_what_was_unacknowledged_first() -> None:
    one = dispatcher(3)
    one.handle(Attached(1, "a", FULL_RANGE, 1))
    one.handle(Permitted(1, 2))
    one.handle(Loaded(hashed(0, 1), 1))

    assert one.handle(Attached(2, "b", FULL_RANGE, 2)) == [Evict(1, 2)]
    assert one.handle(Permitted(2, 3)) == [Deliver(2, ((0, 1), (1, 1))), Load(2, 1)]
    with pytest.raises(StaleGeneration):
        one.handle(Attached(3, "a", FULL_RANGE, 1))
    assert one.handle(Permitted(1, 3)) == [], "the evicted one is unknown"


def test_slices_are_apart_and_what_nobody_holds_waits() -> None:
    one = dispatcher(4)
    one.handle(Attached(1, "a", LOW, 1))
    assert one.handle(Permitted(1, 9)) == [Load(0, 4)]
    assert one.handle(Loaded([(0, 15), (1, 5), (2, 99), (3, 15)], 3)) == [Deliver(1, ((1, 0),))]

    assert one.handle(Attached(2, "b", HIGH, 1)) == []
    assert one.handle(Permitted(2, 1)) == [Deliver(2, ((0, 0),))]
    assert one.handle(Nacked(2, [0, 1])) == [], "no permit left, and entry 1 is somebody else's"
    assert one.handle(Permitted(2, 2)) == [Deliver(2, ((0, 1), (3, 0)))]
    assert one.handle(Gone(2)) == []
    assert one.handle(Grown(4, terminated=True)) == []
    assert one.handle(Acked([1])) == [End(1)], "its own slice is done, whatever the others do"


def test_what_is_acknowledged_while_it_waits_is_not_delivered_again() -> None:
    one = dispatcher(2)
    one.handle(Attached(1, "a", FULL_RANGE, 1))
    one.handle(Permitted(1, 2))
    one.handle(Loaded(hashed(0, 1), 1))
    one.handle(Nacked(1, [0, 1]))

    assert one.handle(Acked([0])) == []
    assert one.handle(Permitted(1, 9)) == [Deliver(1, ((1, 1),))]


def test_a_shared_subscription_takes_turns() -> None:
    one = dispatcher(4)
    one.handle(Attached(1, "a", None, 0))
    one.handle(Attached(2, "b", None, 0))
    one.handle(Permitted(1, 2))
    one.handle(Permitted(2, 9))

    assert one.handle(Loaded(hashed(0, 1, 2, 3), 3)) == [Deliver(1, ((0, 0), (2, 0))), Deliver(2, ((1, 0), (3, 0)))]
    assert one.consumers == ("a", "b")


def test_a_cumulative_acknowledgement_reaches_what_is_not_loaded() -> None:
    one = dispatcher(9, acked=(5, 7))
    one.handle(Attached(1, "a", FULL_RANGE, 1))
    one.handle(Permitted(1, 2))
    one.handle(Loaded(hashed(0, 1), 1))

    assert one.handle(AckedThrough(5)) == []
    assert one.unacked == 0
    assert one.handle(Permitted(1, 5)) == [Load(6, 3)]
    assert one.handle(Loaded(hashed(4, 6, 7, 8), 8)) == [Deliver(1, ((6, 0), (8, 0)))]


def test_modes_and_holders_exclude_each_other() -> None:
    one = dispatcher()
    one.handle(Attached(1, "a", LOW, 0))

    with pytest.raises(WrongState):
        one.check("b", None, 0)
    with pytest.raises(WrongState):
        one.check("b", FULL_RANGE, 0)
    one.check("a", FULL_RANGE, 0)
    one.check("b", HIGH, 0)
    one.check("b", LOW, 1)
    with pytest.raises(InvalidArgument):
        one.handle(Permitted(1, -1))


def test_it_looks_ahead_only_so_far(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dispatch, "MAX_LOADED", 3)
    one = dispatcher(9)
    one.handle(Attached(1, "a", LOW, 1))
    one.handle(Permitted(1, 3))

    assert one.handle(Loaded(hashed(0, 1, 2, bucket=15), 2)) == []
    assert one.handle(Acked([1])) == [Load(3, 3)]


actions = st.lists(
    st.tuples(
        st.sampled_from(["attach", "permit", "permit", "load", "load", "ack", "ack", "nack", "gone", "through"]),
        st.integers(0, 30),
        st.integers(0, 30),
    ),
    max_size=60,
)


@given(
    hashes=st.lists(st.integers(0, 19), min_size=1, max_size=20),
    actions=actions,
    mode=st.sampled_from(["shared", "slices"]),
)
@settings(max_examples=300)
def test_whatever_happens_each_message_has_one_holder_and_all_are_delivered(
    hashes: list[int], actions: list[tuple[str, int, int]], mode: str
) -> None:
    world = _World(hashes, shared=mode == "shared")
    for action, first, second in actions:
        world.act(action, first, second)
    world.finish()


class _World:
    """Plays the shell, and watches."""

    def __init__(self, hashes: list[int], *, shared: bool) -> None:
        self.hashes = hashes
        self.shared = shared
        self.one = dispatcher(len(hashes), terminated=True)
        self.alive: dict[int, HashRange | None] = {}
        self.held: dict[int, int] = {}
        self.acked: set[int] = set()
        self.ended: set[int] = set()
        self.permits: dict[int, int] = {}
        self.first_deliveries: list[int] = []
        self.load: Load | None = None
        self.number = 0

    def act(self, action: str, first: int, second: int) -> None:
        chosen = list(self.alive)[first % len(self.alive)] if self.alive else None
        match action:
            case "attach":
                self.number += 1
                start = first % 20
                buckets = None if self.shared else HashRange(start, max(start, second % 20))
                self.alive[self.number] = buckets
                self.permits[self.number] = 0
                self.handle(Attached(self.number, f"c{self.number}", buckets, self.number))
            case "permit" if chosen is not None:
                self.permits[chosen] += second
                self.handle(Permitted(chosen, second))
            case "load" if self.load is not None:
                load, self.load = self.load, None
                if second == 0:
                    self.handle(LoadFailed())
                    return
                entries = range(load.first, load.first + min(load.count, second))
                self.handle(Loaded([(entry, self.hashes[entry]) for entry in entries], entries[-1]))
            case "ack":
                entry = second % len(self.hashes)
                self.acked.add(entry)
                self.held.pop(entry, None)
                self.handle(Acked([entry]))
            case "through" if first < 5:
                entry = second % len(self.hashes)
                self.acked |= set(range(entry + 1))
                self.held = {other: holder for other, holder in self.held.items() if other > entry}
                self.handle(AckedThrough(entry))
            case "nack" if chosen is not None:
                mine = [entry for entry, holder in self.held.items() if holder == chosen][: second % 3]
                for entry in mine:
                    del self.held[entry]
                self.handle(Nacked(chosen, mine))
            case "gone" if chosen is not None and second < 10:
                self.forget(chosen)
                self.handle(Gone(chosen))

    def forget(self, number: int) -> None:
        del self.alive[number]
        self.held = {entry: holder for entry, holder in self.held.items() if holder != number}

    def handle(self, event: Any) -> None:
        for instruction in self._evictions_first(self.one.handle(event)):
            match instruction:
                case Load():
                    assert self.load is None
                    self.load = instruction
                case Evict(attachment=number):
                    self.forget(number)
                case Deliver(attachment=number, entries=entries):
                    for entry, before in entries:
                        self.deliver(number, entry, before)
                case End(attachment=number):
                    assert number not in self.ended
                    self.ended.add(number)
                    buckets = self.alive[number]
                    mine = {entry for entry, one in enumerate(self.hashes) if buckets is None or one in buckets}
                    assert mine <= self.acked

    def deliver(self, number: int, entry: int, before: int) -> None:
        assert entry not in self.held, "delivered to two"
        assert entry not in self.acked, "delivered after it was acknowledged"
        buckets = self.alive[number]
        assert buckets is None or self.hashes[entry] in buckets
        assert self.permits[number] > 0
        self.permits[number] -= 1
        self.held[entry] = number
        if before == 0 and buckets is not None:  # among sharers nobody promises an order
            earlier = [other for other in self.first_deliveries if self.hashes[other] == self.hashes[entry]]
            assert not earlier or max(earlier) < entry, "first deliveries of a key are in order"
            self.first_deliveries.append(entry)

    def _evictions_first(self, instructions: list[Any]) -> Iterator[Any]:
        yield from sorted(instructions, key=lambda one: not isinstance(one, Evict))

    def finish(self) -> None:
        """Somebody attaches for everything, reads it all and acknowledges."""
        for number in list(self.alive):
            self.forget(number)
            self.handle(Gone(number))
        self.number = 99
        self.act("attach", 0, 19)
        self.act("permit", 0, 1_000)
        for _ in range(100):
            self.act("load", 0, 30)
        assert set(self.held) == set(range(len(self.hashes))) - self.acked
        assert self.one.unacked == len(self.held)
        for entry in list(self.held):
            self.act("ack", 0, entry)
        assert 100 in self.ended
