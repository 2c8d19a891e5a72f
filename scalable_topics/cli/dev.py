"""`scalable-topics dev`: a local cluster, in one command. A real etcd and a few daemons that share one data directory.

For trying things out, not for production: one etcd member, one machine. What is stored stays between runs.
"""

import argparse
import asyncio
import logging
import signal
import sys
from collections.abc import Sequence
from contextlib import AsyncExitStack, suppress
from pathlib import Path
from typing import Final

import aiohttp
import msgspec
from msgspec import Struct

from scalable_topics.metadata.local_etcd import EtcdCluster, etcd_cluster
from scalable_topics.model.errors import Unavailable
from scalable_topics.server.bodies import ReadyLine

START_SECONDS: Final = 60.0
STOP_SECONDS: Final = 10.0
RESTART_SECONDS: Final = 20.0
"""Longer than the lease, so that a take-over can be watched."""
DEMO_TOPIC: Final = "public/default/demo"

_ready: Final = msgspec.json.Decoder(ReadyLine)

log = logging.getLogger(__name__)


class RunningBroker(Struct, frozen=True, rename="camel"):
    id: str
    web_url: str
    pid: int


class RunningEtcd(Struct, frozen=True):
    endpoint: str
    pid: int


class ClusterFile(Struct, frozen=True):
    """`cluster.json`: what runs, for scripts. It is there only while the cluster is ready."""

    brokers: tuple[RunningBroker, ...]
    etcd: tuple[RunningEtcd, ...]


def add_command(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    parser = commands.add_parser(
        "dev",
        help="run a local cluster: a real etcd and a few daemons",
        description="Start an etcd and daemons on free ports of loopback, make a demo topic, and run until Ctrl-C."
        " Data stays in the directory for the next run.",
    )
    parser.add_argument("--data", type=Path, default=Path(".run"), metavar="DIR", help="default: %(default)s")
    parser.add_argument("--brokers", type=_at_least_one, default=3, metavar="N", help="default: %(default)s")
    parser.set_defaults(run=run)


def _at_least_one(text: str) -> int:
    number = int(text)
    if not 1 <= number <= 20:
        raise argparse.ArgumentTypeError("give 1 to 20")
    return number


def run(options: argparse.Namespace) -> int:
    logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stderr)
    try:
        return asyncio.run(_run(options.data.absolute(), options.brokers))
    except BaseExceptionGroup as group:
        errors = group.subgroup(Unavailable)
        raise errors.exceptions[0] if errors is not None else group from None


async def _run(data: Path, brokers: int) -> int:
    """Until a signal. A daemon that ends is started again after a while; the others take its topics over meanwhile."""
    stopping = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stopping.set)
    (data / "etcd").mkdir(parents=True, exist_ok=True)
    async with AsyncExitStack() as stack:
        etcd = await stack.enter_async_context(etcd_cluster(1, directory=data / "etcd"))
        members = [_Broker(f"broker-{number}", etcd, data) for number in range(1, brokers + 1)]
        cluster = _Cluster(data, etcd, members)
        stack.callback(cluster.file.unlink, missing_ok=True)
        for member in members:
            stack.push_async_callback(member.stop)
            await member.start()
        for member in members:
            await member.ready()
        await _make_demo_topic(cluster.brokers[0].web_url)
        cluster.tell()
        _welcome(cluster)
        async with asyncio.TaskGroup() as tasks:
            keeping = [tasks.create_task(cluster.keep(member)) for member in members]
            await stopping.wait()
            print("stopping …", file=sys.stderr)
            for task in keeping:
                task.cancel()
    return 0


class _Cluster:
    """What runs, and the file that tells it."""

    def __init__(self, data: Path, etcd: EtcdCluster, members: Sequence["_Broker"]) -> None:
        self.data = data
        self.file = data / "cluster.json"
        self.file.unlink(missing_ok=True)
        self.etcd = tuple(RunningEtcd(member.client_url, member.pid) for member in etcd.members)
        self._members = members

    @property
    def brokers(self) -> tuple[RunningBroker, ...]:
        return tuple(member.told for member in self._members if member.told is not None)

    def tell(self) -> None:
        """All of the file or nothing: somebody may be waiting for it."""
        content = msgspec.json.encode(ClusterFile(self.brokers, self.etcd))
        fresh = self.file.with_suffix(".new")
        fresh.write_bytes(msgspec.json.format(content, indent=2) + b"\n")
        fresh.replace(self.file)

    async def keep(self, member: "_Broker") -> None:
        while True:
            how = await member.ended()
            self.tell()
            print(
                f"{member.broker_id} has ended ({how}); it is started again in {RESTART_SECONDS:.0f} s,"
                f" and the others take its topics over (log: {member.log})",
                file=sys.stderr,
            )
            await asyncio.sleep(RESTART_SECONDS)
            await member.start()
            try:
                told = await member.ready()
            except Unavailable as error:
                print(error, file=sys.stderr)
                continue
            self.tell()
            print(f"{told.id} is back: {told.web_url} pid {told.pid}", file=sys.stderr)


class _Broker:
    """One daemon process, and the next one when that has ended."""

    def __init__(self, broker_id: str, etcd: EtcdCluster, data: Path) -> None:
        self.broker_id = broker_id
        self.log = data / "logs" / f"{broker_id}.log"
        self.told: RunningBroker | None = None
        """What it said of itself when it was ready; None = it is not."""
        self._etcd = etcd
        self._data = data
        self._process: asyncio.subprocess.Process | None = None

    async def start(self) -> None:
        self.log.parent.mkdir(parents=True, exist_ok=True)
        with self.log.open("ab") as log_file:
            self._process = await asyncio.create_subprocess_exec(
                *self._command(), stdout=asyncio.subprocess.PIPE, stderr=log_file, start_new_session=True
            )

    def _command(self) -> Sequence[str]:
        etcd = [f"--etcd={endpoint}" for endpoint in self._etcd.endpoints]
        data = f"--data={self._data / 'segments'}"
        free = "--port=0"
        return [sys.executable, "-m", "scalable_topics", "broker", *etcd, data, free, f"--broker-id={self.broker_id}"]

    async def ready(self) -> RunningBroker:
        process = self._process
        if process is None or process.stdout is None:
            raise Unavailable("it was not started", subject=self.broker_id)
        try:
            async with asyncio.timeout(START_SECONDS):
                line = await process.stdout.readline()
        except TimeoutError:
            line = b""
        if not line:
            raise Unavailable("it did not become ready", subject=self.broker_id, remedy=f"see {self.log}")
        told = _ready.decode(line)
        self.told = RunningBroker(told.broker_id, told.web_url, told.pid)
        return self.told

    async def ended(self) -> str:
        """Wait for its end, and answer how it came."""
        if self._process is None:
            return "it was not started"
        code = await self._process.wait()
        self.told = None
        return f"signal {-code}" if code < 0 else f"exit code {code}"

    async def stop(self) -> None:
        process = self._process
        if process is None or process.returncode is not None:
            return
        with suppress(ProcessLookupError):
            process.terminate()
        try:
            async with asyncio.timeout(STOP_SECONDS):
                await process.wait()
        except TimeoutError:
            process.kill()
            await process.wait()


async def _make_demo_topic(web_url: str) -> None:
    """One that is there from an earlier run is left as it is."""
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=START_SECONDS)) as http:
        url = f"{web_url}/admin/v2/scalable/{DEMO_TOPIC}?numInitialSegments=1"
        async with http.put(url) as response:
            if response.status not in {204, 409}:
                log.warning("the demo topic was not made: HTTP %d %s", response.status, await response.text())


def _welcome(cluster: _Cluster) -> None:
    brokers, data = cluster.brokers, cluster.data
    topic = f"{brokers[0].web_url}/admin/v2/scalable/{DEMO_TOPIC}"
    lines = [
        "",
        "A local cluster runs:",
        *(f"  {broker.id:10} {broker.web_url}  pid {broker.pid}" for broker in brokers),
        *(f"  {'etcd':10} {member.endpoint}  pid {member.pid}" for member in cluster.etcd),
        f"  data in {data}, logs in {data / 'logs'}",
        "",
        f"There is a topic, {DEMO_TOPIC}, with one segment. Things to try (any daemon will do):",
        f"  curl -s {topic}",
        f"  curl -s -X POST '{topic}/split/0'",
        f"  curl -s -X PUT '{topic}/subscriptions/mine?type=STREAM'",
        f"  kill -9 {brokers[-1].pid}        # the others take its topics over",
        "",
        "Ctrl-C stops everything.",
    ]
    print("\n".join(lines), flush=True)
