"""What handlers find in their application."""

from typing import Final

from aiohttp import web

from scalable_topics.server.daemon import Daemon

DAEMON: Final = web.AppKey("daemon", Daemon)
