"""Try mutants of `model/` and `policy/` against the unit and conformance tests; exit status 1 below the wanted score.

Ends when every mutant of the sample is tried or the time is up, and says which. 2 means that nothing could be tried,
130 that it was interrupted.
"""

import argparse
import os
import signal
import sys
import time
from fnmatch import fnmatchcase
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from tests.mutants import report
from tests.mutants.progress import Progress
from tests.mutants.sampling import in_order
from tests.mutants.trials import NotReady, Trials, Verdict
from tests.mutants.verdicts import Findings, load_equivalents, weigh
from tests.mutants.workspace import WORKSPACE, make_workspace, save_exit_codes

INTERRUPTED = 130

MUTMUT_EXIT_CODES = {Verdict.KILLED: 1, Verdict.SURVIVED: 0, Verdict.TIMEOUT: 36, Verdict.UNCOVERED: 33}


def main() -> int:
    options = _options()
    os.environ["HYPOTHESIS_PROFILE"] = "mutants"
    os.chdir(Path(__file__).parents[2])
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, _interrupt)
    started = time.monotonic()
    deadline = started + options.minutes * 60
    claims = [claim for claim in load_equivalents() if fnmatchcase(claim.function, options.only)]
    print(f"making mutants in {WORKSPACE}/", flush=True)
    mutants = [mutant for mutant in make_workspace() if fnmatchcase(mutant.place, options.only)]
    order = in_order(mutants, seed=options.seed)[: options.sample]
    progress = Progress(len(order), deadline=deadline)
    trials = Trials(
        order,
        deadline=deadline,
        workers=options.workers,
        tell=lambda news: progress.say(news) if news else progress.show(trials.outcomes),
    )
    try:
        status = trials.run()
    except NotReady as problem:
        print(problem, file=sys.stderr)
        return 2
    if not trials.outcomes:
        print("no mutant was tried: no time, or nothing to try", file=sys.stderr)
        return INTERRUPTED if status is pytest.ExitCode.INTERRUPTED else 2
    progress.show(trials.outcomes, last=True)
    save_exit_codes({mutant.name: MUTMUT_EXIT_CODES[outcome.verdict] for mutant, outcome in trials.outcomes.items()})
    findings = weigh(mutants, trials.outcomes, claims)
    facts = {
        "seed": options.seed,
        "mutants": len(mutants),
        "sample": len(order),
        "tried": len(trials.outcomes),
        "tests": len(trials.records),
        "minutes": round((time.monotonic() - started) / 60, 1),
        "score": round(findings.total.percent, 1),
        "at_least": options.at_least,
    }
    report.write(findings, trials.outcomes, facts)
    _tell(findings, facts)
    if status is pytest.ExitCode.INTERRUPTED:
        return INTERRUPTED
    return 0 if findings.total.percent >= options.at_least else 1


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.mutants", description=__doc__)
    parser.add_argument("--minutes", type=float, default=40, help="begin no further mutant after this (40)")
    parser.add_argument("--sample", type=int, help="how many mutants to try (as many as there is time for)")
    parser.add_argument("--seed", type=int, default=1, help="which mutants a sample has (1)")
    parser.add_argument("--only", default="*", help="a pattern of functions, as in model.layout.SegmentLayout.* (*)")
    parser.add_argument("--at-least", type=float, default=90, help="the score to reach, in percent (90)")
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1, help="mutants at a time (one per core)")
    return parser.parse_args()


def _tell(findings: Findings, facts: dict[str, Any]) -> None:
    print()
    print(report.table(findings))
    print()
    for doubt in findings.doubts:
        print(f"equivalent.toml: {doubt}")
    if facts["tried"] < facts["sample"]:
        print(f"stopped after {facts['tried']} of {facts['sample']} mutants")
    print(f"score {facts['score']} %, wanted {facts['at_least']:g} %; survivors are in {report.MARKDOWN_PATH}")


def _interrupt(number: int, frame: FrameType | None) -> None:  # noqa: ARG001 - the shape of a signal handler
    raise KeyboardInterrupt


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)
