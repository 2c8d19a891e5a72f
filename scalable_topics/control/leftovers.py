"""What is left of topics that are gone: `/garbage/{incarnation}` names their physical segments until all are deleted.

Such a topic has no leader. The daemon that ranks first for the incarnation does it; two that both think so do the same
work twice, which harms nothing: an incarnation never lives again.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

from scalable_topics.control.garbage import ProofsOfAbsence
from scalable_topics.control.led_topic import Surroundings
from scalable_topics.metadata.patience import keep_running
from scalable_topics.metadata.repository import Conflict, Stored
from scalable_topics.metadata.session import Role
from scalable_topics.policy.ranking import ranked
from scalable_topics.segments.port import Call

log = logging.getLogger(__name__)


class Leftovers:
    """To be kept `running` on every daemon."""

    def __init__(self, broker_id: str, around: Surroundings) -> None:
        self._broker_id = broker_id
        self._around = around
        self._proofs = ProofsOfAbsence(around.segments, apart_seconds=around.settings.absent_check_seconds)

    @asynccontextmanager
    async def running(self) -> AsyncIterator["Leftovers"]:
        async with asyncio.TaskGroup() as tasks:
            working = tasks.create_task(keep_running(self._run, name="leftovers"), name="leftovers")
            try:
                yield self
            finally:
                working.cancel()

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(self._around.settings.gc_interval_seconds)
            await self.round()

    async def round(self) -> int:
        """How many physical segments were proven gone. Raises what the store raises."""
        entries = await self._around.repository.garbage()
        brokers = await self._around.repository.brokers() if entries else {}
        controllers = [name for name, known in brokers.items() if Role.CONTROLLER in known.value.roles]
        return sum(
            [
                await self._delete(incarnation, known)
                for incarnation, known in entries.items()
                if self._broker_id in ranked(incarnation, controllers)[:1]
            ]
        )

    async def _delete(self, incarnation: str, known: Stored[tuple[str, ...]]) -> int:
        """The entry is younger than every term its topic ever had, so its revision stands for a term of its own."""

        def ask(work: Callable[[Call], Awaitable[Any]]) -> Awaitable[Any]:
            return self._call(incarnation, known.create_revision, work)

        gone = [physical for physical in known.value if await self._proofs.delete(physical, ask)]
        if gone:
            left = tuple(physical for physical in known.value if physical not in gone)
            try:
                await self._around.repository.set_garbage(incarnation, left, known=known)
            except Conflict:
                return 0  # another daemon does the same
            for physical in gone:
                self._proofs.forget(physical)
            log.info(
                "deleted what was left of a topic incarnation=%s gone=%d left=%d", incarnation, len(gone), len(left)
            )
        return len(gone)

    async def _call(self, incarnation: str, term: int, work: Callable[[Call], Awaitable[Any]]) -> Any:
        seconds = self._around.settings.call_seconds
        deadline = asyncio.get_running_loop().time() + seconds
        async with asyncio.timeout(seconds):
            return await work(Call(incarnation=incarnation, operation_id="garbage", term=term, deadline=deadline))
