"""Keys in files: what a file may hold, and how a new one is noticed.

The files are those of Pulsar's `tokenSecretKey` and `tokenPublicKey`. A key knows the one algorithm it is for: which
algorithm verifies a token is never the token's choice.
"""

import base64
import binascii
import logging
import os
from collections.abc import Callable
from enum import StrEnum
from pathlib import Path
from typing import Final, Generic, TypeVar

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPublicKey
from cryptography.hazmat.primitives.serialization import load_der_public_key, load_pem_public_key
from jwt import InvalidKeyError
from jwt.algorithms import HMACAlgorithm

from scalable_topics.model.errors import InvalidArgument

MIN_SECRET_BYTES: Final = 32
"""What RFC 7518 and Pulsar's own library ask of an HS256 secret."""
MIN_RSA_BITS: Final = 2048
MAX_KEY_FILE_BYTES: Final = 64 << 10
CHECK_SECONDS: Final = 1.0
"""Between two looks at whether a file is a new one."""

T = TypeVar("T")

log = logging.getLogger(__name__)


class TokenAlgorithm(StrEnum):
    HS256 = "HS256"
    RS256 = "RS256"


class VerificationKey:
    """What verifies tokens. Its text form tells the algorithm and nothing else."""

    def __init__(self, algorithm: TokenAlgorithm, candidates: tuple[bytes | RSAPublicKey, ...]) -> None:
        self.algorithm = algorithm
        self.candidates = candidates
        """A token verified by any of them is good."""

    def __repr__(self) -> str:
        return f"VerificationKey({self.algorithm})"


class KeyFile(Generic[T]):
    """A file whose content is `load`ed, and loaded again when the file is another one.

    At its making a file that is no key is refused. Later the last good key stays in force, with a log line for each
    new failure: a slip while keys are changed does not lock everybody out.
    """

    def __init__(self, path: Path, load: Callable[[bytes], T], *, what: str, clock: Callable[[], float]) -> None:
        self._path = path
        self._load = load
        self._what = what
        self._clock = clock
        self._seen = self._stamp()
        self._value = self._read()
        self._checked_at = clock()

    def __repr__(self) -> str:
        return f"KeyFile({str(self._path)!r})"

    @property
    def value(self) -> T:
        """The key in force; the file is looked at once every `CHECK_SECONDS`."""
        if self._clock() - self._checked_at >= CHECK_SECONDS:
            self.reload()
        return self._value

    def reload(self) -> None:
        """Look at the file now, as on SIGHUP."""
        self._checked_at = self._clock()
        seen = self._stamp()
        if seen == self._seen:
            return
        self._seen = seen
        try:
            self._value = self._read()
        except InvalidArgument as error:
            log.warning("the last good %s stays in force path=%s: %s", self._what, self._path, error.what)
        else:
            log.info("a new %s is in force path=%s", self._what, self._path)

    def _stamp(self) -> tuple[int, ...]:
        try:
            found = self._path.stat()
        except OSError:
            return ()
        return found.st_dev, found.st_ino, found.st_mtime_ns, found.st_size

    def _read(self) -> T:
        try:
            with self._path.open("rb") as file:
                data = file.read(MAX_KEY_FILE_BYTES + 1)
        except OSError as error:
            raise InvalidArgument(
                f"the {self._what} cannot be read: {os.strerror(error.errno or 0)}", subject=str(self._path)
            ) from error
        if len(data) > MAX_KEY_FILE_BYTES:
            raise InvalidArgument(f"the {self._what} is no key: it is too long", subject=str(self._path))
        try:
            return self._load(data)
        except InvalidArgument as error:
            raise InvalidArgument(
                f"the {self._what} is no key: {error.what}", subject=str(self._path), remedy=error.remedy
            ) from None


def secret_key(data: bytes) -> VerificationKey:
    """An HS256 secret: raw bytes, as Pulsar's `file://` reads them, or base64 of them.

    Raw text can look like base64, so both readings count; who knows neither file nor token key knows neither reading.
    A public key or a certificate is refused: everybody knows those.
    """
    decoded = _base64(data)
    candidates = tuple(one for one in (data, decoded) if one is not None and len(one) >= MIN_SECRET_BYTES)
    if not candidates:
        raise InvalidArgument(
            f"a secret needs at least {MIN_SECRET_BYTES} bytes", remedy="make one: openssl rand -base64 32"
        )
    if any(len(set(one)) == 1 for one in candidates):
        raise InvalidArgument("a secret of one byte repeated is none", remedy="make one: openssl rand -base64 32")
    for candidate in candidates:
        try:
            HMACAlgorithm(HMACAlgorithm.SHA256).prepare_key(candidate)
        except InvalidKeyError:
            raise InvalidArgument(
                "it holds a key or certificate that others know too, not a secret", remedy="set it as the public key"
            ) from None
    return VerificationKey(TokenAlgorithm.HS256, candidates)


def public_key(data: bytes) -> VerificationKey:
    """An RS256 public key in DER, as Pulsar makes it, in PEM, or in base64 of DER."""
    for reading in (data, _base64(data)):
        if reading is None:
            continue
        try:
            pem = reading.lstrip().startswith(b"-----BEGIN")
            key = load_pem_public_key(reading) if pem else load_der_public_key(reading)
        except (ValueError, UnsupportedAlgorithm):
            continue
        if not isinstance(key, RSAPublicKey):
            raise InvalidArgument("it is not an RSA key", remedy="RS256 needs one: pulsar tokens create-key-pair")
        if key.key_size < MIN_RSA_BITS:
            raise InvalidArgument(f"it has {key.key_size} bits", remedy=f"use at least {MIN_RSA_BITS}")
        return VerificationKey(TokenAlgorithm.RS256, (key,))
    private = b"PRIVATE KEY" in data
    found = "it is a private key" if private else "it is neither DER nor PEM of a public key"
    raise InvalidArgument(found, remedy="give the public half only: openssl pkey -pubout")


def cluster_secrets(data: bytes) -> tuple[bytes, ...]:
    """The secrets that daemons share, one per line: the first signs, all verify, so that one can follow another."""
    lines = tuple(line.strip() for line in data.splitlines() if line.strip())
    if not lines or any(len(line) < MIN_SECRET_BYTES for line in lines):
        raise InvalidArgument(
            f"each line needs at least {MIN_SECRET_BYTES} characters", remedy="make one: openssl rand -base64 32"
        )
    return lines


def key_path(text: str) -> Path:
    """Where a key is, written as in Pulsar (`file:///etc/key`) or as a path. Keys inside the configuration are refused:
    it is shown to people.
    """
    if text.startswith("data:"):
        raise InvalidArgument("a key inside the configuration is refused", remedy="put it into a file of its own")
    path = Path(text.removeprefix("file://"))
    if not path.is_absolute():
        raise InvalidArgument("a key file needs an absolute path", remedy="write file:///etc/scalable-topics/key")
    return path


def _base64(data: bytes) -> bytes | None:
    text = b"".join(data.split())
    try:
        return base64.b64decode(text, validate=True) if text else None
    except binascii.Error:
        return None
