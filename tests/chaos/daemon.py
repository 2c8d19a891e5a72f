"""A daemon of the chaos test: leads what it can, writes for what it leads, and says what it was told.

Everything it believes goes to its log, a line of JSON each, flushed before it goes on, so that `kill -9` loses no
word.
"""

import argparse
import asyncio
import json
import os
import random
import signal
import sys
import zlib
from contextlib import suppress
from pathlib import Path
from typing import TextIO

from scalable_topics.metadata.elections import Elections
from scalable_topics.metadata.etcd import EtcdSettings, EtcdStore
from scalable_topics.metadata.leadership import Leadership
from scalable_topics.metadata.patience import TRANSIENT
from scalable_topics.metadata.session import BrokerInfo, SessionKeeper
from scalable_topics.metadata.store import Put
from scalable_topics.metadata.view import StoreView, ViewChange
from scalable_topics.model.errors import UnknownOutcome
from scalable_topics.model.paths import StorePaths
from tests.chaos.history import writes_key

PATHS = StorePaths()
WRITE_SECONDS = 0.05


TOLD_REVISIONS = 100
"""So many revisions of the watch are summed up in one line of the log."""


class LeapingLoop(asyncio.SelectorEventLoop):
    """SIGUSR1 makes its clock leap ahead, as that of a machine that was suspended."""

    offset_seconds = 0.0

    def time(self) -> float:
        return super().time() + self.offset_seconds

    def leap(self) -> None:
        self.offset_seconds += random.uniform(0.5, 8)


class Daemon:
    """A `cheat` goes on writing for what it has lost, without a fence: the checker must find out."""

    def __init__(self, name: str, endpoints: tuple[str, ...], log: TextIO, *, ttl_seconds: int, cheat: bool) -> None:
        self.name = name
        self.log = log
        self.cheat = cheat
        settings = EtcdSettings(endpoints=endpoints, call_seconds=2, attempt_seconds=1)
        self.store = EtcdStore(settings)
        info = BrokerInfo(
            broker_id=name, broker_url=f"pulsar://{name}", web_url=f"http://{name}", process=f"{name}-{os.getpid()}"
        )
        self.keeper = SessionKeeper(self.store, PATHS, info, ttl_seconds=ttl_seconds)
        self.view = StoreView(self.store, PATHS, silence_seconds=3)
        self.elections = Elections(self.store, PATHS, self.keeper, self.view, is_idle=lambda _: True, stable_seconds=5)
        self.elections.listen(self)
        self.former: list[Leadership] = []
        self.seen = 0
        self.told_after, self.told_sum, self.told_count = 0, 0, 0

    def gained(self, leadership: Leadership) -> None:
        self.say("gained", topic=str(leadership.topic), term=leadership.term)

    def lost(self, leadership: Leadership) -> None:
        self.say("lost", topic=str(leadership.topic), term=leadership.term)
        if self.cheat:
            self.former.append(leadership)

    def say(self, what: str, **details: object) -> None:
        self.log.write(json.dumps({"daemon": self.name, "what": what, **details}) + "\n")
        self.log.flush()

    def see(self, change: ViewChange) -> None:
        revision = change.after.revision
        if revision < self.seen:
            self.say("disorder", seen=self.seen, revision=revision)
        self.seen = revision
        if change.listed:
            self.told_after, self.told_sum, self.told_count = revision, 0, 0
            return
        for each in change.changes:
            self.told_sum = zlib.crc32(f"{revision} {each.key}".encode(), self.told_sum)
        self.told_count += 1
        if self.told_count == TOLD_REVISIONS:
            self.say("told", after=self.told_after, revision=revision, sum=self.told_sum)
            self.told_after, self.told_sum, self.told_count = revision, 0, 0

    async def run(self) -> None:
        async with self.keeper.running(), self.view.running():
            self.view.listen(self.see)
            async with self.elections.running():
                while True:
                    led = tuple(self.elections.led.values())
                    await asyncio.gather(*(self.write(leadership) for leadership in led))
                    await asyncio.gather(*(self.write(leadership, fenced=False) for leadership in self.former))
                    await asyncio.sleep(WRITE_SECONDS)

    async def write(self, leadership: Leadership, *, fenced: bool = True) -> None:
        word = {"daemon": self.name, "pid": os.getpid(), "term": leadership.term, "at": os.urandom(6).hex()}
        put = Put(writes_key(leadership.topic), json.dumps(word).encode())
        try:
            answer = await self.store.commit([put], compares=leadership.fence() if fenced else ())
        except UnknownOutcome:
            self.say("unknown", topic=str(leadership.topic), **word)
        except TRANSIENT:
            pass
        else:
            if answer.succeeded:
                self.say("acknowledged", topic=str(leadership.topic), revision=answer.revision, **word)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--name", required=True)
    parser.add_argument("--endpoint", action="append", required=True)
    parser.add_argument("--log", type=Path, required=True)
    parser.add_argument("--ttl", type=int, default=3)
    parser.add_argument("--cheat", action="store_true", help="write for lost terms too, without a fence")
    options = parser.parse_args()
    with options.log.open("a") as log:

        async def run() -> None:
            loop = asyncio.get_running_loop()
            assert isinstance(loop, LeapingLoop)
            loop.add_signal_handler(signal.SIGUSR1, loop.leap)
            endpoints = tuple(options.endpoint)
            daemon = Daemon(options.name, endpoints, log, ttl_seconds=options.ttl, cheat=options.cheat)
            running = asyncio.ensure_future(daemon.run())
            loop.add_signal_handler(signal.SIGTERM, running.cancel)
            with suppress(asyncio.CancelledError):
                await running
            await daemon.store.close()

        with asyncio.Runner(loop_factory=LeapingLoop) as runner:
            runner.run(run())
    return 0


if __name__ == "__main__":
    sys.exit(main())
