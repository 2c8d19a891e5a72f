"""The daemon's HTTP application, and how it is served."""

import asyncio
import logging
import os
import signal
import socket
import ssl
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import ExitStack, asynccontextmanager
from typing import Final

from aiohttp import web

from scalable_topics.model.errors import InvalidArgument
from scalable_topics.server import (
    health,
    metrics,
    operations,
    policies,
    segments,
    stats,
    subscriptions,
    tenants,
    topics,
)
from scalable_topics.server.auth.authorizer import StoredGrants
from scalable_topics.server.auth.middleware import acts, secure
from scalable_topics.server.auth.security import Security
from scalable_topics.server.auth.table import Action
from scalable_topics.server.bodies import HealthAnswer, ReadyLine, json_response
from scalable_topics.server.configuration import Configuration
from scalable_topics.server.daemon import Daemon, daemon, settings_of
from scalable_topics.server.errors import answer_errors
from scalable_topics.server.keys import DAEMON, SECURITY
from scalable_topics.server.reloading import Reloading
from scalable_topics.server.secured import client_tls, forget_what_changes, held_keys, security_of, server_tls

STOP_SECONDS: Final = 2.0
"""What requests under way get when the daemon stops."""

ROUTES: Final = (
    *(topics.ROUTES, operations.ROUTES, subscriptions.ROUTES, policies.ROUTES, tenants.ROUTES, segments.ROUTES),
    *(stats.ROUTES, health.ROUTES, metrics.ROUTES),
)

log = logging.getLogger(__name__)


def application(of: Daemon, security: Security, *, max_body_bytes: int) -> web.Application:
    app = web.Application(middlewares=[answer_errors], client_max_size=max_body_bytes)
    app[DAEMON] = of
    app[SECURITY] = security
    for part in (health, metrics):
        part.install(app)
    for routes in ROUTES:
        app.add_routes(routes)
    app.router.add_get("/health", _health, allow_head=False)
    secure(app, security)
    app.middlewares.append(operations.refuse_unplanned)
    return app


@acts(Action.CHECK_HEALTH)
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


async def run(
    configuration: Configuration, *, reread: Callable[[], Configuration], ready: Callable[[ReadyLine], None]
) -> None:
    """A daemon, until SIGTERM or SIGINT; `ready` is called once, when it can be asked.

    The end is clean: nothing more is taken, what is under way gets `STOP_SECONDS`, segments are closed, and the
    session ends, which gives all leadership back. A second signal does not wait for that. On SIGHUP the configuration
    is read again with `reread`. Keys and certificates that are none are refused before anything is begun.
    """
    loop = asyncio.get_running_loop()
    with ExitStack() as sockets:
        listening = _bound(configuration, sockets)
        serving = loop.create_task(_serve(configuration, reread, listening, ready), name="daemon")
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, serving.cancel)
        loop.add_signal_handler(signal.SIGHUP, lambda: None)  # too early for a reload, and no reason to end
        try:
            await serving
        except asyncio.CancelledError:
            if not serving.cancelled():
                raise
    log.info("stopped")


async def _serve(
    configuration: Configuration,
    reread: Callable[[], Configuration],
    listening: Sequence[socket.socket],
    ready: Callable[[ReadyLine], None],
) -> None:
    held, tls = held_keys(configuration), server_tls(configuration)
    port = int(listening[0].getsockname()[1])
    settings, web_url = settings_of(configuration, port=port), configuration.web_url(port)
    async with daemon(settings, web_url=web_url, tls=client_tls(configuration)) as of:
        security = security_of(
            configuration,
            held,
            StoredGrants(of.repository),
            broker_id=settings.broker_id,
            process=of.info.process,
        )
        forget_what_changes(security, of.view, of.paths)
        await of.wait_ready()
        async with health.watched(of), _listening(of, security, configuration, listening, tls):
            reloading = Reloading(configuration, reread, security, tls)
            asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, reloading.reload)
            ready(ReadyLine(settings.broker_id, web_url, os.getpid()))
            await asyncio.Event().wait()


def _bound(configuration: Configuration, stack: ExitStack) -> Sequence[socket.socket]:
    """On every address; all have the port of the first, also when that was a free one."""
    found: list[socket.socket] = []
    for host, wanted in configuration.listen_addresses():
        port = found[0].getsockname()[1] if found else wanted
        try:
            family, *_, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
            one = stack.enter_context(socket.socket(family))
            one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if family == socket.AF_INET6:
                one.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            one.bind(address)
        except OSError as error:
            raise InvalidArgument(
                f"{host} port {port} cannot be listened on: {error.strerror}",
                subject="bindAddress",
                remedy="give another webServicePort, or 0 for a free one",
            ) from None
        found.append(one)
    return found


@asynccontextmanager
async def _listening(
    of: Daemon,
    security: Security,
    configuration: Configuration,
    listening: Sequence[socket.socket],
    tls: ssl.SSLContext | None,
) -> AsyncIterator[None]:
    limits = configuration.limits
    app = application(of, security, max_body_bytes=limits.body_bytes)
    runner = web.AppRunner(
        app,
        access_log=None,
        shutdown_timeout=STOP_SECONDS,
        max_line_size=limits.header_bytes,
        max_field_size=limits.header_bytes,
    )
    await runner.setup()
    try:
        for one in listening:
            await web.SockSite(runner, one, ssl_context=tls).start()
        yield
    finally:
        app[health.VITALS].leaving = True
        await runner.cleanup()
