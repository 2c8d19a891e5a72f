"""Alive, ready, and what happens when it is not."""

import asyncio
import logging
import signal
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest
from aiohttp import web
from aiohttp.test_utils import TestClient, TestServer

from scalable_topics.metadata.etcd import EtcdSettings
from scalable_topics.metadata.local_etcd import etcd_cluster
from scalable_topics.model.errors import MustStop
from scalable_topics.model.load import SweepHeartbeat
from scalable_topics.model.names import TopicName
from scalable_topics.server import health, metrics
from scalable_topics.server.auth.middleware import undeclared_routes
from scalable_topics.server.daemon import Daemon, DaemonSettings, daemon
from scalable_topics.server.health import (
    ENDLESS_TASKS,
    EXIT_WEDGED,
    ROUTES,
    VITALS,
    LoopWatchdog,
    Vitals,
    stacks,
    watched,
)
from scalable_topics.server.keys import DAEMON
from tests.control.worlds import PATHS, World, daemons
from tests.control.worlds import Daemon as Member
from tests.virtual_time import run_virtual

TOPIC = TopicName.parse("topic://t/n/orders")


def as_daemon(member: Member, failures: dict[TopicName, str] | None = None) -> Daemon:
    return cast(
        Daemon,
        SimpleNamespace(
            settings=SimpleNamespace(broker_id=member.name, sweep_seconds=5.0),
            paths=PATHS,
            keeper=member.keeper,
            view=member.view,
            elections=member.elections,
            control=SimpleNamespace(failures=failures or {}),
        ),
    )


@asynccontextmanager
async def a_daemon(directory: Path) -> AsyncIterator[Daemon]:
    async with etcd_cluster(1) as etcd:
        settings = DaemonSettings(etcd=EtcdSettings(endpoints=etcd.endpoints), data=directory, broker_id="d0")
        async with daemon(settings, web_url="http://127.0.0.1:1") as of:
            await of.wait_ready()
            yield of


def application(of: Daemon) -> web.Application:
    app = web.Application()
    app[DAEMON] = of
    health.install(app)
    metrics.install(app)
    app.add_routes([*ROUTES, *metrics.ROUTES])
    return app


async def test_a_real_daemon_is_alive_and_ready_until_it_leaves_or_a_task_ends(tmp_path: Path) -> None:
    async with a_daemon(tmp_path) as of, TestClient(TestServer(application(of))) as client:

        async def ask(path: str) -> tuple[int, str]:
            answer = await client.get(path)
            return answer.status, await answer.text()

        assert await ask("/health/live") == (200, '{"brokerId":"d0","deadTasks":[]}')
        assert await ask("/status.html") == (200, "OK")
        answer = await client.get("/health/ready")
        told = await answer.json()
        assert (answer.status, told["ready"], told["problems"], told["failures"]) == (200, True, [], {})
        assert told["sessionSecondsLeft"] > 5
        status, text = await ask("/metrics")
        assert status == 200
        assert "scalable_topics_led_topics 0.0" in text
        assert "scalable_topics_store_used_bytes " in text

        vitals = client.app[VITALS]
        assert set(vitals.watched_tasks) == {"session of d0", "view of /scalable-topics/", *ENDLESS_TASKS}
        vitals.leaving = True
        assert (await ask("/health/ready"))[0] == 503
        assert await ask("/status.html") == (404, "it is stopping\n")
        assert (await ask("/health/live"))[0] == 200, "it stops by itself: nobody need kill it"
        vitals.leaving = False

        (beating,) = [task for task in asyncio.all_tasks() if task.get_name() == "heartbeat"]
        beating.cancel()
        await asyncio.wait([beating])
        assert await ask("/health/live") == (503, '{"brokerId":"d0","deadTasks":["heartbeat"]}')
        assert (await ask("/health/ready"))[0] == 503
        assert (await ask("/status.html"))[0] == 503


async def test_a_task_that_ends_ends_the_daemon(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(ExceptionGroup) as caught:
        async with a_daemon(tmp_path) as of, watched(of):
            (owners,) = [task for task in asyncio.all_tasks() if task.get_name() == "owners"]
            owners.cancel()
            async with asyncio.timeout(20):
                await asyncio.Event().wait()
    found: BaseException = caught.value
    while isinstance(found, BaseExceptionGroup):
        found = found.exceptions[0]
    assert isinstance(found, MustStop)
    assert "owners" in str(found)
    assert "a task has ended that must not" in caplog.text


def test_readiness_goes_with_the_store_and_comes_back() -> None:
    async def away() -> None:
        world = World()
        async with (
            daemons(world, "a") as (member,),
            Vitals(as_daemon(member)).running() as vitals,
        ):
            assert vitals.problems() == (
                "it has no session in the store, so it leads nothing",
                "it has not read the store yet",
            )
            await asyncio.sleep(1)
            assert vitals.problems() == ()
            member.link.cut = True
            await asyncio.sleep(60)
            session, store = vitals.problems()
            assert session == "it has no session in the store, so it leads nothing"
            assert store.startswith("it has not heard of the store for ")
            assert not vitals.ready().ready
            assert vitals.dead_tasks() == (), "it waits for the store, and is alive"
            member.link.cut = False
            await asyncio.sleep(30)
            assert vitals.problems() == ()

    run_virtual(away())


def test_a_failing_controller_is_told_and_takes_nothing_from_the_others() -> None:
    async def fail() -> None:
        world = World()
        async with daemons(world, "a") as (member,):
            await asyncio.sleep(1)
            many = {TopicName.parse(f"topic://t/n/{number}"): "damaged" for number in range(1_000)}
            answer = Vitals(as_daemon(member, many)).ready()
            assert answer.ready
            assert answer.failing_controllers == 1_000
            assert answer.failures["topic://t/n/0"] == "damaged"
            assert len(answer.failures) == 100

    run_virtual(fail())


def test_a_heartbeat_that_does_not_come_back_is_a_problem() -> None:
    async def stall() -> None:
        world = World()
        async with (
            daemons(world, "a") as (member,),
            Vitals(as_daemon(member)).running() as vitals,
        ):
            await asyncio.sleep(1)
            session = member.keeper.session
            assert session is not None
            await world.repository.beat(session, "a", SweepHeartbeat(swept_at_ms=1, interval_ms=5_000))
            await asyncio.sleep(20)
            assert vitals.problems() == ()
            await asyncio.sleep(20)
            (problem,) = vitals.problems()
            assert problem.startswith("its heartbeat has not come back for ")

    run_virtual(stall())


async def test_a_loop_that_stands_still_is_told_with_its_stacks_and_ended(caplog: pytest.LogCaptureFixture) -> None:
    ended = threading.Event()
    async with LoopWatchdog(seconds=0.4, end=ended.set).running():
        await asyncio.sleep(0.8)
        assert not ended.is_set(), "a loop that turns is left alone"
        stand_still(ended)
    assert ended.is_set()
    (record,) = [one for one in caplog.records if one.levelno == logging.CRITICAL]
    told = str(record.__dict__["stacks"])
    assert "stand_still" in told
    assert "thread MainThread" in told
    assert "task loop watchdog" in told


def stand_still(until: threading.Event) -> None:
    until.wait(10)


async def test_its_thread_ends_with_the_block() -> None:
    async with LoopWatchdog(seconds=0.4).running():
        assert "loop watchdog" in {thread.name for thread in threading.enumerate()}
    async with asyncio.timeout(5):
        while "loop watchdog" in {thread.name for thread in threading.enumerate()}:
            await asyncio.sleep(0.01)


WEDGED = """
import asyncio, logging, sys, threading, time
from scalable_topics.server import health
from scalable_topics.server.configuration import LogFormat
from scalable_topics.server.logs import configure_logs

handler = configure_logs("INFO", LogFormat.TEXT)
health.LOG_SECONDS = 0.5

async def main() -> None:
    async with health.LoopWatchdog(seconds=0.4).running():
        await asyncio.sleep(0.1)
        if "turning" in sys.argv:
            print("turning", flush=True)
            return await asyncio.sleep(1)
        if "locked" in sys.argv:
            handler.acquire()
        time.sleep(60)

asyncio.run(main())
"""


@pytest.mark.parametrize("how", ["asleep", "locked"])
def test_a_wedged_process_ends_also_when_nobody_reads_its_log(how: str) -> None:
    ended = subprocess.run([sys.executable, "-c", WEDGED, how], capture_output=True, timeout=30, check=False, text=True)
    assert ended.returncode == EXIT_WEDGED
    assert ("the event loop has not turned, ending the daemon seconds=0.4" in ended.stderr) is (how == "asleep")
    assert ("time.sleep(60)" in ended.stderr or "in main" in ended.stderr) is (how == "asleep")


def test_a_process_that_was_stopped_and_goes_on_is_not_wedged() -> None:
    """Time has passed, looks have not."""
    with subprocess.Popen([sys.executable, "-c", WEDGED, "turning"], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"turning\n"
        for _ in range(3):
            process.send_signal(signal.SIGSTOP)
            time.sleep(0.8)
            process.send_signal(signal.SIGCONT)
            time.sleep(0.05)
        assert process.wait(30) == 0


def test_every_route_says_what_it_does() -> None:
    app = web.Application()
    app.add_routes([*ROUTES, *metrics.ROUTES])
    assert undeclared_routes(app) == []


def test_stacks_can_be_asked_for_without_a_loop() -> None:
    assert "test_stacks_can_be_asked_for" in stacks()
