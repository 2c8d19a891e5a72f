"""Is this daemon alive, and should it be asked? And what happens when it is not: it says why, and ends.

Three failures look alike from outside. A task that must never end has ended: `watched` ends the daemon with the reason.
The event loop stands still: a thread sees no beat of it, logs what every thread and task is doing, and ends the
process, since nothing else in it can. The store is away: that is nobody's fault here, the daemon waits, and only says
that it is not ready.
"""

import asyncio
import io
import logging
import os
import sys
import threading
import time
import traceback
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from itertools import islice
from typing import Final

from aiohttp import web
from msgspec import Struct

from scalable_topics.metadata.heartbeats import Heartbeats
from scalable_topics.metadata.view import SILENCE_SECONDS
from scalable_topics.model.errors import MustStop
from scalable_topics.server.auth.middleware import acts
from scalable_topics.server.auth.table import Action
from scalable_topics.server.bodies import json_response
from scalable_topics.server.daemon import Daemon
from scalable_topics.server.keys import DAEMON

ENDLESS_TASKS: Final = ("store monitor", "heartbeat", "elections", "owners", "leftovers")
"""Of every daemon, beside its session and its view. A daemon that is told to do nothing by itself has fewer."""
CHECK_SECONDS: Final = 1.0
"""Between two looks at the tasks that must not end."""
WEDGED_SECONDS: Final = 60.0
"""So long without one turn of the event loop is no slow call any more."""
LOOKS: Final = 20
"""In which the loop has not turned before it counts as wedged. Looks are counted and not time, because a process that
was stopped and goes on has lost time and is not wedged.
"""
EXIT_WEDGED: Final = 70
LOG_SECONDS: Final = 5.0
"""What the last words may take: a log that nobody reads may be what holds the loop up."""
MISSED_HEARTBEATS: Final = 6
MAX_FAILURES_TOLD: Final = 100

log = logging.getLogger(__name__)


class LiveAnswer(Struct, frozen=True, rename="camel"):
    broker_id: str
    dead_tasks: tuple[str, ...]
    """That must never end, and have ended."""


class ReadyAnswer(Struct, frozen=True, rename="camel", kw_only=True):
    broker_id: str
    ready: bool
    problems: tuple[str, ...]
    """Why it is not."""
    session_seconds_left: float
    stale_seconds: float
    """Since the store was last heard of."""
    leads: int
    failing_controllers: int
    failures: Mapping[str, str]
    """Why, by topic; the first of them. A topic that fails makes the daemon no less ready for the others."""


class Vitals:
    """What a daemon can tell of itself. To be kept `running`, beside a running daemon."""

    def __init__(self, of: Daemon) -> None:
        self.leaving = False
        """Set it when the daemon is about to stop: it is not ready from then on, while it still answers."""
        self._of = of
        self._tasks: dict[str, asyncio.Task[object]] = {}
        self._heartbeats: Heartbeats | None = None
        broker = of.settings.broker_id
        self._names = (f"session of {broker}", f"view of {of.view.prefix}", *ENDLESS_TASKS)

    @asynccontextmanager
    async def running(self) -> AsyncIterator["Vitals"]:
        heartbeats = Heartbeats(self._of.view, self._of.paths, wall_clock_ms=lambda: time.time_ns() // 1_000_000)
        self._heartbeats = heartbeats
        self.dead_tasks()
        try:
            yield self
        finally:
            self._heartbeats = None
            heartbeats.close()

    @property
    def watched_tasks(self) -> tuple[str, ...]:
        """By name, as of the first look."""
        return tuple(self._tasks)

    def dead_tasks(self) -> tuple[str, ...]:
        """Those of the endless ones that were there at the first look and are not any more, by name. Each of them is
        guarded where it runs, so this is a defect and never the store's doing.
        """
        if not self._tasks or any(task.done() for task in self._tasks.values()):
            found = {task.get_name(): task for task in asyncio.all_tasks()}
            self._tasks |= {name: found[name] for name in self._names if name in found}
        return tuple(name for name, task in self._tasks.items() if task.done())

    def problems(self) -> tuple[str, ...]:
        """Why it should not be asked now; none = it is ready."""
        of, found = self._of, [f"the task {name!r} has ended" for name in self.dead_tasks()]
        if self.leaving:
            found.append("it is stopping")
        if of.keeper.session is None or not of.keeper.session.alive:
            found.append("it has no session in the store, so it leads nothing")
        if not of.view.ready:
            found.append("it has not read the store yet")
        elif of.view.stale_seconds > SILENCE_SECONDS:
            found.append(f"it has not heard of the store for {of.view.stale_seconds:.0f} s")
        elif (age := self._heartbeat_seconds()) > max(SILENCE_SECONDS, MISSED_HEARTBEATS * of.settings.sweep_seconds):
            found.append(f"its heartbeat has not come back for {age:.0f} s")
        return tuple(found)

    def ready(self) -> ReadyAnswer:
        of, problems = self._of, self.problems()
        session, failures = of.keeper.session, of.control.failures
        return ReadyAnswer(
            broker_id=of.settings.broker_id,
            ready=not problems,
            problems=problems,
            session_seconds_left=session.seconds_left() if session is not None else 0.0,
            stale_seconds=of.view.stale_seconds,
            leads=len(of.elections.led),
            failing_controllers=len(failures),
            failures={str(topic): why for topic, why in islice(failures.items(), MAX_FAILURES_TOLD)},
        )

    def _heartbeat_seconds(self) -> float:
        age_ms = self._heartbeats.age_ms(self._of.settings.broker_id) if self._heartbeats is not None else None
        return age_ms / 1_000 if age_ms is not None else 0.0


def end_process() -> None:
    """At once, because nothing that runs on the loop can be asked to stop."""
    os._exit(EXIT_WEDGED)


class LoopWatchdog:
    """Ends the daemon when its event loop does not turn any more. To be kept `running`, on that loop."""

    def __init__(self, *, seconds: float = WEDGED_SECONDS, end: Callable[[], None] = end_process) -> None:
        """`end` is called in a thread of the watchdog's, once."""
        self._pause = seconds / LOOKS
        self._seconds = seconds
        self._end = end
        self._beats = 0
        self._stop = threading.Event()

    @asynccontextmanager
    async def running(self) -> AsyncIterator["LoopWatchdog"]:
        self._beats += 1
        loop = asyncio.get_running_loop()
        thread = threading.Thread(target=self._look, args=(loop,), name="loop watchdog", daemon=True)
        beating = loop.create_task(self._beat_for_ever(), name="loop watchdog")
        thread.start()
        try:
            yield self
        finally:
            self._stop.set()
            beating.cancel()

    async def _beat_for_ever(self) -> None:
        while True:
            self._beats += 1
            await asyncio.sleep(self._pause / 2)

    def _look(self, loop: asyncio.AbstractEventLoop) -> None:
        missed, seen = 0, self._beats
        while not self._stop.wait(self._pause):
            missed = missed + 1 if self._beats == seen else 0
            seen = self._beats
            if missed == LOOKS:
                telling = threading.Thread(target=self._tell, args=(loop,), name="last words", daemon=True)
                telling.start()
                telling.join(LOG_SECONDS)
                self._end()
                return

    def _tell(self, loop: asyncio.AbstractEventLoop) -> None:
        log.critical(
            "the event loop has not turned, ending the daemon seconds=%g", self._seconds, extra={"stacks": stacks(loop)}
        )


def stacks(loop: asyncio.AbstractEventLoop | None = None) -> str:
    """What every thread does, and where every task of the loop waits. May be asked from any thread."""
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    told = io.StringIO()
    for ident, frame in sys._current_frames().items():  # noqa: SLF001 - there is no other way to see another thread
        told.write(f"thread {names.get(ident, ident)}\n{''.join(traceback.format_stack(frame))}")
    for task in _tasks_of(loop):
        told.write(f"task {task.get_name()}\n")
        for frame in task.get_stack(limit=3):
            told.write(f"  {frame.f_code.co_filename}:{frame.f_lineno} in {frame.f_code.co_name}\n")
    return told.getvalue()


def _tasks_of(loop: asyncio.AbstractEventLoop | None) -> list["asyncio.Task[object]"]:
    try:
        return sorted(asyncio.all_tasks(loop), key=lambda task: task.get_name()) if loop is not None else []
    except RuntimeError:
        return []  # they change while they are listed, so the loop turns after all


@asynccontextmanager
async def watched(
    of: Daemon, *, seconds: float = WEDGED_SECONDS, end: Callable[[], None] = end_process
) -> AsyncIterator[None]:
    """A block that does not outlive what it stands on: raises `MustStop` (in a group) when a task that must never end
    has ended, and calls `end` when the event loop stands still for so long.
    """
    vitals = Vitals(of)
    vitals.dead_tasks()
    async with LoopWatchdog(seconds=seconds, end=end).running(), asyncio.TaskGroup() as tasks:
        checking = tasks.create_task(_check_for_ever(vitals), name="vitals")
        try:
            yield
        finally:
            checking.cancel()


async def _check_for_ever(vitals: Vitals) -> None:
    """Seen twice: a task that ends with a reason of its own ends the daemon with that reason, and meanwhile."""
    before: tuple[str, ...] = ()
    while True:
        await asyncio.sleep(CHECK_SECONDS)
        dead, before = before, vitals.dead_tasks()
        if dead and before:
            log.critical("a task has ended that must not, ending the daemon tasks=%s", ", ".join(dead))
            raise MustStop(
                f"what must never end has ended: {', '.join(dead)}",
                remedy="start it again, and tell its makers what the log says before this",
            )


VITALS: Final = web.AppKey("vitals", Vitals)


def install(app: web.Application) -> None:
    """What `ROUTES` needs, for as long as the application runs. To be called when its daemon is known."""
    app[VITALS] = Vitals(app[DAEMON])
    app.cleanup_ctx.append(_keep_running)


async def _keep_running(app: web.Application) -> AsyncIterator[None]:
    async with app[VITALS].running():
        yield


@acts(Action.CHECK_HEALTH)
async def live(request: web.Request) -> web.Response:
    """503 = end it and start another. That this answers at all says that the event loop turns."""
    dead = request.app[VITALS].dead_tasks()
    answer = LiveAnswer(request.app[DAEMON].settings.broker_id, dead)
    return json_response(answer, status=503 if dead else 200)


@acts(Action.CHECK_HEALTH)
async def ready(request: web.Request) -> web.Response:
    """503 = ask another daemon for now."""
    answer = request.app[VITALS].ready()
    return json_response(answer, status=200 if answer.ready else 503)


@acts(Action.CHECK_HEALTH)
async def status(request: web.Request) -> web.Response:
    """As load balancers ask a Pulsar broker: 200 and `OK`; 404 = not now; 503 = it will not mend itself."""
    vitals = request.app[VITALS]
    if vitals.dead_tasks():
        return web.Response(status=503, text="a task has ended that must not\n")
    problems = vitals.problems()
    return web.Response(status=404, text="; ".join(problems) + "\n") if problems else web.Response(text="OK")


ROUTES: Final = (
    web.get("/health/live", live, allow_head=False),
    web.get("/health/ready", ready, allow_head=False),
    web.get("/status.html", status, allow_head=False),
)
