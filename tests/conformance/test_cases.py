"""Every mechanical case holds, and the runner that says so can also say the opposite."""

import copy
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.conformance import adapters  # noqa: F401 - registers what it knows
from tests.conformance.runner import ADAPTERS, Keyed, difference, run_case

CASES_PATH = Path(__file__).with_name("cases.json")
CASES: list[dict[str, Any]] = json.loads(CASES_PATH.read_text(encoding="utf-8"))
MECHANICAL = [case for case in CASES if case["form"] == "mechanical"]

NOT_BUILT_YET = {("ClientLayout", "decode")}
"""Frames come with the client."""


@pytest.mark.parametrize("case", MECHANICAL, ids=lambda case: f"{case['component']}: {case['name']}")
def test_case(case: dict[str, Any]) -> None:
    result = run_case(case)

    if (case["component"], case["when"]) in NOT_BUILT_YET:
        assert result.status == "unsupported"
    else:
        assert result.status == "pass", result.detail


def test_every_verb_of_the_cases_is_answered() -> None:
    verbs = {(case["component"], case["when"]) for case in MECHANICAL}

    assert verbs - ADAPTERS.keys() == NOT_BUILT_YET


@pytest.mark.parametrize("case", MECHANICAL[::7], ids=lambda case: f"{case['component']}: {case['name']}")
def test_a_case_with_another_outcome_fails(case: dict[str, Any]) -> None:
    """The answer comes from `given` and `when` alone: twist `then`, and the case fails."""
    if (case["component"], case["when"]) in NOT_BUILT_YET:
        return
    twisted = copy.deepcopy(case)
    twisted["name"] = "something else"
    twisted["then"] = {"throws": "decode"} if "throws" not in case["then"] else {"result": True}
    if case["then"] != twisted["then"]:
        assert run_case(twisted).status == "fail"


@pytest.mark.parametrize(
    ("expected", "actual", "agrees"),
    [
        (1000, 1000.0000000001, True),
        (1000, 1000.1, False),
        (1, True, False),
        (True, 1, False),
        (None, 0, False),
        ([1, 2], (1, 2), True),
        ([1, 2], [2, 1], False),
        ([1], [1, 2], False),
        ({"a": 1}, {"a": 1, "b": 2}, True),
        ({"a": 1}, Keyed({"a": 1, "b": 2}), False),
        ({"a": 1, "b": 2}, {"a": 1}, False),
        ({}, {"throws": "decode"}, False),
    ],
)
def test_comparing(expected: object, actual: object, agrees: bool) -> None:
    assert (difference(expected, actual, "then") is None) is agrees


def test_the_command_runs_any_file(tmp_path: Path) -> None:
    good = {"component": "HashRange", "name": "x", "form": "mechanical", "variant": "ours", "given": {}, "when": "full"}
    cases = [
        {**good, "then": {"size": 65536}},
        {**good, "then": {"size": 1}},
        {**good, "given": {"range": "nonsense"}, "when": "construct", "then": {"size": 1}},
        {**good, "form": "prose", "then": "whatever"},
        {**good, "when": "unheardOf", "then": {}},
    ]
    path = tmp_path / "cases.json"
    path.write_text(json.dumps(cases))

    run = subprocess.run(
        [sys.executable, "-m", "tests.conformance", str(path)], capture_output=True, text=True, check=False
    )

    *lines, last = run.stdout.splitlines()
    assert [json.loads(line)["status"] for line in lines] == ["pass", "fail", "fail", "unsupported", "unsupported"]
    assert last == "1 passed, 2 failed, 2 skipped"
    assert run.returncode == 1
