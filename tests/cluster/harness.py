"""A cluster in one line: `async with cluster(daemons=2, ttl=2) as c`."""

import asyncio
import ctypes
import itertools
import json
import os
import random
import signal
import sys
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import aiohttp
from msgspec import Struct
from yarl import URL

from scalable_topics.control.failpoints import VARIABLE, Failpoint
from scalable_topics.metadata.etcd import EtcdSettings, EtcdStore
from scalable_topics.metadata.local_etcd import EtcdCluster, etcd_cluster
from scalable_topics.metadata.repository import Repository
from scalable_topics.metadata.session import decode_broker
from scalable_topics.model.names import TopicName
from scalable_topics.model.paths import StorePaths
from scalable_topics.segments.embedded import schema
from tests.chaos.network import Link, Weather

START_SECONDS = 30.0
PR_SET_PDEATHSIG = 1
PATIENCE_SECONDS = 40.0
"""How long anything that must happen by itself may take on a busy machine."""


_libc = ctypes.CDLL(None)


def _die_with_parent() -> None:
    """However the test ends, kill -9 included, its daemons end with it."""
    _libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


class Answer(Struct, frozen=True):
    status: int
    body: bytes
    url: str
    """Of the daemon that answered."""

    def json(self) -> object:
        return json.loads(self.body)

    @property
    def reason(self) -> str:
        found = self.json() if self.body else {}
        return str(found.get("reason", "")) if isinstance(found, dict) else ""


class DaemonProcess:
    """One daemon, behind a network of its own."""

    def __init__(self, name: str, command: Sequence[str], link: Link, directory: Path, failpoint: str) -> None:
        self.name = name
        self.link = link
        self.url = ""
        self.log = directory / f"{name}.log"
        self.paused = False
        self.lost_locks = 0
        """How often it was stopped in the middle of a transaction, and had to be let go on."""
        self._command = command
        self._failpoint = failpoint
        self._data = directory / "data"
        self._process: asyncio.subprocess.Process | None = None

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.returncode is None

    @property
    def died(self) -> bool:
        """By itself: nobody here ended it."""
        return self._process is not None and self._process.returncode is not None

    async def start(self) -> None:
        """Until it says that it is ready."""
        command = [*self._command, f"--etcd=http://127.0.0.1:{self.link.port}"]
        environment = {**os.environ, VARIABLE: self._failpoint} if self._failpoint else None
        with self.log.open("ab") as log:
            self._process = await asyncio.create_subprocess_exec(
                *command, stdout=asyncio.subprocess.PIPE, stderr=log, env=environment, preexec_fn=_die_with_parent
            )
        assert self._process.stdout is not None
        async with asyncio.timeout(START_SECONDS):
            line = await self._process.stdout.readline()
        if not line:
            raise AssertionError(f"{self.name} did not start: {self.log.read_text()[-2_000:]}")
        self.url = json.loads(line)["webUrl"]

    async def pause(self) -> None:
        """SIGSTOP, but not inside a transaction: SQLite's lock would hold everybody up until it goes on."""
        while True:
            self._signal(signal.SIGSTOP)
            if not self._holds_a_lock():
                self.paused = True
                return
            self.lost_locks += 1
            self._signal(signal.SIGCONT)
            await asyncio.sleep(0.01)

    def resume(self) -> None:
        self.paused = False
        self._signal(signal.SIGCONT)

    async def kill(self) -> None:
        await self._end(signal.SIGKILL)

    async def stop(self) -> int | None:
        """SIGTERM; answers its exit code."""
        return await self._end(signal.SIGTERM)

    async def _end(self, how: signal.Signals) -> int | None:
        process = self._process
        if process is None:
            return None
        if process.returncode is None:
            self._signal(how)
            if self.paused and how is not signal.SIGKILL:
                self.resume()
            try:
                await asyncio.wait_for(process.wait(), START_SECONDS)
            except TimeoutError:
                self._signal(signal.SIGKILL)
                await process.wait()
                raise AssertionError(f"{self.name} did not end after {how.name}") from None
        self._process = None
        return process.returncode

    def _signal(self, number: signal.Signals) -> None:
        """Not through asyncio, which looks whether it has ended first, and so may reap it before its own watcher."""
        assert self._process is not None
        os.kill(self._process.pid, number)

    def _holds_a_lock(self) -> bool:
        assert self._process is not None
        holders = {schema._lock_holder(file) for file in self._data.glob("segments-*.sqlite")}
        return self._process.pid in holders

    def errors(self) -> list[str]:
        """What it logged as its own failure."""
        lines = self.log.read_text().splitlines() if self.log.exists() else []
        return [line for line in lines if " ERROR " in line or " CRITICAL " in line]


class Cluster:
    def __init__(self, daemons: list[DaemonProcess], store: EtcdStore, paths: StorePaths, directory: Path) -> None:
        self.daemons = daemons
        self.store = store
        self.paths = paths
        self.repository = Repository(store, paths)
        self.directory = directory
        self.data = directory / "data"
        self._turn = itertools.count()
        self._http: aiohttp.ClientSession | None = None

    @asynccontextmanager
    async def running(self) -> AsyncIterator["Cluster"]:
        async with AsyncExitStack() as stack:
            stack.push_async_callback(self.store.close)
            self._http = await stack.enter_async_context(aiohttp.ClientSession())
            for daemon in self.daemons:
                stack.push_async_callback(daemon.kill)
            await asyncio.gather(*(daemon.start() for daemon in self.daemons))
            await until(self._all_known, "every daemon knows of every other")
            yield self

    async def _all_known(self) -> bool:
        return len(await self.repository.brokers()) == len(self.daemons)

    async def once(
        self,
        method: str,
        url: str,
        path: str,
        *,
        body: object = None,
        headers: Mapping[str, str] | None = None,
        seconds: float = 2.0,
    ) -> Answer:
        """One request to one daemon; a redirection is an answer like any other."""
        assert self._http is not None
        timeout = aiohttp.ClientTimeout(total=seconds)
        async with self._http.request(
            method,
            URL(f"{url}{path}", encoded=True),
            json=body,
            headers=headers,
            timeout=timeout,
            allow_redirects=False,
        ) as response:
            target = str(URL(response.headers["Location"]).origin()) if "Location" in response.headers else url
            return Answer(response.status, await response.read(), target)

    async def ask(
        self,
        method: str,
        path: str,
        *,
        body: object = None,
        headers: Mapping[str, str] | None = None,
        first: str = "",
        seconds: float = PATIENCE_SECONDS,
        attempt_seconds: float = 1.5,
    ) -> Answer:
        """Any daemon, following where it points; again while nobody can say. As a client would."""
        last: object = None
        try:
            async with asyncio.timeout(seconds):
                url = first
                while True:
                    if not url:
                        alive = [daemon.url for daemon in self.daemons if daemon.running]
                        url = alive[next(self._turn) % len(alive)]
                    try:
                        answer = await self.once(method, url, path, body=body, headers=headers, seconds=attempt_seconds)
                    except (aiohttp.ClientError, OSError, TimeoutError) as error:
                        last, url = f"{url}: {error!r}", ""
                    else:
                        last = answer
                        if answer.status not in {307, 503}:
                            return answer
                        url = answer.url if answer.status == 307 else ""
                        if answer.status == 307:
                            continue
                    await asyncio.sleep(0.05)
        except TimeoutError:
            raise AssertionError(f"{method} {path} got no answer in {seconds} s; the last was {last}") from None

    async def leader(self, topic: TopicName) -> DaemonProcess | None:
        """As the store has it."""
        items = (await self.store.get(self.paths.controller(topic))).items
        name = json.loads(items[0].value)["brokerId"] if items else None
        return next((daemon for daemon in self.daemons if daemon.name == name), None)

    async def owner(self, topic: TopicName, segment_id: int) -> DaemonProcess | None:
        """The recorded one, dead or alive."""
        known = await self.repository.owner(topic, segment_id)
        return next((one for one in self.daemons if known is not None and one.name == known.value.broker_id), None)

    def other(self, than: DaemonProcess) -> DaemonProcess:
        return next(daemon for daemon in self.daemons if daemon is not than)

    async def has_session(self, daemon: DaemonProcess) -> bool:
        try:
            answer = await self.once("GET", daemon.url, "/health")
        except (aiohttp.ClientError, OSError, TimeoutError):
            return False
        found = answer.json()
        items = (await self.store.get(self.paths.broker(daemon.name))).items
        known = bool(items) and decode_broker(items[0].value, subject=daemon.name).web_url == daemon.url
        return known and isinstance(found, dict) and bool(found["session"])

    def heal(self) -> None:
        for daemon in self.daemons:
            daemon.link.change(Weather.FAIR)
            if daemon.paused:
                daemon.resume()


async def until(condition: Callable[[], Awaitable[bool]], what: str, *, seconds: float = PATIENCE_SECONDS) -> None:
    """Fails with what was waited for."""
    try:
        async with asyncio.timeout(seconds):
            while not await condition():
                await asyncio.sleep(0.05)
    except TimeoutError:
        raise AssertionError(f"it did not happen in {seconds} s that {what}") from None


class Trap:
    """A failpoint that is off until it is armed; whoever comes there first waits until it is let go."""

    def __init__(self, failpoint: Failpoint, directory: Path) -> None:
        self._file = directory / failpoint
        self.setting = f"{failpoint}@{directory}"
        self._touch("off")

    def arm(self) -> None:
        self._with_suffix("off").unlink()

    def release(self) -> None:
        self._touch("go")

    async def reached(self) -> bool:
        return self._with_suffix("reached").exists()

    def _touch(self, suffix: str) -> None:
        self._with_suffix(suffix).touch()

    def _with_suffix(self, suffix: str) -> Path:
        return self._file.with_name(f"{self._file.name}.{suffix}")


@asynccontextmanager
async def cluster(
    *,
    daemons: int = 2,
    ttl: int = 2,
    etcd: EtcdCluster | None = None,
    root: str = "/scalable-topics",
    failpoint: Failpoint | None = None,
    gc_interval: float = 300,
) -> AsyncIterator[Cluster]:
    """Daemons that know of each other. `etcd`: one that others use as well, under roots of their own. `failpoint`: see
    `trap_of`.
    """
    async with AsyncExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="cluster-")))
        if etcd is None:
            etcd = await stack.enter_async_context(etcd_cluster(1))
        setting = Trap(failpoint, directory).setting if failpoint is not None else ""
        there = URL(etcd.endpoints[0])
        members = []
        for number in range(daemons):
            link = Link(str(there.host), int(there.port or 0), random.Random(number))
            await stack.enter_async_context(link.running())
            command = [
                sys.executable,
                "-m",
                "scalable_topics",
                "broker",
                f"--data={directory / 'data'}",
                f"--broker-id=d{number}",
                f"--root={root}",
                f"--ttl={ttl}",
                f"--gc-interval={gc_interval}",
            ]
            members.append(DaemonProcess(f"d{number}", command, link, directory, setting))
        store = EtcdStore(EtcdSettings(endpoints=etcd.endpoints))
        yield await stack.enter_async_context(Cluster(members, store, StorePaths(root), directory).running())


def trap_of(c: Cluster, failpoint: Failpoint) -> Trap:
    """The failpoint that the cluster was started with; still off."""
    return Trap(failpoint, c.directory)
