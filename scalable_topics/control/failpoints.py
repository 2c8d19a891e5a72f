"""Places where a test may stop, kill or cut off a leader (PROTOCOL 11). In production they do nothing.

`SCALABLE_TOPICS_FAILPOINT=name@directory` makes a process write `directory/name.reached` when it first comes there, and
wait until `directory/name.go` exists; what happens meanwhile is the test's business. It is passed by while
`directory/name.off` exists, so that a test can get ready.
"""

import asyncio
import os
from enum import StrEnum
from pathlib import Path
from typing import Final, Protocol

from scalable_topics.model.errors import InvalidArgument
from scalable_topics.model.names import TopicName

VARIABLE: Final = "SCALABLE_TOPICS_FAILPOINT"


class Failpoint(StrEnum):
    BEFORE_COMMIT_1 = "before-commit-1"
    COMMIT_1_ANSWER_LOST = "commit-1-answer-lost"
    ONE_CHILD_MADE = "one-child-made"
    CURSOR_MISSING = "cursor-missing"
    COMMIT_2_ANSWER_LOST = "commit-2-answer-lost"
    TERMINATE_SENT = "terminate-sent"
    ONE_PARENT_TERMINATED = "one-parent-terminated"
    ALL_TERMINATED = "all-terminated"
    COMMIT_3_ANSWER_LOST = "commit-3-answer-lost"
    COMMITTED_NOT_PUSHED = "committed-not-pushed"
    CLEAN_UP_HALF_DONE = "clean-up-half-done"


class Failpoints(Protocol):
    async def reach(self, failpoint: Failpoint, topic: TopicName) -> None:
        """Called at each place, every time."""


class NoFailpoints:
    async def reach(self, failpoint: Failpoint, topic: TopicName) -> None:
        pass


class WaitingFailpoint:
    """Waits, once, at one place."""

    def __init__(self, failpoint: Failpoint, directory: Path) -> None:
        self._failpoint = failpoint
        self._directory = directory
        self._used = False

    async def reach(self, failpoint: Failpoint, topic: TopicName) -> None:
        if failpoint is not self._failpoint or self._used:
            return
        off = await asyncio.to_thread((self._directory / f"{failpoint}.off").exists)
        if off or self._used:
            return
        self._used = True
        await asyncio.to_thread((self._directory / f"{failpoint}.reached").write_text, str(topic))
        go = self._directory / f"{failpoint}.go"
        while not await asyncio.to_thread(go.exists):  # noqa: ASYNC110 - another process makes it
            await asyncio.sleep(0.01)


def failpoints_from_environment() -> Failpoints:
    """None unless the variable is set; a name that does not exist is refused, so that no test waits in vain."""
    setting = os.environ.get(VARIABLE)
    if not setting:
        return NoFailpoints()
    name, _, directory = setting.partition("@")
    if name not in set(Failpoint) or not directory:
        raise InvalidArgument(
            f"{VARIABLE}={setting!r} names no failpoint",
            remedy=f"write NAME@DIRECTORY with one of {', '.join(Failpoint)}",
        )
    return WaitingFailpoint(Failpoint(name), Path(directory))
