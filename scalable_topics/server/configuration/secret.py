"""What must not be seen: a value that prints as `***` wherever it goes."""

from base64 import b64decode
from binascii import Error as NotBase64
from hmac import compare_digest
from pathlib import Path
from typing import Final

from scalable_topics.model.errors import InvalidArgument

HIDDEN: Final = "***"
MAX_BYTES: Final = 1 << 16
"""More than any key or password has; a device or a log given by mistake is not read to its end."""


class Secret:
    """Bytes that are only told to those who ask for them by name. Neither `repr`, `str` nor a format shows them, and
    it cannot be encoded or pickled.
    """

    __slots__ = ("_data",)

    def __init__(self, data: bytes) -> None:
        self._data = data

    def reveal(self) -> bytes:
        return self._data

    def reveal_text(self) -> str:
        return self._data.decode()

    def __repr__(self) -> str:
        return HIDDEN

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Secret) and compare_digest(self._data, other._data)

    def __hash__(self) -> int:
        return hash(Secret)

    def __reduce__(self) -> str:
        raise TypeError("a secret is not pickled")


def password(text: str) -> Secret:
    """A secret as it is typed."""
    _refuse_hidden(text)
    return Secret(text.encode())


def password_in(data: bytes) -> Secret:
    """A secret in a file; the end of its line is not part of it."""
    text = _as_text(data).rstrip("\r\n")
    if not text:
        raise InvalidArgument("the file is empty", remedy="write the secret into it, in one line")
    return password(text)


def key(text: str) -> Secret:
    """A key as Pulsar's configuration has it: base64, `data:;base64,…`, `file:///…`, or PEM."""
    _refuse_hidden(text)
    if text.startswith("file:"):
        return key_in(read_secret(Path(text.removeprefix("file:").removeprefix("//"))))
    if text.lstrip().startswith("-----BEGIN "):
        return Secret(text.encode())
    encoded = text.partition(",")[2] if text.startswith("data:") else text
    try:
        data = b64decode("".join(encoded.split()), validate=True)
    except (NotBase64, ValueError):
        raise InvalidArgument("it is not a key", remedy="give base64, data:;base64,…, PEM or file:///…") from None
    return key_in(data)


def key_in(data: bytes) -> Secret:
    """A key in a file: its bytes as they are, which is what `pulsar tokens create-secret-key` writes."""
    if not data:
        raise InvalidArgument("it is empty", remedy="give the key's bytes: raw, DER or PEM")
    return Secret(data)


def read_secret(path: Path) -> bytes:
    """The path is not repeated in the refusal: people put the secret itself where its file was asked for."""
    try:
        with path.open("rb") as file:
            data = file.read(MAX_BYTES + 1)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else "not a path"
        raise InvalidArgument(
            f"the file cannot be read: {reason}", remedy="give the path of a file that the daemon may read"
        ) from None
    if len(data) > MAX_BYTES:
        raise InvalidArgument(f"the file is larger than {MAX_BYTES} bytes", remedy="give the file of the secret alone")
    return data


def _as_text(data: bytes) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError:
        raise InvalidArgument("the file is not text", remedy="write it as UTF-8") from None


def _refuse_hidden(text: str) -> None:
    if text == HIDDEN:
        raise InvalidArgument(
            f"{HIDDEN} is what `config show` prints instead of it", remedy="give the secret, or its file"
        )
