"""What may be in a key file, and how a new one takes over."""

import base64
import logging
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from scalable_topics.model.errors import InvalidArgument
from scalable_topics.server.auth.keys import (
    CHECK_SECONDS,
    MAX_KEY_FILE_BYTES,
    KeyFile,
    TokenAlgorithm,
    cluster_secrets,
    key_path,
    public_key,
    secret_key,
)
from tests.server.auth.makers import OTHER_SECRET, SECRET, Clock, private_pem, public_bytes, rsa_key, written


@pytest.mark.parametrize(
    "data",
    [
        public_bytes(rsa_key(), Encoding.DER),
        public_bytes(rsa_key(), Encoding.PEM),
        b"\n" + public_bytes(rsa_key(), Encoding.PEM),
        base64.b64encode(public_bytes(rsa_key(), Encoding.DER)),
    ],
)
def test_public_keys_in_der_pem_and_base64(data: bytes) -> None:
    key = public_key(data)

    assert key.algorithm is TokenAlgorithm.RS256
    assert len(key.candidates) == 1


@pytest.mark.parametrize(
    "data",
    [
        b"",
        SECRET,
        b"-----BEGIN PUBLIC KEY-----\nxx\n-----END PUBLIC KEY-----\n",
        private_pem(rsa_key()),
        public_bytes(rsa.generate_private_key(public_exponent=65537, key_size=1024), Encoding.DER),  # noqa: S505
        ec.generate_private_key(ec.SECP256R1())
        .public_key()
        .public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo),
    ],
    ids=["nothing", "secret", "broken", "private", "short", "elliptic"],
)
def test_what_is_no_public_key_is_refused(data: bytes) -> None:
    with pytest.raises(InvalidArgument):
        public_key(data)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"short",
        b"x" * 31,
        b"\0" * 32,
        base64.b64encode(b"\0" * 32),
        public_bytes(rsa_key(), Encoding.DER),
        public_bytes(rsa_key(), Encoding.PEM),
        base64.b64encode(public_bytes(rsa_key(), Encoding.DER)),
        private_pem(rsa_key()),
    ],
    ids=["nothing", "short", "31 bytes", "zeros", "zeros in base64", "DER", "PEM", "DER in base64", "private"],
)
def test_what_others_know_or_can_guess_is_no_secret(data: bytes) -> None:
    with pytest.raises(InvalidArgument) as caught:
        secret_key(data)
    assert data.decode("latin-1") not in str(caught.value) or not data


def test_a_key_does_not_tell_itself() -> None:
    assert repr(secret_key(SECRET)) == "VerificationKey(HS256)"


def test_cluster_secrets_are_lines() -> None:
    assert cluster_secrets(b"a" * 32 + b"\n\n" + b" " + b"b" * 40 + b"\r\n") == (b"a" * 32, b"b" * 40)


@pytest.mark.parametrize("data", [b"", b"\n", b"short", b"a" * 32 + b"\nshort"])
def test_what_is_no_cluster_secret_is_refused(data: bytes) -> None:
    with pytest.raises(InvalidArgument):
        cluster_secrets(data)


def test_paths_as_pulsar_writes_them() -> None:
    assert key_path("file:///etc/key") == key_path("/etc/key") == Path("/etc/key")


@pytest.mark.parametrize("text", ["data:;base64,AAAA", "etc/key", "file://etc/key", ""])
def test_other_paths_are_refused_without_being_told(text: str) -> None:
    with pytest.raises(InvalidArgument) as caught:
        key_path(text)
    assert "AAAA" not in str(caught.value)


def opened(path: Path, clock: Clock) -> KeyFile[tuple[bytes, ...]]:
    return KeyFile(path, cluster_secrets, what="cluster secret", clock=clock)


def test_a_new_key_file_is_noticed(tmp_path: Path) -> None:
    clock, path = Clock(), written(tmp_path / "key", b"a" * 32)
    file = opened(path, clock)

    path.write_bytes(b"b" * 33)
    assert file.value == (b"a" * 32,), "not looked at again so soon"
    clock.now += CHECK_SECONDS
    assert file.value == (b"b" * 33,)
    written(tmp_path / "next", b"c" * 33).replace(path)
    file.reload()
    assert file.value == (b"c" * 33,)


def test_a_key_file_that_is_broken_or_gone_leaves_the_last_good_key_in_force(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    clock, path = Clock(), written(tmp_path / "key", b"a" * 32)
    file = opened(path, clock)

    path.write_bytes(b"sesame")
    with caplog.at_level(logging.WARNING):
        file.reload()
        file.reload()
    assert file.value == (b"a" * 32,)
    assert len(caplog.records) == 1
    assert "sesame" not in caplog.text
    path.unlink()
    file.reload()
    assert file.value == (b"a" * 32,)
    path.write_bytes(b"b" * 32)
    file.reload()
    assert file.value == (b"b" * 32,)


@pytest.mark.parametrize("data", [None, b"sesame", OTHER_SECRET * (MAX_KEY_FILE_BYTES // 32 + 1)])
def test_at_the_start_a_file_that_is_no_key_is_refused_by_its_path(tmp_path: Path, data: bytes | None) -> None:
    path = tmp_path / "key"
    if data is not None:
        path.write_bytes(data)

    with pytest.raises(InvalidArgument) as caught:
        opened(path, Clock())
    assert str(path) in str(caught.value)
    assert "sesame" not in str(caught.value)
