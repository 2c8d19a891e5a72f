"""Which of two frames is the newer one."""

from typing import TypeVar

from msgspec import Struct


class LayoutAge(Struct, frozen=True, order=True):
    """Order of layout frames. Incarnations have none: a topic made anew simply has a later revision."""

    store_generation: int
    revision: int


class AssignmentAge(Struct, frozen=True, order=True):
    """Order of assignment frames: a later leader's word counts, whatever generation the earlier one had reached."""

    term: int
    generation: int


Age = TypeVar("Age", LayoutAge, AssignmentAge)


def is_current(arriving: Age, newest: Age | None) -> bool:
    """Is a frame worth acting on? Older than the newest accepted is dropped; equal is the same word again."""
    return newest is None or arriving >= newest
