"""How far it is: one line that rewrites itself on a terminal, a plain line now and then elsewhere."""

import sys
import time
from collections import Counter
from collections.abc import Mapping

from tests.mutants.trials import Outcome
from tests.mutants.workspace import Mutant

TERMINAL_SECONDS = 0.5
PLAIN_SECONDS = 30.0


class Progress:
    def __init__(self, total: int, *, deadline: float) -> None:
        self._total = total
        self._deadline = deadline
        self._begun = time.monotonic()
        self._last = self._begun
        self._shown = 0
        self._rewrites = sys.stdout.isatty()

    def say(self, what: str) -> None:
        """Something new begins, and with it the counting of time."""
        print(what, flush=True)
        self._begun = self._last = time.monotonic()

    def show(self, outcomes: Mapping[Mutant, Outcome], *, last: bool = False) -> None:
        now = time.monotonic()
        if not last and now - self._last < (TERMINAL_SECONDS if self._rewrites else PLAIN_SECONDS):
            return
        if last and not self._rewrites and self._shown == len(outcomes):
            return
        self._last, self._shown = now, len(outcomes)
        line = self._line(outcomes, now)
        if self._rewrites:
            print(f"\r\x1b[K{line}", end="\n" if last else "", flush=True)
        else:
            print(line, flush=True)

    def _line(self, outcomes: Mapping[Mutant, Outcome], now: float) -> str:
        counts = Counter(outcome.verdict.value for outcome in outcomes.values())
        rate = len(outcomes) / max(now - self._begun, 0.001)
        left = min((self._total - len(outcomes)) / rate if rate else float("inf"), max(self._deadline - now, 0))
        verdicts = ", ".join(f"{count} {verdict}" for verdict, count in sorted(counts.items()))
        return f"{len(outcomes)}/{self._total} mutants, {rate * 60:.0f}/min, {_clock(left)} left: {verdicts}"


def _clock(seconds: float) -> str:
    return f"{int(seconds) // 60}:{int(seconds) % 60:02d}"
