"""What only files, threads and processes can do wrong."""

import asyncio
import os
import sqlite3
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, ClassVar

import pytest

from scalable_topics.model.errors import MustStop, NoSpace, ScalableTopicsError, Unavailable, UnknownOutcome
from scalable_topics.model.positions import Sentinel
from scalable_topics.segments.embedded import directory, open_segments, schema, shards
from scalable_topics.segments.errors import Damaged, Terminated
from scalable_topics.segments.port import EXCLUSIVE, Appended, ServedSegment
from scalable_topics.segments.rows import Rows
from scalable_topics.segments.store import Segments
from tests.segments.worlds import address, call, message, messages, stamp

FILE = "segments-00.sqlite"


class Spy(sqlite3.Connection):
    """Notes what is executed and where; can be told to fail."""

    threads: ClassVar[set[threading.Thread]] = set()
    statements: ClassVar[list[str]] = []
    failure: ClassVar[Callable[[str], None]] = staticmethod(lambda _: None)

    def execute(self, sql: str, *parameters: Any) -> sqlite3.Cursor:
        Spy.threads.add(threading.current_thread())
        Spy.statements.append(sql)
        Spy.failure(sql)
        return super().execute(sql, *parameters)

    def close(self) -> None:
        Spy.threads.add(threading.current_thread())
        super().close()


@pytest.fixture
def spy(monkeypatch: pytest.MonkeyPatch) -> type[Spy]:
    connect = sqlite3.connect
    monkeypatch.setattr(Spy, "threads", set())
    monkeypatch.setattr(Spy, "statements", [])
    monkeypatch.setattr(Spy, "failure", staticmethod(lambda _: None))
    monkeypatch.setattr(sqlite3, "connect", lambda *args, **kwargs: connect(*args, factory=Spy, **kwargs))
    return Spy


@pytest.fixture(autouse=True)
def no_thread_is_left_behind() -> Iterator[None]:
    before = set(threading.enumerate())
    yield
    left = [thread.name for thread in set(threading.enumerate()) - before if thread.name.startswith("segments")]
    assert not left


class Blocked:
    """A transaction that goes on until it is let go."""

    def __init__(self) -> None:
        self.began = asyncio.Event()
        self.loop = asyncio.get_running_loop()
        self.go_on = threading.Event()

    def __call__(self, _: Rows | None = None) -> str:
        self.loop.call_soon_threadsafe(self.began.set)
        assert self.go_on.wait(10)
        return "went on"


async def opened(path: Path, **options: Any) -> tuple[Segments, ServedSegment]:
    store = await open_segments(path, shards=1, **options)
    await store.create(address(), stamp(), ["s"], call(), must_be_empty=False)
    return store, await store.serve(address(), owner_term=1)


async def test_sqlite_is_never_touched_on_the_event_loop(tmp_path: Path, spy: type[Spy]) -> None:
    store, served = await opened(tmp_path)
    await served.append(messages(3))
    attachment = await served.attach("s", "c", EXCLUSIVE)
    attachment.permit(3)
    await attachment.ack([delivery.entry.position for delivery in await attachment.receive()])
    await served.read(Sentinel.EARLIEST)
    await store.list()
    await store.close()

    assert spy.statements
    assert threading.main_thread() not in spy.threads


async def test_what_waits_is_committed_in_one_go(tmp_path: Path, spy: type[Spy]) -> None:
    store, served = await opened(tmp_path)
    blocked = Blocked()
    blocking = asyncio.create_task(store._backend.write("x", blocked))
    await blocked.began.wait()
    appends = [asyncio.create_task(served.append([message(number)])) for number in range(100)]
    await asyncio.sleep(0)
    spy.statements.clear()

    blocked.go_on.set()
    answers = await asyncio.gather(*appends)

    assert [answer.position for [answer] in answers] == [(0, number) for number in range(100)]
    assert spy.statements.count("COMMIT") == 2, "the one that blocked, and all that had waited for it"
    assert await blocking == "went on"
    await store.close()


async def test_a_defect_in_one_write_does_not_hurt_its_neighbours(tmp_path: Path) -> None:
    store, served = await opened(tmp_path)
    blocked = Blocked()
    blocking = asyncio.create_task(store._backend.write("x", blocked))
    await blocked.began.wait()

    def broken(rows: Rows) -> None:
        rows.put_partitions("half", 1)
        raise ZeroDivisionError

    before = asyncio.create_task(served.append([message(0)]))
    poison = asyncio.create_task(store._backend.write("x", broken))
    after = asyncio.create_task(served.append([message(1)]))
    await asyncio.sleep(0)
    blocked.go_on.set()

    assert await before == (Appended((0, 0)),)
    assert await after == (Appended((0, 1)),)
    with pytest.raises(ZeroDivisionError):
        await poison
    await blocking
    assert await store._backend.read("x", lambda rows: rows.partitions("half")) is None
    await store.close()


async def test_a_deadline_is_unavailable_before_it_is_begun_and_unknown_after(tmp_path: Path) -> None:
    store, _ = await opened(tmp_path)
    blocked = Blocked()
    soon = asyncio.get_running_loop().time() + 0.1
    begun = asyncio.create_task(store._backend.write("x", blocked, deadline=soon))
    await blocked.began.wait()
    queued = asyncio.create_task(store.terminate(address(), call(deadline=soon)))

    with pytest.raises(Unavailable) as queued_failure:
        await queued
    assert not isinstance(queued_failure.value, UnknownOutcome)
    with pytest.raises(UnknownOutcome):
        await begun
    blocked.go_on.set()
    assert (await store.describe(address())).terminated is None, "what was taken back is never begun"
    await store.close()


async def test_a_cancelled_write_that_was_not_begun_never_is(tmp_path: Path) -> None:
    store, _ = await opened(tmp_path)
    blocked = Blocked()
    blocking = asyncio.create_task(store._backend.write("x", blocked))
    await blocked.began.wait()
    queued = asyncio.create_task(store.terminate(address(), call()))
    await asyncio.sleep(0)

    queued.cancel()
    await asyncio.wait([queued])
    blocked.go_on.set()

    await blocking
    assert (await store.describe(address())).terminated is None
    await store.close()


async def test_a_full_queue_makes_writers_wait(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shards, "MAX_QUEUED", 3)
    store, served = await opened(tmp_path)
    blocked = Blocked()
    blocking = asyncio.create_task(store._backend.write("x", blocked))
    await blocked.began.wait()
    appends = [asyncio.create_task(served.append([message(number)])) for number in range(10)]
    await asyncio.sleep(0)

    assert store._backend._shards[0]._queue.qsize() == 2  # type: ignore[attr-defined]
    with pytest.raises(Unavailable):
        await store.terminate(address(), call(seconds=0.05))
    blocked.go_on.set()
    await asyncio.gather(blocking, *appends)
    assert (await store.describe(address())).last == (0, 9)
    await store.close()


async def test_closing_carries_out_what_was_queued_and_refuses_the_rest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shards, "MAX_QUEUED", 2)
    store, served = await opened(tmp_path)
    blocked = Blocked()
    blocking = asyncio.create_task(store._backend.write("x", blocked))
    await blocked.began.wait()
    appends = [asyncio.create_task(served.append([message(number)])) for number in range(6)]
    await asyncio.sleep(0)
    closing = asyncio.create_task(store.close())
    await asyncio.sleep(0.05)
    blocked.go_on.set()

    first, *others = await asyncio.gather(*appends, return_exceptions=True)

    assert first == (Appended((0, 0)),)
    assert all(isinstance(other, ScalableTopicsError) for other in others)
    await asyncio.gather(blocking, closing)
    await store.close()  # again: fine


async def test_a_full_disk_refuses_writes_and_recovers_by_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    connect = schema.connect

    def small(path: Path) -> sqlite3.Connection:
        connection = connect(path)
        connection.execute("PRAGMA max_page_count = 60")
        return connection

    monkeypatch.setattr(schema, "connect", small)
    store, served = await opened(tmp_path)
    stored = 0
    with pytest.raises(NoSpace, match=FILE):
        for stored in range(1_000):
            await served.append([message(stored, size=10_000)])

    assert stored > 5
    assert (await store.describe(address())).last == (0, stored - 1)
    await store.skip_all(address(), "s", call())
    assert await served.prune(retention_seconds=0) == stored
    await served.append([message(stored, size=10_000)])
    await store.close()


async def test_a_commit_that_fails_is_unknown(tmp_path: Path, spy: type[Spy]) -> None:
    store, served = await opened(tmp_path)

    def fail(sql: str) -> None:
        if sql == "COMMIT":
            error = sqlite3.OperationalError("disk I/O error")
            error.sqlite_errorcode = sqlite3.SQLITE_IOERR
            raise error

    spy.failure = staticmethod(fail)
    with pytest.raises(UnknownOutcome, match=FILE):
        await served.append([message(0)])
    spy.failure = staticmethod(lambda _: None)
    await served.append([message(0)])
    await store.close()


@pytest.mark.parametrize("damage", [b"this is no database at all, and it is long enough" * 100, None])
async def test_a_damaged_file_is_named_with_the_way_out(tmp_path: Path, damage: bytes | None) -> None:
    store, served = await opened(tmp_path)
    await served.append([message(number, size=3_000) for number in range(50)])
    await store.close()
    path = tmp_path / FILE
    if damage is None:  # the header is whole, what follows is not
        size = path.stat().st_size
        with path.open("r+b") as file:
            file.seek(4096)
            file.write(os.urandom(size - 4096))
    else:
        path.write_bytes(damage)

    with pytest.raises(Damaged, match=r"segments-00\.sqlite.*backup") as caught:
        await use(tmp_path)
    assert caught.value.subject == str(path)


async def use(path: Path) -> None:
    store = await open_segments(path, shards=1)
    try:
        await store.describe(address())
    finally:
        await store.close()


@pytest.mark.parametrize(
    ("change", "story"),
    [
        ("PRAGMA user_version = 99", "format 99.*newer version"),
        ("PRAGMA application_id = 1", "another program"),
        ("UPDATE place SET shards = 4", "shard 0 of 4, not 0 of 1"),
    ],
)
async def test_a_file_that_is_not_for_us_is_refused_and_left_alone(tmp_path: Path, change: str, story: str) -> None:
    store = await open_segments(tmp_path, shards=1)
    await store.close()
    connection = sqlite3.connect(tmp_path / FILE)
    connection.execute(change)
    connection.commit()
    connection.close()
    before = (tmp_path / FILE).read_bytes()

    with pytest.raises(MustStop, match=story):
        await open_segments(tmp_path, shards=1)

    assert (tmp_path / FILE).read_bytes() == before


async def test_a_directory_that_cannot_be_is_unavailable(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")

    with pytest.raises(Unavailable, match="directory"):
        await open_segments(tmp_path / "file", shards=1)
    (tmp_path / FILE).mkdir()
    with pytest.raises(Unavailable, match=FILE):
        await open_segments(tmp_path, shards=1)


async def test_a_process_that_holds_the_lock_too_long_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(schema, "BUSY_SECONDS", 0.05)
    store, served = await opened(tmp_path)
    other = sqlite3.connect(tmp_path / FILE, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")

    with pytest.raises(Unavailable, match=rf"process {os.getpid()} .*kill it"):
        await served.append([message(0)])

    other.execute("ROLLBACK")
    other.close()
    await served.append([message(0)])
    await store.close()


async def test_many_daemons_may_open_a_new_directory_at_once(tmp_path: Path) -> None:
    stores = await asyncio.gather(*(open_segments(tmp_path, shards=4) for _ in range(4)))

    await stores[0].create(address(), stamp(), ["s"], call())
    assert [len(await store.list()) for store in stores] == [1, 1, 1, 1]
    for store in stores:
        await store.close()


async def test_what_another_daemon_changed_is_noticed_even_after_a_long_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So long that the list of changes has been cut."""
    monkeypatch.setattr(shards, "KEPT_NEWS", 1)
    monkeypatch.setattr(directory, "LOOK_SECONDS", 0.05)
    store, served = await opened(tmp_path)
    other = await open_segments(tmp_path, shards=1)
    waiting = asyncio.create_task(served.wait_beyond((0, 0)))
    await asyncio.sleep(0.02)

    await other.terminate(address(), call())
    for segment in (2, 3, 4):
        await other.create(address(segment), stamp(segment), [], call())

    async with asyncio.timeout(5):
        assert not await waiting
    kept = await store._backend.read("x", lambda rows: rows._do("SELECT count(*) FROM news").fetchone())  # type: ignore[attr-defined]
    assert kept == (1,)
    await other.close()
    await store.close()


async def test_every_commit_reaches_the_disk(tmp_path: Path) -> None:
    connection = schema.connect(tmp_path / FILE)

    assert connection.execute("PRAGMA journal_mode").fetchone() == ("wal",)
    assert connection.execute("PRAGMA synchronous").fetchone() == (2,), "FULL: a power cut loses no commit"
    connection.close()


async def test_a_read_that_fails_is_told_and_the_next_one_goes_on(tmp_path: Path, spy: type[Spy]) -> None:
    store, served = await opened(tmp_path)
    await served.append(messages(2))
    served = await store.serve(address(), owner_term=2)  # which has nothing in memory
    attachment = await served.attach("s", "c", EXCLUSIVE, generation=1)
    attachment.permit(5)

    def fail(sql: str) -> None:
        if sql == "BEGIN":
            error = sqlite3.OperationalError("disk I/O error")
            error.sqlite_errorcode = sqlite3.SQLITE_IOERR
            raise error

    spy.failure = staticmethod(fail)
    with pytest.raises(Unavailable, match=FILE):
        await attachment.receive()
    spy.failure = staticmethod(lambda _: None)

    async with asyncio.timeout(5):
        assert len(await attachment.receive()) == 2
    await store.close()


async def test_what_was_stored_for_an_append_that_gave_up_is_delivered_all_the_same(
    tmp_path: Path, spy: type[Spy], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(directory, "LOOK_SECONDS", 60)
    store, served = await opened(tmp_path)
    await served.append([message(0)])
    attachment = await served.attach("s", "c", EXCLUSIVE)
    attachment.permit(9)
    assert len(await attachment.receive()) == 1
    waiting = asyncio.create_task(attachment.receive())
    blocked = Blocked()

    def block(sql: str) -> None:
        if sql == "COMMIT":
            blocked()

    spy.failure = staticmethod(block)
    append = asyncio.create_task(served.append([message(1)]))
    await blocked.began.wait()

    append.cancel()
    await asyncio.wait([append])
    blocked.go_on.set()

    async with asyncio.timeout(5):
        [delivery] = await waiting
        assert delivery.entry.position == (0, 1)
        spy.failure = staticmethod(lambda _: None)
        await served.append([message(2)])
        assert [delivery.entry.position for delivery in await attachment.receive()] == [(0, 2)]
        await store.create_subscription(address(), "t", call())
        again = await served.attach("t", "c", EXCLUSIVE)
        again.permit(9)
        positions: list[object] = []
        while len(positions) < 3:
            positions += [delivery.entry.position for delivery in await again.receive()]
    assert positions == [(0, 0), (0, 1), (0, 2)], "also when what is in memory has a hole"
    await store.close()


async def test_pitfall_03_termination_is_a_fact_of_the_file_not_of_the_process(tmp_path: Path) -> None:
    """The owner has not heard of it yet, and still cannot write."""
    store, served = await opened(tmp_path)
    other = await open_segments(tmp_path, shards=1)

    await other.terminate(address(), call())

    with pytest.raises(Terminated):
        await served.append([message(0)])
    await other.close()
    await store.close()
