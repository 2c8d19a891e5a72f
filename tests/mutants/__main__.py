"""Try mutants of `model/`, `policy/` and `metadata/` until the time is up.

The exit status is 1 when too many survive, or one that was planted by hand.
"""

import argparse
import os
import random
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

import msgspec
import pytest
from msgspec import Struct

from tests.mutants.changes import Mutant, mutants_of
from tests.mutants.trials import Survey, Trial, copy_tree, run_all, run_original

HOME: Final = Path(__file__).resolve().parents[2]
LAYERS: Final = ("model", "policy", "metadata")
ONLY_ON_ETCD: Final = {"etcd.py", "etcd_wire.py", "local_etcd.py"}
"""A real etcd is too slow for all but planted mutants."""
TESTS: Final = ("tests/model", "tests/policy", "tests/conformance", "tests/metadata", "-knot etcd and not storms")
"""Not those that take seconds: they would cost them again for every survivor."""
PROGRESS_SECONDS: Final = 20.0
UNNOTICED: Final = {pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED}


class Planted(Struct, frozen=True, forbid_unknown_fields=True):
    what: str
    file: str
    old: str
    new: str
    tests: tuple[str, ...]
    """What to give pytest, which must fail."""

    def mutant(self, root: Path) -> Mutant:
        text = (root / self.file).read_text(encoding="utf-8")
        if text.count(self.old) != 1:
            raise SystemExit(f"planted.toml, {self.what}: this is not exactly once in {self.file}:\n{self.old}")
        return Mutant(self.file, text, text.replace(self.old, self.new))


def main(arguments: Sequence[str] | None = None, *, home: Path = HOME, tests: Sequence[str] = TESTS) -> int:
    options = _options(arguments)
    deadline = time.monotonic() + 60 * options.minutes
    with TemporaryDirectory(prefix="mutants-") as folder:
        roots = [copy_tree(home, Path(folder).resolve() / str(number)) for number in range(options.workers)]
        mutants = [mutant for mutant in _all_mutants(roots[0]) if options.only in mutant.file]
        random.Random(options.seed).shuffle(mutants)
        mutants = mutants[: options.sample]
        escaped = _try_planted(roots)
        print("looking where the tests come", flush=True)
        survey = Survey(roots[0], tests)
        tried, survivors = _try_mutants(mutants, survey, roots, deadline)
    return _report(mutants, tried, survivors, escaped, options.at_least)


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.mutants", description=__doc__)
    parser.add_argument("--minutes", type=float, default=45, help="begin no further mutant after this (45)")
    parser.add_argument("--sample", type=int, help="how many mutants to try (as many as there is time for)")
    parser.add_argument("--seed", type=int, default=1, help="which mutants come first (1)")
    parser.add_argument("--only", default="", help="part of a path, as in metadata/session.py")
    parser.add_argument("--at-least", type=float, default=95, help="how many percent must be killed (95)")
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1, help="mutants at a time (one per core)")
    return parser.parse_args(arguments)


def _all_mutants(root: Path) -> Iterator[Mutant]:
    for layer in LAYERS:
        for path in sorted((root / "scalable_topics" / layer).rglob("*.py")):
            if path.name not in ONLY_ON_ETCD:
                yield from mutants_of(str(path.relative_to(root)), path.read_text(encoding="utf-8"))


def _try_planted(roots: Sequence[Path]) -> list[str]:
    """What no test has noticed."""
    path = roots[0] / "tests/mutants/planted.toml"
    planted = msgspec.toml.decode(path.read_bytes(), type=dict[str, list[Planted]])["planted"]
    print(f"planting {len(planted)} mutants", flush=True)
    mutants = {one.mutant(roots[0]): one for one in planted}
    run_original(roots[0], sorted({test for one in planted for test in one.tests}))
    trials = (Trial(mutant, one.tests) for mutant, one in mutants.items())
    unnoticed = {trial.mutant for trial, status in run_all(trials, roots) if status in UNNOTICED}
    return [f"{one.what}\n{mutant.diff}" for mutant, one in mutants.items() if mutant in unnoticed]


def _try_mutants(
    mutants: Sequence[Mutant], survey: Survey, roots: Sequence[Path], deadline: float
) -> tuple[list[Mutant], list[Mutant]]:
    """Which were tried, and which of them survived."""
    tried, survivors = list[Mutant](), list[Mutant]()
    begun = shown = time.monotonic()

    def trials() -> Iterator[Trial]:
        for mutant in mutants:
            if time.monotonic() > deadline:
                return
            if trial := survey.trial(mutant):
                yield trial
            else:
                tried.append(mutant)
                survivors.append(mutant)

    for trial, status in run_all(trials(), roots):
        tried.append(trial.mutant)
        survivors += [trial.mutant] if status in UNNOTICED else []
        now = time.monotonic()
        if now - shown > PROGRESS_SECONDS:
            shown = now
            left = min(deadline - now, (now - begun) / len(tried) * (len(mutants) - len(tried)))
            counts = f"{len(tried)} of {len(mutants)} tried, {len(survivors)} survived"
            print(f"{counts}, {left / 60:.1f} minutes left", flush=True)
    return tried, survivors


def _report(
    mutants: Sequence[Mutant],
    tried: Sequence[Mutant],
    survivors: Sequence[Mutant],
    escaped: Sequence[str],
    floor: float,
) -> int:
    counts = [Counter(mutant.file for mutant in some) for some in (mutants, tried, survivors)]
    print(f"\n{'module':<44} mutants   tried  killed       %")
    for file in [*sorted(counts[0]), "total"]:
        there, came, survived = (count.total() if file == "total" else count[file] for count in counts)
        killed = came - survived
        print(f"{file:<44} {there:7} {came:7} {killed:7} {100 * killed / max(came, 1):7.1f}")
    for mutant in sorted(survivors, key=lambda mutant: (mutant.file, mutant.diff)):
        print(f"\nsurvived: {mutant.diff}")
    for one in escaped:
        print(f"\nplanted, and survived: {one}")
    score = 100 * (1 - len(survivors) / len(tried)) if tried else 0.0
    print(f"\n{score:.1f} % of {len(tried)} killed, wanted {floor:g} %; {len(escaped)} planted ones survived")
    return 1 if escaped or score < floor else 0


if __name__ == "__main__":
    sys.exit(main())
