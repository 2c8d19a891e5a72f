"""Bounds that are not ours: what everybody else who reads our records can hold."""

from typing import Final

MAX_LONG: Final = 2**63 - 1
"""Ids, epochs and times are Java longs."""


def is_long(number: int) -> bool:
    """A long of 0 or more; a bool, or a float that happens to be whole, is not."""
    return type(number) is int and 0 <= number <= MAX_LONG
