"""The etcd adapter: the port spoken to an etcd's JSON gateway.

`etcd3-py` is the transport and no more: its models cost milliseconds a call, and its watcher does not work. There
is one client per endpoint; a call that does not get through goes to the next one. The rule for writes: what surely
did not arrive is tried elsewhere, what may have arrived is an `UnknownOutcome`, and nobody here guesses which.
"""

import asyncio
import re
import ssl
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import AsyncExitStack, suppress
from io import BytesIO
from typing import Final, TypeVar

import aiohttp
import msgspec
from etcd3.aio_client import AioClient
from etcd3.baseclient import BaseClient
from msgspec import Struct
from semantic_version import Version
from yarl import URL

from scalable_topics.metadata import etcd_wire as wire
from scalable_topics.metadata.requests import check_request, check_scan, check_ttl, check_watch
from scalable_topics.metadata.store import (
    MAX_WRITES,
    PAGE_KEYS,
    Answer,
    Compare,
    KeyValue,
    Snapshot,
    StoreHealth,
    WatchBatch,
    Write,
)
from scalable_topics.model.errors import (
    Compacted,
    Forbidden,
    InvalidArgument,
    LeaseLost,
    NoSpace,
    ScalableTopicsError,
    TooLarge,
    Unavailable,
    UnknownOutcome,
)

T = TypeVar("T")

_LARGE_BODY: Final = 1 << 20
_NEVER_COMPACTED_REVISIONS: Final = 100_000
"""A store with so many revisions that still has its first one forgets nothing by itself."""
_GRANT: Final = "give a user that may read and write under our root"
_REFUSED: Final = ("permission denied", "auth token", "user name is empty")
"""Words with which etcd ends a watch that may not be. etcd 3.5.1 says the first, 3.6.12 the last."""
_QUOTA: Final = re.compile(r"^etcd_server_quota_backend_bytes (\S+)$", re.MULTILINE)

_Decoder = msgspec.json.Decoder
_txn: Final = _Decoder(wire.TxnResponse, strict=False)
_range: Final = _Decoder(wire.RangeResponse, strict=False)
_lease: Final = _Decoder(wire.LeaseResponse, strict=False)
_kept_alive: Final = _Decoder(wire.KeepAliveResponse, strict=False)
_watched: Final = _Decoder(wire.WatchLine, strict=False)
_status: Final = _Decoder(wire.StatusResponse, strict=False)
_alarms: Final = _Decoder(wire.AlarmResponse, strict=False)
_token: Final = _Decoder(wire.TokenResponse, strict=False)
_error: Final = _Decoder(wire.GatewayError, strict=False)
_nothing: Final = _Decoder(wire.Nothing, strict=False)


class EtcdSettings(Struct, frozen=True, kw_only=True):
    """How to reach an etcd. `InvalidArgument` for settings that cannot work."""

    endpoints: tuple[str, ...] = ("http://127.0.0.1:2379",)
    """Client URLs of members, tried in this order."""
    call_seconds: float = 5
    """Deadline of one call, all endpoints together."""
    attempt_seconds: float = 2
    """How long one endpoint gets before the next is asked; a stopped process takes connections and never answers."""
    slow_seconds: float = 0.5
    """An endpoint whose answer took longer is left for the next one, so that one slow member does not slow everything.
    """
    username: str | None = None
    password: str | None = None
    ca_file: str | None = None
    """Trust this authority instead of the system's."""
    certificate_file: str | None = None
    key_file: str | None = None

    def __post_init__(self) -> None:
        for endpoint in self.endpoints:
            url = URL(endpoint)
            if url.scheme not in {"http", "https"} or not url.host:
                raise InvalidArgument(f"{endpoint!r} is not an endpoint", remedy="write http://host:2379 or https://…")
        if not self.endpoints:
            raise InvalidArgument("no etcd endpoints", remedy="give at least one")
        if (self.username is None) is not (self.password is None):
            raise InvalidArgument("a user needs a password and a password a user")
        if (self.certificate_file is None) is not (self.key_file is None):
            raise InvalidArgument("a client certificate needs its key and a key its certificate")

    def ssl_context(self) -> ssl.SSLContext:
        context = ssl.create_default_context(cafile=self.ca_file)
        if self.certificate_file is not None:
            context.load_cert_chain(self.certificate_file, self.key_file)
        return context


class _Endpoint(AioClient):  # type: ignore[misc]  # etcd3-py has no types
    """One member. Made without asking it anything: etcd3-py's own constructor would block the event loop to do so."""

    def __init__(self, endpoint: str, settings: EtcdSettings) -> None:
        url = URL(endpoint)
        BaseClient.__init__(self, host=url.host, port=url.port, protocol=url.scheme)
        secure: ssl.SSLContext | bool = settings.ssl_context() if url.scheme == "https" else True
        self.endpoint = endpoint
        self.session = aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0, ssl=secure))

    def _retrieve_version(self) -> None:
        self.server_version_sem = Version("3.4.0")  # the first with the /v3 prefix, which all later ones have
        self.server_version = self.cluster_version = "3.4.0"


class EtcdStore:
    """The port, on an etcd cluster. To be made inside a running event loop, and closed.

    No call takes longer than `call_seconds`, waiting for a token included. Calls stay with one member until it fails
    or is slow; every watch goes to the member after that of the last one.
    """

    def __init__(self, settings: EtcdSettings) -> None:
        self.settings = settings
        self._endpoints = [_Endpoint(endpoint, settings) for endpoint in settings.endpoints]
        self._current = 0
        """Whom calls ask."""
        self._watched = 0
        """Whom the next watch asks."""
        self._token: str | None = None
        self._authenticating = asyncio.Lock()
        self._connect_timeout = aiohttp.ClientTimeout(total=None, sock_connect=settings.attempt_seconds)

    async def get(self, *keys: str) -> Snapshot:
        names = sorted(set(keys))
        while True:
            with suppress(Compacted):  # between two pages, which only a very slow reader meets
                return await self._get(names)

    async def _get(self, names: Sequence[str]) -> Snapshot:
        header, items = wire.Header(), list[KeyValue]()
        for page in [names[at : at + MAX_WRITES] for at in range(0, len(names), MAX_WRITES)] or [()]:
            try:
                response = await self._call("/kv/txn", wire.read_request(page, revision=header.revision), _txn)
            except NoSpace:
                # A full etcd refuses every transaction, also one that only reads; it still answers plain reads.
                return await self._get_one_by_one(names)
            header = header if header.revision else response.header
            items += (item for item in response.found() if item is not None)
        return Snapshot(header.revision, tuple(items), header.cluster_id)

    async def _get_one_by_one(self, names: Sequence[str]) -> Snapshot:
        """At one revision: that of the first answer."""
        header, items = wire.Header(), list[KeyValue]()
        for name in names or ("\0",):
            page = await self._call("/kv/range", wire.range_request(name, revision=header.revision), _range)
            header = header if header.revision else page.header
            items += page.items()
        return Snapshot(header.revision, tuple(items), header.cluster_id)

    async def scan(self, prefix: str, *, revision: int | None = None) -> Snapshot:
        check_scan(prefix, revision)
        end, start = wire.prefix_end(prefix), prefix.encode()
        at = revision or 0
        items: list[KeyValue] = []
        while True:
            request = {"key": start, "range_end": end, "revision": at, "limit": PAGE_KEYS}
            page = await self._call("/kv/range", request, _range)
            at = at or page.header.revision
            items += page.items()
            if not page.more:
                return Snapshot(at, tuple(items), page.header.cluster_id)
            start = page.kvs[-1].key + b"\0"

    async def commit(self, writes: Sequence[Write], *, compares: Sequence[Compare] = ()) -> Answer:
        check_request(writes, compares)
        response = await self._call("/kv/txn", wire.commit_request(writes, compares), _txn, writing=bool(writes))
        return response.answer()

    async def grant_lease(self, ttl_seconds: int) -> int:
        check_ttl(ttl_seconds)
        # A grant whose answer is lost leaves a lease without keys, which ends by itself: simply ask again.
        return (await self._call("/lease/grant", {"TTL": ttl_seconds}, _lease)).ID

    async def keep_alive(self, lease: int) -> float:
        return (await self._call("/lease/keepalive", {"ID": lease}, _kept_alive)).result.TTL

    async def revoke_lease(self, lease: int) -> None:
        with suppress(LeaseLost):
            await self._call("/lease/revoke", {"ID": lease}, _nothing)

    async def watch(self, prefix: str, *, after_revision: int) -> AsyncGenerator[WatchBatch, None]:
        check_watch(prefix, after_revision)
        create = {
            "key": prefix.encode(),
            "range_end": wire.prefix_end(prefix),
            "start_revision": after_revision + 1,
            "progress_notify": True,
        }
        body = msgspec.json.encode({"create_request": create})
        endpoint = self._endpoints[self._watched]
        # However this one ends, the next goes elsewhere: a reader that gives a silent stream up does not say why. Calls
        # are left where they are, because they find out by themselves who answers them.
        self._watched = (self._watched + 1) % len(self._endpoints)
        response, lines, first = await self._open_watch(endpoint, body)
        async with response:
            yield WatchBatch(first.revision, (), first.cluster)
            try:
                async for line in lines:
                    yield _batch(_watched.decode(line))
            except (aiohttp.ClientError, OSError, msgspec.MsgspecError) as error:
                raise Unavailable(f"the watch broke: {_words(error)}", subject=endpoint.endpoint) from error
        raise Unavailable("the watch ended", subject=endpoint.endpoint)

    async def _open_watch(
        self, endpoint: _Endpoint, body: bytes
    ) -> tuple[aiohttp.ClientResponse, AsyncIterator[bytes], WatchBatch]:
        """The stream and its first line, with a token that is valid: an expired one is replaced, once."""
        until = asyncio.get_running_loop().time() + self.settings.call_seconds
        await self._ensure_token(endpoint, until)
        token = self._token
        try:
            return await self._begin_watch(endpoint, body, until)
        except Forbidden:  # a watch is refused in the same words without a valid token and without a permission
            if self.settings.username is None:
                raise
        await self._ensure_token(endpoint, until, instead_of=token)
        return await self._begin_watch(endpoint, body, until)

    async def _begin_watch(
        self, endpoint: _Endpoint, body: bytes, until: float
    ) -> tuple[aiohttp.ClientResponse, AsyncIterator[bytes], WatchBatch]:
        try:
            async with asyncio.timeout_at(until), AsyncExitStack() as stack:
                # A member that has lost the cluster ends the stream instead of staying silent for ever.
                answering = await self._post(endpoint, "/watch", body, Grpc_Metadata_Hasleader="true")
                response = await stack.enter_async_context(answering)
                lines = _lines(response.content)
                first = await _first_batch(response, lines)
                stack.pop_all()
                return response, lines, first
        except (aiohttp.ClientError, TimeoutError, OSError, msgspec.MsgspecError) as error:
            raise Unavailable(f"the watch broke: {_words(error)}", subject=endpoint.endpoint) from error

    async def health(self) -> StoreHealth:
        status = await self._call("/maintenance/status", {}, _status)
        alarms = await self._call("/maintenance/alarm", {}, _alarms)
        return StoreHealth(
            version=status.version,
            used_bytes=status.dbSize,
            quota_bytes=status.dbSizeQuota or await self._quota_bytes(),
            no_space=any(alarm.alarm == "NOSPACE" for alarm in alarms.alarms),
            auto_compaction=await self._auto_compaction(status.header.revision),
        )

    async def _auto_compaction(self, revision: int) -> bool | None:
        """No call tells whether it is on, so its work is looked for: is the first revision still there?"""
        first = {"key": b"\0", "revision": 1, "count_only": True}
        try:
            await self._call("/kv/range", first, _range)
        except Compacted:
            return True
        return False if revision > _NEVER_COMPACTED_REVISIONS else None

    async def close(self) -> None:
        for endpoint in self._endpoints:
            await endpoint.close()

    async def _quota_bytes(self) -> int | None:
        """No call of the gateway tells it before etcd 3.6; the metrics do, where they are served."""
        endpoint = self._endpoints[self._current]
        timeout = aiohttp.ClientTimeout(total=self.settings.attempt_seconds)
        try:
            async with endpoint.session.get(f"{endpoint.endpoint}/metrics", timeout=timeout) as response:
                match = _QUOTA.search(await response.text())
        except (aiohttp.ClientError, TimeoutError, OSError):
            return None
        return int(float(match[1])) if match else None

    async def _call(self, path: str, request: wire.Request, decoder: "_Decoder[T]", *, writing: bool = False) -> T:
        """One call, to whichever endpoint answers, in turn; at most twice to each."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self.settings.call_seconds
        body = msgspec.json.encode(request)
        failures: list[str] = []
        while (left := deadline - loop.time()) > 0 and len(failures) < 2 * len(self._endpoints):
            endpoint = self._endpoints[self._current]
            began_at = loop.time()
            try:
                answer = await self._attempt(endpoint, path, body, decoder, min(left, self.settings.attempt_seconds))
            except Unavailable as error:
                failures.append(f"{endpoint.endpoint}: {error.what}")
                self._rotate(endpoint)
                if writing and not isinstance(error, _NotSent):
                    raise UnknownOutcome(f"the answer to a write was lost ({failures[-1]})", subject="etcd") from error
            else:
                if loop.time() - began_at > self.settings.slow_seconds:
                    self._rotate(endpoint)  # if all are slow they take turns, which costs nothing
                return answer
        raise Unavailable("; ".join(failures) or "no time left", subject="etcd", remedy="is it running and in quorum?")

    async def _attempt(self, endpoint: _Endpoint, path: str, body: bytes, decoder: "_Decoder[T]", seconds: float) -> T:
        """All of it, waiting for a token included, within so many seconds."""
        until = asyncio.get_running_loop().time() + seconds
        await self._ensure_token(endpoint, until)
        token = self._token
        try:
            return await self._exchange(endpoint, path, body, decoder, until)
        except TokenExpired:
            if not self.settings.username:
                raise
        await self._ensure_token(endpoint, until, instead_of=token)
        return await self._exchange(endpoint, path, body, decoder, until)

    async def _exchange(self, endpoint: _Endpoint, path: str, body: bytes, decoder: "_Decoder[T]", until: float) -> T:
        try:
            async with asyncio.timeout_at(until), await self._post(endpoint, path, body) as response:
                data = await response.read()
        except aiohttp.ClientConnectorError as error:
            raise _NotSent(_words(error)) from error
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise Unavailable(_words(error)) from error
        if response.status != 200:
            raise refusal(response.status, data)
        try:
            return decoder.decode(data)
        except msgspec.MsgspecError as error:
            raise Unavailable(f"an answer that cannot be read: {error}") from error

    async def _post(self, endpoint: _Endpoint, path: str, body: bytes, **headers: str) -> aiohttp.ClientResponse:
        sent = {name.replace("_", "-"): value for name, value in headers.items()}
        if self._token is not None:
            sent["authorization"] = self._token
        data = body if len(body) < _LARGE_BODY else BytesIO(body)  # aiohttp sends the one at once, the other in pieces
        response: aiohttp.ClientResponse = await endpoint.call_rpc(
            path, data, raw=True, headers=sent, timeout=self._connect_timeout
        )
        return response

    async def _ensure_token(self, endpoint: _Endpoint, until: float, *, instead_of: str | None = None) -> None:
        """A token, where there are users; one call at a time gets it, and none if somebody has got a newer one
        meanwhile. Raises `_NotSent`: whatever the token was for has not happened.
        """
        if self.settings.username is None or self._token != instead_of:
            return
        body = msgspec.json.encode({"name": self.settings.username, "password": self.settings.password})
        try:
            async with asyncio.timeout_at(until), self._authenticating:
                if self._token == instead_of:
                    self._token = None
                    answer = await self._exchange(endpoint, "/auth/authenticate", body, _token, until)
                    self._token = answer.token
        except (Unavailable, TimeoutError) as error:
            raise _NotSent(f"no token: {_words(error)}") from error

    def _rotate(self, failed: _Endpoint) -> None:
        """Whoever saw it fail moves on, unless somebody already has."""
        if self._endpoints[self._current] is failed:
            self._current = (self._current + 1) % len(self._endpoints)


class _NotSent(Unavailable):
    """There was no connection to send anything over: whatever it was, it has not happened."""


class TokenExpired(Forbidden):
    """The token that came with a call is not, or no longer, known."""


def refusal(status: int, data: bytes) -> ScalableTopicsError:
    """What an answer other than 200 means to us. The numbers are gRPC's status codes."""
    try:
        error = _error.decode(data)
    except ValueError:
        return Unavailable(f"HTTP {status}: {data[:200].decode(errors='replace')}")
    inner = error.error if isinstance(error.error, wire.GatewayError) else error
    return _meaning(inner.grpc_code or inner.code, inner.message)


def _meaning(code: int, message: str) -> ScalableTopicsError:
    match code:
        case 3 if "too large" in message or "too many operations" in message:
            return TooLarge(message)
        case 3 if "user name is empty" in message:
            return TokenExpired(message, remedy="this etcd wants a user and a password")
        case 3:
            return InvalidArgument(message)
        case 5 if "lease" in message:
            return LeaseLost(message)
        case 7:
            return Forbidden(message, remedy=_GRANT)
        case 8 if "space" in message:
            return NoSpace(message, remedy="compact, defragment, disarm the alarm; then raise the quota")
        case 11 if "compacted" in message:
            return Compacted(message)
        case 11:
            return InvalidArgument(message)
        case 16:
            return TokenExpired(message, remedy="check the user and the password")
        case _:
            return Unavailable(message)


def _batch(line: wire.WatchLine) -> WatchBatch:
    if line.error is not None:
        raise _meaning(line.error.grpc_code or line.error.code, line.error.message)
    result = line.result or wire.WatchResult()
    if result.compact_revision:
        raise Compacted("the watch starts in forgotten history", remedy=f"go on from {result.compact_revision}")
    if result.canceled:
        if any(words in result.cancel_reason for words in _REFUSED):
            raise Forbidden(f"etcd refused the watch: {result.cancel_reason}", remedy=_GRANT)
        raise Unavailable(f"etcd ended the watch: {result.cancel_reason}")
    return result.batch()


async def _first_batch(response: aiohttp.ClientResponse, lines: AsyncIterator[bytes]) -> WatchBatch:
    if response.status != 200:
        raise refusal(response.status, await response.read())
    line = await anext(lines, None)
    if line is None:
        raise Unavailable("the watch ended before it began")
    return _batch(_watched.decode(line))


async def _lines(stream: aiohttp.StreamReader) -> AsyncIterator[bytes]:
    """Lines of any length, which aiohttp's own reader refuses; each is joined once, however many pieces it comes in."""
    pieces: list[bytes] = []
    async for chunk in stream.iter_any():
        *ends, rest = chunk.split(b"\n")
        for end in ends:
            line = b"".join((*pieces, end))
            pieces.clear()
            if line:
                yield line
        if rest:
            pieces.append(rest)


def _words(error: BaseException) -> str:
    return str(error) or type(error).__name__
