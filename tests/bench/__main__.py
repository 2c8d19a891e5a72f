"""Measure what the project costs against floors measured beside it; print a table, write docs/benchmarks.{md,json}."""

import argparse
import sys

from tests.bench import report
from tests.bench.groups import GROUPS


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.bench", description=__doc__)
    parser.add_argument(
        "--group",
        action="append",
        choices=sorted(GROUPS),
        help="measure only this group (may be repeated); the files are left alone, they always show a whole run",
    )
    parser.add_argument("--seconds", type=float, default=1.5, help="time to spend on each row (default: %(default)s)")
    arguments = parser.parse_args()
    chosen = [group for name, group in GROUPS.items() if name in (arguments.group or GROUPS)]
    machine = report.this_machine()
    results = []
    for group in chosen:
        print(f"measuring {group.name} ...", file=sys.stderr)
        rows = () if group.rows is None else tuple(group.rows(arguments.seconds))
        readings = () if group.readings is None else tuple(group.readings())
        results.append(report.Result(group, rows, readings))
    print(report.terminal(machine, results))
    if not arguments.group:
        report.write(machine, results)
        print(f"\nwritten: {report.MARKDOWN.relative_to(report.ROOT)}, {report.JSON.relative_to(report.ROOT)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
