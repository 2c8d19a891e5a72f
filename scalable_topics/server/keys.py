"""What handlers find in their application."""

from typing import Final

from aiohttp import web

from scalable_topics.server.auth.security import Security
from scalable_topics.server.daemon import Daemon

DAEMON: Final = web.AppKey("daemon", Daemon)
SECURITY: Final = web.AppKey("security", Security)
