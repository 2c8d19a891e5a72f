"""How endless loops bear failures: what is waited for, what is logged, and what ends the daemon."""

import asyncio
import logging
from collections.abc import Callable
from itertools import pairwise

import pytest

from scalable_topics.metadata.patience import TRANSIENT, Backoff, PassedOver, in_words, keep_running
from scalable_topics.model.errors import MustStop, ScalableTopicsError, Unavailable, WrongState
from tests.virtual_time import run_virtual


def returns() -> None:
    pass


def fails(error: Exception) -> Callable[[], None]:
    def raising() -> None:
        raise error

    return raising


@pytest.mark.parametrize(
    ("end", "level", "story"),
    [
        (returns, logging.ERROR, "ended though it should not, starting again task='t'"),
        (fails(RuntimeError("a defect")), logging.ERROR, "unexpected failure, starting again task='t'"),
        (fails(WrongState("no")), logging.ERROR, "unexpected failure, starting again task='t'"),
        *((fails(kind("why")), logging.WARNING, "starting again task='t': why") for kind in TRANSIENT),
    ],
)
def test_endless_work_is_started_again_and_its_end_is_logged(
    end: Callable[[], None], level: int, story: str, caplog: pytest.LogCaptureFixture
) -> None:
    starts: list[float] = []

    async def work() -> None:
        starts.append(asyncio.get_running_loop().time())
        if len(starts) > 3:
            await asyncio.Event().wait()
        end()

    async def run() -> None:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(60):
                await keep_running(work, name="t")

    run_virtual(run())
    assert len(starts) == 4
    assert [round(later - earlier, 3) for earlier, later in pairwise(starts)] == [0.1, 0.2, 0.4]
    assert [(record.levelno, story in record.getMessage()) for record in caplog.records] == [(level, True)] * 3
    assert all((record.exc_info is not None) is ("unexpected" in story) for record in caplog.records)


def test_what_no_waiting_mends_ends_the_daemon() -> None:
    async def work() -> None:
        raise MustStop("another process has this name")

    async def run() -> None:
        with pytest.raises(MustStop):
            await keep_running(work, name="t")

    run_virtual(run())


def test_a_start_after_long_calm_is_quick_again() -> None:
    starts: list[float] = []

    async def work() -> None:
        starts.append(asyncio.get_running_loop().time())
        await asyncio.sleep(61 if len(starts) == 10 else 0)
        raise Unavailable("away")

    async def run() -> None:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(300):
                await keep_running(work, name="t")

    run_virtual(run())
    pauses = [later - earlier for earlier, later in pairwise(starts)]
    assert max(pauses[:9]) == pytest.approx(25.6)
    assert pauses[9] == pytest.approx(61.1)


def test_delays_double_up_to_a_limit_and_begin_anew() -> None:
    async def run() -> list[float]:
        loop, waits = asyncio.get_running_loop(), []
        backoff = Backoff(first_seconds=0.5, max_seconds=3)
        for number in range(6):
            if number == 5:
                backoff.reset()
            start = loop.time()
            await backoff.wait()
            waits.append(round(loop.time() - start, 3))
        return waits

    assert run_virtual(run()) == [0.5, 1, 2, 3, 3, 0.5]


def test_each_key_is_logged_once_and_not_without_end(caplog: pytest.LogCaptureFixture) -> None:
    passed_over = PassedOver(remember=2)
    for key in ("a", "b", "a", "c", "b"):
        passed_over.note(key, "why")

    assert [record.getMessage() for record in caplog.records] == [f"passed over key={key!r}: why" for key in "ab"]


def test_an_error_without_text_has_a_name() -> None:
    assert in_words(TimeoutError()) == "TimeoutError"
    assert in_words(ScalableTopicsError("what", remedy="how")) == "what (how)"
