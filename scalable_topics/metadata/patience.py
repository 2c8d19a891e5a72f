"""How every endless loop of this layer bears a store that fails: what is waited for, how long, and what is not waited
for.

There is one list of errors that pass by themselves. A loop that meets one of them says so and tries again; anything
else is either a reason to stop the daemon or a defect, and a defect is logged with its traceback and does not end the
loop for good.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Final

from scalable_topics.model.errors import Compacted, Forbidden, LeaseLost, MustStop, NoSpace, Unavailable

TRANSIENT: Final = (Unavailable, NoSpace, LeaseLost, Compacted, Forbidden, TimeoutError)
"""What passes by itself, or when an operator makes room or gives a permission back: wait, say so, try again."""

FIRST_DELAY_SECONDS: Final = 0.1
MAX_DELAY_SECONDS: Final = 2.0

log = logging.getLogger(__name__)


class Backoff:
    """Delays that double up to a maximum, and start small again after a success."""

    def __init__(self, *, first_seconds: float = FIRST_DELAY_SECONDS, max_seconds: float = MAX_DELAY_SECONDS) -> None:
        self._first_seconds = first_seconds
        self._max_seconds = max_seconds
        self._next_seconds = first_seconds

    def reset(self) -> None:
        self._next_seconds = self._first_seconds

    async def wait(self) -> None:
        delay, self._next_seconds = self._next_seconds, min(2 * self._next_seconds, self._max_seconds)
        await asyncio.sleep(delay)


async def keep_running(work: Callable[[], Awaitable[object]], *, name: str) -> None:
    """Run endless work for as long as the caller lives.

    `work` is started again, after a growing delay, whenever it ends: by a transient error (a warning), by returning or
    by any other exception (a defect: an error with its traceback). Raises only `MustStop`, and is cancelled like
    any task. `work` must therefore be able to start from nothing.
    """
    backoff = Backoff(max_seconds=30.0)
    loop = asyncio.get_running_loop()
    while True:
        started_at = loop.time()
        try:
            await work()
        except MustStop:
            raise
        except TRANSIENT as error:
            log.warning("interrupted, starting again task=%r: %s", name, in_words(error))
        except Exception:
            log.exception("unexpected failure, starting again task=%r", name)
        else:
            log.error("ended though it should not, starting again task=%r", name)
        if loop.time() - started_at > 60:
            backoff.reset()
        await backoff.wait()


def in_words(error: BaseException) -> str:
    """Some errors, such as a time-out, have no text of their own."""
    return str(error) or type(error).__name__


class PassedOver:
    """Keys that are not ours or cannot be read: each is logged once, and then passed over in silence."""

    def __init__(self, *, remember: int = 10_000) -> None:
        self._seen: set[str] = set()
        self._remember = remember

    def note(self, key: str, why: str) -> None:
        if key in self._seen or len(self._seen) >= self._remember:
            return
        self._seen.add(key)
        log.warning("passed over key=%r: %s", key, why)
