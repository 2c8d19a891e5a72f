"""Daemons as operators meet them: how long a take-over lasts, and what leading costs while nothing happens.

Real processes on a real etcd. The one whose topics are taken over led all of them, and one other takes all: the most
that a take-over can be.
"""

import asyncio
import os
import re
import signal
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from time import monotonic
from typing import Final, Self

import aiohttp
import msgspec

from scalable_topics.metadata.etcd import EtcdSettings, EtcdStore
from scalable_topics.metadata.local_etcd import etcd_cluster
from scalable_topics.metadata.session import DEFAULT_TTL_SECONDS
from scalable_topics.metadata.store import MAX_WRITES, Put
from scalable_topics.model.layout import initial_layout
from scalable_topics.model.names import Domain, TopicName
from scalable_topics.model.paths import StorePaths
from scalable_topics.model.record import TopicRecord, encode_record
from tests.bench.daemon import SWEEP_SECONDS, Word
from tests.bench.rows import Group, Reading

PATHS: Final = StorePaths()
TOPICS: Final = 1_000
TTL_SECONDS: Final = 5
TIMES: Final = 5
"""Take-overs of each kind."""
IDLE_TOPICS: Final = 10_000
IDLE_WINDOWS: Final = 4
IDLE_WINDOW_SECONDS: Final = 10
SETTLE_SECONDS: Final = 3.0
PATIENCE_SECONDS: Final = 60.0
SEGMENTS: Final = 4
RECORD: Final = encode_record(
    TopicRecord(incarnation="0" * 16, layout=initial_layout(SEGMENTS, at_ms=1_700_000_000_000))
)

_word: Final = msgspec.json.Decoder(Word)
_proposals: Final = re.compile(r"^etcd_server_proposals_committed_total (\S+)$", re.MULTILINE)


class Process:
    """A daemon process, from the side of whoever started it."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process
        self._words: list[Word] = []
        self._heard = asyncio.Condition()
        self._listening = asyncio.ensure_future(self._listen())

    @classmethod
    async def start(cls, name: str, endpoint: str, *, ttl_seconds: int, topics: int) -> Self:
        options = (f"--name={name}", f"--endpoint={endpoint}", f"--ttl={ttl_seconds}", f"--topics={topics}")
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "tests.bench.daemon", *options, stdout=asyncio.subprocess.PIPE
        )
        return cls(process)

    async def _listen(self) -> None:
        assert self._process.stdout is not None
        async for line in self._process.stdout:
            async with self._heard:
                self._words.append(_word.decode(line))
                self._heard.notify_all()

    async def hear(self, what: str, *, after: float = 0.0) -> Word:
        """The first such word after a moment, once it was said."""
        async with asyncio.timeout(PATIENCE_SECONDS), self._heard:
            while True:
                for word in self._words:
                    if word.what == what and word.at > after:
                        return word
                await self._heard.wait()

    def send(self, number: signal.Signals) -> None:
        os.kill(self._process.pid, number)

    async def end(self) -> None:
        if self._process.returncode is None:
            self._process.kill()
        await self._process.wait()
        await self._listening


@asynccontextmanager
async def _etcd_with(topics: int) -> AsyncIterator[str]:
    async with etcd_cluster() as cluster:
        store = EtcdStore(EtcdSettings(endpoints=cluster.endpoints))
        puts = [Put(PATHS.record(_topic(number)), RECORD) for number in range(topics)]
        for first in range(0, topics, MAX_WRITES):
            await store.commit(puts[first : first + MAX_WRITES])
        await store.close()
        yield cluster.endpoints[0]


def _topic(number: int) -> TopicName:
    return TopicName(Domain.TOPIC, "public", "default", f"orders-{number:05}")


def readings() -> Sequence[Reading]:
    return [*asyncio.run(_take_overs()), *asyncio.run(_idle())]


async def _take_overs() -> list[Reading]:
    """A chain of daemons: each takes over from the one before it, then it is its own turn to go."""
    readings: list[Reading] = []
    async with _etcd_with(TOPICS) as endpoint:
        leader = await Process.start("daemon-0", endpoint, ttl_seconds=TTL_SECONDS, topics=TOPICS)
        try:
            await leader.hear("leading")
            for what, number, limit in (
                (f"after kill -9 just after a renewal, TTL {TTL_SECONDS} s", signal.SIGKILL, TTL_SECONDS + 1.0),
                ("after a clean shutdown", signal.SIGTERM, 1.0),
            ):
                taken, told = [], []
                for _ in range(TIMES):
                    leader, whole, own = await _take_over(leader, endpoint, number)
                    taken.append(whole)
                    told.append(own)
                name = f"take-over of {TOPICS:,} topics {what}"
                readings.append(Reading(name=name, unit="s", values=tuple(taken), limit=limit))
                readings.append(Reading(name="- of it, since the new leader was told", unit="s", values=tuple(told)))
        finally:
            await leader.end()
    return readings


async def _take_over(leader: Process, endpoint: str, number: signal.Signals) -> tuple[Process, float, float]:
    """Who leads now, seconds since the signal, and seconds since the new leader was told that nobody leads."""
    successor = await Process.start(f"daemon-{monotonic()}", endpoint, ttl_seconds=TTL_SECONDS, topics=TOPICS)
    try:
        await successor.hear("ready")
        await leader.hear("renewed", after=monotonic())
        gone_at = monotonic()
        leader.send(number)
        done = await successor.hear("leading")
        told = await successor.hear("told")
    except BaseException:
        await successor.end()
        raise
    finally:
        await leader.end()
    await _check_one_leads_all(endpoint)
    return successor, done.at - gone_at, done.at - told.at


async def _check_one_leads_all(endpoint: str) -> None:
    """What a daemon says of itself is not enough."""
    store = EtcdStore(EtcdSettings(endpoints=(endpoint,)))
    items = {item.key: item for item in (await store.scan(PATHS.topics)).items}
    await store.close()
    leaders = [items.get(PATHS.controller(_topic(number))) for number in range(TOPICS)]
    leases = {leader.lease for leader in leaders if leader is not None}
    if None in leaders or len(leases) != 1:
        raise RuntimeError(f"{leaders.count(None)} topics without a leader, {len(leases)} leaders of the others")


async def _idle() -> list[Reading]:
    empty_bytes = await _memory_without_topics()
    async with _etcd_with(IDLE_TOPICS) as endpoint, aiohttp.ClientSession() as session:
        daemon = await Process.start("daemon", endpoint, ttl_seconds=DEFAULT_TTL_SECONDS, topics=IDLE_TOPICS)
        try:
            began = await daemon.hear("ready")
            leading = await daemon.hear("leading")
            await asyncio.sleep(SETTLE_SECONDS)
            shares, writes = [], []
            sample = await daemon.hear("sample", after=monotonic())
            for _ in range(IDLE_WINDOWS):
                before, proposals, asked_at = sample, await _proposed(session, endpoint), monotonic()
                sample = await daemon.hear("sample", after=before.at + IDLE_WINDOW_SECONDS - 0.5)
                shares.append(100 * (sample.cpu_seconds - before.cpu_seconds) / (sample.at - before.at))
                writes.append((await _proposed(session, endpoint) - proposals) / (monotonic() - asked_at))
        finally:
            await daemon.end()
    per_topic = (sample.memory_bytes - empty_bytes) / IDLE_TOPICS
    what = f"{IDLE_TOPICS:,} idle led topics"
    return [
        Reading(name=f"{what}, share of a core", unit="%", values=tuple(shares), limit=3),
        Reading(name=f"{what}, etcd writes", unit="per s", values=tuple(writes), limit=2),
        Reading(name=f"{what}, memory per topic", unit="bytes", values=(per_topic,)),
        Reading(name=f"{what}, until they are led", unit="s", values=(leading.at - began.at,)),
    ]


async def _memory_without_topics() -> int:
    async with _etcd_with(0) as endpoint:
        daemon = await Process.start("daemon", endpoint, ttl_seconds=DEFAULT_TTL_SECONDS, topics=IDLE_TOPICS)
        try:
            ready = await daemon.hear("ready")
            return (await daemon.hear("sample", after=ready.at + SETTLE_SECONDS)).memory_bytes
        finally:
            await daemon.end()


async def _proposed(session: aiohttp.ClientSession, endpoint: str) -> float:
    """All that etcd had to agree on so far: writes, and what leases cost."""
    async with session.get(f"{endpoint}/metrics") as response:
        found = _proposals.search(await response.text())
    if found is None:
        raise RuntimeError("this etcd does not tell its committed proposals")
    return float(found[1])


GROUP: Final = Group(
    name="daemon",
    about=f"""\
Real processes on a real etcd of one member. A daemon here is its session, view, elections, store monitor and a sweep
heartbeat every {SWEEP_SECONDS} s: what costs something while nothing happens, without what a leader does for its topics
and without clients. Records have {SEGMENTS} segments ({len(RECORD):,} bytes).

*Take-over*: one daemon led all topics, one other takes all of them; from the signal until the new leader leads the last
one. A kill comes just after a renewal, when the lease has longest to live; etcd itself looks for ended leases twice a
second.

*Idle*: windows of {IDLE_WINDOW_SECONDS} s, lease TTL {DEFAULT_TTL_SECONDS} s. Writes are all proposals that etcd
committed; renewing a lease is none. Memory is what is resident above that of a daemon without topics.
""",
    readings=readings,
)
