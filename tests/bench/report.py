"""The same numbers three times: for the terminal, for `docs/benchmarks.md`, and for programs."""

import os
import platform
import shutil
import subprocess
from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

import msgspec
from msgspec import Struct

from tests.bench.measure import Timing
from tests.bench.rows import Floor, Group, Growth, Reading, Row, growth

ROOT: Final = Path(__file__).parents[2]
MARKDOWN: Final = ROOT / "docs" / "benchmarks.md"
JSON: Final = ROOT / "docs" / "benchmarks.json"

HOW_TO_READ: Final = """\
# Benchmarks

Written by `make bench`; do not edit. What each thing costs, and beside it a *floor*: the cheapest thing that could pass
for the same work, measured in the same run and in turns with it. Compare **ratios** across machines and commits; the
times only say how fast one machine was on one day. *Best* is the cost of the work, *median* has whatever else the
machine was doing in it; the ratios are best to best and median to median. The garbage collector is off while the clock
runs.

A target is judged twice, by the best and by the median; one in a ratio is about the first floor. Nothing fails when one
is missed, and no test asserts a time.
"""
HOW_TO_READ_READINGS: Final = """\
Looked at a few times, without a floor. The target is judged by the *worst*, and by the median."""
HOW_TO_READ_GROWTH: Final = """\
The exponent of the cost between two sizes: 1 = twice the size, twice the time. Beside it the exponent that n log n has
between the same sizes, and that of the floor, which shows what the machine's caches do to a bare loop."""

ROW_TITLES: Final = (
    "what",
    "size",
    "best",
    "median",
    "floor",
    "its best",
    "its median",
    "ratio",
    "of medians",
    "target",
)
READING_TITLES: Final = ("what", "times", "best", "median", "worst", "target")
GROWTH_TITLES: Final = ("series", "from", "to", "exponent", "n log n", "floor", "target")
LEFT: Final = frozenset({"what", "floor", "series", "target"})


class Machine(Struct, frozen=True, rename="camel"):
    """Where the numbers come from, without saying whose machine it is."""

    date: str
    commit: str | None
    python: str
    msgspec: str
    cpus: int | None

    def __str__(self) -> str:
        commit = f", commit {self.commit}" if self.commit else ""
        return f"Python {self.python}, msgspec {self.msgspec}, {self.cpus} CPUs, {self.date}{commit}"


class Result(Struct, frozen=True):
    """One group, measured."""

    group: Group
    rows: tuple[Row, ...]
    readings: tuple[Reading, ...] = ()

    @property
    def growth(self) -> list[Growth]:
        return list(growth(self.rows, self.group.n_log_n))


def this_machine() -> Machine:
    return Machine(
        date=datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        commit=_commit(),
        python=platform.python_version(),
        msgspec=msgspec.__version__,
        cpus=os.cpu_count(),
    )


def _commit() -> str | None:
    """What was measured; None outside a git checkout."""
    git = shutil.which("git")
    if git is None:
        return None
    command = [git, "--no-optional-locks", "-C", str(ROOT)]
    head = subprocess.run([*command, "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False)
    if head.returncode:
        return None
    changed = subprocess.run([*command, "diff", "--quiet", "HEAD", "--", "scalable_topics"], check=False).returncode
    return head.stdout.strip() + (" with local changes" if changed else "")


def terminal(machine: Machine, results: Sequence[Result]) -> str:
    parts = [str(machine)]
    for result in results:
        if result.rows:
            parts += [f"{result.group.name}:", _plain(ROW_TITLES, _row_cells(result.rows))]
        if result.readings:
            parts += [f"{result.group.name}:", _plain(READING_TITLES, _reading_cells(result.readings))]
        if result.growth:
            parts += [f"{result.group.name}, growth:", _plain(GROWTH_TITLES, _growth_cells(result.growth))]
    return "\n\n".join([*parts, _verdict(results)])


def write(machine: Machine, results: Sequence[Result]) -> None:
    MARKDOWN.parent.mkdir(exist_ok=True)
    MARKDOWN.write_text(markdown(machine, results), encoding="utf-8")
    JSON.write_bytes(msgspec.json.format(msgspec.json.encode(_document(machine, results)), indent=2) + b"\n")


def markdown(machine: Machine, results: Sequence[Result]) -> str:
    parts = [HOW_TO_READ, f"{machine}. {_verdict(results)}\n"]
    for result in results:
        parts += [f"## {result.group.name}\n", result.group.about]
        if result.rows:
            parts.append(_piped(ROW_TITLES, _row_cells(result.rows)) + "\n")
        if result.readings:
            parts += [HOW_TO_READ_READINGS + "\n", _piped(READING_TITLES, _reading_cells(result.readings)) + "\n"]
        if result.growth:
            parts += [f"### {result.group.name}: growth\n", HOW_TO_READ_GROWTH + "\n"]
            parts.append(_piped(GROWTH_TITLES, _growth_cells(result.growth)) + "\n")
    return "\n".join(parts)


def _verdict(results: Sequence[Result]) -> str:
    """Targets that are not met are named: nobody should have to look for them."""
    judged = list(_judged(results))
    missed = [name for name, met, _ in judged if not met]
    by_median = sum(1 for _, _, met in judged if met)
    counted = f"{len(judged) - len(missed)} of {len(judged)} targets met, {by_median} of them also by the median."
    return f"{counted} Missed: {'; '.join(missed)}." if missed else counted


def _judged(results: Iterable[Result]) -> Iterator[tuple[str, bool, bool]]:
    """Every target: of what it is, is it met, and is it met by the median too? Growth is only judged by the best."""
    for result in results:
        for row in result.rows:
            if row.met is not None:
                size = "" if row.size is None else f" at {row.size:,}"
                yield f"{row.name}{size}", row.met, row.met and bool(row.met_by_median)
        for reading in result.readings:
            if reading.met is not None:
                yield reading.name, reading.met, reading.met and bool(reading.met_by_median)
        for step in result.growth:
            if step.met is not None:
                yield f"growth of {step.series} from {step.smaller:,} to {step.larger:,}", step.met, step.met


def _row_cells(rows: Iterable[Row]) -> list[tuple[str, ...]]:
    """A line per row; floors after the first have lines of their own, under it."""
    cells: list[tuple[str, ...]] = []
    for row in rows:
        size = "" if row.size is None else f"{row.size:,}"
        first, *others = (_floor_cells(row, floor) for floor in row.floors)
        cells.append((row.name, size, _time(row.timing.best_ns), _time(row.timing.median_ns), *first, _target(row)))
        cells += [("", "", "", "", *other, "") for other in others]
    return cells


def _floor_cells(row: Row, floor: Floor) -> tuple[str, ...]:
    ratios = f"{row.ratio(floor):.2f}", f"{row.median_ratio(floor):.2f}"
    return floor.name, _time(floor.timing.best_ns), _time(floor.timing.median_ns), *ratios


def _target(row: Row) -> str:
    if row.target_ratio is not None:
        return f"ratio {row.target_ratio:g}: {_both(row.met, row.met_by_median)}"
    return "" if row.target_ns is None else f"under {_short(row.target_ns)}: {_both(row.met, row.met_by_median)}"


def _reading_cells(readings: Iterable[Reading]) -> list[tuple[str, ...]]:
    return [
        (
            reading.name,
            str(len(reading.values)),
            *(_amount(value, reading.unit) for value in (reading.best, reading.median, reading.worst)),
            ""
            if reading.limit is None
            else f"at most {reading.limit:g} {reading.unit}: {_both(reading.met, reading.met_by_median)}",
        )
        for reading in readings
    ]


def _amount(value: float, unit: str) -> str:
    return f"{value:,.0f} {unit}" if abs(value) >= 1_000 else f"{value:.3g} {unit}"


def _growth_cells(found: Iterable[Growth]) -> list[tuple[str, ...]]:
    return [
        (
            f"{step.series} (overall)" if step.overall else step.series,
            f"{step.smaller:,}",
            f"{step.larger:,}",
            f"{step.exponent:.3f}",
            f"{step.n_log_n:.3f}",
            f"{step.floor:.3f}",
            "" if step.met is None else f"at most n log n: {_met(step.met)}",
        )
        for step in found
    ]


def _met(met: bool | None) -> str:
    return "met" if met else "NOT MET"


def _both(met: bool | None, by_median: bool | None) -> str:
    return _met(met) if met == by_median else f"{_met(met)} (median {_met(by_median)})"


def _time(ns: float) -> str:
    for unit, factor in (("ms", 1e6), ("µs", 1e3)):
        if ns >= factor:
            return f"{ns / factor:.1f} {unit}" if ns >= 10 * factor else f"{ns / factor:.2f} {unit}"
    return f"{ns:.0f} ns"


def _short(ns: float) -> str:
    return f"{ns / 1e6:g} ms" if ns >= 1e6 else f"{ns / 1e3:g} µs"


def _plain(titles: Sequence[str], lines: Iterable[Sequence[str]]) -> str:
    padded = _padded(titles, lines)
    return "\n".join(["  ".join(cells).rstrip() for cells in padded])


def _piped(titles: Sequence[str], lines: Iterable[Sequence[str]]) -> str:
    head, *body = _padded(titles, lines)
    rule = [
        "-" * len(cell) if title in LEFT else "-" * (len(cell) - 1) + ":"
        for title, cell in zip(titles, head, strict=True)
    ]
    return "\n".join("| " + " | ".join(cells) + " |" for cells in (head, rule, *body))


def _padded(titles: Sequence[str], lines: Iterable[Sequence[str]]) -> list[list[str]]:
    table = [titles, *lines]
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    return [
        [
            cell.ljust(width) if title in LEFT else cell.rjust(width)
            for title, cell, width in zip(titles, cells, widths, strict=True)
        ]
        for cells in table
    ]


def _document(machine: Machine, results: Iterable[Result]) -> dict[str, object]:
    return {
        "machine": machine,
        "groups": [
            {
                "name": result.group.name,
                "rows": [_row_document(row) for row in result.rows],
                "readings": [_reading_document(reading) for reading in result.readings],
                "growth": [_growth_document(step) for step in result.growth],
            }
            for result in results
        ],
    }


def _row_document(row: Row) -> dict[str, object]:
    return {
        "name": row.name,
        "size": row.size,
        "series": row.series,
        **_timing_document(row.timing),
        "floors": [
            {
                "name": floor.name,
                **_timing_document(floor.timing),
                "ratio": round(row.ratio(floor), 3),
                "medianRatio": round(row.median_ratio(floor), 3),
            }
            for floor in row.floors
        ],
        "targetNs": row.target_ns,
        "targetRatio": row.target_ratio,
        "met": row.met,
        "metByMedian": row.met_by_median,
    }


def _reading_document(reading: Reading) -> dict[str, object]:
    return {
        "name": reading.name,
        "unit": reading.unit,
        "values": [round(value, 4) for value in reading.values],
        "median": round(reading.median, 4),
        "limit": reading.limit,
        "met": reading.met,
        "metByMedian": reading.met_by_median,
    }


def _timing_document(timing: Timing) -> dict[str, object]:
    return {
        "bestNs": round(timing.best_ns, 1),
        "medianNs": round(timing.median_ns, 1),
        "batches": timing.batches,
        "runsPerBatch": timing.runs_per_batch,
    }


def _growth_document(step: Growth) -> dict[str, object]:
    return {
        "series": step.series,
        "from": step.smaller,
        "to": step.larger,
        "overall": step.overall,
        "exponent": round(step.exponent, 4),
        "nLogN": round(step.n_log_n, 4),
        "floor": round(step.floor, 4),
        "met": step.met,
    }
