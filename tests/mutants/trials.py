"""One pytest session in which every mutant is tried in a child of its own.

A child is forked from the collected session, so it starts with everything imported and nothing run: caches are empty,
and what one mutant breaks is gone with its child. What modules and tests compute while they are imported, though, the
original has computed. A mutant to which code comes only then gets a Python of its own.
"""

import gc
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import chdir, closing
from enum import StrEnum
from pathlib import Path

import pytest
from msgspec import Struct
from mutmut.configuration import config
from mutmut.mutation.trampoline import set_mutant_under_test
from mutmut.utils.file_utils import setup_source_paths

from tests.mutants.children import Work, run_all
from tests.mutants.recording import RECORDED, Record, measure, measured_lines, read_record, recording, run_test
from tests.mutants.workspace import PACKAGE, WORKSPACE, Mutant

SURVIVED, KILLED = 0, 1
"""Exit statuses of a child; any other is a crash, and so as good as `KILLED`."""

NOTHING, EVERYTHING_FAILS = "", "fail"
"""What mutmut's switches do when they are not told the name of a mutant."""

PATIENCE_SECONDS = 5.0
PATIENCE_FACTOR = 3.0
"""A test that takes this much longer than it took on the original, where it was slowed by recording, hangs."""

QUIET = ("-qq", "-s", "--no-header", "--no-summary", "-p", "no:cacheprovider", "-p", "no:faulthandler")


class Verdict(StrEnum):
    KILLED = "killed"
    TIMEOUT = "timeout"
    SURVIVED = "survived"
    UNCOVERED = "uncovered"
    """No test comes there, so none had to be run: a survivor too."""


class Outcome(Struct, frozen=True):
    verdict: Verdict
    seconds: float = 0.0


class NotReady(Exception):
    """The tests cannot tell a mutant from the original; the message says why."""


class Trials:
    """The pytest plugin. `outcomes` grows while the session runs, and keeps what it has come to if that ends early.

    `tell` is called with what is going on, and after every mutant with nothing new to say.
    """

    def __init__(
        self, order: Sequence[Mutant], *, deadline: float, workers: int, tell: Callable[[str | None], None]
    ) -> None:
        self.order = order
        self.deadline = deadline
        self.workers = workers
        self.tell = tell
        self.records: dict[str, Record] = {}
        self.importing = Record()
        self.outcomes: dict[Mutant, Outcome] = {}
        self._problems: list[str] = []

    def run(self) -> pytest.ExitCode:
        """Run the session in the workspace, on the workspace's own copy of package and tests."""
        setup_source_paths()
        _forget_modules("tests", PACKAGE)
        set_mutant_under_test(NOTHING)
        with chdir(WORKSPACE):
            self._coverage = measure()
            self._coverage.start()
            status = pytest.main(_arguments(), plugins=[self])
        if self._problems:
            raise NotReady("\n".join(self._problems))
        return pytest.ExitCode(status)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            self._problems.append(f"{report.nodeid} cannot be collected:\n{report.longreprtext}")

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        """Takes the place of running every test once."""
        self._coverage.stop()
        self.importing.lines = measured_lines(self._coverage)
        if self._problems:
            return True
        try:
            _ensure_copy_is_imported()
            gc.freeze()  # what is there by now stays shared with the children, as long as no collector touches it
            self._record(session)
            self._rehearse(session)
            self._try(session)
        except NotReady as problem:
            self._problems.append(str(problem))
        return True

    def _record(self, session: pytest.Session) -> None:
        """Run each test on the original, in a child of its own: where does it come, if no other has filled a cache?"""
        self.tell(f"recording where {len(session.items)} tests come")
        folder = Path("records").absolute()
        folder.mkdir()
        jobs = ((item.nodeid, recording(item, folder / f"{n}.json")) for n, item in enumerate(session.items))
        with closing(run_all(jobs, workers=self.workers)) as endings:
            for ended in endings:
                if ended.status != RECORDED:
                    raise NotReady(f"{ended.subject} ended with status {ended.status} without any mutant")
        for number, item in enumerate(session.items):
            self.records[item.nodeid] = read_record(folder / f"{number}.json")
        shutil.rmtree(folder)
        if failures := [failure for record in self.records.values() for failure in record.failures]:
            raise NotReady("\n".join(["the tests fail without any mutant:", *failures]))

    def _rehearse(self, session: pytest.Session) -> None:
        """The same ways as mutants go: the original must pass, and when every function raises something must fail."""
        self.tell("rehearsing with the original, and with every function broken")
        jobs = (
            (SURVIVED, self._trial(session, NOTHING, self.records)),
            (SURVIVED, self._trial_from_import(NOTHING)),
            (KILLED, self._trial(session, EVERYTHING_FAILS, self.records)),
            (KILLED, self._trial_from_import(EVERYTHING_FAILS)),
        )
        with closing(run_all(jobs, workers=self.workers)) as endings:
            for ended in endings:
                if ended.status != ended.subject:
                    raise NotReady(f"a rehearsal ended with status {ended.status} instead of {ended.subject}")

    def _try(self, session: pytest.Session) -> None:
        self.tell(f"trying {len(self.order)} mutants")
        verdicts = {SURVIVED: Verdict.SURVIVED, -signal.SIGALRM: Verdict.TIMEOUT}
        with closing(run_all(self._mutant_jobs(session), workers=self.workers)) as endings:
            for ended in endings:
                verdict = verdicts.get(ended.status, Verdict.KILLED)
                self._conclude(ended.subject, Outcome(verdict, round(ended.seconds, 3)))

    def _mutant_jobs(self, session: pytest.Session) -> Iterator[tuple[Mutant, Work]]:
        for mutant in self.order:
            if time.monotonic() > self.deadline:
                return
            if tests := {test for test, record in self.records.items() if record.comes_to(mutant)}:
                yield mutant, self._trial(session, mutant.name, tests)
            elif self.importing.comes_to(mutant):
                yield mutant, self._trial_from_import(mutant.name)
            else:
                self._conclude(mutant, Outcome(Verdict.UNCOVERED))

    def _conclude(self, mutant: Mutant, outcome: Outcome) -> None:
        self.outcomes[mutant] = outcome
        self.tell(None)

    def _trial(self, session: pytest.Session, name: str, tests: Collection[str]) -> Work:
        """The work of a child: run the tests, the shortest first, until one fails."""

        def trial() -> int:
            set_mutant_under_test(name)
            items = [item for item in session.items if item.nodeid in tests]
            items.sort(key=lambda item: self.records[item.nodeid].seconds)
            for item, following in zip(items, [*items[1:], None], strict=True):
                run_test(item, following, _patience(self.records[item.nodeid].seconds))
                if session.testsfailed:
                    return KILLED
            return SURVIVED

        return trial

    def _trial_from_import(self, name: str) -> Work:
        """The work of a child: let another Python import everything with the mutant, and run all tests."""

        def trial() -> int:
            set_mutant_under_test(name)
            signal.setitimer(signal.ITIMER_REAL, _patience(sum(record.seconds for record in self.records.values())))
            run = subprocess.run([sys.executable, "-m", "pytest", "-x", *_arguments()], check=False)
            return KILLED if run.returncode else SURVIVED

        return trial


def _arguments() -> list[str]:
    return ["--rootdir=.", *QUIET, *config().pytest_add_cli_args, *config().pytest_add_cli_args_test_selection]


def _patience(seconds: float) -> float:
    return PATIENCE_SECONDS + PATIENCE_FACTOR * seconds


def _forget_modules(*packages: str) -> None:
    """We came from the original tests; the session must not take them for its own."""
    for name in [name for name in sys.modules if name.partition(".")[0] in packages]:
        del sys.modules[name]


def _ensure_copy_is_imported() -> None:
    """Not the editable install, which is on the path too."""
    here = Path.cwd().resolve()
    for name, module in list(sys.modules.items()):
        origin = getattr(module, "__file__", None)
        if name.partition(".")[0] in ("tests", PACKAGE) and origin and not Path(origin).resolve().is_relative_to(here):
            raise NotReady(f"{name} comes from outside the copy: {origin}")
