"""What one key is, beside its type, default and docstring: the `Annotated` part of a field of the settings."""

import re
from typing import Final

from msgspec import Struct

from scalable_topics.model.errors import InvalidArgument
from scalable_topics.server.configuration.kinds import DURATION, Kind

PREFIX: Final = "SCALABLE_TOPICS_"
_NOT_TEXT: Final = re.compile(r"[\ud800-\udfff]")
"""What stands for a byte of the environment that is no text."""
_HUMP: Final = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")


class Key(Struct, frozen=True, kw_only=True):
    """One declaration per key. Its name is the PIP's or Pulsar's own where those have it."""

    name: str
    kind: Kind
    live: bool = False
    """Does a daemon take a new value without a restart (SIGHUP)?"""
    aliases: tuple[str, ...] = ()
    """Other spellings. A duration has one that ends in `Seconds` by itself, as Pulsar's code has it."""
    flag: str | None = None
    """A short flag beside the one that every key has."""
    above: float | None = None
    at_least: float | None = None
    at_most: float | None = None

    @property
    def spellings(self) -> tuple[str, ...]:
        """Its names that take a value; the first is the name."""
        seconds = (f"{self.name}Seconds",) if self.kind is DURATION else ()
        return (self.name, *self.aliases, *seconds)

    @property
    def file_spelling(self) -> str | None:
        """A secret's name that takes a file instead."""
        return f"{self.name}File" if self.kind.secret else None

    @property
    def variable(self) -> str:
        return variable_of(self.name)

    @property
    def flags(self) -> tuple[str, ...]:
        """The one to type first."""
        return tuple(dict.fromkeys((f"--{self.flag}" if self.flag else flag_of(self.name), flag_of(self.name))))

    @property
    def bounds(self) -> str:
        """For the reference."""
        parts = (
            f"above {self._shown(self.above)}" if self.above is not None else "",
            f"{self._shown(self.at_least)} or more" if self.at_least is not None else "",
            f"at most {self._shown(self.at_most)}" if self.at_most is not None else "",
        )
        return ", ".join(part for part in parts if part)

    def parse(self, value: object) -> object:
        """`InvalidArgument`, without the key's name."""
        if isinstance(value, int) and value.bit_length() > 1024:
            raise InvalidArgument("this number is far too large", remedy="see docs/configuration.md")
        for text in value if isinstance(value, (list, tuple)) else (value,):
            if isinstance(text, str) and _NOT_TEXT.search(text):
                raise InvalidArgument("it is not UTF-8", remedy="write it anew")
        parsed = self.kind.parse(value)
        self._check_range(parsed)
        return parsed

    def _check_range(self, value: object) -> None:
        if not isinstance(value, (int, float)):
            return
        if self.above is not None and not value > self.above:
            raise InvalidArgument(
                f"{self._shown(value)} is too little", remedy=f"give more than {self._shown(self.above)}"
            )
        if self.at_least is not None and value < self.at_least:
            raise InvalidArgument(
                f"{self._shown(value)} is too little", remedy=f"give {self._shown(self.at_least)} or more"
            )
        if self.at_most is not None and value > self.at_most:
            raise InvalidArgument(
                f"{self._shown(value)} is too much", remedy=f"give at most {self._shown(self.at_most)}"
            )

    def _shown(self, value: float) -> object:
        return self.kind.show(value)


def variable_of(name: str) -> str:
    """The environment variable of a spelling."""
    return PREFIX + _HUMP.sub("_", name).upper()


def flag_of(name: str) -> str:
    return "--" + _HUMP.sub("-", name).lower()
