"""What a benchmark is and what comes out of it; the words that groups and reports share."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import pairwise
from math import log
from statistics import median

from msgspec import Struct

from tests.bench.measure import Timing, Work, measure


class Case(Struct, frozen=True, kw_only=True):
    """Work, and at least one floor under it; the first is the one that growth is compared to."""

    work: Work
    floors: tuple[Work, ...]
    size: int | None = None
    series: str | None = None
    """Cases of one series differ only in their size (2 or more), so together they tell how the cost grows."""
    target_ns: float | None = None
    """An aim for the time; None = there is none."""
    target_ratio: float | None = None
    """An aim for the ratio to the first floor."""


class Floor(Struct, frozen=True):
    name: str
    timing: Timing


class Row(Struct, frozen=True, kw_only=True):
    """A case, measured."""

    name: str
    timing: Timing
    floors: tuple[Floor, ...]
    size: int | None = None
    series: str | None = None
    target_ns: float | None = None
    target_ratio: float | None = None

    @property
    def met(self) -> bool | None:
        """By the best: what the work costs, without the neighbours."""
        return self._met(self.timing.best_ns, self.ratio(self.floors[0]))

    @property
    def met_by_median(self) -> bool | None:
        return self._met(self.timing.median_ns, self.median_ratio(self.floors[0]))

    def _met(self, taken_ns: float, ratio: float) -> bool | None:
        if self.target_ratio is not None:
            return ratio <= self.target_ratio
        return None if self.target_ns is None else taken_ns < self.target_ns

    def ratio(self, floor: Floor) -> float:
        return self.timing.best_ns / floor.timing.best_ns

    def median_ratio(self, floor: Floor) -> float:
        return self.timing.median_ns / floor.timing.median_ns


class Reading(Struct, frozen=True, kw_only=True):
    """Something that is looked at a few times and has no floor, such as a take-over: every look counts."""

    name: str
    unit: str
    values: tuple[float, ...]
    limit: float | None = None
    """An aim for the worst; None = there is none."""

    @property
    def best(self) -> float:
        return min(self.values)

    @property
    def median(self) -> float:
        return median(self.values)

    @property
    def worst(self) -> float:
        return max(self.values)

    @property
    def met(self) -> bool | None:
        return None if self.limit is None else self.worst <= self.limit

    @property
    def met_by_median(self) -> bool | None:
        return None if self.limit is None else self.median <= self.limit


def measured(cases: Sequence[Case], *, seconds: float) -> list[Row]:
    """The rows of these cases, each after about so many seconds."""
    timings = measure([(case.work, *case.floors) for case in cases], seconds=seconds)
    return [
        Row(
            name=case.work.name,
            timing=timing,
            floors=tuple(Floor(work.name, floor) for work, floor in zip(case.floors, floors, strict=True)),
            size=case.size,
            series=case.series,
            target_ns=case.target_ns,
            target_ratio=case.target_ratio,
        )
        for case, (timing, *floors) in zip(cases, timings, strict=True)
    ]


class Group(Struct, frozen=True):
    """The benchmarks of one layer. `rows` measures against floors, each row in about the seconds it is given;
    `readings` takes the time that it takes.
    """

    name: str
    about: str
    """Markdown for the report: what is measured, and how."""
    rows: Callable[[float], Sequence[Row]] | None = None
    readings: Callable[[], Sequence[Reading]] | None = None
    n_log_n: frozenset[str] = frozenset()
    """The series that should not grow faster than n log n."""


class Growth(Struct, frozen=True):
    """The exponent between two sizes: 1 = twice the size, twice the time; 2 = four times.

    The floor's own is beside it, because even a bare loop grows by more than 1 once its data outgrows a cache.
    """

    series: str
    smaller: int
    larger: int
    overall: bool
    """From the smallest size to the largest?"""
    exponent: float
    n_log_n: float
    """What n log n has between these sizes."""
    floor: float
    aimed: bool
    """Is n log n an aim, or only there to compare?"""

    @property
    def met(self) -> bool | None:
        return self.exponent <= self.n_log_n if self.aimed else None


def growth(rows: Iterable[Row], n_log_n: frozenset[str]) -> Iterator[Growth]:
    """Of every series: from each size to the next, then overall."""
    by_series: dict[str, dict[int, Row]] = {}
    for row in rows:
        if row.series is not None and row.size is not None:
            by_series.setdefault(row.series, {})[row.size] = row
    for series, by_size in by_series.items():
        sizes = sorted(by_size)
        steps = dict.fromkeys((*pairwise(sizes), (sizes[0], sizes[-1])))
        for a, b in steps:
            small, large = by_size[a], by_size[b]
            yield Growth(
                series=series,
                smaller=a,
                larger=b,
                overall=(a, b) == (sizes[0], sizes[-1]),
                exponent=_exponent(a, small.timing.best_ns, b, large.timing.best_ns),
                n_log_n=_exponent(a, a * log(a), b, b * log(b)),
                floor=_exponent(a, small.floors[0].timing.best_ns, b, large.floors[0].timing.best_ns),
                aimed=series in n_log_n,
            )


def _exponent(small: int, cost_of_small: float, large: int, cost_of_large: float) -> float:
    return log(cost_of_large / cost_of_small) / log(large / small)
