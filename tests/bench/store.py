"""The store: what our adapter costs on top of bare calls to the same etcd."""

import asyncio
from collections.abc import Callable, Coroutine, Iterator, Sequence
from typing import Any, Final

import aiohttp
import msgspec

from scalable_topics.metadata import etcd_wire as wire
from scalable_topics.metadata.etcd import EtcdSettings, EtcdStore
from scalable_topics.metadata.local_etcd import etcd_cluster
from scalable_topics.metadata.store import CreateRevisionIs, Put
from tests.bench.measure import Work
from tests.bench.rows import Case, Group, Row, measured

TARGET: Final = 1.3
CALLS: Final = 20
"""In one run, so that entering the event loop does not show."""
KEYS: Final = 1_000
VALUE: Final = bytes(1_000)

Call = Callable[[], Coroutine[Any, Any, object]]


class Bench:
    """An etcd, our way to it, and the shortest way to it."""

    def __init__(self, endpoint: str, session: aiohttp.ClientSession) -> None:
        self.endpoint = endpoint
        self.session = session
        self.store = EtcdStore(EtcdSettings(endpoints=(endpoint,)))

    async def bare(self, path: str, body: bytes) -> bytes:
        async with self.session.post(f"{self.endpoint}/v3{path}", data=body) as response:
            return await response.read()

    def pairs(self) -> Iterator[tuple[str, Call, Call]]:
        """What is measured, our call, and the bare one with a body encoded beforehand."""
        put, compare = Put("/bench/x", VALUE), CreateRevisionIs("/bench/absent", 0)
        commit = msgspec.json.encode(wire.commit_request([put], [compare]))
        yield (
            "commit",
            lambda: self.store.commit([put], compares=[compare]),
            lambda: self.bare("/kv/txn", commit),
        )
        get = msgspec.json.encode(wire.read_request(["/bench/x"]))
        yield "get", lambda: self.store.get("/bench/x"), lambda: self.bare("/kv/txn", get)
        scan = msgspec.json.encode({"key": b"/keys/", "range_end": b"/keys0"})
        yield (
            f"scan of {KEYS} keys",
            lambda: self.store.scan("/keys/"),
            lambda: self.bare("/kv/range", scan),
        )


def rows(seconds: float) -> Sequence[Row]:
    with asyncio.Runner() as runner:
        loop = runner.get_loop()

        def repeated(name: str, call: Call) -> Work:
            async def calls() -> None:
                for _ in range(CALLS):
                    await call()

            return Work(name, lambda: loop.run_until_complete(calls()), units=CALLS)

        starting = etcd_cluster()
        cluster = runner.run(starting.__aenter__())
        try:
            bench = runner.run(_ready(cluster.endpoints[0]))
            cases = [
                Case(work=repeated(name, ours), floors=(repeated("bare POST", bare),), target_ratio=TARGET)
                for name, ours, bare in bench.pairs()
            ]
            measured_rows = measured(cases, seconds=seconds)
            runner.run(_end(bench))
            return measured_rows
        finally:
            runner.run(starting.__aexit__(None, None, None))


async def _ready(endpoint: str) -> Bench:
    bench = Bench(endpoint, aiohttp.ClientSession())
    for first in range(0, KEYS, 100):
        await bench.store.commit([Put(f"/keys/{number:04}", VALUE) for number in range(first, first + 100)])
    return bench


async def _end(bench: Bench) -> None:
    await bench.store.close()
    await bench.session.close()


GROUP: Final = Group(
    name="store",
    about=f"""\
Calls of the etcd adapter to one local etcd. The floor is a bare aiohttp POST of the same request, encoded beforehand,
whose answer is read and not decoded. A scan decodes {KEYS:,} values of {len(VALUE):,} bytes that the floor leaves as
they came; it is held to the same target of {TARGET}.
""",
    rows=rows,
)
