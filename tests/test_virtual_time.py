"""The clock that tests stand on: it jumps over waiting, and never over work."""

import asyncio
import socket
import threading

import pytest

from tests.virtual_time import RealWork, Stuck, run_virtual


def test_hours_cost_nothing() -> None:
    async def day() -> float:
        start = asyncio.get_running_loop().time()
        await asyncio.sleep(86_400)
        return asyncio.get_running_loop().time() - start

    assert run_virtual(day()) == pytest.approx(86_400)


def test_waiting_for_ever_fails_at_once() -> None:
    async def never() -> None:
        await asyncio.Event().wait()

    with pytest.raises(Stuck):
        run_virtual(never())


def test_time_stands_still_while_a_thread_works() -> None:
    async def work() -> tuple[str, float]:
        begun, go_on = threading.Event(), threading.Event()

        def thread() -> str:
            begun.set()
            assert go_on.wait(10)
            return "done"

        loop = asyncio.get_running_loop()
        start = loop.time()
        loop.call_later(3_600, lambda: pytest.fail("the clock jumped over a thread's work"))
        working = asyncio.ensure_future(asyncio.to_thread(thread))
        await asyncio.sleep(0)
        threading.Timer(0.2, go_on.set).start()
        return await working, loop.time() - start

    assert run_virtual(work()) == ("done", 0.0)


def test_sockets_are_refused() -> None:
    async def connect(one: socket.socket) -> None:
        asyncio.get_running_loop().add_reader(one, lambda: None)

    with socket.socket() as one, pytest.raises(RealWork, match="no sockets"):
        run_virtual(connect(one))
