"""Where the tests come when there is no mutant."""

import signal
import time
from pathlib import Path

import msgspec
import pytest
from coverage import Coverage
from msgspec import Struct

from tests.mutants.children import Work
from tests.mutants.workspace import PACKAGE, Mutant

RECORDING_SECONDS = 300.0
"""A test that takes longer than this on the original is not for mutants."""

RECORDED = 0


class Record(Struct, eq=False):
    """What one test does on the original."""

    seconds: float = 0.0
    lines: dict[str, set[int]] = {}
    """Where it comes, by file of the workspace."""
    failures: list[str] = []

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self.failures.append(f"{report.nodeid} ({report.when})\n{report.longreprtext}")

    def comes_to(self, mutant: Mutant) -> bool:
        lines = self.lines.get(str(mutant.path), set())
        return not lines.isdisjoint(range(mutant.span.start, mutant.span.end + 1))


def recording(item: pytest.Item, output: Path) -> Work:
    """The work of a child: run one test, write its record."""

    def work() -> int:
        record = Record()
        item.config.pluginmanager.register(record)
        coverage = measure()
        started = time.monotonic()
        with coverage.collect():
            run_test(item, None, RECORDING_SECONDS)
        record.seconds = time.monotonic() - started
        record.lines = measured_lines(coverage)
        output.write_bytes(msgspec.json.encode(record))
        return RECORDED

    return work


def read_record(path: Path) -> Record:
    return msgspec.json.decode(path.read_bytes(), type=Record)


def measure() -> Coverage:
    """To be called in the workspace."""
    coverage = Coverage(data_file=None, config_file=False, include=[f"{PACKAGE}/*"])
    coverage.set_option("run:disable_warnings", ["no-data-collected"])
    return coverage


def measured_lines(coverage: Coverage) -> dict[str, set[int]]:
    data = coverage.get_data()
    here = Path.cwd()
    return {str(Path(file).relative_to(here)): {*(data.lines(file) or ())} for file in data.measured_files()}


def run_test(item: pytest.Item, following: pytest.Item | None, seconds: float) -> None:
    """Run a test against the clock: nobody handles the alarm, so it ends the process."""
    signal.setitimer(signal.ITIMER_REAL, seconds)
    item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
