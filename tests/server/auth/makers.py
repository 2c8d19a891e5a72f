"""Keys, tokens, grants and clocks for the tests of security."""

import base64
import hashlib
import hmac
import json
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric import padding, rsa
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat

from scalable_topics.model.administration import Permissions, TenantInfo
from scalable_topics.model.names import TopicName
from scalable_topics.server.auth.keys import VerificationKey, secret_key
from scalable_topics.server.auth.tokens import TokenVerifier

SECRET = bytes(range(1, 33))
OTHER_SECRET = bytes(range(33, 65))
NOW = 1_700_000_000.0


class Clock:
    """Time that stands still until it is moved."""

    def __init__(self, now: float = NOW) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now


@lru_cache(maxsize=2)
def rsa_key(number: int = 0) -> rsa.RSAPrivateKey:
    del number
    return rsa.generate_private_key(public_exponent=65537, key_size=2048)


def public_bytes(key: rsa.RSAPrivateKey, encoding: Encoding) -> bytes:
    return key.public_key().public_bytes(encoding, PublicFormat.SubjectPublicKeyInfo)


def private_pem(key: rsa.RSAPrivateKey) -> bytes:
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())


def b64(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).decode().rstrip("=")


def unsigned(claims: object, header: object) -> str:
    return f"{b64(json.dumps(header).encode())}.{b64(json.dumps(claims).encode())}"


def hs256(claims: object, key: bytes = SECRET, header: Mapping[str, object] | None = None) -> str:
    """Made by hand, so that no library has a say in what can be made."""
    text = unsigned(claims, {"alg": "HS256"} if header is None else header)
    return f"{text}.{b64(hmac.digest(key, text.encode(), hashlib.sha256))}"


def rs256(claims: object, key: rsa.RSAPrivateKey, header: Mapping[str, object] | None = None) -> str:
    text = unsigned(claims, {"alg": "RS256"} if header is None else header)
    return f"{text}.{b64(key.sign(text.encode(), padding.PKCS1v15(), SHA256()))}"


def verifier(
    key: VerificationKey | None = None,
    *,
    clock: Clock | None = None,
    role_claim: str = "sub",
    audience: str | None = None,
    leeway_seconds: float = 0,
) -> TokenVerifier:
    used = secret_key(SECRET) if key is None else key
    return TokenVerifier(
        lambda: used,
        wall_clock=clock or Clock(),
        role_claim=role_claim,
        audience=audience,
        leeway_seconds=leeway_seconds,
    )


class Grants:
    """What operators have granted, in memory; counts what it is asked, and can be away."""

    def __init__(self) -> None:
        self.tenants: dict[str, TenantInfo] = {}
        self.namespaces: dict[tuple[str, str], Permissions] = {}
        self.topics: dict[TopicName, Permissions] = {}
        self.asked: list[str] = []
        self.away: Exception | None = None

    async def tenant(self, tenant: str) -> TenantInfo | None:
        self._ask(f"tenant {tenant}")
        return self.tenants.get(tenant)

    async def permissions(self, tenant: str, namespace: str) -> Permissions | None:
        self._ask(f"namespace {tenant}/{namespace}")
        return self.namespaces.get((tenant, namespace))

    async def topic_permissions(self, topic: TopicName) -> Permissions | None:
        self._ask(str(topic))
        return self.topics.get(topic)

    def _ask(self, what: str) -> None:
        self.asked.append(what)
        if self.away is not None:
            raise self.away


def written(path: Path, data: bytes) -> Path:
    path.write_bytes(data)
    return path
