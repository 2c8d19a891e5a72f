"""Breaks things, one after the other and several at once, and looks at what is left."""

import asyncio
import json
import os
import random
import signal
import sys
import tempfile
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, aclosing, asynccontextmanager, suppress
from pathlib import Path
from typing import Any

from msgspec import Struct
from yarl import URL

from scalable_topics.metadata import etcd as etcd_module
from scalable_topics.metadata.etcd import EtcdSettings, EtcdStore
from scalable_topics.metadata.local_etcd import EtcdCluster, EtcdMember, etcd_cluster
from scalable_topics.metadata.store import Deletion, KeyValue, Put
from scalable_topics.model.errors import ScalableTopicsError, Unavailable
from scalable_topics.model.layout import initial_layout
from scalable_topics.model.names import TopicName
from scalable_topics.model.record import TopicRecord, encode_record
from tests.chaos.history import PATHS, violations, writes_key
from tests.chaos.network import Link, Weather

CONVERGE_SECONDS = 40.0


class Outcome(Struct):
    seed: int
    faults: Counter[str]
    writes: int
    acknowledged: int
    unknown: int
    terms: int
    violations: list[str]


class Process:
    """A daemon process, through a network of its own."""

    def __init__(self, name: str, links: list[Link], directory: Path, *, cheat: bool = False) -> None:
        self.name = name
        self._options = ["--cheat"] if cheat else []
        self.links = links
        self.log = directory / f"{name}.jsonl"
        self._errors = directory / f"{name}.err"
        self._process: asyncio.subprocess.Process | None = None

    async def start(self) -> None:
        endpoints = [f"--endpoint=http://127.0.0.1:{link.port}" for link in self.links]
        with self._errors.open("ab") as errors:
            self._process = await asyncio.create_subprocess_exec(
                sys.executable,
                "-m",
                "tests.chaos.daemon",
                f"--name={self.name}",
                f"--log={self.log}",
                *endpoints,
                *self._options,
                stderr=errors,
            )

    def send(self, number: signal.Signals) -> None:
        if self._process is not None and self._process.returncode is None:
            os.kill(self._process.pid, number)

    async def end(self, number: signal.Signals) -> None:
        process, self._process = self._process, None
        if process is not None and process.returncode is None:
            process.send_signal(number)
            if number is not signal.SIGKILL:
                process.send_signal(signal.SIGCONT)
            await process.wait()

    def lines(self) -> list[dict[str, Any]]:
        """What it said; the last line may have been cut short by kill -9."""
        found = []
        for line in self.log.read_text().splitlines() if self.log.exists() else []:
            with suppress(json.JSONDecodeError):
                found.append(json.loads(line))
        return found


class Chaos:
    def __init__(
        self, cluster: EtcdCluster, processes: list[Process], topics: list[TopicName], rng: random.Random
    ) -> None:
        self.cluster = cluster
        self.processes = processes
        self.topics = topics
        self.rng = rng
        self.faults: Counter[str] = Counter()
        self.events: list[KeyValue | Deletion] = []
        self.store = EtcdStore(EtcdSettings(endpoints=cluster.endpoints, call_seconds=2, attempt_seconds=0.5))
        self.seen = 0

    async def record(self) -> None:
        """The store's history, on a connection that nobody breaks."""
        while True:
            try:
                async with aclosing(self.store.watch(f"{PATHS.root}/", after_revision=self.seen)) as watch:
                    async for batch in watch:
                        if batch.events:  # a sign of life may be from before or after what was told
                            self.events += batch.events
                            self.seen = batch.revision
            except Unavailable:
                await asyncio.sleep(0.1)

    async def break_things(self, seconds: float) -> None:
        loop = asyncio.get_running_loop()
        end = loop.time() + seconds
        async with asyncio.TaskGroup() as tasks:
            while loop.time() < end:
                fault = self.rng.choice(
                    [
                        self.kill,
                        self.stop,
                        self.leap,
                        self.weather,
                        self.weather,
                        self.kill_etcd,
                        self.stop_etcd,
                        self.forget,
                    ]
                )
                tasks.create_task(fault())
                await asyncio.sleep(self.rng.uniform(0.5, 3))

    async def kill(self) -> None:
        self.faults["kill -9 of a daemon"] += 1
        process = self.rng.choice(self.processes)
        await process.end(signal.SIGKILL)
        await asyncio.sleep(self.rng.uniform(0, 5))
        if process._process is None:
            await process.start()

    async def stop(self) -> None:
        self.faults["SIGSTOP of a daemon"] += 1
        process = self.rng.choice(self.processes)
        process.send(signal.SIGSTOP)
        await asyncio.sleep(self.rng.uniform(0.5, 8))
        process.send(signal.SIGCONT)

    async def leap(self) -> None:
        self.faults["clock leap of a daemon"] += 1
        self.rng.choice(self.processes).send(signal.SIGUSR1)

    async def weather(self) -> None:
        kind = self.rng.choice([Weather.REFUSED, Weather.STALLED, Weather.SLOW, Weather.TORN])
        self.faults[f"network {kind}"] += 1
        links = self.rng.choice(self.processes).links
        hit = links if self.rng.random() < 0.5 else [self.rng.choice(links)]
        for link in hit:
            link.change(kind)
        await asyncio.sleep(self.rng.uniform(0.5, 8))
        for link in hit:
            link.change(Weather.FAIR)

    async def kill_etcd(self) -> None:
        self.faults["kill -9 of etcd"] += 1
        member = self.rng.choice(self.cluster.members)
        await member.kill()
        await asyncio.sleep(self.rng.uniform(0.5, 5))
        await restart(member)

    async def stop_etcd(self) -> None:
        """One member, or most of them: then there is no quorum."""
        members = self.rng.sample(self.cluster.members, self.rng.choice([1, 1, 2]))
        self.faults["SIGSTOP of etcd" if len(members) == 1 else "loss of quorum"] += 1
        for member in members:
            with suppress(ScalableTopicsError, ProcessLookupError):
                member.pause()
        await asyncio.sleep(self.rng.uniform(0.5, 6))
        for member in members:
            with suppress(ScalableTopicsError, ProcessLookupError):
                member.resume()

    async def forget(self) -> None:
        """Compaction, as far as our own record of the history has come."""
        self.faults["compaction"] += 1
        with suppress(ScalableTopicsError):
            await self.store._call("/kv/compaction", {"revision": self.seen}, etcd_module._nothing)

    async def heal(self) -> None:
        for process in self.processes:
            for link in process.links:
                link.change(Weather.FAIR)
            process.send(signal.SIGCONT)
            if process._process is None or process._process.returncode is not None:
                await process.start()
        for member in self.cluster.members:
            await restart(member)
        await self.cluster.ready()

    async def diverged(self) -> list[str]:
        """Is the store itself still one? When nobody writes any more, every member answers the same revision to a
        linearizable read. etcd 3.5.0 to 3.5.2 can lose that when they are killed; then no verdict on us is possible.
        """
        revisions = {}
        for member in self.cluster.members:
            store = EtcdStore(EtcdSettings(endpoints=(member.client_url,), call_seconds=10))
            try:
                revisions[member.name] = (await store.get()).revision
            finally:
                await store.close()
        if len(set(revisions.values())) == 1:
            return []
        return [f"etcd itself diverged, {revisions}: this run says nothing; choose another etcd with ETCD_BINARY"]

    async def converged(self) -> bool:
        """When faults stop, every topic has a leader that writes."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + CONVERGE_SECONDS
        start = self.seen
        waiting = {writes_key(topic) for topic in self.topics}
        while waiting and loop.time() < deadline:
            await asyncio.sleep(0.2)
            waiting -= {event.key for event in self.events if event.mod_revision > start}
        return not waiting


async def restart(member: EtcdMember) -> None:
    if member._process is None or member._process.returncode is not None:
        await member.start()


@asynccontextmanager
async def arena(rng: random.Random, *, daemons: int, topics: int, cheat: bool = False) -> AsyncIterator[Chaos]:
    """`cheat`: the first daemon is one."""
    async with AsyncExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="chaos-")))
        cluster = await stack.enter_async_context(etcd_cluster(3))
        processes = []
        for number in range(daemons):
            urls = [URL(endpoint) for endpoint in cluster.endpoints]
            links = [
                await stack.enter_async_context(Link(str(url.host), int(url.port or 0), rng).running()) for url in urls
            ]
            processes.append(Process(f"d{number}", links, directory, cheat=cheat and number == 0))
        names = [TopicName.parse(f"topic://chaos/ns/{number}") for number in range(topics)]
        chaos = Chaos(cluster, processes, names, rng)
        stack.push_async_callback(chaos.store.close)
        record = encode_record(TopicRecord(incarnation=f"{rng.getrandbits(64):016x}", layout=initial_layout(1)))
        await chaos.store.commit([Put(PATHS.record(name), record) for name in names])
        for process in processes:
            await process.start()
            stack.push_async_callback(process.end, signal.SIGKILL)
        yield chaos


async def run(seconds: float, *, seed: int, daemons: int = 3, topics: int = 20) -> Outcome:
    rng = random.Random(seed)
    async with arena(rng, daemons=daemons, topics=topics) as chaos:
        recording = asyncio.create_task(chaos.record())
        found: list[str] = []
        if not await chaos.converged():
            found.append("not every topic had a leader in the beginning")
        await chaos.break_things(seconds)
        await chaos.heal()
        if not await chaos.converged():
            found.append(f"not every topic had a leader {CONVERGE_SECONDS} s after the last fault")
        for process in chaos.processes:
            await process.end(signal.SIGTERM)
        last = (await chaos.store.get()).revision
        async with asyncio.timeout(10):
            while chaos.seen < last:
                last = min(last, (await chaos.store.scan(f"{PATHS.root}/")).revision)
                if not [e for e in (await chaos.store.scan(f"{PATHS.root}/")).items if e.mod_revision > chaos.seen]:
                    break
                await asyncio.sleep(0.1)
        recording.cancel()
        found += await chaos.diverged()
        lines = [line for process in chaos.processes for line in process.lines()]
        said = Counter(line["what"] for line in lines)
        terms = {
            (e.key, e.create_revision)
            for e in chaos.events
            if isinstance(e, KeyValue) and e.key.endswith("/controller")
        }
        writes = sum(isinstance(e, KeyValue) and e.key.endswith("/writes") for e in chaos.events)
        found += violations(chaos.events, lines)
        return Outcome(seed, chaos.faults, writes, said["acknowledged"], said["unknown"], len(terms), found)
