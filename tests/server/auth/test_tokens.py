"""Who may present which token. Tokens are made by hand here, also those that no library would make."""

import base64
import json
import logging

import pytest
from cryptography.hazmat.primitives.serialization import Encoding
from hypothesis import given
from hypothesis import strategies as st

from scalable_topics.server.auth.errors import Unauthenticated
from scalable_topics.server.auth.keys import public_key, secret_key
from scalable_topics.server.auth.tokens import MAX_TOKEN_CHARS, bearer_token
from tests.server.auth.makers import (
    NOW,
    OTHER_SECRET,
    SECRET,
    Clock,
    b64,
    hs256,
    public_bytes,
    rs256,
    rsa_key,
    unsigned,
    verifier,
)

GOOD = {"sub": "alice"}
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)
HEADERS = st.fixed_dictionaries(
    {},
    optional={
        "alg": st.sampled_from(["HS256", "RS256", "none", "None", "HS512", "", "hs256"]) | JSON,
        "typ": JSON,
        "kid": JSON,
        "crit": JSON,
        "b64": JSON,
        "jwk": JSON,
    },
)


def test_a_good_hs256_token_names_the_role() -> None:
    assert verifier().role_of(hs256(GOOD)) == "alice"


def test_a_good_rs256_token_names_the_role() -> None:
    key = public_key(public_bytes(rsa_key(), Encoding.DER))

    assert verifier(key).role_of(rs256(GOOD, rsa_key())) == "alice"


def test_a_secret_in_base64_verifies_what_the_raw_one_signs() -> None:
    key = secret_key(base64.b64encode(SECRET) + b"\n")

    assert verifier(key).role_of(hs256(GOOD)) == "alice"


def test_a_raw_secret_that_looks_like_base64_verifies_what_pulsar_signs_with_it() -> None:
    raw = b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQR"

    assert verifier(secret_key(raw)).role_of(hs256(GOOD, raw)) == "alice"


def test_the_role_claim_can_be_another() -> None:
    token = hs256({"sub": "alice", "role": "bob"})

    assert verifier(role_claim="role").role_of(token) == "bob"
    with pytest.raises(Unauthenticated, match="names no role"):
        verifier(role_claim="group").role_of(token)


@pytest.mark.parametrize("claims", [{}, {"sub": None}, {"sub": ""}, {"sub": "  "}, {"sub": 7}, {"sub": ["alice"]}])
def test_a_token_without_a_role_is_refused(claims: dict[str, object]) -> None:
    with pytest.raises(Unauthenticated, match="names no role"):
        verifier().role_of(hs256(claims))


@pytest.mark.parametrize("role", ["a\nb", "a\x00", "\x1b[31m", "a\u2028b", "a" * 257])
def test_a_role_that_could_forge_a_log_line_is_refused(role: str) -> None:
    with pytest.raises(Unauthenticated, match="names no role"):
        verifier().role_of(hs256({"sub": role}))


def test_exp_is_honoured_to_the_second() -> None:
    clock = Clock()
    token = hs256({"sub": "alice", "exp": NOW + 10})

    clock.now = NOW + 9.9
    assert verifier(clock=clock).role_of(token) == "alice"
    clock.now = NOW + 10
    with pytest.raises(Unauthenticated, match="expired"):
        verifier(clock=clock).role_of(token)
    assert verifier(clock=clock, leeway_seconds=5).role_of(token) == "alice"


def test_nbf_is_honoured_to_the_second() -> None:
    clock = Clock()
    token = hs256({"sub": "alice", "nbf": NOW + 10})

    with pytest.raises(Unauthenticated, match="not valid yet"):
        verifier(clock=clock).role_of(token)
    assert verifier(clock=clock, leeway_seconds=10).role_of(token) == "alice"
    clock.now = NOW + 10
    assert verifier(clock=clock).role_of(token) == "alice"


@pytest.mark.parametrize("value", [None, True, "1800000000", [], {}, 10**400, -(10**400)])
@pytest.mark.parametrize("name", ["exp", "nbf"])
def test_a_time_that_is_none_is_refused(name: str, value: object) -> None:
    with pytest.raises(Unauthenticated):
        verifier().role_of(hs256({"sub": "alice", name: value}))


@pytest.mark.parametrize(
    ("audience", "good"),
    [("us", True), (["x", "us"], True), ("them", False), (["x"], False), (None, False), (1, False)],
)
def test_the_audience_counts_where_one_is_set(audience: object, good: bool) -> None:
    token = hs256({"sub": "alice", "aud": audience})

    assert verifier().role_of(token) == "alice"
    if good:
        assert verifier(audience="us").role_of(token) == "alice"
    else:
        with pytest.raises(Unauthenticated, match="somebody else"):
            verifier(audience="us").role_of(token)


@pytest.mark.parametrize("alg", ["none", "None", "NONE", "nOnE", "", None])
@pytest.mark.parametrize("signature", ["", b64(b"x"), hs256(GOOD).rpartition(".")[2]])
@pytest.mark.parametrize("key", [secret_key(SECRET), public_key(public_bytes(rsa_key(), Encoding.DER))])
def test_alg_none_is_refused(alg: str | None, signature: str, key: object) -> None:
    token = f"{unsigned(GOOD, {'alg': alg})}.{signature}"

    with pytest.raises(Unauthenticated):
        verifier(key).role_of(token)  # type: ignore[arg-type]


@pytest.mark.parametrize("encoding", [Encoding.DER, Encoding.PEM])
@pytest.mark.parametrize("alg", ["HS256", "RS256"])
def test_a_public_key_used_as_an_hs256_secret_is_refused(encoding: Encoding, alg: str) -> None:
    """Algorithm confusion: everybody knows the public key, so anybody can sign with it."""
    known_to_all = public_bytes(rsa_key(), encoding)
    token = hs256(GOOD, known_to_all, header={"alg": alg})

    for known in (public_bytes(rsa_key(), Encoding.DER), public_bytes(rsa_key(), Encoding.PEM)):
        with pytest.raises(Unauthenticated):
            verifier(public_key(known)).role_of(token)


@pytest.mark.parametrize("alg", ["HS384", "HS512", "RS256", "RS512", "PS256", "ES256", "EdDSA", "hs256", "HS256 "])
def test_another_algorithm_than_the_keys_is_refused(alg: str) -> None:
    with pytest.raises(Unauthenticated):
        verifier().role_of(hs256(GOOD, header={"alg": alg}))


def test_keys_inside_the_token_are_not_used() -> None:
    jwk = {"kty": "oct", "k": b64(OTHER_SECRET), "alg": "HS256"}
    token = hs256(GOOD, OTHER_SECRET, header={"alg": "HS256", "jwk": jwk, "jku": "http://evil", "kid": "/dev/null"})

    with pytest.raises(Unauthenticated, match="not signed by a key"):
        verifier().role_of(token)


@pytest.mark.parametrize(
    "token",
    [
        "",
        ".",
        "..",
        "a.b",
        "a.b.c.d",
        "x" * (MAX_TOKEN_CHARS + 1),
        "é.b.c",
        "a.b.c\n",
        f"{b64(b'[' * 3_000)}.{b64(b'{}')}.{b64(b'x')}",
        hs256([]),
        hs256("alice"),
        hs256(GOOD, header={"alg": "HS256", "crit": ["exp"]}),
        hs256(GOOD, header={"alg": "HS256", "crit": [{}]}),
        hs256(GOOD, header={"alg": "HS256", "b64": False, "crit": ["b64"]}),
        hs256({"sub": "alice", "pad": "x" * MAX_TOKEN_CHARS}),
        hs256(GOOD) + "=",
        hs256(GOOD).replace(".", "=."),
        hs256(GOOD) + " ",
    ],
)
def test_malformed_and_huge_tokens_are_refused(token: str) -> None:
    with pytest.raises(Unauthenticated):
        verifier().role_of(token)


@given(st.data())
def test_a_mutated_token_never_passes(data: st.DataObject) -> None:
    key = rsa_key()
    keys = {"HS256": secret_key(SECRET), "RS256": public_key(public_bytes(key, Encoding.DER))}
    token = data.draw(st.sampled_from([hs256(GOOD), rs256(GOOD, key)]))
    place = data.draw(st.integers(0, len(token)))
    length = data.draw(st.integers(0, 3))
    instead = data.draw(st.text("ABCDyz019-_=. \n!é", max_size=3))
    mutated = token[:place] + instead + token[place + length :]

    if mutated != token:
        for used in keys.values():
            with pytest.raises(Unauthenticated):
                verifier(used).role_of(mutated)


@given(st.integers(0, 10_000), st.integers(1, 63))
def test_no_bit_of_a_signature_is_free(place: int, step: int) -> None:
    """The last character of a signature carries bits that decode to nothing: they too must be as they were signed."""
    alphabet = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"
    text, _, signature = hs256(GOOD).rpartition(".")
    for at in (len(signature) - 1, place % len(signature)):
        changed = alphabet[(alphabet.index(signature[at]) + step) % 64]
        with pytest.raises(Unauthenticated):
            verifier().role_of(f"{text}.{signature[:at]}{changed}{signature[at + 1 :]}")


@given(st.text(max_size=200) | st.binary(max_size=100).map(lambda data: f"{b64(data)}.{b64(data)}.{b64(data)}"))
def test_a_random_token_never_passes(token: str) -> None:
    with pytest.raises(Unauthenticated):
        verifier().role_of(token)


@given(header=HEADERS, claims=JSON, key=st.binary(min_size=32, max_size=64))
def test_only_the_right_key_passes_whatever_the_token_says(
    header: dict[str, object], claims: object, key: bytes
) -> None:
    if key != SECRET:
        with pytest.raises(Unauthenticated):
            verifier().role_of(hs256(claims, key, header=header))


@given(header=HEADERS, claims=JSON)
def test_with_the_right_key_only_the_right_algorithm_and_a_role_pass(header: dict[str, object], claims: object) -> None:
    """Signed with HS256 and the secret, whatever the header says: a pass means that it said so, and named the role."""
    try:
        role = verifier().role_of(hs256(claims, header=header))
    except Unauthenticated:
        return
    assert header["alg"] == "HS256"
    assert isinstance(claims, dict)
    assert claims["sub"] == role


@given(role=st.text(min_size=1, max_size=20), later=st.integers(1, 10**9))
def test_good_tokens_pass(role: str, later: int) -> None:
    if role.isprintable() and role.strip():
        token = hs256({"sub": role, "exp": NOW + later, "nbf": NOW - later})
        assert verifier().role_of(token) == role


@pytest.mark.parametrize(
    ("values", "token"),
    [([], None), (["Bearer abc"], "abc"), (["bearer abc"], "abc"), ([" Bearer  abc "], "abc")],
)
def test_the_authorization_header(values: list[str], token: str | None) -> None:
    assert bearer_token(values) == token


@pytest.mark.parametrize(
    "values", [[""], ["Bearer"], ["Bearer "], ["Basic YTpi"], ["abc"], ["Bearer a b"], ["Bearer a", "Bearer a"]]
)
def test_an_authorization_header_that_is_no_token_is_refused(values: list[str]) -> None:
    with pytest.raises(Unauthenticated):
        bearer_token(values)


BAD = [
    hs256({"sub": "alice-the-role"}, OTHER_SECRET),
    hs256({"sub": ["alice-the-role"]}),
    hs256({"sub": "alice-the-role", "exp": NOW - 1}),
    hs256({"sub": "alice-the-role", "nbf": NOW + 1}),
    hs256({"sub": "alice-the-role", "exp": "secret-claim"}),
    hs256("secret-claim"),
    unsigned({"sub": "alice-the-role"}, {"alg": "none", "kid": "secret-claim"}) + ".",
    "secret-claim",
    "secret.claim.é",
]


@pytest.mark.parametrize("token", BAD)
def test_no_part_of_a_token_is_in_an_error_or_a_log(token: str, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG), pytest.raises(Unauthenticated) as caught:
        verifier().role_of(token)

    error: BaseException | None = caught.value
    told = caplog.text
    while error is not None:
        told += repr(error) + str(error)
        error = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    for part in (token, *token.split("."), "alice", "secret-claim", "HS256"):
        assert len(part) < 6 or part not in told


def test_claims_are_read_after_the_signature_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """What nobody signed is not worth parsing."""
    parsed: list[bytes] = []
    monkeypatch.setattr("scalable_topics.server.auth.tokens._claims", Spy(parsed))

    with pytest.raises(Unauthenticated):
        verifier().role_of(hs256(GOOD, OTHER_SECRET))
    assert parsed == []
    assert verifier().role_of(hs256(GOOD)) == "alice"
    assert parsed == [json.dumps(GOOD).encode()]


class Spy:
    def __init__(self, parsed: list[bytes]) -> None:
        self._parsed = parsed

    def decode(self, data: bytes) -> object:
        self._parsed.append(data)
        return json.loads(data)
