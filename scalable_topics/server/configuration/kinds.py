"""Kinds of values: how each is read from what people write, and written so that it is read as the same again.

A value may come as TOML has it or as text, which is all that the environment and flags have; each kind takes both.
"""

import re
from collections.abc import Callable
from enum import StrEnum
from ipaddress import ip_address
from pathlib import Path
from typing import Any, Final

from msgspec import Struct
from yarl import URL

from scalable_topics.model.errors import InvalidArgument
from scalable_topics.model.quantities import is_finite, parse_amount, parse_seconds
from scalable_topics.server.configuration import secret
from scalable_topics.server.configuration.secret import HIDDEN, Secret

Plain = str | int | float | bool | list[str]
"""What TOML and JSON can hold."""

_UNITS: Final = (
    *(("TB", 10**12), ("GB", 10**9), ("MB", 10**6), ("kB", 10**3)),
    *(("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)),
)
_FLAGS: Final = {"true": True, "false": False}
_WHOLE: Final = re.compile(r"\s*-?[0-9]{1,18}\s*")
_NUMBER: Final = re.compile(r"\s*(-?[0-9]{1,18}(?:\.[0-9]{1,18})?)\s*")
_HOST_NAME: Final = re.compile(r"(?!-)[A-Za-z0-9_-]{1,63}(?:\.[A-Za-z0-9_-]{1,63})*\.?")
_NAME: Final = re.compile(r"[^\s\x00-\x1f\x7f/](?:[^\x00-\x1f\x7f/]{0,198}[^\s\x00-\x1f\x7f/])?")
_ROOT: Final = re.compile(r"(?:/[A-Za-z0-9._-]+)+")


class Kind(Struct, frozen=True):
    name: str
    """For the reference."""
    parse: Callable[[object], Any]
    """`InvalidArgument` for what is none; it does not name the key, and does not show what may be secret."""
    show: Callable[[Any], Plain]
    """As plain as people write it; `parse` reads it as the same value, except secrets."""
    read: Callable[[bytes], Any] | None = None
    """A secret's: the value in a file's bytes. Its key has a twin that ends in `File`."""

    @property
    def secret(self) -> bool:
        return self.read is not None


def show_seconds(seconds: float) -> Plain:
    for unit, size in (("d", 86_400), ("h", 3_600), ("m", 60)):
        if seconds and seconds % size == 0 and seconds != 60:  # the PIPs write 60s
            return _exact(f"{int(seconds // size)}{unit}", parse_seconds, seconds)
    return _exact(f"{_number(seconds)}s", parse_seconds, seconds)


def show_amount(amount: float) -> Plain:
    for unit, size in _UNITS:
        if amount and amount % size == 0:
            return _exact(f"{int(amount // size)}{unit}", parse_amount, amount)
    return _number(amount)


def _exact(text: str, parse: Callable[[object], float], value: float) -> Plain:
    """The text, unless it would be read as something else or not at all."""
    try:
        return text if parse(text) == value else _number(value)
    except InvalidArgument:
        return _number(value)


def _number(number: float) -> int | float:
    return int(number) if number == int(number) else number


def _parse_text(value: object) -> str:
    if not isinstance(value, str):
        raise InvalidArgument(f"{_short(value)} is not text", remedy='write it in quotes: "…"')
    return value.strip()


def _parse_optional_text(value: object) -> str | None:
    return _parse_text(value) or None


def _parse_name(value: object) -> str:
    text = _parse_text(value)
    if not _NAME.fullmatch(text):
        raise InvalidArgument(
            f"{_short(value)} is not a name", remedy="give 1 to 200 characters, without / and controls"
        )
    return text


def _parse_optional_name(value: object) -> str | None:
    return None if value == "" else _parse_name(value)


def _parse_root(value: object) -> str:
    text = _parse_text(value).rstrip("/")
    if not _ROOT.fullmatch(text):
        raise InvalidArgument(f"{_short(value)} is not a prefix of keys", remedy="write one like /scalable-topics")
    return text


def _parse_flag(value: object) -> bool:
    flag = _FLAGS.get(value.strip().lower()) if isinstance(value, str) else value
    if not isinstance(flag, bool):
        raise InvalidArgument(f"{_short(value)} is not a switch", remedy="use true or false")
    return flag


def _parse_whole(value: object) -> int:
    if isinstance(value, str) and _WHOLE.fullmatch(value):
        return int(value)
    if isinstance(value, bool) or not isinstance(value, int):
        raise InvalidArgument(f"{_short(value)} is not a whole number", remedy="give a whole number")
    return value


def _parse_number(value: object) -> float:
    if isinstance(value, str) and (match := _NUMBER.fullmatch(value)):
        return float(match[1])
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not is_finite(value):
        raise InvalidArgument(f"{_short(value)} is not a number", remedy="give a number")
    return value


def _parse_size(value: object) -> int:
    return int(parse_amount(value))


def _parse_minutes(value: object) -> float:
    """A plain number is minutes, as in Pulsar; text with a unit says so itself."""
    if isinstance(value, str) and not _NUMBER.fullmatch(value):
        return parse_seconds(value) / 60
    return _parse_number(value)


def _show_minutes(minutes: float) -> Plain:
    if minutes <= 0 or minutes != int(minutes):
        return _number(minutes)
    return _exact(str(show_seconds(minutes * 60)), _parse_minutes, minutes)


def _parse_share(value: object) -> float:
    if isinstance(value, str) and value.strip().endswith("%"):
        return _parse_number(value.strip().removesuffix("%")) / 100
    return _parse_number(value)


def _show_share(share: float) -> Plain:
    return _exact(f"{_number(round(share * 100, 9))}%", _parse_share, share)


def _parse_port(value: object) -> int:
    port = _parse_whole(value)
    if not 0 <= port <= 65_535:
        raise InvalidArgument(f"{_short(value)} is not a port", remedy="give 1 to 65535, or 0 for a free one")
    return port


def _parse_list(value: object) -> tuple[str, ...]:
    items = value.split(",") if isinstance(value, str) else value
    if not isinstance(items, (list, tuple)) or not all(isinstance(item, str) for item in items):
        raise InvalidArgument(f"{_short(value)} is not a list of texts", remedy='write ["a", "b"], or a,b as text')
    return tuple(item.strip() for item in items if item.strip())


def _parse_hosts(value: object) -> tuple[str, ...]:
    hosts = tuple(host.removeprefix("[").removesuffix("]") for host in _parse_list(value))
    for host in hosts:
        if not _is_host(host):
            raise InvalidArgument(f"{host!r} is not an address", remedy="give an IP address or a host name, no port")
    if not hosts:
        raise InvalidArgument("no address", remedy="give at least one; 127.0.0.1 is loopback")
    return hosts


def _parse_optional_host(value: object) -> str | None:
    text = _parse_text(value)
    if text and not _is_host(text):
        raise InvalidArgument(f"{text!r} is not an address", remedy="give an IP address or a host name, no port")
    return text or None


def _is_host(text: str) -> bool:
    try:
        ip_address(text)
    except ValueError:
        return bool(_HOST_NAME.fullmatch(text)) and not re.fullmatch(r"[0-9.]+", text)
    return True


def _parse_endpoints(value: object) -> tuple[str, ...]:
    """The user part is looked at first, and never shown."""
    endpoints = _parse_list(value)
    for endpoint in endpoints:
        if "@" in endpoint:
            raise InvalidArgument("an endpoint names a user", remedy="use etcdUsername and etcdPasswordFile")
        try:
            url = URL(endpoint)
            sound = url.scheme in {"http", "https"} and bool(url.host) and url.path in {"", "/"} and url.port != 0
        except ValueError:
            sound = False
        if not sound:
            raise InvalidArgument(f"{endpoint!r} is not an endpoint", remedy="write http://host:2379 or https://…")
    if not endpoints:
        raise InvalidArgument("no endpoints", remedy="give at least one, such as http://127.0.0.1:2379")
    return endpoints


def _parse_file(value: object) -> Path | None:
    text = _parse_text(value)
    if "-----BEGIN" in text:
        raise InvalidArgument("this is what belongs into the file", remedy="give the path of a PEM file")
    if text and not _is(Path.is_file, text):
        raise InvalidArgument(
            f"{_short(text)} is not a file", remedy="give the path of a file that the daemon may read"
        )
    return Path(text) if text else None


def _parse_directory(value: object) -> Path:
    text = _parse_text(value)
    if not text or "\0" in text or (_is(Path.exists, text) and not _is(Path.is_dir, text)):
        raise InvalidArgument(
            f"{_short(text)} is not a directory", remedy="give the path of a directory; it may be missing"
        )
    return Path(text)


def _is(what: Callable[[Path], bool], text: str) -> bool:
    try:
        return what(Path(text))
    except (OSError, ValueError):  # too long, not ours to look at, a NUL in it
        return False


def _parse_secret(parse: Callable[[str], Secret]) -> Callable[[object], Secret | None]:
    def parse_hidden(value: object) -> Secret | None:
        if not isinstance(value, str):
            raise InvalidArgument("it is not text", remedy='write it in quotes: "…"')
        return parse(value) if value else None

    return parse_hidden


def choice(options: type[StrEnum]) -> Kind:
    words = {str(option).lower(): option for option in options}

    def parse(value: object) -> StrEnum:
        found = words.get(value.strip().lower()) if isinstance(value, str) else None
        if found is None:
            raise InvalidArgument(f"{_short(value)} is none of the words", remedy=f"use one of {', '.join(options)}")
        return found

    return Kind(" or ".join(options), parse, str)


def _short(value: object) -> str:
    """As much of it as helps; a number of a million digits cannot even be printed."""
    try:
        text = repr(value)
    except ValueError:
        return "this number"
    return text if len(text) <= 60 else f"{text[:57]}..."


def _as_is(value: Any) -> Plain:
    return value  # type: ignore[no-any-return]  # its parser made it plain


def _or_empty(value: object) -> str:
    return "" if value is None else str(value)


def _hidden(value: object) -> str:
    return "" if value is None else HIDDEN


TEXT: Final = Kind("text", _parse_optional_text, _or_empty)
NAME: Final = Kind("name", _parse_name, _or_empty)
OPTIONAL_NAME: Final = Kind("name", _parse_optional_name, _or_empty)
ROOT: Final = Kind("key prefix", _parse_root, _or_empty)
FLAG: Final = Kind("true or false", _parse_flag, _as_is)
COUNT: Final = Kind("whole number", _parse_whole, _as_is)
NUMBER: Final = Kind("number", _parse_number, _number)
PORT: Final = Kind("port", _parse_port, _as_is)
DURATION: Final = Kind("duration", parse_seconds, show_seconds)
MINUTES: Final = Kind("minutes, or a duration", _parse_minutes, _show_minutes)
SIZE: Final = Kind("size", _parse_size, show_amount)
RATE: Final = Kind("messages/s", _parse_number, _number)
BYTE_RATE: Final = Kind("bytes/s", parse_amount, show_amount)
SHARE: Final = Kind("share", _parse_share, _show_share)
NAMES: Final = Kind("list", _parse_list, list)
HOSTS: Final = Kind("list of addresses", _parse_hosts, list)
HOST: Final = Kind("address", _parse_optional_host, _or_empty)
ENDPOINTS: Final = Kind("list of URLs", _parse_endpoints, list)
FILE: Final = Kind("file", _parse_file, _or_empty)
DIRECTORY: Final = Kind("directory", _parse_directory, str)
PASSWORD: Final = Kind("secret", _parse_secret(secret.password), _hidden, secret.password_in)
KEY: Final = Kind("key, secret", _parse_secret(secret.key), _hidden, secret.key_in)
