"""Durations and sizes as people write them: `60s`, `5m`, `0.5s`, `50MB`, `1.5GiB`, or plain numbers."""

import re
from collections.abc import Mapping
from math import isfinite
from typing import Final

from scalable_topics.model.errors import InvalidArgument

_NUMBER: Final = r"\s*([0-9]{1,18}(?:\.[0-9]{1,18})?)\s*"
_DURATION: Final = re.compile(_NUMBER + r"(ms|s|m|h|d)?\s*")
_SIZE: Final = re.compile(_NUMBER + r"(B|kB|KB|MB|GB|TB|KiB|MiB|GiB|TiB)?\s*")

_SECONDS: Final = {"ms": 0.001, "s": 1, "m": 60, "h": 3600, "d": 86400}
# Decimal, as in the PIPs and in Pulsar's code: 50MB is 50,000,000.
_BYTES: Final = {
    "B": 1,
    "kB": 1000,
    "KB": 1000,
    "MB": 1000**2,
    "GB": 1000**3,
    "TB": 1000**4,
    "KiB": 1024,
    "MiB": 1024**2,
    "GiB": 1024**3,
    "TiB": 1024**4,
}


def parse_seconds(value: object) -> float:
    """A duration in seconds; a plain number is seconds already."""
    return _parse(value, _DURATION, _SECONDS, "a duration", "write 60s, 5m, 0.5s or a number of seconds")


def parse_amount(value: object) -> float:
    """A rate or size; a plain number is messages or bytes already."""
    return _parse(value, _SIZE, _BYTES, "an amount", "write 50MB, 1.5GiB or a plain number")


def _parse(value: object, pattern: re.Pattern[str], units: Mapping[str, float], what: str, remedy: str) -> float:
    if isinstance(value, str):
        match = pattern.fullmatch(value)
        if match is None:
            raise InvalidArgument(f"{value!r} is not {what}", remedy=remedy)
        number, unit = match.groups()
        return _as_number(number) * (units[unit] if unit else 1)
    # A bool is an int to Python; nobody means "true seconds".
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise InvalidArgument(f"{value!r} is not {what}", remedy=remedy)
    if not is_finite(value):
        raise InvalidArgument(f"{value!r} is not {what}", remedy=remedy)
    return value


def _as_number(text: str) -> float:
    return float(text) if "." in text else int(text)


def is_finite(number: float) -> bool:
    """A whole number can be too large to be a float; that is as little a quantity as infinity."""
    try:
        return isfinite(number)
    except OverflowError:
        return False
