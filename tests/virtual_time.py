"""An event loop on a clock of its own: waiting costs nothing, and hours pass in milliseconds.

Whenever nothing is ready, time jumps to the next timer. A test that would wait for ever fails at once instead. Time
stands still while a thread works for the loop; sockets and child processes have no place here and are refused.
"""

import asyncio
import itertools
import math
import selectors
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

T = TypeVar("T")

SPARE_FILES = 1
"""The loop's own wake-up pipe."""


TICKS_PER_SECOND = 1_000_000
"""Time and timers are whole ticks. Otherwise a timer could fire a rounding error early, be set again, and so for ever
while the clock stands still.
"""


class Stuck(AssertionError):
    """Everybody waits, and no timer is set: it would never end."""


class RealWork(AssertionError):
    """A socket or a process on virtual time: the clock would run away while the world answers."""


class NumberedTask(asyncio.Task[Any]):
    """Hashed by its number and not by its address: sets of tasks are then walked in the same order in every run."""

    _numbers = itertools.count()

    def __init__(self, *arguments: Any, **named: Any) -> None:
        self._number = next(self._numbers)
        super().__init__(*arguments, **named)

    def __hash__(self) -> int:
        return self._number


class VirtualTimeLoop(asyncio.SelectorEventLoop):
    def __init__(self) -> None:
        self._now = 1_000.0
        self._in_threads = 0
        super().__init__(_JumpingSelector(self))
        NumberedTask._numbers = itertools.count()
        self.set_task_factory(lambda loop, work, context=None: NumberedTask(work, loop=loop, context=context))

    def time(self) -> float:
        return self._now

    def jump(self, seconds: float) -> None:
        """Time passes while nobody is scheduled, as if the process had been stopped."""
        self._now = round((self._now + seconds) * TICKS_PER_SECOND) / TICKS_PER_SECOND

    def call_at(  # type: ignore[override]
        self, when: float, callback: Callable[..., object], *args: Any, context: Any = None
    ) -> asyncio.TimerHandle:
        """Not before `when`."""
        ticks = math.ceil(when * TICKS_PER_SECOND)
        while ticks / TICKS_PER_SECOND < when:
            ticks += 1
        return super().call_at(ticks / TICKS_PER_SECOND, callback, *args, context=context)

    @property
    def works_in_threads(self) -> bool:
        return self._in_threads > 0

    def run_in_executor(self, executor: Any, func: Callable[..., T], *args: Any) -> "asyncio.Future[T]":  # type: ignore[override]
        self._in_threads += 1
        future: asyncio.Future[T] = super().run_in_executor(executor, func, *args)
        future.add_done_callback(self._thread_done)
        return future

    async def shutdown_default_executor(self) -> None:
        """It waits in a thread of its own."""
        self._in_threads += 1
        try:
            await super().shutdown_default_executor()
        finally:
            self._in_threads -= 1

    def _thread_done(self, _: "asyncio.Future[Any]") -> None:
        self._in_threads -= 1


class _JumpingSelector(selectors.DefaultSelector):
    def __init__(self, loop: VirtualTimeLoop) -> None:
        super().__init__()
        self._loop = loop

    def register(self, fileobj: Any, events: int, data: Any = None) -> selectors.SelectorKey:
        if len(self.get_map()) >= SPARE_FILES:
            raise RealWork("no sockets and no processes on virtual time: use a real loop for this test")
        return super().register(fileobj, events, data)

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if self._loop.works_in_threads and (timeout is None or timeout > 0):
            return super().select(None)
        ready = super().select(0)
        if not ready and timeout is None:
            raise Stuck
        if not ready and timeout:
            self._loop.jump(timeout)
        return ready


def run_virtual(work: Coroutine[Any, Any, T]) -> T:
    with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
        return runner.run(work)


def jump(seconds: float) -> None:
    loop = asyncio.get_running_loop()
    assert isinstance(loop, VirtualTimeLoop)
    loop.jump(seconds)
