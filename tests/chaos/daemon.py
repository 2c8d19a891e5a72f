"""A daemon of the chaos test: leads what it can, writes for what it leads, and says what it was told.

Everything it believes goes to its log, a line of JSON each, flushed before it goes on, so that `kill -9` loses no
word.
"""

import argparse
import asyncio
import json
import os
import sys
from pathlib import Path
from typing import TextIO

from scalable_topics.metadata.election import Elections, Leadership
from scalable_topics.metadata.etcd import EtcdSettings, EtcdStore
from scalable_topics.metadata.session import BrokerInfo, SessionKeeper
from scalable_topics.metadata.store import Put
from scalable_topics.metadata.view import KeyChange, StoreView
from scalable_topics.model.errors import LeaseLost, Unavailable, UnknownOutcome
from scalable_topics.model.paths import StorePaths
from tests.chaos.history import writes_key

PATHS = StorePaths()
WRITE_SECONDS = 0.05


class Daemon:
    def __init__(self, name: str, endpoints: tuple[str, ...], log: TextIO, *, ttl_seconds: int) -> None:
        self.name = name
        self.log = log
        settings = EtcdSettings(endpoints=endpoints, call_seconds=2, attempt_seconds=1)
        self.store = EtcdStore(settings)
        info = BrokerInfo(
            broker_id=name, broker_url=f"pulsar://{name}", web_url=f"http://{name}", process=f"{name}-{os.getpid()}"
        )
        self.keeper = SessionKeeper(self.store, PATHS, info, ttl_seconds=ttl_seconds)
        self.view = StoreView(self.store, f"{PATHS.root}/", silence_seconds=3)
        self.elections = Elections(self.store, PATHS, self.keeper, self.view, stable_seconds=5)
        self.seen = 0

    def say(self, what: str, **details: object) -> None:
        self.log.write(json.dumps({"daemon": self.name, "what": what, **details}) + "\n")
        self.log.flush()

    def see(self, change: KeyChange) -> None:
        if change.revision < self.seen:
            self.say("disorder", seen=self.seen, revision=change.revision)
        self.seen = change.revision

    async def run(self) -> None:
        async with self.keeper.running(), self.view.running():
            self.view.listen(self.see)
            async with self.elections.running():
                while True:
                    led = tuple(self.elections.led.values())
                    await asyncio.gather(*(self.write(leadership) for leadership in led))
                    await asyncio.sleep(WRITE_SECONDS)

    async def write(self, leadership: Leadership) -> None:
        word = {"daemon": self.name, "pid": os.getpid(), "term": leadership.term, "at": os.urandom(6).hex()}
        put = Put(writes_key(leadership.topic), json.dumps(word).encode())
        try:
            answer = await self.store.commit([put], compares=leadership.fence())
        except UnknownOutcome:
            self.say("unknown", topic=str(leadership.topic), **word)
        except (Unavailable, LeaseLost):
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
    options = parser.parse_args()
    with options.log.open("a") as log:

        async def run() -> None:
            while True:
                try:
                    await Daemon(options.name, tuple(options.endpoint), log, ttl_seconds=options.ttl).run()
                except* Unavailable:
                    await asyncio.sleep(0.5)

        asyncio.run(run())
    return 0


if __name__ == "__main__":
    sys.exit(main())
