"""The table on the screen, and the whole story in `mutants/report.md` and `mutants/report.json`."""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from tests.mutants.trials import Outcome
from tests.mutants.verdicts import Findings, Score, Survivor
from tests.mutants.workspace import WORKSPACE, Mutant

MARKDOWN_PATH = WORKSPACE / "report.md"
JSON_PATH = WORKSPACE / "report.json"

COLUMNS = ("module", "mutants", "tried", "killed", "timeouts", "survived", "equivalent", "score")

LIMITS = """\
How to read this:

- Score: of the mutants tried, without the equivalent ones, the share that some test noticed. A test that hangs on a
  mutant (timeout) notices it.
- Only bodies and plain default arguments of functions are mutated: no constants of modules and classes, no
  annotations, no f-strings, no decorators, no calls of `len` and `isinstance`, no `__new__`, no class within a class.
  Functions behind `property`, `cached_property` and `lru_cache` are mutated here, although mutmut by itself would not.
- A mutant is tried with the tests that, on the original, come to the mutated statement in their own process. What a
  test does in a process that it starts does not count.
- What modules and tests compute while they are imported is computed by the original, so tests should build their
  values inside the test. Only a mutant to whose statement nothing comes later is tried from the import on, with all
  tests.
"""


def table(findings: Findings) -> str:
    """Aligned, and Markdown at the same time."""
    rows = [COLUMNS, *(_row(score) for score in (*findings.scores, findings.total) if score.mutants)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(COLUMNS))]
    rule = ["-" * widths[0], *(f"{'-' * (width - 1)}:" for width in widths[1:])]
    cells = [
        [row[0].ljust(widths[0]), *(cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True))]
        for row in rows
    ]
    return "\n".join(f"| {' | '.join(row)} |" for row in [cells[0], rule, *cells[1:]])


def write(findings: Findings, outcomes: Mapping[Mutant, Outcome], facts: Mapping[str, Any]) -> None:
    """`facts` are about the run: seed, duration, what is needed to pass."""
    MARKDOWN_PATH.write_text(_markdown(findings, facts), encoding="utf-8")
    document = {
        **facts,
        "total": _numbers(findings.total),
        "modules": [_numbers(score) for score in findings.scores],
        "survivors": [_told(survivor) for survivor in findings.survivors],
        "equivalents": [_told(survivor) for survivor in findings.equivalents],
        "doubts": findings.doubts,
        "outcomes": {mutant.name: outcome for mutant, outcome in outcomes.items()},
    }
    JSON_PATH.write_bytes(msgspec.json.format(msgspec.json.encode(document, enc_hook=str)) + b"\n")


def _markdown(findings: Findings, facts: Mapping[str, Any]) -> str:
    parts = ["# Mutants", ", ".join(f"{name.replace('_', ' ')}: {value}" for name, value in facts.items())]
    parts += [table(findings), LIMITS.rstrip()]
    if findings.doubts:
        parts += ["## To mend in equivalent.toml", "\n".join(f"- {doubt}" for doubt in findings.doubts)]
    parts += ["## Survivors", *_sections(findings.survivors)]
    if findings.equivalents:
        parts += ["## Equivalent", *_sections(findings.equivalents)]
    return "\n\n".join(parts) + "\n"


def _sections(survivors: Sequence[Survivor]) -> Iterable[str]:
    if not survivors:
        yield "None."
    for survivor in survivors:
        yield f"### {survivor.change.function}"
        remark = "" if survivor.covered else " No test comes here."
        yield f"`{_where(survivor)}`, `{survivor.mutant.name}`.{remark}"
        if survivor.why_equivalent:
            yield f"Equivalent: {survivor.why_equivalent}"
        yield f"```diff\n{survivor.change.diff}\n```"


def _where(survivor: Survivor) -> str:
    return f"{Path(survivor.mutant.path).as_posix()}:{survivor.change.line}"


def _row(score: Score) -> tuple[str, ...]:
    percent = f"{score.percent:.1f} %" if score.tried else "-"
    counts = (score.mutants, score.tried, score.killed, score.timeouts, score.survived, score.equivalent)
    return (score.module, *(str(count) for count in counts), percent)


def _numbers(score: Score) -> dict[str, Any]:
    return {**msgspec.structs.asdict(score), "percent": round(score.percent, 2)}


def _told(survivor: Survivor) -> dict[str, Any]:
    return {
        "mutant": survivor.mutant.name,
        "where": _where(survivor),
        "covered": survivor.covered,
        **msgspec.structs.asdict(survivor.change),
        **({"why": survivor.why_equivalent} if survivor.why_equivalent else {}),
    }
