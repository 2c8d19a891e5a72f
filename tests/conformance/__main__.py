"""Run a cases file: one JSON line per case, then the count; exit status 1 on any failure."""

import argparse
import json
import sys
from collections import Counter
from pathlib import Path

import msgspec

from tests.conformance import adapters  # noqa: F401 - registers what it knows
from tests.conformance.runner import Result, run_file


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.conformance", description=__doc__)
    parser.add_argument("cases", type=Path, help="a cases file in the format of tests/conformance/README.md")
    path = parser.parse_args().cases
    if not path.is_file():
        parser.error(f"there is no file {path}")
    counts: Counter[str] = Counter()
    for result in run_file(path):
        counts[result.status] += 1
        print(_line(result))
    print(f"{counts['pass']} passed, {counts['fail']} failed, {counts['unsupported']} skipped")
    return 1 if counts["fail"] else 0


def _line(result: Result) -> str:
    """One line of JSON, also for what JSON cannot say: half a surrogate pair, a number without end."""
    try:
        return msgspec.json.encode(result, enc_hook=str).decode()
    except (TypeError, ValueError):
        return json.dumps(msgspec.to_builtins(result, enc_hook=str), default=str)


if __name__ == "__main__":
    sys.exit(main())
