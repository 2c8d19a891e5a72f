"""JSON in and out. Whatever is wrong with bytes from outside becomes one `DecodeError` that says what and where."""

import json
from typing import Final, TypeVar

import msgspec

from scalable_topics.model.errors import DecodeError, InvalidArgument

T = TypeVar("T")

_encoder: Final = msgspec.json.Encoder()


def encode_json(value: object) -> bytes:
    return _encoder.encode(value)


def decode_json(data: bytes, decoder: "msgspec.json.Decoder[T]", *, subject: str) -> T:
    """Read typed JSON. ValueError covers what is not JSON, not UTF-8, not the type, and refusals of the values
    themselves.
    """
    try:
        return decoder.decode(data)
    except (ValueError, RecursionError) as error:
        raise DecodeError(
            _first_line(error), subject=subject, remedy="it was not written by this software, or was damaged"
        ) from error


def refuse_repeated_names(data: bytes, *, subject: str) -> None:
    """A JSON object that names a field twice means different things to different readers."""
    try:
        json.loads(data, object_pairs_hook=_distinct)
    except (ValueError, RecursionError) as error:
        raise DecodeError(_first_line(error), subject=subject) from error


def _distinct(pairs: list[tuple[str, object]]) -> None:
    names = [name for name, _ in pairs]
    if len(set(names)) != len(names):
        repeated = next(name for name in names if names.count(name) > 1)
        raise InvalidArgument(f"the field {repeated!r} occurs twice in one object")


def _first_line(error: BaseException) -> str:
    return str(error).partition("\n")[0] or type(error).__name__
