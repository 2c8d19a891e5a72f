"""A daemon to be measured: session, view, elections, store monitor and sweep heartbeat, and nothing that it leads for.

It says what it does on stdout, a line of JSON each (`Word`), with the clock that all processes of a machine share.
"""

import argparse
import asyncio
import os
import signal
import sys
import time
from contextlib import suppress
from pathlib import Path

import msgspec
from msgspec import Struct

from scalable_topics.metadata.elections import Elections
from scalable_topics.metadata.etcd import EtcdSettings, EtcdStore
from scalable_topics.metadata.leadership import Leadership
from scalable_topics.metadata.monitor import StoreMonitor
from scalable_topics.metadata.patience import TRANSIENT
from scalable_topics.metadata.session import BrokerInfo, SessionKeeper
from scalable_topics.metadata.store import Put
from scalable_topics.metadata.view import StoreView, ViewChange
from scalable_topics.model.load import SweepHeartbeat, encode_heartbeat
from scalable_topics.model.paths import StorePaths

PATHS = StorePaths()
SWEEP_SECONDS = 10


class Word(Struct, frozen=True, kw_only=True):
    what: str
    """`ready`: it knows the store and has a session. `renewed`: its lease. `told`: that a leader is gone. `leading`: as
    much as it was to wait for. `sample`: every second.
    """
    at: float
    cpu_seconds: float
    memory_bytes: int
    led: int


class _Store(EtcdStore):
    """Says when its lease was renewed."""

    def __init__(self, settings: EtcdSettings, daemon: "Daemon") -> None:
        super().__init__(settings)
        self._daemon = daemon

    async def keep_alive(self, lease: int) -> float:
        left = await super().keep_alive(lease)
        self._daemon.say("renewed")
        return left


class Daemon:
    def __init__(self, name: str, endpoint: str, *, ttl_seconds: int, topics: int) -> None:
        self._name = name
        self._topics = topics
        self._told = False
        self._led = 0
        self._store = _Store(EtcdSettings(endpoints=(endpoint,)), self)
        info = BrokerInfo(
            broker_id=name, broker_url=f"pulsar://{name}", web_url=f"http://{name}", process=f"{name}-{os.getpid()}"
        )
        self._keeper = SessionKeeper(self._store, PATHS, info, ttl_seconds=ttl_seconds)
        self._view = StoreView(self._store, PATHS)
        self._monitor = StoreMonitor(self._store)
        self._elections = Elections(self._store, PATHS, self._keeper, self._view, is_idle=lambda _: True)
        self._elections.listen(self)

    async def run(self) -> None:
        try:
            async with self._keeper.running(), self._view.running(), self._monitor.running():
                await self._view.wait_ready()
                self._view.listen(self._see)
                async with self._elections.running(), asyncio.TaskGroup() as tasks:
                    await self._keeper.wait_session()
                    self.say("ready")
                    tasks.create_task(self._sweep())
                    while True:
                        await asyncio.sleep(1)
                        self.say("sample")
        finally:
            await self._store.close()

    def gained(self, leadership: Leadership) -> None:
        del leadership
        self._led += 1
        if self._led == self._topics:
            self.say("leading")

    def lost(self, leadership: Leadership) -> None:
        del leadership
        self._led -= 1

    def say(self, what: str) -> None:
        word = Word(
            what=what,
            at=time.monotonic(),
            cpu_seconds=time.process_time(),
            memory_bytes=_memory_bytes(),
            led=self._led,
        )
        sys.stdout.buffer.write(msgspec.json.encode(word) + b"\n")
        sys.stdout.buffer.flush()

    def _see(self, change: ViewChange) -> None:
        if not self._told and any(each.after is None and each.key.endswith("/controller") for each in change.changes):
            self._told = True
            self.say("told")

    async def _sweep(self) -> None:
        """The heartbeat that proves our watch alive, as a reporter of load writes it."""
        while True:
            heartbeat = SweepHeartbeat(swept_at_ms=time.time_ns() // 1_000_000, interval_ms=SWEEP_SECONDS * 1_000)
            session = self._keeper.session
            if session is not None:
                with suppress(*TRANSIENT):
                    put = Put(PATHS.reporter(self._name), encode_heartbeat(heartbeat), session.lease)
                    await self._store.commit([put], compares=session.fence(PATHS, self._name))
            await asyncio.sleep(SWEEP_SECONDS)


def _memory_bytes() -> int:
    """Resident now, not at its most."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


async def _run(daemon: Daemon) -> None:
    running = asyncio.ensure_future(daemon.run())
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, running.cancel)
    with suppress(asyncio.CancelledError):
        await running


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--name", required=True)
    parser.add_argument("--endpoint", required=True)
    parser.add_argument("--ttl", type=int, required=True)
    parser.add_argument("--topics", type=int, required=True, help="say so when it leads so many")
    options = parser.parse_args()

    async def run() -> None:
        await _run(Daemon(options.name, options.endpoint, ttl_seconds=options.ttl, topics=options.topics))

    asyncio.run(run())
    return 0


if __name__ == "__main__":
    sys.exit(main())
