"""The pure core: model and policy, no store and no socket.

Rates, hashes and the like are drawn with a fixed seed, so that every run does the same work.
"""

import json
from bisect import bisect_right
from collections.abc import Iterator, Mapping
from functools import partial
from random import Random
from typing import Final

import msgspec
from msgspec import Struct

from scalable_topics.model.autoscale_policy import AutoScalePolicy
from scalable_topics.model.hash_range import RING_END
from scalable_topics.model.layout import Replacements, SegmentLayout, initial_layout
from scalable_topics.model.load import Rates
from scalable_topics.model.record import TopicRecord, decode_record, encode_record
from scalable_topics.model.replacements import merge, split
from scalable_topics.model.segment import SegmentInfo
from scalable_topics.model.subscription import SubscriptionType
from scalable_topics.policy.assignment import Assignment, Unit, assign
from scalable_topics.policy.autoscale import (
    ConsumerCount,
    Decision,
    KnownLoad,
    Merge,
    NoAction,
    Split,
    TopicView,
    decide,
    explain,
)
from tests.bench.measure import Work
from tests.bench.rows import Case, Group, Row, measured

US: Final = 1_000
MS: Final = 1_000_000
SEED: Final = 20_240_501
AT_MS: Final = 1_700_000_000_000
LONG_AGO_MS: Final = 10 * 3_600_000
"""Beyond every cool-down and window."""

DECIDE_SIZES: Final = (64, 1_024, 10_000)
RECORD_SIZES: Final = (100, 1_000, 4_000)
LARGEST: Final = 10_000
LOOKUPS: Final = 10_000
POLICY: Final = AutoScalePolicy(max_segments=20_000)
INCARNATION: Final = "0" * 16


class Shape(Struct, frozen=True):
    """A kind of load: every rate is a random share between `low` and `high` of its threshold."""

    name: str
    thresholds: Rates
    low: float
    high: float
    expected: type[Decision]


SHAPES: Final = (
    Shape("warm", POLICY.split_thresholds, 0.2, 0.9, NoAction),
    Shape("cold", POLICY.merge_thresholds, 0.0, 0.9, Merge),
    Shape("hot", POLICY.split_thresholds, 1.1, 5.0, Split),
)


def rows(seconds: float) -> list[Row]:
    return measured([*_decisions(), *_changes(), *_lookups(), *_records(), *_assignments()], seconds=seconds)


def _decisions() -> Iterator[Case]:
    for shape in SHAPES:
        for size in DECIDE_SIZES:
            view = _view(shape, size)
            yield Case(
                work=Work(f"decide, {shape.name}", partial(decide, view, POLICY)),
                floors=(_touch_rates(view.load),),
                size=size,
                series=f"decide, {shape.name}",
                target_ns=150 * US if size == 64 else None,
            )
    for shape in SHAPES:
        view = _view(shape, 64)
        yield Case(
            work=Work(f"explain, {shape.name}", partial(explain, view, POLICY)),
            floors=(_touch_rates(view.load),),
            size=64,
            target_ns=2 * MS,
        )


def _view(shape: Shape, size: int) -> TopicView:
    """A topic on which every rule has to be asked: past all cool-downs, consumers content."""
    random = Random(f"{SEED} {shape.name} {size}")
    layout = initial_layout(size)
    view = TopicView(
        layout=layout,
        load={segment.segment_id: KnownLoad(_rates(shape, random), LONG_AGO_MS) for segment in layout.active},
        consumers={"orders": ConsumerCount(SubscriptionType.STREAM, connected=8)},
        since_last_split_ms=LONG_AGO_MS,
        since_last_merge_ms=LONG_AGO_MS,
        since_last_rebucket_ms=LONG_AGO_MS,
        demand_low_ms=LONG_AGO_MS,
    )
    decision = decide(view, POLICY)
    if not isinstance(decision, shape.expected):
        raise TypeError(f"{shape.name} load at {size} segments led to {decision}: this would measure something else")
    return view


def _rates(shape: Shape, random: Random) -> Rates:
    a, b, c, d = (random.uniform(shape.low, shape.high) * threshold for threshold in shape.thresholds)
    return a, b, c, d


def _touch_rates(load: Mapping[int, KnownLoad]) -> Work:
    def touch() -> float:
        total = 0.0
        for known in load.values():
            a, b, c, d = known.rates
            total += a + b + c + d
        return total

    return Work("loop over the four rates", touch)


def _changes() -> Iterator[Case]:
    layout = _dag(LARGEST)
    segments = dict(layout.segments)
    middle = len(layout.active) // 2
    left, right = layout.active[middle : middle + 2]
    changes: dict[str, Replacements] = {
        "apply a split": split(layout, {left.segment_id: 2}, at_ms=AT_MS),
        "apply a merge": merge(layout, (left.segment_id, right.segment_id), at_ms=AT_MS),
    }
    for name, change in changes.items():
        yield Case(
            work=Work(name, partial(layout.apply, change, at_ms=AT_MS)),
            floors=(Work("dict copy", segments.copy),),
            size=LARGEST,
        )


def _dag(total: int) -> SegmentLayout:
    """`total` segments in three generations and the start of a fourth, so that over half of them are active."""
    layout = initial_layout(total // 7 - (total // 7 - total) % 2, at_ms=AT_MS)
    while (missing := total - len(layout.segments)) > 0:
        chosen = layout.active[: missing // 2]
        layout = layout.apply(split(layout, {s.segment_id: 2 for s in chosen}, at_ms=AT_MS), at_ms=AT_MS)
    layout.check()
    return layout


class _NewLayouts:
    """Layouts that nobody has asked anything yet: what they work out once is still to be worked out."""

    def __init__(self, like: SegmentLayout) -> None:
        self._like = self._next = like

    def renew(self) -> None:
        self._next = SegmentLayout(self._like.epoch, self._like.next_segment_id, self._like.segments)

    def look_up(self) -> SegmentInfo:
        return self._next.find_active(RING_END)


def _lookups() -> Iterator[Case]:
    layout = initial_layout(LARGEST)
    starts = [segment.hash_range.start for segment in layout.active]
    random = Random(SEED)
    hashes = [random.randint(0, RING_END) for _ in range(LOOKUPS)]

    def find() -> None:
        for hash_value in hashes:
            layout.find_active(hash_value)

    def bisect() -> None:
        for hash_value in hashes:
            bisect_right(starts, hash_value)

    yield Case(
        work=Work("find_active, per lookup", find, units=LOOKUPS),
        floors=(Work("bisect", bisect, units=LOOKUPS),),
        size=LARGEST,
        target_ns=2 * US,
    )
    new = _NewLayouts(layout)
    yield Case(
        work=Work("first lookup on a new layout (index build)", new.look_up, before=new.renew),
        floors=(Work("sort the starts", partial(sorted, starts)),),
        size=LARGEST,
    )


def _records() -> Iterator[Case]:
    records = {size: TopicRecord(incarnation=INCARNATION, layout=_dag(size)) for size in RECORD_SIZES}
    for size, record in records.items():
        document = json.loads(encode_record(record))
        yield Case(
            work=Work("encode_record", partial(encode_record, record)),
            floors=(
                Work("json.dumps", partial(json.dumps, document, separators=(",", ":"))),
                Work("msgspec, untyped", partial(msgspec.json.encode, document)),
            ),
            size=size,
            series="encode_record",
            target_ns=2 * MS if size == 1_000 else None,
        )
    for size, record in records.items():
        data = encode_record(record)
        yield Case(
            work=Work("decode_record", partial(decode_record, data)),
            floors=(
                Work("json.loads", partial(json.loads, data)),
                Work("msgspec, untyped", partial(msgspec.json.decode, data)),
            ),
            size=size,
            series="decode_record",
            target_ns=2 * MS if size == 1_000 else None,
        )
    for size, record in records.items():
        yield Case(
            work=Work("SegmentLayout.check", record.layout.check),
            floors=(_touch_edges(dict(record.layout.segments)),),
            size=size,
            series="SegmentLayout.check",
        )


def _touch_edges(segments: Mapping[int, SegmentInfo]) -> Work:
    parents = [segment.parent_ids for segment in segments.values()]

    def touch() -> int:
        total = 0
        for parent_ids in parents:
            for parent_id in parent_ids:
                total += segments[parent_id].segment_id
        return total

    return Work("loop over segments and parents", touch)


def _assignments() -> Iterator[Case]:
    layout = initial_layout(1_024)
    names = [f"consumer-{number:03}" for number in range(256)]
    settled = assign(layout, names, drained=(), previous={})
    hoard = tuple(Unit(segment.segment_id) for segment in layout.active)
    cases: tuple[tuple[str, list[str], Assignment], ...] = (
        ("from nothing", names, {}),
        ("steady", names, settled),
        ("one joins", [*names, "consumer-256"], settled),
        ("one leaves", names[:-1], settled),
        ("one held everything", names, {names[0]: hoard}),
    )
    for name, consumers, previous in cases:
        yield Case(
            work=Work(f"assign, {name}", partial(assign, layout, consumers, drained=(), previous=previous)),
            floors=(_round_robin(layout, consumers),),
            size=1_024,
        )


def _round_robin(layout: SegmentLayout, names: list[str]) -> Work:
    def build() -> dict[str, list[int]]:
        given: dict[str, list[int]] = {name: [] for name in names}
        for turn, segment in enumerate(layout.active):
            given[names[turn % len(names)]].append(segment.segment_id)
        return given

    return Work("round-robin dict", build)


GROUP: Final = Group(
    name="core",
    about=f"""\
The pure core, in memory. Sizes are segments: active ones for `decide`, `explain`, lookups and `assign`; all, of which
57 % are active, for `apply`, records and `check`.

`decide` and `explain` are measured on a layout whose caches are warm (a `TopicView` warms them when it is made), with
a policy that allows {POLICY.max_segments:,} segments and a record size that does not stop autoscaling. Three loads:
*warm* (nothing to do, so every rule is asked), *cold* (every pair could be merged), *hot* (every segment could be
split). Lookups are warm too, except the first one on a new layout, which builds the index. Records hold nothing that
a later version wrote. `assign` is to 256 consumers.
""",
    rows=rows,
    n_log_n=frozenset(f"decide, {shape.name}" for shape in SHAPES),
)
