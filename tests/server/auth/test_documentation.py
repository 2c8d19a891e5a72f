"""docs/security.md names a test for every line of its threat model, and the tests are there."""

import re
from pathlib import Path

from scalable_topics.server.auth.security import SecuritySettings

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs" / "security.md").read_text()
TESTS = {
    name
    for file in Path(__file__).parent.glob("test_*.py")
    for name in re.findall(r"^(?:async )?def (test_\w+)", file.read_text(), re.MULTILINE)
}


def test_every_line_of_the_threat_model_names_tests_that_are_there() -> None:
    model = PAGE.partition("## Who attacks")[2].partition("## The audit line")[0]
    lines = [
        line for line in model.splitlines() if line.startswith("| ") and not re.match(r"\| (attack|slip) \|", line)
    ]

    assert len(lines) > 30
    unheld = [line for line in lines if not re.search(r"`test_\w+`", line)]
    assert [line.split(" | ")[-1].strip(" |") for line in unheld] == ["none"], "only what says so is held by no test"
    named = set(re.findall(r"`(test_\w+)`", PAGE))
    assert named <= TESTS, sorted(named - TESTS)


def test_the_page_lists_the_settings_that_there_are() -> None:
    table = PAGE.partition("## Settings")[2].partition("##")[0]

    assert tuple(re.findall(r"^\| `(\w+)` \|", table, re.MULTILINE)) == SecuritySettings.__struct_fields__
