"""`scalable-topics rehearse`: a topic under a day of load, with the real rules, in a second.

No cluster, no store: the pure core on a clock of its own. What it prints is what the controller would do, and why.
"""

import argparse
import csv
import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import msgspec

from scalable_topics.model.autoscale_policy import parse_override, resolve_policy
from scalable_topics.model.errors import InvalidArgument
from scalable_topics.model.hash_range import RING_SIZE
from scalable_topics.model.layout import SegmentLayout
from scalable_topics.model.load import Rates
from scalable_topics.model.quantities import parse_seconds
from scalable_topics.model.subscription import SubscriptionType
from scalable_topics.policy.autoscale import ConsumerCount, NoAction, describe, explain
from scalable_topics.policy.rehearsal import Rehearsal, begin, density_load, even, step

EVALUATION_SECONDS: Final = 60
DAY_MS: Final = 86_400_000
BYTES_PER_MESSAGE: Final = 1_000
BAR_WIDTH: Final = 48
POLICY_EXAMPLE: Final = """'{"maxSegments": 16, "splitCooldownSeconds": "30s"}'"""


def add_command(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    parser = commands.add_parser(
        "rehearse",
        help="see what autoscaling would do under a load",
        description="Run the autoscaling rules over a load on simulated time; print every change with its reason.",
    )

    def option(name: str, **details: Any) -> None:
        parser.add_argument(name, **details)

    option("--load", type=Path, metavar="FILE", help="CSV of timestamp,value in messages/s (default: a built-in day)")
    option("--step", default="5m", metavar="DURATION", help="time between two rows of the file (default: %(default)s)")
    option("--scale", type=float, default=1.0, help="multiply every value of the file (default: %(default)s)")
    option("--segments", type=int, default=1, help="segments to begin with (default: %(default)s)")
    option("--consumers", type=int, default=0, help="consumers of one STREAM subscription (default: %(default)s)")
    option("--policy", default="{}", metavar="JSON", help=f"fields over the defaults, such as {POLICY_EXAMPLE}")
    option("--explain", action="store_true", help="print the whole explanation of every change")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    policy = resolve_policy(parse_override(_json(options.policy)))
    if not math.isfinite(options.scale) or options.scale < 0:
        raise InvalidArgument(f"--scale {options.scale} is not a factor", remedy="give a number of 0 or more")
    row_seconds = parse_seconds(options.step)
    if row_seconds <= 0:
        raise InvalidArgument("--step must be longer than nothing", remedy="write 5m or 30s")
    series = list(_read(options.load, options.scale) if options.load else _built_in_day(row_seconds))
    if not series:
        raise InvalidArgument(
            f"--step {options.step} leaves nothing of the load to evaluate", remedy="give a shorter one"
        )
    consumers = {"rehearsal": ConsumerCount(SubscriptionType.STREAM, options.consumers)}
    topic = begin(segments=options.segments, policy=policy, now_ms=1)
    changes = 0
    fewest: dict[int, int] = {}
    print(f"{'time':>8}  {'msg/s':>9}  segments")
    print(_line(1, series[0], topic.layout))
    evaluations = max(1, int(len(series) * row_seconds / EVALUATION_SECONDS))
    for index in range(evaluations):
        now_ms = 1 + index * EVALUATION_SECONDS * 1000
        rate = series[min(int(index * EVALUATION_SECONDS / row_seconds), len(series) - 1)]
        done = step(topic, now_ms=now_ms, load_of=density_load(even, _rates(rate)), consumers=consumers, policy=policy)
        topic = done.after
        day = now_ms // DAY_MS
        fewest[day] = min(fewest.get(day, RING_SIZE), len(topic.layout.active))
        if not isinstance(done.decision, NoAction):
            changes += 1
            print(f"{_line(now_ms, rate, topic.layout)}  {describe(done.decision)}")
            if options.explain:
                print("\n".join(f"{'':10}{line}" for line in str(explain(done.view, policy)).splitlines()))
    _summary(topic, changes, fewest)
    return 0


def _summary(topic: Rehearsal, changes: int, fewest: Mapping[int, int]) -> None:
    """`fewest`: of each day, the least number of active segments."""
    least = min(fewest.values())
    days = sum(1 for segments in fewest.values() if segments == least)
    print(f"down to {least} active segments on {days} of {len(fewest)} days")
    print(f"{changes} changes, epoch {topic.layout.epoch}, {len(topic.layout.active)} active segments at the end")


def _line(now_ms: int, rate: float, layout: SegmentLayout) -> str:
    minutes = now_ms // 60_000
    clock = f"{minutes // 1440}d {minutes // 60 % 24:02}:{minutes % 60:02}"
    return f"{clock:>8}  {rate:9,.0f}  {_bar(layout)} {len(layout.active):>3}"


def _bar(layout: SegmentLayout) -> str:
    """The ring from left to right, a line wherever one segment ends and the next begins."""
    starts = {segment.hash_range.start * BAR_WIDTH // RING_SIZE for segment in layout.active}
    return "".join("│" if column in starts else "─" for column in range(BAR_WIDTH)) + "│"


def _rates(messages: float) -> Rates:
    return messages, messages * BYTES_PER_MESSAGE, messages, messages * BYTES_PER_MESSAGE


def _built_in_day(row_seconds: float) -> Iterator[float]:
    """Night, morning, noon, evening, and a flash crowd at 20:00."""
    for row in range(int(86_400 / row_seconds)):
        hour = row * row_seconds / 3600
        tide = 9_000 * (1 - math.cos(2 * math.pi * hour / 24))
        crowd = 60_000 * math.exp(-(((hour - 20) / 0.4) ** 2))
        yield 200 + tide + crowd


def _read(path: Path, scale: float) -> Iterator[float]:
    try:
        with path.open(newline="", encoding="utf-8") as file:
            yield from _values(csv.DictReader(file), path, scale)
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise InvalidArgument(f"cannot read it: {error}", subject=str(path)) from error


def _values(rows: "csv.DictReader[str]", path: Path, scale: float) -> Iterator[float]:
    seen = False
    for row in rows:
        where = f"{path}, line {rows.line_num}"
        try:
            value = float(row["value"])
        except (KeyError, TypeError, ValueError):
            raise InvalidArgument(
                "there is no number under 'value'", subject=where, remedy="columns: timestamp,value"
            ) from None
        if not math.isfinite(value) or value < 0:
            raise InvalidArgument(f"{value} is not a rate", subject=where, remedy="rates are 0 or more")
        seen = True
        yield value * scale
    if not seen:
        raise InvalidArgument("it holds no rows", subject=str(path), remedy="columns: timestamp,value")


def _json(text: str) -> object:
    try:
        return msgspec.json.decode(text)
    except (ValueError, RecursionError) as error:
        raise InvalidArgument(f"--policy is not JSON: {error}", remedy=f"try {POLICY_EXAMPLE}") from error
