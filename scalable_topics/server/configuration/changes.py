"""What a reload does: which keys take effect at once, and which wait for a restart."""

from typing import NamedTuple

from msgspec import Struct

from scalable_topics.model.errors import InvalidArgument
from scalable_topics.server.configuration.contradictions import broken_rules
from scalable_topics.server.configuration.registry import KEYS, build
from scalable_topics.server.configuration.settings import Configuration
from scalable_topics.server.configuration.written import toml_value


class Change(Struct, frozen=True):
    """Values as people write them; secrets are `***`."""

    key: str
    before: str
    after: str

    def __str__(self) -> str:
        return f"{self.key}: {self.before} -> {self.after}"


class Changes(NamedTuple):
    applied: tuple[Change, ...]
    needs_restart: tuple[Change, ...]


def changed(before: Configuration, after: Configuration) -> Changes:
    """`before` is what the daemon runs with. In the order of the reference."""
    applied: list[Change] = []
    needs_restart: list[Change] = []
    for one in KEYS:
        if one.value_in(before) != one.value_in(after):
            change = Change(one.name, toml_value(one.shown_in(before)), toml_value(one.shown_in(after)))
            (applied if one.key.live else needs_restart).append(change)
    return Changes(tuple(applied), tuple(needs_restart))


def reloaded(running: Configuration, wanted: Configuration) -> Configuration:
    """What the daemon runs with afterwards: what can change is as wanted, the rest as it was.

    Raises `InvalidArgument` where the two do not fit together; then nothing is to be applied.
    """
    mixed = build({(one.section, one.field): one.value_in(wanted if one.key.live else running) for one in KEYS})
    broken = broken_rules(mixed)
    if broken:
        raise InvalidArgument(
            "; ".join(rule.must for rule in broken),
            subject="configuration",
            remedy="it fits together only after a restart; nothing was changed",
        )
    return mixed
