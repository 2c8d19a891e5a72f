"""How long pieces of work take, and how long their floors take at the same moment."""

import gc
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import repeat
from statistics import median
from time import perf_counter_ns
from typing import Final

from msgspec import Struct

LAPS: Final = 5
"""Every row is visited this often, so that a slow spell of the machine does not have a row to itself."""
BATCH_NS: Final = 100_000
"""Short work is repeated until it takes this long, so that reading the clock (some 50 ns) does not show."""
WARM_UP_SHARE: Final = 0.1
MIN_ROUNDS: Final = 3


class Work(Struct, frozen=True):
    """Something to time. A run does `units` of it, so the time of one is a fraction of the run's."""

    name: str
    run: Callable[[], object]
    units: int = 1
    before: Callable[[], None] | None = None
    """Done before every run, untimed: for work that can be done only once on the same thing."""


class Timing(Struct, frozen=True):
    """Per unit. The best is the cost of the work; the median also has the neighbours of that minute in it."""

    best_ns: float
    median_ns: float
    batches: int
    runs_per_batch: int


def measure(rows: Sequence[Sequence[Work]], *, seconds: float) -> list[list[Timing]]:
    """Time rows of work for `seconds` each. The works of a row take turns: a slow moment is one for all of them."""
    watched = [[_Watched(work) for work in row] for row in rows]
    with without_gc():
        for _ in range(LAPS):
            gc.collect()
            for row in watched:
                for _ in _rounds(seconds / LAPS * WARM_UP_SHARE):
                    for each in row:
                        each.time()
                for _ in _rounds(seconds / LAPS):
                    for each in row:
                        each.taken.append(each.time())
    return [[each.timing() for each in row] for row in watched]


class _Watched:
    def __init__(self, work: Work) -> None:
        self.work = work
        self.taken: list[int] = []
        self.runs = 1
        if work.before is None:
            self.runs = max(1, BATCH_NS // max(1, min(self.time() for _ in range(MIN_ROUNDS))))

    def time(self) -> int:
        """One batch, in ns."""
        if self.work.before is not None:
            self.work.before()
        run, turns = self.work.run, repeat(None, self.runs)
        start = perf_counter_ns()
        for _ in turns:
            run()
        return perf_counter_ns() - start

    def timing(self) -> Timing:
        units = self.runs * self.work.units
        return timing_of([taken / units for taken in self.taken], runs_per_batch=self.runs)


def timing_of(samples_ns: Sequence[float], *, runs_per_batch: int = 1) -> Timing:
    """Of samples that were taken in turns elsewhere."""
    return Timing(min(samples_ns), median(samples_ns), len(samples_ns), runs_per_batch)


def _rounds(seconds: float) -> Iterator[int]:
    end = perf_counter_ns() + seconds * 1e9
    done = 0
    while done < MIN_ROUNDS or perf_counter_ns() < end:
        yield done
        done += 1


@contextmanager
def without_gc() -> Iterator[None]:
    """A collection costs what the whole process holds, not what the work at hand made."""
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
