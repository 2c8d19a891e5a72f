"""JSON in and out. Whatever is wrong with bytes from outside becomes one `DecodeError` that says what and where."""

import json
from typing import Final, TypeVar

import msgspec

from scalable_topics.model.errors import DecodeError, InvalidArgument

T = TypeVar("T")

_encoder: Final = msgspec.json.Encoder()


def encode_json(value: object) -> bytes:
    try:
        return _encoder.encode(value)
    except UnicodeEncodeError as error:
        raise InvalidArgument(f"text that UTF-8 cannot encode: {error.object!r}") from error


def decode_json(data: bytes, decoder: "msgspec.json.Decoder[T]", *, subject: str) -> T:
    """Read typed JSON. ValueError covers what is not JSON, not UTF-8, not the type, and refusals of the values
    themselves.
    """
    try:
        return decoder.decode(data)
    except (ValueError, RecursionError) as error:
        raise DecodeError(
            str(error), subject=subject, remedy="it was not written by this software, or was damaged"
        ) from error


def refuse_repeated_names(data: bytes, *, subject: str) -> None:
    """A JSON object that names a field twice means different things to different readers."""
    try:
        json.loads(data, object_pairs_hook=_distinct)
    except (ValueError, RecursionError) as error:
        raise DecodeError(str(error), subject=subject) from error


def _distinct(pairs: list[tuple[str, object]]) -> None:
    seen: set[str] = set()
    for name, _ in pairs:
        if name in seen:
            raise InvalidArgument(f"the field {name!r} occurs twice in one object")
        seen.add(name)
