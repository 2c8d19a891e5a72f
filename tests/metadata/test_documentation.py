"""The pages about the store say only what a test holds: every test that they name is there."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TESTS = set(
    re.findall(r"^(?:async )?def (test_\w+)", "\n".join(p.read_text() for p in ROOT.glob("tests/**/*.py")), re.M)
)


@pytest.mark.parametrize("page", ["metadata-store.md", "testing.md"])
def test_the_documents_name_tests_that_are_there(page: str) -> None:
    named = set(re.findall(r"`(test_\w+)`", (ROOT / "docs" / page).read_text()))

    assert len(named) > 10
    assert named <= TESTS, sorted(named - TESTS)
