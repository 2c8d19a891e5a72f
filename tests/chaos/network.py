"""A network that can be broken: a TCP proxy for one daemon's way to one member of etcd."""

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from enum import StrEnum

CHUNK_BYTES = 1 << 16


class Weather(StrEnum):
    FAIR = "fair"
    REFUSED = "refused"
    STALLED = "stalled"
    SLOW = "slow"
    TORN = "torn"


class Link:
    """Forwards bytes as the weather allows. TORN cuts a connection in the middle of what it carries."""

    def __init__(self, host: str, port: int, rng: random.Random) -> None:
        self.weather = Weather.FAIR
        self.port = 0
        self._target = (host, port)
        self._rng = rng
        self._open: set[asyncio.StreamWriter] = set()

    @asynccontextmanager
    async def running(self) -> AsyncIterator["Link"]:
        server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        self.port = server.sockets[0].getsockname()[1]
        try:
            yield self
        finally:
            server.close()
            self.cut()

    def cut(self) -> None:
        for writer in tuple(self._open):
            writer.transport.abort()

    def change(self, weather: Weather) -> None:
        self.weather = weather
        if weather is Weather.REFUSED:
            self.cut()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._open.add(writer)
        try:
            if self.weather is Weather.REFUSED:
                return
            there_reader, there_writer = await asyncio.open_connection(*self._target)
            self._open.add(there_writer)
            try:
                async with asyncio.TaskGroup() as tasks:
                    tasks.create_task(self._carry(reader, there_writer))
                    tasks.create_task(self._carry(there_reader, writer))
            finally:
                self._open.discard(there_writer)
                there_writer.transport.abort()
        except* (OSError, EOFError):
            pass
        finally:
            self._open.discard(writer)
            writer.transport.abort()

    async def _carry(self, source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
        while data := await source.read(CHUNK_BYTES):
            while self.weather is Weather.STALLED:
                await asyncio.sleep(0.05)
            if self.weather is Weather.SLOW:
                await asyncio.sleep(self._rng.random() * 0.3)
            if self.weather is Weather.TORN and self._rng.random() < 0.1:
                target.write(data[: len(data) // 2])
                with suppress(OSError):
                    await target.drain()
                raise EOFError
            target.write(data)
            await target.drain()
        raise EOFError
