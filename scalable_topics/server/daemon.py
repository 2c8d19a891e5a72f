"""One daemon, put together: its place in the store, the topics it leads, the segments it serves.

What needs what is said once, by the order in `Daemon.running`; everything stops in the reverse order, so that the
session, whose end frees all that this daemon holds, ends last.
"""

import logging
import secrets
import ssl
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Final

import aiohttp
import msgspec
from msgspec import Struct

from scalable_topics.control.failpoints import failpoints_from_environment
from scalable_topics.control.led_topic import ControlSettings, Surroundings
from scalable_topics.control.leftovers import Leftovers
from scalable_topics.control.owners import SegmentOwners
from scalable_topics.control.service import ControlService
from scalable_topics.metadata.elections import Elections
from scalable_topics.metadata.etcd import EtcdSettings, EtcdStore
from scalable_topics.metadata.heartbeats import SWEEP_SECONDS, Heartbeat
from scalable_topics.metadata.leadership import LeaderInfo
from scalable_topics.metadata.marker import ensure_marker
from scalable_topics.metadata.monitor import StoreMonitor
from scalable_topics.metadata.patience import TRANSIENT, Backoff, in_words
from scalable_topics.metadata.repository import Repository
from scalable_topics.metadata.session import DEFAULT_TTL_SECONDS, BrokerInfo, SessionKeeper, decode_broker
from scalable_topics.metadata.view import StoreView
from scalable_topics.model.autoscale_policy import AutoScalePolicyOverride
from scalable_topics.model.codec import decode_json
from scalable_topics.model.errors import DecodeError
from scalable_topics.model.names import TopicName
from scalable_topics.model.paths import DEFAULT_ROOT, StorePaths
from scalable_topics.segments.embedded import open_segments
from scalable_topics.segments.store import Segments
from scalable_topics.server.configuration import Configuration

PROBE_SECONDS: Final = 0.5
"""How long another daemon may take to say that it is there."""

_leader: Final = msgspec.json.Decoder(LeaderInfo)

log = logging.getLogger(__name__)


class DaemonSettings(Struct, frozen=True, kw_only=True):
    """What a daemon is told at its start."""

    etcd: EtcdSettings
    data: Path
    """Directory of the segments, shared by the daemons of this machine."""
    broker_id: str
    """Of this daemon alone."""
    root: str = DEFAULT_ROOT
    """Prefix of all keys in the store."""
    cluster_name: str = "standalone"
    """Must be the same for all daemons that share a root."""
    ttl_seconds: int = DEFAULT_TTL_SECONDS
    """Of the lease: how long a daemon that died still counts."""
    sweep_seconds: float = SWEEP_SECONDS
    """Between two heartbeats."""
    autoscale: AutoScalePolicyOverride | None = None
    """The cluster's level of the autoscale policy, beneath the topics' own."""
    control: ControlSettings = ControlSettings()


def settings_of(configuration: Configuration, *, port: int) -> DaemonSettings:
    """`port` is the one that was bound."""
    return DaemonSettings(
        etcd=configuration.etcd_settings(),
        data=configuration.daemon.data_directory,
        broker_id=configuration.broker_id(port),
        root=configuration.store.root,
        cluster_name=configuration.daemon.cluster_name,
        ttl_seconds=configuration.session_ttl_seconds,
        control=configuration.control_settings(),
        autoscale=configuration.policy_override(),
    )


class Daemon:
    """To be made inside a running event loop, and kept `running`."""

    def __init__(self, settings: DaemonSettings, segments: Segments, http: aiohttp.ClientSession, web_url: str) -> None:
        self.settings = settings
        self.paths = StorePaths(settings.root)
        self.store = EtcdStore(settings.etcd)
        self.repository = Repository(self.store, self.paths)
        self.segments = segments
        self.http = http
        """For calls to other daemons."""
        self.info = BrokerInfo(
            broker_id=settings.broker_id, broker_url=web_url, web_url=web_url, process=secrets.token_hex(8)
        )
        self.keeper = SessionKeeper(self.store, self.paths, self.info, ttl_seconds=settings.ttl_seconds)
        self.view = StoreView(self.store, self.paths)
        self.elections = Elections(self.store, self.paths, self.keeper, self.view, is_idle=self._is_idle)
        self.monitor = StoreMonitor(self.store)
        self.heartbeat = Heartbeat(
            self.repository, self.keeper, wall_clock_ms=_now_ms, interval_seconds=settings.sweep_seconds
        )
        around = Surroundings(
            repository=self.repository,
            segments=segments,
            now_ms=_now_ms,
            new_id=lambda: secrets.token_hex(8),
            may_seal=self._may_seal,
            daemons_own_segments=True,
            autoscale=settings.autoscale,
            settings=settings.control,
            failpoints=failpoints_from_environment(),
        )
        self.control = ControlService(self.elections, around)
        self.leftovers = Leftovers(settings.broker_id, around)
        self.owners = SegmentOwners(self.repository, segments, self.keeper, self.view, answers=self._answers)

    @asynccontextmanager
    async def running(self) -> AsyncIterator["Daemon"]:
        """Raises `MustStop` (in a group) when another process has taken the name over."""
        async with AsyncExitStack() as stack:
            stack.push_async_callback(self.store.close)
            await self._ensure_marker()
            await stack.enter_async_context(self.keeper.running())
            await stack.enter_async_context(self.view.running())
            await stack.enter_async_context(self.monitor.running())
            await stack.enter_async_context(self.heartbeat.running())
            await stack.enter_async_context(self.elections.running())
            await stack.enter_async_context(self.owners.running())
            await stack.enter_async_context(self.control.running())
            await stack.enter_async_context(self.leftovers.running())
            yield self

    async def wait_ready(self) -> None:
        """Until it lives in the store and has read it."""
        await self.keeper.wait_session()
        await self.view.wait_ready()

    def leader_of(self, topic: TopicName) -> BrokerInfo | None:
        """As this daemon's view has it: a living daemon's own word of where it is; None = nobody leads now."""
        items = self.view.state.items
        leads = items.get(self.paths.controller(topic))
        try:
            leader = decode_json(leads.value, _leader, subject=leads.key) if leads is not None else None
            broker = items.get(self.paths.broker(leader.broker_id)) if leader is not None else None
            if leads is None or broker is None or broker.lease != leads.lease:
                return None
            return decode_broker(broker.value, subject=broker.key)
        except DecodeError as error:
            log.warning("the leader is not known: %s", error)
            return None

    async def _ensure_marker(self) -> None:
        backoff = Backoff()
        while True:
            try:
                await ensure_marker(self.store, self.paths, cluster_name=self.settings.cluster_name)
            except TRANSIENT as error:
                log.warning("waiting for the store broker=%s: %s", self.settings.broker_id, in_words(error))
                await backoff.wait()
            else:
                return

    def _is_idle(self, topic: TopicName) -> bool:
        return self.control.is_idle(topic)

    def _may_seal(self) -> bool:
        session = self.keeper.session
        return session is not None and session.may_seal()

    async def _answers(self, info: BrokerInfo) -> bool:
        timeout = aiohttp.ClientTimeout(total=PROBE_SECONDS)
        try:
            async with self.http.get(f"{info.web_url}/health", timeout=timeout) as response:
                return response.status == 200
        except (aiohttp.ClientError, OSError, TimeoutError):
            return False


@asynccontextmanager
async def daemon(settings: DaemonSettings, *, web_url: str, tls: ssl.SSLContext | None = None) -> AsyncIterator[Daemon]:
    """A running daemon on its data directory; everything it opened is closed with the block. `tls`: how the others are
    called.
    """
    async with AsyncExitStack() as stack:
        segments = await open_segments(settings.data)
        stack.push_async_callback(segments.close)
        http = await stack.enter_async_context(
            aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(ssl=tls if tls is not None else True), auto_decompress=False
            )
        )
        yield await stack.enter_async_context(Daemon(settings, segments, http, web_url).running())


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
