"""Reads that are answered also while the store is away: from what this daemon last knew, and marked as such."""

import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import Final, TypeVar

from scalable_topics.metadata.view import ViewState
from scalable_topics.model.errors import Unavailable
from scalable_topics.server.daemon import Daemon

STALE: Final = "X-Stale-Seconds"
"""On an answer that is not the store's own: how long ago this daemon heard of it."""

T = TypeVar("T")

log = logging.getLogger(__name__)


async def store_or_view(
    of: Daemon, from_store: Callable[[], Awaitable[T]], from_view: Callable[[ViewState], T]
) -> tuple[T, Mapping[str, str]]:
    """What is asked for, and the headers that say how old it is.

    The store is asked as long as this daemon has a session there; without one it has been away for a while, and nobody
    waits for it to time out. A daemon that has never read the store knows nothing: `Unavailable`.
    """
    session = of.keeper.session
    if session is not None and session.alive:
        try:
            return await from_store(), {}
        except Unavailable as error:
            if not of.view.ready:
                raise
            log.info("answering from the view: %s", error)
    elif not of.view.ready:
        raise Unavailable("the store is away, and nothing of it is known yet", remedy="ask another daemon")
    return from_view(of.view.state), {STALE: str(max(1, round(of.view.stale_seconds)))}
