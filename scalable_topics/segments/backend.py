"""Where transactions run: the one thing in which the adapters of this package differ."""

from collections.abc import Callable
from typing import Protocol, TypeVar

from scalable_topics.segments.rows import Rows

T = TypeVar("T")


class Backend(Protocol):
    """Everything about one name is in one place and changes in one order. Two names may be in two places."""

    def now_ms(self) -> int:
        """Wall-clock time, for publish times and tombstones."""

    async def write(
        self, name: str, work: Callable[[Rows], T], *, deadline: float | None = None, quiet: bool = False
    ) -> T:
        """Run rules in a transaction; returns when it is durable.

        A refusal by the rules passes through, and has changed nothing. `Unavailable` = it was not begun before the
        deadline (`loop.time()`), `UnknownOutcome` = it was, and its end was not seen. Whoever listens to the name is
        told, unless it is `quiet`.
        """

    async def read(self, name: str, work: Callable[[Rows], T]) -> T:
        """Run rules that only look, all at one instant, on what is durable."""

    async def read_all(self, work: Callable[[Rows], T]) -> list[T]:
        """The same in every place."""

    async def write_all(self, work: Callable[[Rows], T]) -> list[T]: ...

    def listen(self, name: str, told: Callable[[], None]) -> Callable[[], None]:
        """`told` is called on the loop after anybody may have changed what is kept under the name: this process at
        once, another one within a fraction of a second. Answers how to stop.
        """

    async def close(self) -> None: ...
