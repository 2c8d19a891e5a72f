"""How calls find their way: deadlines, slow and silent members, tokens, streams that end or tear. Against a server that
behaves badly on command, which a real etcd does not.
"""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

import msgspec
import pytest
from aiohttp import web

from scalable_topics.metadata import etcd as etcd_module
from scalable_topics.metadata.etcd import EtcdSettings, EtcdStore
from scalable_topics.metadata.store import Put, WatchBatch
from scalable_topics.metadata.view import StoreView
from scalable_topics.model.errors import Unavailable, UnknownOutcome
from scalable_topics.model.paths import StorePaths

HEADER = {"header": {"cluster_id": "7", "revision": "5"}}


class Member:
    """Speaks as much of the gateway as the calls of these tests need."""

    def __init__(self) -> None:
        self.url = ""
        self.delay_seconds = 0.0
        self.token_seconds = 0.0
        self.calls: Counter[str] = Counter()
        self.watch_headers: list[str | None] = []
        self.watch_ends: asyncio.Event = asyncio.Event()
        self.progress_seconds: float | None = None
        """So often a watch gives a sign of life without events."""

    async def answer(self, request: web.Request) -> web.StreamResponse:
        self.calls[request.path] += 1
        if request.path == "/v3/watch":
            return await self._watch(request)
        if request.path == "/v3/auth/authenticate":
            await asyncio.sleep(self.token_seconds)
            return web.json_response({"token": "t"})
        await asyncio.sleep(self.delay_seconds)
        return web.json_response({**HEADER, "succeeded": True})

    async def _watch(self, request: web.Request) -> web.StreamResponse:
        self.watch_headers.append(request.headers.get("Grpc-Metadata-Hasleader"))
        response = web.StreamResponse()
        await response.prepare(request)
        await response.write(msgspec.json.encode({"result": {**HEADER, "created": True}}) + b"\n")
        while not self.watch_ends.is_set():
            with suppress(TimeoutError):
                await asyncio.wait_for(self.watch_ends.wait(), self.progress_seconds)
            if self.progress_seconds is not None:
                await response.write(msgspec.json.encode({"result": HEADER}) + b"\n")
        return response


@asynccontextmanager
async def member() -> AsyncIterator[Member]:
    bad = Member()
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", bad.answer)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    bad.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    try:
        yield bad
    finally:
        bad.watch_ends.set()
        await runner.cleanup()


@asynccontextmanager
async def store(*members: Member, **settings: object) -> AsyncIterator[EtcdStore]:
    adapter = EtcdStore(msgspec.convert({"endpoints": [m.url for m in members], **settings}, EtcdSettings))
    try:
        yield adapter
    finally:
        await adapter.close()


async def test_waiting_for_a_token_is_inside_the_deadline() -> None:
    """Twenty calls wait for the same token, which does not come: each fails when its own time is over, and writes are
    known not to have happened.
    """
    async with (
        member() as silent,
        store(silent, username="u", password="p", call_seconds=0.4, attempt_seconds=0.2) as s,
    ):
        silent.token_seconds = 60
        async with asyncio.timeout(4):  # one after the other they would need 20 x 0.2 s and more
            answers = await asyncio.gather(
                *(s.get("/x") for _ in range(20)),
                *(s.commit([Put("/x", b"")]) for _ in range(20)),
                return_exceptions=True,
            )
        assert {type(answer) for answer in answers} == {Unavailable}
        assert silent.calls.keys() == {"/v3/auth/authenticate"}


async def test_a_slow_member_is_left_for_a_fast_one() -> None:
    async with member() as slow, member() as fast, store(slow, fast, slow_seconds=0.05) as s:
        slow.delay_seconds = 0.1
        for _ in range(5):
            await s.get("/x")
        assert (slow.calls.total(), fast.calls.total()) == (1, 4)


async def test_a_write_that_may_have_arrived_is_never_sent_twice() -> None:
    async with member() as silent, member() as other, store(silent, other, attempt_seconds=0.1) as s:
        silent.delay_seconds = 60
        with pytest.raises(UnknownOutcome):
            await s.commit([Put("/x", b"")])
        assert (silent.calls.total(), other.calls.total()) == (1, 0)
        await s.commit([Put("/x", b"")])
        assert other.calls.total() == 1, "the next one goes elsewhere"


async def test_a_watch_asks_to_be_ended_without_a_leader_and_its_clean_end_moves_no_call() -> None:
    async with member() as first, member() as second, store(first, second) as s:
        watch = s.watch("/x", after_revision=1)
        assert await anext(watch) == WatchBatch(5, (), 7)
        assert first.watch_headers == ["true"]
        first.watch_ends.set()
        with pytest.raises(Unavailable, match="the watch ended"):
            await anext(watch)
        await s.get("/x")
        assert (first.calls["/v3/kv/txn"], second.calls.total()) == (1, 0)


async def test_a_member_whose_watch_falls_silent_is_left_for_another() -> None:
    """It takes connections and answers calls, but its stream tells nothing: PROTOCOL 7."""
    async with member() as stalled, member() as alive, store(stalled, alive) as s:
        alive.progress_seconds = 0.05
        view = StoreView(s, StorePaths("/x"), silence_seconds=0.3)
        async with view.running():
            await view.wait_ready()
            async with asyncio.timeout(10):
                while not alive.calls["/v3/watch"]:
                    await asyncio.sleep(0.02)
            await asyncio.sleep(1)
            assert view.stale_seconds < 0.3
        assert stalled.calls["/v3/watch"] == alive.calls["/v3/watch"] == 1, "signs of life without events are enough"
        assert stalled.calls["/v3/kv/range"] == 1
        assert alive.calls["/v3/kv/range"] == 0, "calls stay where they are answered"


async def test_what_a_stream_refuses_is_wrapped_once_more() -> None:
    """A member without a leader refuses to renew a lease. That is not the end of the lease."""
    refused = b'{"error":{"grpc_code":14,"http_code":503,"message":"etcdserver: no leader"}}'
    error = etcd_module.refusal(503, refused)
    assert type(error) is Unavailable
    assert error.what == "etcdserver: no leader"
    async with member() as mute, store(mute) as s:
        with pytest.raises(Unavailable, match="an answer that cannot be read"):
            await s.keep_alive(1)


@pytest.mark.timeout(20)
async def test_long_lines_are_joined_once() -> None:
    """20 MB in 20,000 pieces; copied with every piece, that would be 200 GB."""

    class Stream:
        async def iter_any(self) -> AsyncIterator[bytes]:
            for _ in range(20_000):
                yield b"x" * 1_000
            yield b"\n\nshort\nlo"
            yield b"ng\ncut off"

    lines = [line async for line in etcd_module._lines(Stream())]  # type: ignore[arg-type]

    assert [len(line) for line in lines] == [20_000_000, 5, 4]
    assert lines[1:] == [b"short", b"long"]
