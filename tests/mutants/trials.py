"""Pytest on mutants: on a copy of the tree, each in a process that is forked from one with the libraries imported."""

import json
import os
import resource
import shutil
import signal
import sys
import time
from collections.abc import Generator, Iterator, Mapping, Sequence
from compileall import compile_dir
from contextlib import suppress
from functools import cache, lru_cache
from gc import get_objects
from multiprocessing import get_context
from multiprocessing.connection import wait
from pathlib import Path
from py_compile import PycInvalidationMode
from typing import Final

import pytest
from coverage import Coverage, CoverageData
from msgspec import Struct

from tests.mutants.changes import Mutant

QUIET: Final = ("-xq", "--show-capture=no", "--assert=plain", "--basetemp=tmp", "-pno:xdist", "-pno:cacheprovider")
PATIENCE: Final = 4.0
"""A test that takes so many times as long as without a mutant hangs."""
FAR_SECONDS: Final = 1000.0
"""Puts a test behind those of the module itself."""
MEMORY_BYTES: Final = 4 << 30
"""A mutant may build something endless; it should run out of memory before the machine does."""

_processes: Final = get_context("forkserver")
_processes.set_forkserver_preload(
    ["aiohttp", "etcd3.aio_client", "hypothesis.stateful", "pytest_asyncio.plugin", "trustme"]
)


class Choice(Struct, frozen=True):
    """A pytest plugin: the tests that have costs, and the cheapest first; None = all."""

    costs: Mapping[str, float] | None = None

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        costs = self.costs
        if costs is not None:
            items[:] = sorted((item for item in items if item.nodeid in costs), key=lambda item: costs[item.nodeid])


class Recorder:
    """A pytest plugin: where each test comes, and how long it takes."""

    def pytest_collection(self) -> None:
        self.coverage = Coverage("coverage", config_file=False, include=["scalable_topics/*"])
        self.coverage.set_option("run:core", "ctrace")  # the one that knows contexts
        self.coverage.start()

    def pytest_collection_finish(self) -> None:
        self.seconds: dict[str, float] = {}
        found = (thing for thing in get_objects() if isinstance(thing, type(lru_cache(repr))))
        self.caches = [thing for thing in found if thing.__module__.startswith("scalable_topics")]

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, object, object]:
        for thing in self.caches:
            thing.cache_clear()  # where one test has come, the next comes too
        self.coverage.switch_context(item.nodeid)
        started = time.perf_counter()
        try:
            return (yield)
        finally:
            self.seconds[item.nodeid] = time.perf_counter() - started

    def pytest_sessionfinish(self) -> None:
        self.coverage.stop()
        self.coverage.save()
        Path("seconds").write_text(json.dumps(self.seconds))


class Trial(Struct, frozen=True):
    mutant: Mutant
    arguments: Sequence[str]
    plugin: object = Choice()
    seconds: float = 600.0
    """What takes longer hangs."""
    seconds_per_test: float = 60.0


class Survey:
    """Where the tests come in a tree without mutants, and so which of them may notice one."""

    def __init__(self, root: Path, tests: Sequence[str]) -> None:
        self._root = root
        run_original(root, tests, Recorder())
        self._seconds: dict[str, float] = json.loads((root / "seconds").read_text())
        self._coverage = CoverageData(str(root / "coverage"))
        self._coverage.read()

    def trial(self, mutant: Mutant) -> Trial | None:
        """None = no test comes there, so none can notice."""
        contexts = self._contexts(mutant.file)
        tests = {test for line in mutant.lines for test in contexts.get(line, ())}
        costs = {test: self._seconds[test] for test in tests if test}
        if tests == {""}:  # only while it is imported: it may matter anywhere, but first of all near by
            near = {test for tests in contexts.values() for test in tests}
            costs = {test: seconds + FAR_SECONDS * (test not in near) for test, seconds in self._seconds.items()}
        if not costs:
            return None
        files = sorted({test.partition("::")[0] for test in costs})
        seconds = [self._seconds[test] for test in costs]
        return Trial(mutant, files, Choice(costs), 30 + PATIENCE * sum(seconds), 5 + PATIENCE * max(seconds))

    @cache  # noqa: B019 - there is one survey
    def _contexts(self, file: str) -> dict[int, list[str]]:
        return self._coverage.contexts_by_lineno(str(self._root / file))


class Running:
    """A trial that is on its way in one copy of the tree."""

    def __init__(self, trial: Trial, root: Path) -> None:
        self.trial, self.root = trial, root
        self._file = root / trial.mutant.file
        self._file.write_text(trial.mutant.mutated, encoding="utf-8")
        arguments = [*QUIET, f"--timeout={trial.seconds_per_test}", *trial.arguments]
        self.process = _processes.Process(target=_run_pytest, args=(root, arguments, trial.plugin))
        self.process.start()
        self._deadline = time.monotonic() + trial.seconds

    @property
    def is_over(self) -> bool:
        return not self.process.is_alive() or time.monotonic() > self._deadline

    def end(self) -> int:
        """Pytest's exit status; negative = a signal."""
        if self.process.is_alive() and self.process.pid:
            with suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGKILL)
        self.process.join()
        self._file.write_text(self.trial.mutant.original, encoding="utf-8")
        return self.process.exitcode or 0


def run_all(trials: Iterator[Trial], roots: Sequence[Path]) -> Iterator[tuple[Trial, int]]:
    """As many at once as there are copies of the tree."""
    free, running = [*roots], list[Running]()
    try:
        while True:
            while free and (trial := next(trials, None)) is not None:
                running.append(Running(trial, free.pop()))
            if not running:
                return
            wait([one.process.sentinel for one in running], timeout=1)
            for one in [one for one in running if one.is_over]:
                running.remove(one)
                free.append(one.root)
                yield one.trial, one.end()
    finally:
        for one in running:
            one.end()


def run_original(root: Path, tests: Sequence[str], plugin: object = Choice()) -> None:
    """What fails without any mutant tells nothing about mutants."""
    for _, status in run_all(iter([Trial(Mutant("nothing", "", ""), tests, plugin, 1800, 600)]), [root]):
        if status:
            raise SystemExit(f"the tests fail without any mutant:\n{(root / 'output').read_text()}")


def copy_tree(source: Path, root: Path) -> Path:
    for name in ("scalable_topics", "tests"):
        shutil.copytree(source / name, root / name, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(source / "pyproject.toml", root)
    # A mutant may be as long and as old as the original: what is compiled must go by the contents of the source.
    compile_dir(root / "scalable_topics", quiet=1, invalidation_mode=PycInvalidationMode.CHECKED_HASH)
    return root


def _run_pytest(root: Path, arguments: list[str], plugin: object) -> None:
    os.setsid()
    resource.setrlimit(resource.RLIMIT_DATA, (MEMORY_BYTES, MEMORY_BYTES))
    output = os.open(root / "output", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    for descriptor in (1, 2):
        os.dup2(output, descriptor)
    os.chdir(root)
    os.environ["HYPOTHESIS_PROFILE"] = "mutants"
    sys.path.insert(0, str(root))  # also before an editable install
    for name in [name for name in sys.modules if name.split(".")[0] == "tests"]:
        del sys.modules[name]  # they are those of the tree we came from
    os._exit(pytest.main(arguments, plugins=[plugin]))
