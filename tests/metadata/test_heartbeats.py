"""Sweep heartbeats: a daemon's sign of work, its clock, and the proof that its watch is alive."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from scalable_topics.metadata.heartbeats import Heartbeat, Heartbeats
from scalable_topics.metadata.memory import MemoryStore
from scalable_topics.metadata.repository import Repository
from scalable_topics.metadata.store import Put
from scalable_topics.model.errors import InvalidArgument
from scalable_topics.model.load import SweepHeartbeat
from tests.metadata.daemons import PATHS, Daemon
from tests.metadata.faulty import FaultyStore
from tests.virtual_time import run_virtual


class Sweeper:
    """A sampler and a wall clock, both of which may be wrong."""

    def __init__(self, *, clock_off_ms: int = 0) -> None:
        self.clock_off_ms = clock_off_ms
        self.sweeps = 0
        self.broken = False

    async def sweep(self) -> None:
        if self.broken:
            raise RuntimeError("the sampler does not work")
        self.sweeps += 1

    def now_ms(self) -> int:
        return int(asyncio.get_running_loop().time() * 1_000) + self.clock_off_ms


@asynccontextmanager
async def beating(daemon: Daemon, sweeper: Sweeper) -> AsyncIterator[Daemon]:
    """A daemon that sweeps every five seconds."""
    heartbeat = Heartbeat(
        Repository(daemon.link, PATHS), daemon.keeper, wall_clock_ms=sweeper.now_ms, sweep=sweeper.sweep
    )
    async with daemon.running(), heartbeat.running():
        yield daemon


def test_an_idle_daemon_hears_itself_and_keeps_one_watch() -> None:
    """PROTOCOL 7: nothing happens for an hour, nobody else is there, and the watch is not opened a second time."""

    async def idle() -> None:
        class Counted(FaultyStore):
            watches = 0

            def watch(self, prefix, *, after_revision):  # type: ignore[no-untyped-def]
                self.watches += 1
                return super().watch(prefix, after_revision=after_revision)

        sweeper, daemon = Sweeper(), Daemon(MemoryStore(), "a")
        link = daemon.view._store = Counted(daemon.link)
        daemon.view._silence_seconds = 30
        async with beating(daemon, sweeper):
            before = (await daemon.link.get()).revision
            await asyncio.sleep(3_600)
            assert link.watches == 1
            assert daemon.view.stale_seconds <= 5
            assert 700 <= sweeper.sweeps <= 721
            written = (await daemon.link.get()).revision - before
            assert written <= 725, "an idle daemon writes little"

    run_virtual(idle())


def test_heartbeats_tell_who_sweeps_and_whose_clock_is_off() -> None:
    async def skewed() -> None:
        store = MemoryStore()
        good, late = Sweeper(), Sweeper(clock_off_ms=-6_000)
        async with beating(Daemon(store, "a"), good) as a, beating(Daemon(store, "b"), late):
            heartbeats = Heartbeats(a.view, PATHS, wall_clock_ms=good.now_ms)
            await store.commit([Put(PATHS.reporter("stranger"), b"junk")])
            await asyncio.sleep(60)
            off = {name: seen.arrived_at_ms - seen.heartbeat.swept_at_ms for name, seen in heartbeats.seen.items()}
            assert off.keys() == {"a", "b"}
            assert off["a"] < 1_000
            assert 6_000 <= off["b"] < 7_000
            assert heartbeats.seen["b"].heartbeat.interval_ms == 5_000
            heartbeats.close()

    run_virtual(skewed())


def test_a_sampler_that_does_not_work_says_nothing_and_goes_on_when_it_does() -> None:
    async def broken() -> None:
        sweeper = Sweeper()
        async with beating(Daemon(MemoryStore(), "a"), sweeper) as a:
            heartbeats = Heartbeats(a.view, PATHS, wall_clock_ms=sweeper.now_ms)
            await asyncio.sleep(60)
            fresh = heartbeats.age_ms("a")
            assert fresh is not None
            assert fresh <= 5_000
            sweeper.broken = True
            await asyncio.sleep(60)
            old = heartbeats.age_ms("a")
            assert old is not None
            assert old > 3 * 5_000, "three intervals: its load records are unknown"
            sweeper.broken = False
            await asyncio.sleep(60)
            fresh = heartbeats.age_ms("a")
            assert fresh is not None
            assert fresh <= 5_000

    run_virtual(broken())


def test_a_heartbeat_ends_with_its_session_and_comes_back_with_the_next() -> None:
    async def cut_off() -> None:
        store = MemoryStore()
        sweeper = Sweeper()
        async with beating(Daemon(store, "a"), sweeper) as a, Daemon(store, "b").running() as b:
            heartbeats = Heartbeats(b.view, PATHS, wall_clock_ms=sweeper.now_ms)
            await asyncio.sleep(20)
            assert heartbeats.seen.keys() == {"a"}
            a.link.cut = True
            await asyncio.sleep(20)
            assert heartbeats.seen == {}
            assert heartbeats.age_ms("a") is None
            a.link.cut = False
            await asyncio.sleep(20)
            assert heartbeats.seen.keys() == {"a"}

    run_virtual(cut_off())


def test_what_was_there_before_is_found() -> None:
    async def before() -> None:
        store = MemoryStore()
        sweeper = Sweeper()
        async with beating(Daemon(store, "a"), sweeper), Daemon(store, "b").running() as b:
            await asyncio.sleep(2)
            heartbeats = Heartbeats(b.view, PATHS, wall_clock_ms=sweeper.now_ms)
            assert isinstance(heartbeats.seen["a"].heartbeat, SweepHeartbeat)

    run_virtual(before())


@pytest.mark.parametrize("seconds", [0, -1, 15.1])
def test_an_interval_that_proves_nothing_is_refused(seconds: float) -> None:
    async def run() -> None:
        daemon = Daemon(MemoryStore(), "a")
        with pytest.raises(InvalidArgument, match="does not prove a watch alive"):
            Heartbeat(Repository(daemon.link, PATHS), daemon.keeper, wall_clock_ms=lambda: 0, interval_seconds=seconds)

    run_virtual(run())
