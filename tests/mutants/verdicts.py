"""What the outcomes mean, mutant by mutant and module by module."""

import tomllib
from collections.abc import Iterable, Mapping, Sequence
from difflib import unified_diff
from pathlib import Path
from textwrap import dedent

import msgspec
from msgspec import Struct

from tests.mutants.trials import Outcome, Verdict
from tests.mutants.workspace import Mutant

EQUIVALENT_PATH = Path(__file__).with_name("equivalent.toml")

DETECTED = (Verdict.KILLED, Verdict.TIMEOUT)


class Change(Struct, frozen=True):
    """What a mutant changes."""

    function: str
    """Below the package: `model.layout.SegmentLayout.apply`."""
    line: int
    before: str
    after: str
    diff: str


class Equivalent(Struct, frozen=True, forbid_unknown_fields=True):
    """A claim that a mutant does the same as the original."""

    function: str
    after: str
    why: str
    before: str | None = None

    def names(self, change: Change) -> bool:
        return (
            self.function == change.function
            and self.after == change.after
            and (self.before is None or self.before == change.before)
        )


class Survivor(Struct, frozen=True):
    mutant: Mutant
    change: Change
    covered: bool
    why_equivalent: str | None = None


class Score(Struct):
    module: str
    mutants: int = 0
    tried: int = 0
    killed: int = 0
    timeouts: int = 0
    survived: int = 0
    equivalent: int = 0

    @property
    def percent(self) -> float:
        """Of those that could be noticed, how many were."""
        noticed = self.killed + self.timeouts
        return 100.0 * noticed / (noticed + self.survived) if noticed + self.survived else 100.0

    def add(self, verdict: Verdict, *, equivalent: bool) -> None:
        self.tried += 1
        self.killed += verdict is Verdict.KILLED
        self.timeouts += verdict is Verdict.TIMEOUT
        self.equivalent += equivalent
        self.survived += verdict not in DETECTED and not equivalent


class Findings(Struct, frozen=True):
    scores: Sequence[Score]
    total: Score
    survivors: Sequence[Survivor]
    equivalents: Sequence[Survivor]
    doubts: Sequence[str]
    """What is wrong with `equivalent.toml`."""


def load_equivalents() -> list[Equivalent]:
    document = tomllib.loads(EQUIVALENT_PATH.read_text(encoding="utf-8"))
    return msgspec.convert(document.get("equivalent", []), list[Equivalent])


def weigh(mutants: Sequence[Mutant], outcomes: Mapping[Mutant, Outcome], claims: Sequence[Equivalent]) -> Findings:
    scores = {module: Score(module) for module in sorted({mutant.module for mutant in mutants})}
    for mutant in mutants:
        scores[mutant.module].mutants += 1
    survivors: list[Survivor] = []
    equivalents: list[Survivor] = []
    for mutant, outcome in outcomes.items():
        equivalent = False
        if outcome.verdict not in DETECTED:
            survivor = _survivor(mutant, outcome, claims)
            equivalent = survivor.why_equivalent is not None
            (equivalents if equivalent else survivors).append(survivor)
        scores[mutant.module].add(outcome.verdict, equivalent=equivalent)
    return Findings(
        list(scores.values()),
        _total(scores.values()),
        sorted(survivors, key=_place),
        sorted(equivalents, key=_place),
        _doubts(mutants, outcomes, claims),
    )


def describe(mutant: Mutant) -> Change:
    original, mutated = (
        dedent("\n".join(lines)).strip("\n").splitlines() for lines in (mutant.original, mutant.mutated)
    )
    diff = list(unified_diff(original, mutated, lineterm=""))[3:]
    return Change(
        function=mutant.place,
        line=mutant.line,
        before=" ".join(line[1:].strip() for line in diff if line.startswith("-")),
        after=" ".join(line[1:].strip() for line in diff if line.startswith("+")),
        diff="\n".join(diff),
    )


def _survivor(mutant: Mutant, outcome: Outcome, claims: Iterable[Equivalent]) -> Survivor:
    change = describe(mutant)
    why = next((claim.why for claim in claims if claim.names(change)), None)
    return Survivor(mutant, change, outcome.verdict is not Verdict.UNCOVERED, why)


def _total(scores: Iterable[Score]) -> Score:
    total = Score("total")
    for score in scores:
        for name in ("mutants", "tried", "killed", "timeouts", "survived", "equivalent"):
            setattr(total, name, getattr(total, name) + getattr(score, name))
    return total


def _doubts(
    mutants: Iterable[Mutant], outcomes: Mapping[Mutant, Outcome], claims: Sequence[Equivalent]
) -> Sequence[str]:
    doubts = []
    functions = {claim.function for claim in claims}
    changes = {m: describe(m) for m in mutants if m.place in functions}
    for claim in claims:
        named = [mutant for mutant, change in changes.items() if claim.names(change)]
        if not named:
            doubts.append(f"no mutant is what `{claim.function}` claims to be equivalent: `{claim.after}`")
        if any(outcomes[mutant].verdict in DETECTED for mutant in named if mutant in outcomes):
            doubts.append(f"a test notices what `{claim.function}` claims to be equivalent: `{claim.after}`")
    return doubts


def _place(survivor: Survivor) -> tuple[str, int, str]:
    return (str(survivor.mutant.path), survivor.change.line, survivor.mutant.name)
