"""Room in the store: automatic operations stop before people have to."""

import asyncio

import pytest
from msgspec.structs import replace

from scalable_topics.metadata.memory import MemoryStore
from scalable_topics.metadata.monitor import StoreMonitor
from scalable_topics.metadata.store import StoreHealth
from scalable_topics.model.errors import Unavailable
from tests.virtual_time import run_virtual

FINE = StoreHealth(version="3.5.9", used_bytes=79, quota_bytes=100, no_space=False, auto_compaction=True)


class Told(MemoryStore):
    def __init__(self) -> None:
        super().__init__()
        self.answer: StoreHealth | Exception = FINE

    async def health(self) -> StoreHealth:
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer


def test_automatic_operations_stop_at_four_fifths_and_go_on_when_there_is_room(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def run() -> None:
        store = Told()
        async with StoreMonitor(store, ask_seconds=30).running() as monitor:
            assert monitor.automatic_operations_allowed
            script: list[tuple[StoreHealth | Exception, bool]] = [
                (FINE, True),
                (replace(FINE, used_bytes=80), False),
                (Unavailable("away"), False),
                (replace(FINE, used_bytes=10, no_space=True), False),
                (FINE, True),
                (replace(FINE, quota_bytes=None, used_bytes=1 << 40), True),
            ]
            for answer, allowed in script:
                store.answer = answer
                await asyncio.sleep(31)
                assert monitor.automatic_operations_allowed is allowed

    run_virtual(run())
    told = [record.getMessage() for record in caplog.records if record.levelname == "ERROR"]
    assert len(told) == 1
    assert "compact, defragment, disarm" in told[0]


@pytest.mark.parametrize(("auto_compaction", "warned"), [(True, 0), (None, 0), (False, 1)])
def test_a_store_that_never_forgets_is_warned_about_once(
    caplog: pytest.LogCaptureFixture, auto_compaction: bool | None, warned: int
) -> None:
    async def run() -> None:
        store = Told()
        store.answer = replace(FINE, auto_compaction=auto_compaction)
        async with StoreMonitor(store, ask_seconds=30).running():
            await asyncio.sleep(300)

    run_virtual(run())
    assert sum("--auto-compaction-mode" in record.getMessage() for record in caplog.records) == warned
