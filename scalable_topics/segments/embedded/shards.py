"""One shard: a SQLite file, a thread that writes to it, and a connection to read from it.

Group commit: whatever is queued when the writer comes to it goes into one transaction, and is answered after its
commit. A refusal by the rules has written nothing, so it does not disturb its neighbours. After any other error the
transaction is rolled back and its jobs are run one by one, so that only those fail that must.
"""

import asyncio
import sqlite3
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any, Final, TypeVar

from scalable_topics.model.errors import ScalableTopicsError, Unavailable, UnknownOutcome
from scalable_topics.segments.embedded import schema
from scalable_topics.segments.embedded.sqlite_rows import SqliteRows
from scalable_topics.segments.rows import Rows

T = TypeVar("T")

MAX_QUEUED: Final = 4_096
"""Writes that wait for one shard. Whoever comes later waits until there is room."""
MAX_GROUP: Final = 512
KEPT_NEWS: Final = 1_000


class _Job:
    """One write. Either the writer claims it, or whoever waits for it takes it back: never both."""

    __slots__ = ("_unclaimed", "future", "name", "quiet", "work")

    def __init__(
        self, work: Callable[[Rows], Any], future: "asyncio.Future[Any]", name: str | None, *, quiet: bool
    ) -> None:
        self.work = work
        self.future = future
        self.name = name
        self.quiet = quiet
        self._unclaimed = [True]

    def claim(self) -> bool:
        try:
            return self._unclaimed.pop()
        except IndexError:
            return False


_Outcome = tuple[Any, BaseException | None]


class Shard:
    """Opened by the thread that writes to it; see `open`. Everything but `read` and `news` belongs to the loop."""

    def __init__(self, path: Path, *, shard: int, shards: int, orphaned: Callable[[str], None]) -> None:
        """`orphaned` is told the name that a write has changed when nobody waited for its end any more."""
        self.path = path
        self._orphaned = orphaned
        self._place = (shard, shards)
        self._loop = asyncio.get_running_loop()
        self._queue: SimpleQueue[_Job | None] = SimpleQueue()
        self._room = asyncio.Semaphore(MAX_QUEUED)
        self._opened: asyncio.Future[None] = self._loop.create_future()
        self._ended: asyncio.Future[None] = self._loop.create_future()
        self._reader: sqlite3.Connection | None = None
        self._reading = threading.Lock()
        self._seen_news = 0
        self._seen_version = 0
        self._closing = False
        self._thread = threading.Thread(target=self._run, name=f"segments-{shard}", daemon=True)

    async def open(self) -> None:
        """Make or check the file. Raises `MustStop`, `Damaged`, `NoSpace` or `Unavailable`, which name it."""
        self._thread.start()
        await asyncio.shield(self._opened)

    async def write(
        self, work: Callable[[Rows], T], *, name: str | None, deadline: float | None = None, quiet: bool = False
    ) -> T:
        """See `Backend.write`; unless it is `quiet` other processes are told of the name."""
        job = _Job(work, self._loop.create_future(), name, quiet=quiet)
        try:
            async with asyncio.timeout_at(deadline):
                await self._room.acquire()
                self._hand_in(job)
                result: T = await job.future
                return result
        except BaseException as error:
            taken_back = job.claim()
            if not isinstance(error, TimeoutError):
                raise
            subject = str(self.path)
            if taken_back:
                raise Unavailable("its deadline has passed, so it was not begun", subject=subject) from None
            raise UnknownOutcome("its deadline has passed before its end was seen", subject=subject) from None

    def _hand_in(self, job: _Job) -> None:
        if self._closing:
            self._room.release()
            raise Unavailable("this store is closed", subject=str(self.path))
        self._queue.put(job)

    def read(self, work: Callable[[Rows], T]) -> T:
        """On any thread but the loop's."""
        with self._reading:
            connection = self._reader
            if connection is None:
                raise Unavailable("this store is closed", subject=str(self.path))
            try:
                connection.execute("BEGIN")
                try:
                    return work(SqliteRows(connection))
                finally:
                    connection.execute("ROLLBACK")
            except sqlite3.Error as error:
                raise schema.translate(error, self.path) or error from error

    def news(self) -> list[str] | None:
        """Names that any process has changed since the last time; None = perhaps all. On any thread but the loop's."""

        def look(connection: sqlite3.Connection) -> list[str] | None:
            (version,) = connection.execute("PRAGMA data_version").fetchone()
            if version == self._seen_version:
                return []
            self._seen_version = version
            found = connection.execute("SELECT number, name FROM news WHERE number > ?", (self._seen_news,)).fetchall()
            if not found:
                return []
            complete = found[0][0] == self._seen_news + 1
            self._seen_news = found[-1][0]
            return [name for _, name in found] if complete else None

        with self._reading:
            if self._reader is None:
                return []
            try:
                return look(self._reader)
            except sqlite3.Error:
                return None

    async def close(self) -> None:
        """What was queued is carried out first."""
        self._closing = True
        if self._thread.ident is not None:
            self._queue.put(None)
            await asyncio.shield(self._ended)
            self._thread.join()

    def _run(self) -> None:
        connection: sqlite3.Connection | None = None
        try:
            try:
                connection = self._connect()
            except Exception as error:
                self._tell_loop(self._opened.set_exception, self._meaning(error))
                return
            self._tell_loop(self._opened.set_result, None)
            self._serve(connection)
        finally:
            with self._reading:
                if self._reader is not None:
                    self._reader.close()
                    self._reader = None
            if connection is not None:
                connection.close()
            self._tell_loop(self._end)

    def _end(self) -> None:
        """The writer is no more. Whatever it has not come to is refused."""
        self._closing = True
        with suppress(Empty):
            while True:
                job = self._queue.get_nowait()
                if job is not None:
                    closed = Unavailable("this store is closed", subject=str(self.path))
                    self._settle([job], [(None, closed)])
        self._ended.set_result(None)

    def _connect(self) -> sqlite3.Connection:
        connection = schema.connect(self.path)
        try:
            schema.prepare(connection, self.path, shard=self._place[0], shards=self._place[1])
            reader = schema.connect(self.path)
            reader.execute("PRAGMA query_only = ON")
            (self._seen_news,) = reader.execute("SELECT coalesce(max(number), 0) FROM news").fetchone()
            self._reader = reader
        except BaseException:
            connection.close()
            raise
        return connection

    def _serve(self, connection: sqlite3.Connection) -> None:
        while True:
            first = self._queue.get()
            group = []
            closing = first is None
            if first is not None:
                group.append(first)
            with suppress(Empty):
                while not closing and len(group) < MAX_GROUP:
                    following = self._queue.get_nowait()
                    if following is None:
                        closing = True
                    else:
                        group.append(following)
            if group:
                outcomes = self._attempt(connection, group)
                self._tell_loop(self._settle, group, outcomes)
            if closing:
                return

    def _attempt(self, connection: sqlite3.Connection, jobs: list[_Job]) -> list[_Outcome | None]:
        """One transaction. The outcome of each job; None = it was taken back before it was begun."""
        try:
            connection.execute("BEGIN IMMEDIATE")
        except sqlite3.Error as error:
            failure = self._meaning(error)
            return [(None, failure) for _ in jobs]
        claimed = [job.claim() for job in jobs]
        return self._carry_out(connection, jobs, claimed)

    def _carry_out(
        self, connection: sqlite3.Connection, jobs: list[_Job], claimed: list[bool]
    ) -> list[_Outcome | None]:
        outcomes: list[_Outcome | None] = []
        try:
            rows = SqliteRows(connection)
            news: list[tuple[str]] = []
            for job, ours in zip(jobs, claimed, strict=True):
                if not ours:
                    outcomes.append(None)
                    continue
                try:
                    outcomes.append((job.work(rows), None))
                except ScalableTopicsError as refusal:
                    outcomes.append((None, refusal))
                else:
                    if job.name is not None and not job.quiet:
                        news.append((job.name,))
            rows.flush()
            if news:
                _publish(connection, news)
        except Exception as error:
            self._roll_back(connection)
            if len(jobs) == 1:
                return [(None, self._meaning(error))]
            return [self._alone(connection, job) if ours else None for job, ours in zip(jobs, claimed, strict=True)]
        try:
            connection.execute("COMMIT")
        except sqlite3.Error as error:
            failure = self._commit_failure(error)
            self._roll_back(connection)
            return [outcome and (None, failure) for outcome in outcomes]
        return outcomes

    def _alone(self, connection: sqlite3.Connection, job: _Job) -> _Outcome | None:
        try:
            connection.execute("BEGIN IMMEDIATE")
        except sqlite3.Error as error:
            return (None, self._meaning(error))
        return self._carry_out(connection, [job], [True])[0]

    def _roll_back(self, connection: sqlite3.Connection) -> None:
        with suppress(sqlite3.Error):
            if connection.in_transaction:
                connection.execute("ROLLBACK")

    def _meaning(self, error: Exception) -> BaseException:
        translated = schema.translate(error, self.path) if isinstance(error, sqlite3.Error) else None
        return translated or error

    def _commit_failure(self, error: sqlite3.Error) -> BaseException:
        """A full disk stops a commit before it counts; after any other failure it may count."""
        meaning = self._meaning(error)
        if getattr(error, "sqlite_errorcode", 0) & 0xFF in {sqlite3.SQLITE_FULL, sqlite3.SQLITE_BUSY}:
            return meaning
        return UnknownOutcome(f"the commit failed: {error}", subject=str(self.path), remedy="read before you repeat")

    def _settle(self, jobs: list[_Job], outcomes: list[_Outcome | None]) -> None:
        for job, outcome in zip(jobs, outcomes, strict=True):
            self._room.release()
            if outcome is None:
                continue
            result, error = outcome
            if job.future.done():
                if error is None and job.name is not None:
                    self._orphaned(job.name)
            elif error is None:
                job.future.set_result(result)
            else:
                job.future.set_exception(error)

    def _tell_loop(self, told: Callable[..., None], *args: object) -> None:
        with suppress(RuntimeError):  # the loop is closed: nobody waits any more
            self._loop.call_soon_threadsafe(told, *args)


def _publish(connection: sqlite3.Connection, names: list[tuple[str]]) -> None:
    connection.executemany("INSERT INTO news (name) VALUES (?)", names)
    connection.execute("DELETE FROM news WHERE number <= (SELECT max(number) FROM news) - ?", (KEPT_NEWS,))
