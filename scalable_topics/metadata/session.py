"""The daemon's life in the store: one lease that carries all its ephemeral keys, and the honest knowledge of when it
may be over.

A session is believed in until the last *sent* renewal plus the lease's time, less a margin: by our own monotonic
clock, and always earlier than the store can have ended it. A session that is lost stays lost; the next one is
another session, with another lease and another create revision of the broker key, so nothing that was fenced by the
old one can be mistaken for the new.
"""

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from enum import StrEnum
from typing import Final

import msgspec
from msgspec import Struct

from scalable_topics.metadata.patience import TRANSIENT, Backoff, in_words, keep_running
from scalable_topics.metadata.store import (
    Compare,
    CreateRevisionIs,
    Delete,
    KeyValue,
    MetadataStore,
    ModRevisionIs,
    Put,
)
from scalable_topics.model.codec import decode_json, encode_json
from scalable_topics.model.errors import (
    DecodeError,
    InvalidArgument,
    MustStop,
    ScalableTopicsError,
    Unavailable,
    WrongState,
)
from scalable_topics.model.paths import StorePaths

DEFAULT_TTL_SECONDS: Final = 10
BELIEF_MARGIN_SECONDS: Final = 1.0
RETRY_SECONDS: Final = 0.2

log = logging.getLogger(__name__)


class Role(StrEnum):
    """CONTROLLER: leads topics and owns segments. REPORTER: only reports load, such as a replay."""

    CONTROLLER = "controller"
    REPORTER = "reporter"


class BrokerInfo(Struct, frozen=True, rename="camel", kw_only=True):
    """What a broker key says about its daemon."""

    broker_id: str
    broker_url: str
    web_url: str
    roles: tuple[str, ...] = (Role.CONTROLLER,)
    """Values of `Role`. One of a later version is kept and means nothing to us."""
    process: str
    """Random per process: tells a restart from two daemons that were given one name."""


_broker_info: Final = msgspec.json.Decoder(BrokerInfo)


def decode_broker(data: bytes, *, subject: str) -> BrokerInfo:
    """`DecodeError` for what is not a broker key."""
    return decode_json(data, _broker_info, subject=subject)


class Session:
    """One lease of one daemon, from its grant to its loss. Whoever acts in its name asks `alive` after every await,
    immediately before acting; what is written compares `fence` or a leadership of its lease all the same.
    """

    def __init__(self, *, lease: int, ttl_seconds: float, granted_at: float) -> None:
        self.lease = lease
        self.ttl_seconds = ttl_seconds
        self.broker_revision = 0
        """Create revision of the broker key: what `reporterSession` and campaigns compare."""
        self._lost = asyncio.Event()
        self._believed_until = granted_at + ttl_seconds - BELIEF_MARGIN_SECONDS

    @property
    def alive(self) -> bool:
        """May we still act in its name? No later than this turns false can the store let anybody else."""
        return not self._lost.is_set() and asyncio.get_running_loop().time() < self._believed_until

    @property
    def believed_until(self) -> float:
        """In the loop's time."""
        return self._believed_until

    def seconds_left(self) -> float:
        return max(0.0, self._believed_until - asyncio.get_running_loop().time()) if self.alive else 0.0

    def may_seal(self) -> bool:
        """Are two thirds of the lease left, so that what cannot be taken back can be finished (PROTOCOL 3)? Renewed at
        a third of its time, it always has them, unless renewals fail.
        """
        return self.alive and self.seconds_left() + BELIEF_MARGIN_SECONDS >= self.ttl_seconds * 2 / 3

    def renewed(self, sent_at: float) -> None:
        """The store has answered a renewal that was sent then. Too late for a session that was not believed in any
        more when the answer came: somebody may have acted on that, so it stays lost.
        """
        if not self.alive:
            self.lose()
        self._believed_until = max(self._believed_until, sent_at + self.ttl_seconds - BELIEF_MARGIN_SECONDS)

    def lose(self) -> None:
        """It is over, for good; the keeper opens another. Whoever finds out that it is worth nothing may say so."""
        self._lost.set()

    async def wait_lost(self) -> None:
        """Until it was given up. It may have ended being `alive` a moment before."""
        await self._lost.wait()

    def fence(self, paths: StorePaths, broker_id: str) -> tuple[Compare, ...]:
        """Holds only while this session's broker key stands. `WrongState` before that key was written."""
        if self.broker_revision <= 0:
            raise WrongState("this session has no broker key", subject=broker_id)
        return (CreateRevisionIs(paths.broker(broker_id), self.broker_revision),)


class SessionKeeper:
    """Keeps this daemon in the store: opens a session, renews it at a third of its time, and opens another when it is
    lost. To be kept `running`, after the marker was checked.
    """

    def __init__(
        self, store: MetadataStore, paths: StorePaths, info: BrokerInfo, *, ttl_seconds: int = DEFAULT_TTL_SECONDS
    ) -> None:
        """`InvalidArgument` for a lease that leaves no time to act before belief in it ends."""
        if ttl_seconds <= BELIEF_MARGIN_SECONDS:
            raise InvalidArgument(f"a lease of {ttl_seconds} s leaves no time to act", remedy="give 2 s or more")
        self.info = info
        self._store = store
        self._paths = paths
        self._ttl_seconds = ttl_seconds
        self._session: Session | None = None
        self._had_a_session = False
        self._changed = asyncio.Condition()

    @property
    def session(self) -> Session | None:
        """The session that may be acted for now; None while there is none. Ask again after every await."""
        return self._session if self._session is not None and self._session.alive else None

    async def wait_session(self) -> Session:
        """Until there is a session that may be acted for. Waits as long as that takes; the reasons are logged."""
        async with self._changed:
            while True:
                session = self.session
                if session is not None:
                    return session
                await self._changed.wait()

    @asynccontextmanager
    async def running(self) -> AsyncIterator["SessionKeeper"]:
        """In the background of a block, which begins at once, with or without a store. Its end is a clean shutdown,
        which frees everything at once. Ends the block with `MustStop` when another process has taken the name over.
        """
        name = f"session of {self.info.broker_id}"
        async with asyncio.TaskGroup() as tasks:
            keeping = tasks.create_task(keep_running(self._run, name=name), name=name)
            try:
                yield self
            finally:
                keeping.cancel()
                await self._leave()

    async def _run(self) -> None:
        while True:
            session = await self._open()
            await self._publish(session)
            log.info("session opened broker=%s lease=%d", self.info.broker_id, session.lease)
            try:
                await self._keep(session)
            finally:
                session.lose()
            await self._publish(None)
            log.warning("session lost broker=%s lease=%d", self.info.broker_id, session.lease)

    async def _publish(self, session: Session | None) -> None:
        async with self._changed:
            self._session = session
            self._changed.notify_all()

    async def _open(self) -> Session:
        """Until it works: a daemon without a store, or with a full one, waits and says so."""
        backoff = Backoff(first_seconds=RETRY_SECONDS)
        while True:
            try:
                return await self._try_open()
            except TRANSIENT as error:
                log.warning("no session yet broker=%s: %s", self.info.broker_id, in_words(error))
            await backoff.wait()

    async def _try_open(self) -> Session:
        granted_at = asyncio.get_running_loop().time()
        session = Session(
            lease=await self._store.grant_lease(self._ttl_seconds), ttl_seconds=self._ttl_seconds, granted_at=granted_at
        )
        try:
            session.broker_revision = await self._put_broker_key(session.lease)
        except BaseException:
            # What may still be on its way must find no lease: a broker key nobody renews would stand in our own way.
            await self._revoke(session.lease)
            raise
        self._had_a_session = True
        return session

    async def _put_broker_key(self, lease: int) -> int:
        """Its create revision; what stands in the way is cleared away first. `Unavailable` = somebody was faster."""
        key = self._paths.broker(self.info.broker_id)
        put = Put(key, encode_json(self.info), lease)
        for _ in range(2):  # at once: whoever has lost the name like this would be back before a pause is over
            answer = await self._store.commit([put], compares=[CreateRevisionIs(key, 0)])
            if answer.succeeded:
                return answer.revision
            (former,) = answer.found
            if former is None:
                continue
            self._ensure_ours(former)
            # Our own earlier life, killed or cut off: its keys go now rather than when its lease would end by itself.
            if former.lease:
                await self._store.revoke_lease(former.lease)
            else:
                await self._store.commit([Delete(key)], compares=[ModRevisionIs(key, former.mod_revision)])
        raise Unavailable("the broker key was still there", subject=self.info.broker_id)

    def _ensure_ours(self, former: KeyValue) -> None:
        """Raise `MustStop` if another process has this name now. A daemon that starts takes its name over from
        whoever had it, and so does not look.
        """
        if not self._had_a_session:
            return
        try:
            other = decode_broker(former.value, subject=former.key)
        except DecodeError:
            other = None
        if other is None or other.process != self.info.process:
            where = f" ({other.web_url})" if other is not None else ""
            raise MustStop(
                f"another process runs as {self.info.broker_id!r}{where}",
                subject=self.info.broker_id,
                remedy="give each daemon a broker id of its own; this one stops",
            )

    async def _keep(self, session: Session) -> None:
        """Renew until it is gone, or may be."""
        loop = asyncio.get_running_loop()
        pause = self._ttl_seconds / 3
        while session.alive:
            with suppress(TimeoutError):
                async with asyncio.timeout(min(pause, session.seconds_left())):
                    await session.wait_lost()
                return
            sent_at = loop.time()
            try:
                async with asyncio.timeout_at(session.believed_until):
                    left = await self._store.keep_alive(session.lease)
            except TRANSIENT as error:
                log.warning("not renewed broker=%s lease=%d: %s", self.info.broker_id, session.lease, in_words(error))
                pause = RETRY_SECONDS
                continue
            if left <= 0:
                return
            session.renewed(sent_at)
            pause = self._ttl_seconds / 3

    async def _leave(self) -> None:
        session, self._session = self._session, None
        if session is not None:
            session.lose()
            await self._revoke(session.lease)

    async def _revoke(self, lease: int) -> None:
        """As a courtesy: a lease that cannot be revoked ends by itself."""
        try:
            async with asyncio.timeout(BELIEF_MARGIN_SECONDS):
                await self._store.revoke_lease(lease)
        except (ScalableTopicsError, TimeoutError) as error:
            log.warning(
                "lease not revoked, it ends by itself broker=%s lease=%d: %s",
                self.info.broker_id,
                lease,
                in_words(error),
            )
