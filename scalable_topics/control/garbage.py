"""How a physical segment is proven to be gone: deleted, and then found absent twice, further apart than any call can be
late. What is not ours, or does not answer, is not gone.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Any, Protocol

from scalable_topics.control.led_topic import OWNER_ERRORS
from scalable_topics.metadata.patience import in_words
from scalable_topics.model.errors import NotFound
from scalable_topics.model.garbage import parse_garbage
from scalable_topics.segments.errors import ForeignStamp, Unusable
from scalable_topics.segments.port import Call, SegmentStore

log = logging.getLogger(__name__)


class Ask(Protocol):
    """Make one call to an owner, with whoever's fence it has to carry."""

    def __call__(self, work: Callable[[Call], Awaitable[Any]]) -> Awaitable[Any]: ...


class ProofsOfAbsence:
    """Remembers since when each entry was found absent. Lost with the process: then it is found out again."""

    def __init__(self, segments: SegmentStore, *, apart_seconds: float) -> None:
        self._segments = segments
        self._apart_seconds = apart_seconds
        self._absent_since: dict[str, float] = {}

    async def delete(self, entry: str, ask: Ask) -> bool:
        """Delete it, and answer whether it is proven to be gone, or never was ours. Raises what `ask` raises beside an
        owner's errors.
        """
        garbage = parse_garbage(entry)
        address = garbage.address
        try:
            await ask(lambda call: self._segments.delete(address, call, made_by=garbage.made_by))
            await ask(lambda _: self._segments.describe(address))
        except NotFound:
            now = asyncio.get_running_loop().time()
            return now - self._absent_since.setdefault(entry, now) >= self._apart_seconds
        except ForeignStamp as error:
            log.info("not ours, and left alone physical=%s: %s", garbage.physical, error)
            return garbage.made_by is not None
        except Unusable as error:
            log.error("garbage cannot be deleted physical=%s: %s", garbage.physical, error)  # noqa: TRY400 - it says it
        except OWNER_ERRORS as error:
            log.info("garbage not deleted yet physical=%s: %s", garbage.physical, in_words(error))
        self._absent_since.pop(entry, None)
        return False

    def forget(self, entry: str) -> None:
        """It has left its list."""
        self._absent_since.pop(entry, None)
