"""The runner on a package of two functions: it must not find nothing silently."""

from pathlib import Path

import pytest

from tests.mutants.__main__ import main

TREE = {
    "pyproject.toml": '[tool.pytest.ini_options]\naddopts = "--import-mode=importlib"\npythonpath = ["."]\n',
    "scalable_topics/__init__.py": "",
    "scalable_topics/model/small.py": """\
def is_tested(number):
    return number < 3

def is_called(items):
    items.clear()
""",
    "tests/test_small.py": """\
from scalable_topics.model.small import is_called, is_tested

def test_tested():
    assert is_tested(2) and not is_tested(3)

def test_called():
    is_called([])
""",
}
PLANTED = """\
[[planted]]
what = "the planted one"
file = "scalable_topics/model/small.py"
old = "number < 3"
new = "{}"
tests = ["tests/test_small.py"]
"""


def run(home: Path, planted: str, *options: str) -> int:
    for file, text in (TREE | {"tests/mutants/planted.toml": PLANTED.format(planted)}).items():
        (home / file).parent.mkdir(parents=True, exist_ok=True)
        (home / file).write_text(text)
    return main(["--workers", "1", *options], home=home, tests=["tests"])


def test_what_no_test_notices_survives(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(tmp_path, "True", "--at-least", "75") == 0
    report = capsys.readouterr().out
    assert report.count("survived: ") == 1
    assert "-    items.clear()\n+    pass" in report
    assert "75.0 % of 4 killed, wanted 75 %; 0 planted ones survived" in report

    assert run(tmp_path, "3 > number", "--sample", "0", "--at-least", "0") == 1
    assert "planted, and survived: the planted one" in capsys.readouterr().out


def test_a_planted_mutant_that_is_not_there_any_more_is_an_error(tmp_path: Path) -> None:
    with pytest.MonkeyPatch.context() as patch, pytest.raises(SystemExit, match="not exactly once"):
        patch.setitem(TREE, "scalable_topics/model/small.py", "")
        run(tmp_path, "True")
