"""The daemon's HTTP application, and how it is served."""

import asyncio
import logging
import os
import signal
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Final

from aiohttp import web

from scalable_topics.server import segments, topics
from scalable_topics.server.bodies import HealthAnswer, ReadyLine, json_response
from scalable_topics.server.daemon import Daemon, DaemonSettings, daemon
from scalable_topics.server.errors import answer_errors
from scalable_topics.server.keys import DAEMON

HOST: Final = "127.0.0.1"
"""Loopback only: there is no authentication yet."""
MAX_BODY_BYTES: Final = 16 << 20
STOP_SECONDS: Final = 2.0
"""What requests under way get when the daemon stops."""

log = logging.getLogger(__name__)


def application(of: Daemon) -> web.Application:
    app = web.Application(middlewares=[answer_errors], client_max_size=MAX_BODY_BYTES)
    app[DAEMON] = of
    app.add_routes([*topics.ROUTES, *segments.ROUTES, web.get("/health", _health, allow_head=False)])
    return app


async def _health(request: web.Request) -> web.Response:
    """It answers, whatever it knows."""
    of = request.app[DAEMON]
    return json_response(
        HealthAnswer(
            broker_id=of.settings.broker_id,
            session=of.keeper.session is not None,
            stale_seconds=of.view.stale_seconds,
            leads=len(of.elections.led),
            serves=len(of.owners.serving),
        )
    )


async def run(settings: DaemonSettings, *, port: int, ready: Callable[[ReadyLine], None]) -> None:
    """A daemon, until SIGTERM or SIGINT; `ready` is called once, when it can be asked. Port 0 = a free one.

    The end is clean: nothing more is taken, what is under way gets `STOP_SECONDS`, segments are closed, and the
    session ends, which gives all leadership back. A second signal does not wait for that.
    """
    loop = asyncio.get_running_loop()
    with socket.socket() as listening:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind((HOST, port))
        serving = loop.create_task(_serve(settings, listening, ready), name="daemon")
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, serving.cancel)
        try:
            await serving
        except asyncio.CancelledError:
            if not serving.cancelled():
                raise
    log.info("stopped broker=%s", settings.broker_id)


async def _serve(settings: DaemonSettings, listening: socket.socket, ready: Callable[[ReadyLine], None]) -> None:
    web_url = f"http://{HOST}:{listening.getsockname()[1]}"
    async with daemon(settings, web_url=web_url) as of:
        await of.wait_ready()
        async with _listening(of, listening):
            ready(ReadyLine(settings.broker_id, web_url, os.getpid()))
            await asyncio.Event().wait()


@asynccontextmanager
async def _listening(of: Daemon, listening: socket.socket) -> AsyncIterator[None]:
    runner = web.AppRunner(application(of), access_log=None, shutdown_timeout=STOP_SECONDS)
    await runner.setup()
    try:
        await web.SockSite(runner, listening).start()
        yield
    finally:
        await runner.cleanup()
