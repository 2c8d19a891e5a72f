"""Entries in a list of garbage: a physical segment that may be deleted, and whose it must be.

What was made by an operation that was given up may never have been made at all, and somebody else may have the name.
So the entry says which operation's it is, and the owner deletes nothing that another one made.
"""

from msgspec import Struct

from scalable_topics.model.segment import SegmentAddress


class Garbage(Struct, frozen=True):
    physical: str
    made_by: str | None = None
    """The operation that made it; None = it was ours beyond doubt, as every segment that was ever listed."""

    @property
    def address(self) -> SegmentAddress:
        return SegmentAddress(self.physical, self.physical)


def garbage_entry(physical: str, *, made_by: str | None = None) -> str:
    """As it stands in a list. A physical name ends in `@incarnation`; a slash after that begins something else."""
    return physical if made_by is None else f"{physical}/{made_by}"


def parse_garbage(entry: str) -> Garbage:
    name, at, rest = entry.rpartition("@")
    incarnation, slash, made_by = rest.partition("/")
    return Garbage(f"{name}{at}{incarnation}", made_by if slash else None)
