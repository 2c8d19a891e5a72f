"""SIGHUP: what can change while the daemon runs does, and what cannot is said."""

import logging
import ssl
from collections.abc import Callable

from scalable_topics.model.errors import InvalidArgument
from scalable_topics.server.auth.security import Security
from scalable_topics.server.configuration import Configuration, changed, reloaded
from scalable_topics.server.secured import load_certificate, token_key_of

log = logging.getLogger(__name__)


class Reloading:
    """What the daemon runs with, and the way to the next. Applies the log level, token keys, super users and what
    certificate files hold; a configuration that is wrong in anything changes nothing.
    """

    def __init__(
        self,
        configuration: Configuration,
        reread: Callable[[], Configuration],
        security: Security,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self.configuration = configuration
        self._reread = reread
        self._security = security
        self._tls = tls

    def reload(self) -> None:
        """Never raises: a slip in a file does not end a daemon."""
        try:
            wanted = self._reread()
            after = reloaded(self.configuration, wanted)
            token_key = token_key_of(after)
            if self._tls is not None:
                load_certificate(self._tls, after)
        except InvalidArgument as error:
            log.error("nothing was reloaded: %s", error)  # noqa: TRY400 - it is the operator's, and tells all
            return
        except Exception:
            log.exception("nothing was reloaded")
            return
        changes = changed(self.configuration, wanted)
        self._security.take(token_key, after.security.super_user_roles)
        self._security.reload()
        logging.getLogger().setLevel(after.logging.level)
        self.configuration = after
        for change in changes.applied:
            log.warning("reloaded %s", change)
        for change in changes.needs_restart:
            log.warning("needs a restart %s", change)
        if not changes.applied and not changes.needs_restart:
            log.info("reloaded, nothing has changed")
