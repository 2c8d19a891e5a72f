"""A directory of shards, shared by the daemons of one machine.

Each daemon opens every shard. SQLite's locks order their transactions, the fences in the rows decide whose count. What
another daemon changed is noticed by looking: the files cannot call us.
"""

import asyncio
import fcntl
import logging
import os
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Final, TypeVar
from zlib import crc32

from scalable_topics.model.errors import Unavailable
from scalable_topics.segments.embedded.shards import Shard
from scalable_topics.segments.rows import Rows
from scalable_topics.segments.store import Segments

T = TypeVar("T")

SHARDS: Final = 16
"""Files of a directory; fixed when it is made."""
READERS: Final = 4
MAX_READS: Final = 256
"""Reads that are under way or wait for a thread. Whoever comes later waits until there is room."""
LOOK_SECONDS: Final = 0.25
"""How often we look whether other daemons have changed what we serve."""


_log = logging.getLogger(__name__)


async def open_segments(directory: Path, *, shards: int = SHARDS, now_ms: Callable[[], int] | None = None) -> Segments:
    """The store in a directory, which is made if it is not there. Close it, or its threads stay.

    Raises `MustStop` (another format, another number of shards), `Damaged`, `NoSpace` or `Unavailable`; each names
    the file and the way out.
    """
    backend = DirectoryBackend(now_ms or _wall_clock_ms)
    await backend.open(directory, shards)
    return Segments(backend)


def _raise_first(results: Iterable[object]) -> None:
    for result in results:
        if isinstance(result, BaseException):
            raise result


def _news_of(shards: Sequence[Shard]) -> list[list[str] | None]:
    return [shard.news() for shard in shards]


def _wall_clock_ms() -> int:
    return time.time_ns() // 1_000_000


class DirectoryBackend:
    """See `Backend`."""

    def __init__(self, now_ms: Callable[[], int]) -> None:
        self._now_ms = now_ms
        self._loop = asyncio.get_running_loop()
        self._shards: list[Shard] = []
        self._readers = ThreadPoolExecutor(READERS, thread_name_prefix="segments-read")
        self._read_room = asyncio.Semaphore(MAX_READS)
        self._listeners: dict[str, list[Callable[[], None]]] = {}
        self._looking: asyncio.Task[None] | None = None
        self._closed = False

    async def open(self, directory: Path, shards: int) -> None:
        self._shards = [
            Shard(directory / f"segments-{shard:02d}.sqlite", shard=shard, shards=shards, orphaned=self._tell_of)
            for shard in range(shards)
        ]
        try:
            # One daemon at a time makes and checks files: SQLite does not wait for whoever switches one to WAL mode.
            locked = _locked(directory)
            await self._loop.run_in_executor(self._readers, locked.__enter__)
            try:
                results = await asyncio.gather(*(shard.open() for shard in self._shards), return_exceptions=True)
            finally:
                locked.__exit__(None, None, None)
            _raise_first(results)
        except OSError as error:
            await self.close()
            raise Unavailable(
                f"the directory cannot be used: {error}", subject=str(directory), remedy="look at its permissions"
            ) from error
        except BaseException:
            await self.close()
            raise

    def now_ms(self) -> int:
        return self._now_ms()

    async def write(
        self, name: str, work: Callable[[Rows], T], *, deadline: float | None = None, quiet: bool = False
    ) -> T:
        self._check_open()
        if deadline is not None and self._loop.time() >= deadline:
            raise Unavailable("its deadline has passed, so it was not begun", subject=name)
        result = await self._shard(name).write(work, name=name, deadline=deadline, quiet=quiet)
        if not quiet:
            self._tell_of(name)
        return result

    async def read(self, name: str, work: Callable[[Rows], T]) -> T:
        return await self._read(self._shard(name), work)

    async def read_all(self, work: Callable[[Rows], T]) -> list[T]:
        return list(await asyncio.gather(*(self._read(shard, work) for shard in self._shards)))

    async def write_all(self, work: Callable[[Rows], T]) -> list[T]:
        self._check_open()
        return list(await asyncio.gather(*(shard.write(work, name=None) for shard in self._shards)))

    def listen(self, name: str, told: Callable[[], None]) -> Callable[[], None]:
        self._listeners.setdefault(name, []).append(told)
        if self._looking is None and not self._closed:
            self._looking = self._loop.create_task(self._look(), name="segments: look for changes of other daemons")

        def stop() -> None:
            self._listeners[name].remove(told)
            if not self._listeners[name]:
                del self._listeners[name]

        return stop

    async def close(self) -> None:
        self._closed = True
        if self._looking is not None:
            self._looking.cancel()
            await asyncio.wait([self._looking])
        await asyncio.gather(*(shard.close() for shard in self._shards))
        self._readers.shutdown()

    async def _read(self, shard: Shard, work: Callable[[Rows], T]) -> T:
        self._check_open()
        async with self._read_room:
            self._check_open()
            return await self._loop.run_in_executor(self._readers, shard.read, work)

    async def _look(self) -> None:
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            try:
                await self._look_once()
            except Exception:
                _log.exception("looking for changes of other daemons failed and is tried again")

    async def _look_once(self) -> None:
        shards = list({self._shard(name) for name in self._listeners})
        found = await self._loop.run_in_executor(self._readers, _news_of, shards)
        for shard, names in zip(shards, found, strict=True):
            self._tell([name for name in self._listeners if self._shard(name) is shard] if names is None else names)

    def _tell(self, names: list[str]) -> None:
        for name in dict.fromkeys(names):
            self._tell_of(name)

    def _tell_of(self, name: str) -> None:
        for told in tuple(self._listeners.get(name, ())):
            told()

    def _shard(self, name: str) -> Shard:
        return self._shards[crc32(name.encode()) % len(self._shards)]

    def _check_open(self) -> None:
        if self._closed:
            raise Unavailable("this store is closed")


@contextmanager
def _locked(directory: Path) -> Iterator[None]:
    directory.mkdir(parents=True, exist_ok=True)
    file = os.open(directory / "opening.lock", os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o644)
    try:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
        os.fsync(file)
    finally:
        os.close(file)
