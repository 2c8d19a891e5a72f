"""Is there room in the store, and will there be? Asked now and then, told once when it changes.

A store that is nearly full stops automatic operations first, so that people still have room to mend things.
"""

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

from scalable_topics.metadata.patience import TRANSIENT, in_words, keep_running
from scalable_topics.metadata.store import MetadataStore, StoreHealth

ASK_SECONDS: Final = 30.0

log = logging.getLogger(__name__)


class StoreMonitor:
    """To be kept `running`. `health` is what the store last said of itself; None = nothing yet."""

    def __init__(self, store: MetadataStore, *, ask_seconds: float = ASK_SECONDS) -> None:
        self._store = store
        self._ask_seconds = ask_seconds
        self.health: StoreHealth | None = None

    @property
    def automatic_operations_allowed(self) -> bool:
        """Nothing is known against it. What people ask for is tried all the same."""
        return self.health is None or not self.health.nearly_full

    @asynccontextmanager
    async def running(self) -> AsyncIterator["StoreMonitor"]:
        """In the background of a block. While the store does not answer, what it last said stands."""
        async with asyncio.TaskGroup() as tasks:
            asking = tasks.create_task(keep_running(self._ask_for_ever, name="store monitor"), name="store monitor")
            try:
                yield self
            finally:
                asking.cancel()

    async def _ask_for_ever(self) -> None:
        while True:
            try:
                await self.ask()
            except TRANSIENT as error:
                log.warning("the store does not tell how it is: %s", in_words(error))
            await asyncio.sleep(self._ask_seconds)

    async def ask(self) -> StoreHealth:
        """Ask now. Raises what `health` raises."""
        before, self.health = self.health, await self._store.health()
        now = self.health
        if now.auto_compaction is False and (before is None or before.auto_compaction is not False):
            log.warning(
                "the store forgets no old revisions and will be full one day: start etcd with"
                " --auto-compaction-mode=periodic --auto-compaction-retention=1h"
            )
        if now.nearly_full and (before is None or not before.nearly_full):
            log.error(
                "the store is nearly full, automatic operations stop used_bytes=%d quota_bytes=%s no_space=%s:"
                " compact, defragment, disarm the alarm; then raise the quota",
                now.used_bytes,
                now.quota_bytes,
                now.no_space,
            )
        if before is not None and before.nearly_full and not now.nearly_full:
            log.info("there is room in the store again, automatic operations go on used_bytes=%d", now.used_bytes)
        return now
