"""Rates of what flows, over the last few seconds. The caller brings the time."""

from typing import Final

from scalable_topics.model.load import Rates

WINDOW_SECONDS: Final = 10


class RollingRates:
    """Messages and bytes, in and out, per second, over the last `WINDOW_SECONDS` whole seconds.

    Before the first window is full, over the time there was. Time is any clock that never falls, in seconds.
    """

    def __init__(self, *, now: float) -> None:
        self._began = now
        self._slots = [[0, 0, 0, 0] for _ in range(WINDOW_SECONDS + 1)]
        self._second = int(now)

    def record_in(self, messages: int, size_bytes: int, *, now: float) -> None:
        slot = self._slot(now)
        slot[0] += messages
        slot[1] += size_bytes

    def record_out(self, messages: int, size_bytes: int, *, now: float) -> None:
        slot = self._slot(now)
        slot[2] += messages
        slot[3] += size_bytes

    def rates(self, *, now: float) -> Rates:
        """The running second counts as far as it has come."""
        self._slot(now)
        seconds = max(1.0, min(now - self._began, WINDOW_SECONDS + now - int(now)))
        sums = [sum(column) / seconds for column in zip(*self._slots, strict=True)]
        return (sums[0], sums[1], sums[2], sums[3])

    def _slot(self, now: float) -> list[int]:
        second = int(now)
        for passed in range(max(self._second + 1, second - WINDOW_SECONDS), second + 1):
            self._slots[passed % len(self._slots)] = [0, 0, 0, 0]
        self._second = max(self._second, second)
        return self._slots[self._second % len(self._slots)]
