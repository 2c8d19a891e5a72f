"""Watch delivery: what it costs until the events of a stream are values, on top of reading the stream.

Somebody else writes (see `writer`), so nothing here is the cost of a commit. Three readers take turns: ours, one that
reads and decodes nothing, and one that decodes with the standard library.
"""

import asyncio
import json
from base64 import b64decode, b64encode
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, aclosing
from time import perf_counter_ns, process_time_ns
from typing import Any, Final

import aiohttp
import msgspec
from msgspec import Struct

from scalable_topics.metadata import etcd_wire as wire
from scalable_topics.metadata.etcd import EtcdSettings, EtcdStore
from scalable_topics.metadata.local_etcd import etcd_cluster
from scalable_topics.model.layout import initial_layout
from scalable_topics.model.record import TopicRecord, encode_record
from tests.bench.measure import timing_of, without_gc
from tests.bench.rows import Floor, Group, Row
from tests.bench.writer import Writer, Writes

TARGET: Final = 1.3
REVISIONS: Final = 1_000
RECORDS: Final = {"1 KB": 3, "20 KB": 70}
"""Sizes of real records, and how many segments make one."""
BACKLOG: Final = {"1 KB": 400, "20 KB": 40}
"""Events that wait in the buffers of the machine: more would wait in etcd, and reading them would wait for it."""
LIVE_EVENTS: Final = 25
LIVE_PAUSE_SECONDS: Final = 0.004
MIN_TURNS: Final = 7
END: Final = "end"
"""The last key of a stream, below its prefix; its value is empty, so it is found at the end of what is read."""
TAIL_BYTES: Final = 512

Stream = AsyncGenerator[bool, None]
"""The first item: the stream stands. Then one per read: was that the end?"""


class Reader(Struct, frozen=True):
    name: str
    open: Callable[[str, int], Stream]
    """Everything under a prefix after a revision."""


class Sample(Struct, frozen=True):
    """Of one turn, per event."""

    wall_ns: float
    cpu_ns: float


Turn = Callable[[Reader], Iterable[Sample]]


class Etcd:
    """An etcd with a history, our way to it and bare ways to it."""

    def __init__(self, endpoint: str, session: aiohttp.ClientSession) -> None:
        self.store = EtcdStore(EtcdSettings(endpoints=(endpoint,)))
        self._endpoint = endpoint
        self._session = session

    async def close(self) -> None:
        await self.store.close()
        await self._session.close()

    async def revision(self) -> int:
        return (await self.store.get("/nothing")).revision

    async def ours(self, prefix: str, after: int) -> Stream:
        end = f"{prefix}{END}"
        async with aclosing(self.store.watch(prefix, after_revision=after)) as watch:
            async for batch in watch:
                yield bool(batch.events) and batch.events[-1].key == end

    async def bare_chunks(self, prefix: str, after: int) -> Stream:
        """As it comes from the connection, not even cut into lines: one line of a history is all of it."""
        end, tail = b64encode(f"{prefix}{END}".encode()), b""
        async with self._open(prefix, after) as response:
            yield not await response.content.readline()
            async for chunk in response.content.iter_any():
                tail = (tail + chunk[-TAIL_BYTES:])[-TAIL_BYTES:]
                yield end in tail and tail.endswith(b"\n")

    async def bare_lines(self, prefix: str, after: int) -> Stream:
        end = b64encode(f"{prefix}{END}".encode())
        async with self._open(prefix, after) as response:
            yield not await response.content.readline()
            async for line in response.content:
                yield end in line[-TAIL_BYTES:]

    async def stdlib_chunks(self, prefix: str, after: int) -> Stream:
        chunks: list[bytes] = []
        async with self._open(prefix, after) as response:
            yield not await response.content.readline()
            async for chunk in response.content.iter_any():
                chunks.append(chunk)
                if chunk.endswith(b"\n"):
                    last = _decode(b"".join(chunks))[-1]
                    chunks.clear()
                    yield last == f"{prefix}{END}"

    async def stdlib_lines(self, prefix: str, after: int) -> Stream:
        async with self._open(prefix, after) as response:
            yield not await response.content.readline()
            async for line in response.content:
                yield _decode(line)[-1] == f"{prefix}{END}"

    def _open(self, prefix: str, after: int) -> AbstractAsyncContextManager[aiohttp.ClientResponse]:
        create = {"key": prefix.encode(), "range_end": wire.prefix_end(prefix), "start_revision": after + 1}
        body = msgspec.json.encode({"create_request": {**create, "progress_notify": True}})
        return self._session.post(f"{self._endpoint}/v3/watch", data=body)


def _decode(line: bytes) -> list[str]:
    """The keys, after all of it was decoded with the standard library."""
    events = [
        (b64decode(event["kv"]["key"]).decode(), b64decode(event["kv"].get("value", "")), event["kv"]["mod_revision"])
        for event in json.loads(line)["result"]["events"]
    ]
    return [key for key, _, _ in events]


def rows(seconds: float) -> list[Row]:
    with asyncio.Runner() as runner:
        starting = etcd_cluster()
        cluster = runner.run(starting.__aenter__())
        try:
            endpoint = cluster.endpoints[0]
            with Writer(endpoint) as writer, without_gc():
                etcd = runner.run(_etcd(endpoint))
                try:
                    return list(_Bench(runner, etcd, writer, seconds).rows())
                finally:
                    runner.run(etcd.close())
        finally:
            runner.run(starting.__aexit__(None, None, None))


async def _etcd(endpoint: str) -> Etcd:
    return Etcd(endpoint, aiohttp.ClientSession())


class _Bench:
    def __init__(self, runner: asyncio.Runner, etcd: Etcd, writer: Writer, seconds: float) -> None:
        self._runner = runner
        self._etcd = etcd
        self._writer = writer
        self._seconds = seconds
        self._ours = Reader("ours", etcd.ours)
        self._chunks = (Reader("bare stream", etcd.bare_chunks), Reader("json + base64", etcd.stdlib_chunks))
        self._lines = (Reader("bare lines", etcd.bare_lines), Reader("json + base64", etcd.stdlib_lines))

    def rows(self) -> Iterator[Row]:
        for size in RECORDS:
            readers = (self._ours, *self._chunks)
            samples = self._turns(readers, self._history(size))
            yield _row(f"history, {size} records, from the call to the end", readers, samples, cpu=False)
            yield _row(f"history, {size} records, CPU of the reader", readers, samples, cpu=True)
        readers = (self._ours, *self._lines)
        for size in RECORDS:
            samples = self._turns(readers, self._backlog(size))
            yield _row(f"single events that wait, {size} records", readers, samples, cpu=False)
        for size in RECORDS:
            samples = self._turns(readers, self._live(size))
            yield _row(f"live, {size} records, from its write to the event", readers, samples, cpu=False)

    def _history(self, size: str) -> Turn:
        after = self._run(self._etcd.revision())
        writes = _writes("history", size, REVISIONS)
        self._writer.write(writes)
        return lambda reader: [self._timed(_from_the_call(reader.open(writes.prefix, after)), events=REVISIONS)]

    def _backlog(self, size: str) -> Turn:
        writes = _writes("backlog", size, BACKLOG[size])

        def read(reader: Reader) -> list[Sample]:
            stream = reader.open(writes.prefix, self._run(self._etcd.revision()))
            self._run(_stand(stream))
            self._writer.write(writes)  # the loop stands still meanwhile: nothing is read
            return [self._timed(_to_the_end(stream), events=BACKLOG[size])]

        return read

    def _live(self, size: str) -> Turn:
        writes = _writes("live", size, LIVE_EVENTS, pause_seconds=LIVE_PAUSE_SECONDS)

        def read(reader: Reader) -> list[Sample]:
            stream = reader.open(writes.prefix, self._run(self._etcd.revision()))
            self._run(_stand(stream))
            self._writer.begin(writes)
            arrived = self._run(_arrivals(stream))
            sent = self._writer.finish()
            if len(arrived) != len(sent):  # two writes in one line: which of them was late?
                return []
            return [Sample(there - here, 0) for here, there in zip(sent, arrived, strict=True)]

        return read

    def _run(self, work: Coroutine[Any, Any, Any]) -> Any:
        return self._runner.run(work)

    def _timed(self, work: Coroutine[Any, Any, None], *, events: int) -> Sample:
        wall, cpu = perf_counter_ns(), process_time_ns()
        self._runner.run(work)
        return Sample((perf_counter_ns() - wall) / events, (process_time_ns() - cpu) / events)

    def _turns(self, readers: Sequence[Reader], read: Turn) -> list[list[Sample]]:
        """Samples of each reader, who take turns; the first turn of each only warms up."""
        taken: list[list[Sample]] = [[] for _ in readers]
        for reader in readers:
            read(reader)
        until = perf_counter_ns() + self._seconds * 1e9
        while len(taken[-1]) < MIN_TURNS or perf_counter_ns() < until:
            for reader, samples in zip(readers, taken, strict=True):
                samples.extend(read(reader))
        return taken


def _writes(kind: str, size: str, count: int, *, pause_seconds: float = 0) -> Writes:
    segments = RECORDS[size]
    record = encode_record(TopicRecord(incarnation="0" * 16, layout=initial_layout(segments, at_ms=1_700_000_000_000)))
    prefix = f"/{kind}/{segments}/"
    return Writes(prefix=prefix, value=record, count=count - 1, end=f"{prefix}{END}", pause_seconds=pause_seconds)


async def _stand(stream: Stream) -> None:
    await anext(stream)


async def _from_the_call(stream: Stream) -> None:
    await anext(stream)
    await _to_the_end(stream)


async def _to_the_end(stream: Stream) -> None:
    async with aclosing(stream):
        async for ended in stream:
            if ended:
                return


async def _arrivals(stream: Stream) -> list[int]:
    arrived: list[int] = []
    async with aclosing(stream):
        async for ended in stream:
            arrived.append(perf_counter_ns())
            if ended:
                break
    return arrived


def _row(name: str, readers: Sequence[Reader], samples: Sequence[Sequence[Sample]], *, cpu: bool) -> Row:
    ours, *others = (timing_of([sample.cpu_ns if cpu else sample.wall_ns for sample in each]) for each in samples)
    floors = tuple(Floor(reader.name, timing) for reader, timing in zip(readers[1:], others, strict=True))
    return Row(name=name, timing=ours, floors=floors, target_ratio=TARGET)


GROUP: Final = Group(
    name="watch",
    about=f"""\
Delivery of events through `EtcdStore.watch`, per event, against the same stream read with bare aiohttp from the same
etcd. The events are topic records ({RECORDS["1 KB"]} and {RECORDS["20 KB"]} segments); another process writes them, so
no commit is measured. The first floor reads and decodes nothing, and the target of {TARGET} is against that one; the
second decodes JSON and base64 with the standard library, which is what an event that can be used costs at least.

- *history*: {REVISIONS:,} revisions that are there already. etcd sends them as one line, and takes most of the time
  itself (it looks at late watchers ten times a second, then encodes): from the call to the end is what a caller
  waits; the CPU of the reader is our share of it, without any waiting.
- *single events that wait*: one line each ({BACKLOG["1 KB"]} of 1 KB, {BACKLOG["20 KB"]} of 20 KB), all of them
  written before anything is read. The bare cost of a watch, with nothing to wait for.
- *live*: from the moment the other process sends its write until the event is there. etcd's commit is in both.
""",
    rows=rows,
)
