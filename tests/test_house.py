"""The house itself: what a newcomer and a fresh machine rely on."""

import re
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
MAKEFILE = (ROOT / "Makefile").read_text()


def test_every_dependency_says_why_it_is_there() -> None:
    text = (ROOT / "pyproject.toml").read_text()
    project = tomllib.loads(text)["project"]
    declared = [
        *project["dependencies"],
        *(one for extra in project["optional-dependencies"].values() for one in extra),
    ]

    for requirement in declared:
        assert re.search(rf'^ *"{re.escape(requirement)}", +# \w.+$', text, re.MULTILINE), requirement
    assert {"spark", "pulsar", "dev"} <= project["optional-dependencies"].keys()


@pytest.mark.parametrize("name", ["dev.txt", "extras.txt"])
def test_the_lock_pins_with_hashes_and_names_no_index(name: str) -> None:
    lock = (ROOT / "locks" / name).read_text()
    pins = re.findall(r"^[\w.-]+==\S+.*$", lock, re.MULTILINE)

    assert len(pins) > 5
    assert all(pin.endswith("\\") for pin in pins), "every pin goes on to its hashes"
    assert lock.count("--hash=sha256:") > len(pins)
    assert not re.search(r"https?://|--(extra-)?index|--find-links", lock)


def test_every_target_sets_itself_up_and_help_lists_it() -> None:
    targets = dict(re.findall(r"^([a-z]+):(.*?)(?:##.*)?$", MAKEFILE, re.MULTILINE))
    free = {"help", "setup", "lock", "clean"}

    assert {"run", "lint", "test", "mutants", "bench", "setup", "help"} <= targets.keys()
    assert all("setup" in needs for target, needs in targets.items() if target not in free)
    for target in targets:
        assert re.search(rf"^{target}:.*## \w", MAKEFILE, re.MULTILINE), f"make help does not tell of {target}"


def test_what_the_documents_point_at_is_there() -> None:
    for document in [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]:
        for target in re.findall(r"\]\((?!https?:|#)([^)#]+)", document.read_text()):
            assert (document.parent / target).exists(), f"{document.name} points at {target}"
    for target in re.findall(r"make ([a-z]+)", (ROOT / "README.md").read_text()):
        assert re.search(rf"^{target}:", MAKEFILE, re.MULTILINE), f"README speaks of make {target}"


@pytest.mark.parametrize(("ci", "outcome"), [("", {"skipped": 1}), ("true", {"errors": 1})])
def test_without_java_spark_tests_are_a_visible_skip_and_a_failure_in_ci(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, ci: str, outcome: dict[str, int]
) -> None:
    pytester.makeconftest((ROOT / "tests" / "conftest.py").read_text().replace('pytest_plugins = ["pytester"]', ""))
    pytester.makeini("[pytest]\nmarkers = spark: needs Java")
    pytester.makepyfile("import pytest\n\n@pytest.mark.spark\ndef test_spark() -> None:\n    pass\n")
    monkeypatch.setenv("PATH", str(pytester.path))
    monkeypatch.setenv("CI", ci)

    result = pytester.runpytest_inprocess("-ra", "-p", "no:xdist", "-p", "no:asyncio")

    result.assert_outcomes(**outcome)
    result.stdout.fnmatch_lines(["*need Java 17*"])
