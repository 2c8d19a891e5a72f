"""Work in forked children: a few at a time, silent, and gone when we are."""

import contextlib
import os
import resource
import shutil
import signal
import tempfile
import time
from collections.abc import Callable, Generator, Iterable
from pathlib import Path
from typing import Generic, TypeVar

from msgspec import Struct

MEMORY_LIMIT = 4 << 30
"""A mutant may build something endless; it should run out of memory before the machine does."""

CRASHED = 3

Work = Callable[[], int]
T = TypeVar("T")


class Ended(Struct, Generic[T], frozen=True):
    subject: T
    status: int
    """What the work returned; negative for the signal that ended it."""
    seconds: float


class _Child(Struct, Generic[T], frozen=True):
    subject: T
    scratch: Path
    started: float


def run_all(jobs: Iterable[tuple[T, Work]], *, workers: int) -> Generator[Ended[T]]:
    """Do each piece of work in a child of its own, and say so when one ends.

    The next job is asked for only when there is a worker for it. Closing the iterator ends the children.
    """
    running: dict[int, _Child[T]] = {}
    try:
        for subject, work in jobs:
            scratch = Path(tempfile.mkdtemp(prefix="mutants-"))
            running[_fork(work, scratch)] = _Child(subject, scratch, time.monotonic())
            while len(running) >= workers:
                yield _await_one(running)
        while running:
            yield _await_one(running)
    finally:
        for pid, child in running.items():
            _end(pid, child.scratch)


def _fork(work: Work, scratch: Path) -> int:
    """A child leads its own process group, so that its own children can be found again."""
    pid = os.fork()
    if pid:
        with contextlib.suppress(OSError):  # the child does it too, whoever comes first
            os.setpgid(pid, pid)
        return pid
    status = CRASHED
    try:
        with contextlib.suppress(OSError):
            os.setpgid(0, 0)
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGALRM):
            signal.signal(number, signal.SIG_DFL)
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY_LIMIT, MEMORY_LIMIT))
        nowhere = os.open(os.devnull, os.O_RDWR)
        for descriptor in range(3):
            os.dup2(nowhere, descriptor)
        os.environ["TMPDIR"] = tempfile.tempdir = str(scratch)
        status = work()
    finally:
        os._exit(status)


def _await_one(running: dict[int, _Child[T]]) -> Ended[T]:
    ended = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOWAIT)
    assert ended is not None, "only a call that does not wait has no answer"
    child = running.pop(ended.si_pid)
    status = _end(ended.si_pid, child.scratch)
    return Ended(child.subject, status, time.monotonic() - child.started)


def _end(pid: int, scratch: Path) -> int:
    """End a child if it has not ended, whatever it started, and what it left in its scratch directory.

    Until we have waited for the child its number cannot be anybody else's, so nobody else is hit.
    """
    with contextlib.suppress(ProcessLookupError):
        os.killpg(pid, signal.SIGKILL)
    status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    shutil.rmtree(scratch, ignore_errors=True)
    return status
