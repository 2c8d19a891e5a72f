"""Runs conformance cases.

`README.md` beside this file is the format; this is its "Case runner" and its rules of comparing.
"""

import json
import math
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from msgspec import Struct

from scalable_topics.model.errors import ScalableTopicsError

Given = Mapping[str, Any]
Answer = Mapping[str, Any]
Adapter = Callable[[Given], Answer]

ADAPTERS: dict[tuple[str, str], Adapter] = {}


class Keyed(dict[str, Any]):
    """A map keyed by data (segment id, consumer, …): complete, so a key too many is as wrong as one too few."""


def runs(component: str, verb: str) -> Callable[[Adapter], Adapter]:
    """Registers what answers a verb of a component."""

    def register(adapter: Adapter) -> Adapter:
        ADAPTERS[component, verb] = adapter
        return adapter

    return register


class Result(Struct, frozen=True):
    component: str
    name: str
    status: str
    detail: Any = None


def run_file(path: Path) -> Iterator[Result]:
    for case in json.loads(path.read_text(encoding="utf-8")):
        yield run_case(case)


def run_case(case: Mapping[str, Any]) -> Result:
    """Never raises: whatever is wrong with a case, or with us, fails that case, and the run goes on."""
    try:
        component, name, form, verb = case["component"], case["name"], case["form"], case["when"]
        if form != "mechanical":
            return Result(component, name, "unsupported", "prose")
        adapter = ADAPTERS.get((component, verb))
        if adapter is None:
            return Result(component, name, "unsupported", f"no adapter for {component}.{verb}")
        actual = _answer(adapter, case["given"])
        problem = difference(case["then"], actual, "then")
    except Exception as error:
        return Result(_text(case, "component"), _text(case, "name"), "fail", f"not a case: {error!r}")
    if problem is None:
        return Result(component, name, "pass")
    return Result(component, name, "fail", {"problem": problem, "expected": case["then"], "actual": actual})


def _answer(adapter: Adapter, given: Given) -> Answer:
    try:
        return adapter(given)
    except ScalableTopicsError as error:
        return {"throws": error.kind, "message": str(error)}
    except Exception as error:
        return {"raised": repr(error)}


def _text(case: Any, name: str) -> str:
    return str(case.get(name)) if isinstance(case, Mapping) else repr(case)


def difference(expected: Any, actual: Any, where: str) -> str | None:
    """The first place where the answer is not what the case says; None when it agrees."""
    if isinstance(expected, Mapping):
        return _difference_of_maps(expected, actual, where)
    if isinstance(expected, list):
        if not isinstance(actual, (list, tuple)) or len(actual) != len(expected):
            return f"{where}: expected {expected!r}, got {actual!r}"
        differences = (difference(e, a, f"{where}[{i}]") for i, (e, a) in enumerate(zip(expected, actual, strict=True)))
        return next((found for found in differences if found), None)
    if isinstance(expected, bool) or expected is None or isinstance(expected, str):
        same = expected == actual and isinstance(actual, bool) is isinstance(expected, bool)
    else:
        number = isinstance(actual, (int, float)) and not isinstance(actual, bool)
        same = number and (expected == actual or math.isclose(expected, actual, rel_tol=1e-9, abs_tol=0))
    return None if same else f"{where}: expected {expected!r}, got {actual!r}"


def _difference_of_maps(expected: Mapping[str, Any], actual: Any, where: str) -> str | None:
    if not isinstance(actual, Mapping):
        return f"{where}: expected an object, got {actual!r}"
    missing = expected.keys() - actual.keys()
    extra = actual.keys() - expected.keys() if isinstance(actual, Keyed) else set()
    if missing or extra:
        return f"{where}: missing {sorted(missing)}, unexpected {sorted(extra)}"
    if "throws" in actual and "throws" not in expected:
        return f"{where}: it throws {actual['throws']}"
    differences = (difference(value, actual[name], f"{where}.{name}") for name, value in expected.items())
    return next((found for found in differences if found), None)
