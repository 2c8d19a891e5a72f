"""What a later version wrote into a document and this one carries along.

`find_unknown` compares a document as it was read with what we understood of it; `restore_unknown` says the rest
again when the document is written. A remark is bound to what it was made about: the remark on segment 3 goes when
segment 3 goes, and what was said of one operation is never said of the next.
"""

from collections.abc import Iterable, Mapping
from typing import Any

from msgspec import Struct


class Unknown(Struct, frozen=True):
    """Fields we do not know of one object or list, and of what lies within it (by name, or by position in a list)."""

    fields: Mapping[str, object]
    within: Mapping[str, "Unknown"]
    identity: object = None
    """The `id` of the object, if it has one."""


def find_unknown(raw: Any, known: object) -> Unknown | None:
    """What `raw` says beyond `known`, which was read from it and so has its shape; None when it says nothing more.

    Only a list of plain values may be spelled in another way: there are no fields in it to be unknown.
    """
    if raw == known:
        return None
    if isinstance(known, dict):
        fields = {name: value for name, value in raw.items() if name not in known}
        within = _within((name, raw[name], value) for name, value in known.items() if name in raw)
        return Unknown(fields, within, known.get("id")) if fields or within else None
    if isinstance(known, list) and isinstance(raw, list) and len(raw) == len(known):
        within = _within((str(index), raw[index], value) for index, value in enumerate(known))
        return Unknown({}, within) if within else None
    return None


def _within(parts: Iterable[tuple[str, Any, object]]) -> dict[str, Unknown]:
    return {name: unknown for name, raw, known in parts if (unknown := find_unknown(raw, known))}


def restore_unknown(known: object, unknown: Unknown | None) -> object:
    """`known` with everything that still applies to it."""
    if unknown is None:
        return known
    if isinstance(known, dict):
        if known.get("id") != unknown.identity:
            return known
        restored = {name: restore_unknown(value, unknown.within.get(name)) for name, value in known.items()}
        return {**restored, **unknown.fields}
    if isinstance(known, (list, tuple)):
        by_identity = {remark.identity: remark for remark in unknown.within.values() if remark.identity is not None}
        return [
            restore_unknown(
                value,
                by_identity.get(value["id"])
                if isinstance(value, dict) and "id" in value
                else unknown.within.get(str(index)),
            )
            for index, value in enumerate(known)
        ]
    return known
