"""Calls between daemons: believed only when signed for exactly this call."""

import base64
from collections.abc import Callable
from itertools import pairwise
from typing import Final

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from scalable_topics.server.auth.caller import Caller, anonymous, daemon, role
from scalable_topics.server.auth.errors import Unauthenticated
from scalable_topics.server.auth.forwarding import LIFETIME_SECONDS, MAX_CALL_CHARS, Call, CallSigner
from scalable_topics.server.auth.keys import secret_key
from tests.server.auth.makers import NOW, Clock, b64, hs256, verifier

KEY: Final = b"k" * 31 + b"1"
OTHER: Final = b"k" * 31 + b"2"
CALL: Final = Call(
    method="POST", target="/admin/v2/scalable/t/n/orders/split/0?ways=2", body=b"{}", headers={"If-Match": '"a:1"'}
)
ALICE: Final = role("alice", "10.0.0.7")


def signer(name: str = "b1", *keys: bytes, clock: Clock | None = None) -> CallSigner:
    return CallSigner(lambda: keys or (KEY,), broker_id=name, identity=f"{name} p", wall_clock=clock or Clock())


def test_the_receiver_learns_who_asked_from_where_and_by_whom_it_came() -> None:
    value = signer("b1").sign(ALICE, CALL, receiver="b2 p")

    assert signer("b2").verify(value, CALL) == replace(ALICE, via="b1")


@pytest.mark.parametrize("caller", [anonymous(), daemon("b1"), role("broker b1")])
def test_the_kind_of_the_caller_is_kept(caller: Caller) -> None:
    value = signer("b1").sign(caller, CALL, receiver="b2 p")

    assert signer("b2").verify(value, CALL).kind is caller.kind


def test_another_secret_is_refused() -> None:
    value = signer("b1", OTHER).sign(ALICE, CALL, receiver="b2 p")

    with pytest.raises(Unauthenticated, match="not signed by a daemon"):
        signer("b2").verify(value, CALL)


@pytest.mark.parametrize(
    "change",
    [
        lambda call: replace(call, method="DELETE"),
        lambda call: replace(call, target=call.target.replace("split/0", "split/1")),
        lambda call: replace(call, target=call.target + "&force=true"),
        lambda call: replace(call, body=b"{ }"),
        lambda call: replace(call, headers={}),
        lambda call: replace(call, headers={"If-Match": '"a:2"'}),
        lambda call: replace(call, headers={**call.headers, "Idempotency-Key": "x"}),
        lambda call: replace(call, headers={"Idempotency-Key": '"a:1"'}),
        lambda call: replace(call, headers={**call.headers, "X-No-Forward": "1"}),
    ],
)
def test_a_call_that_was_changed_is_refused(change: Callable[[Call], Call]) -> None:
    value = signer("b1").sign(ALICE, CALL, receiver="b2 p")

    with pytest.raises(Unauthenticated, match="changed on its way"):
        signer("b2").verify(value, change(CALL))


def test_names_of_headers_have_no_case() -> None:
    value = signer("b1").sign(ALICE, CALL, receiver="b2 p")

    signer("b2").verify(value, replace(CALL, method="post", headers={"if-match": '"a:1"'}))


def test_a_call_for_another_daemon_or_another_life_of_it_is_refused() -> None:
    for receiver in ("b3 p", "b2 former"):
        value = signer("b1").sign(ALICE, CALL, receiver=receiver)
        with pytest.raises(Unauthenticated, match="another daemon"):
            signer("b2").verify(value, CALL)


@pytest.mark.parametrize("apart", [LIFETIME_SECONDS + 0.1, -LIFETIME_SECONDS - 0.1])
def test_an_old_call_is_refused(apart: float) -> None:
    value = signer("b1").sign(ALICE, CALL, receiver="b2 p")

    with pytest.raises(Unauthenticated, match="too old"):
        signer("b2", clock=Clock(NOW + apart)).verify(value, CALL)


def test_a_call_is_good_once() -> None:
    clock = Clock()
    receiver = signer("b2", clock=clock)
    value = signer("b1", clock=Clock(NOW + LIFETIME_SECONDS)).sign(ALICE, CALL, receiver="b2 p")
    receiver.verify(value, CALL)

    for later in (0, LIFETIME_SECONDS, 2 * LIFETIME_SECONDS):
        clock.now = NOW + later
        with pytest.raises(Unauthenticated, match="come before"):
            receiver.verify(value, CALL)


def test_what_has_come_is_forgotten_when_it_could_not_come_again() -> None:
    clock = Clock()
    sender, receiver = signer("b1", clock=clock), signer("b2", clock=clock)
    for _ in range(100):
        receiver.verify(sender.sign(ALICE, CALL, receiver="b2 p"), CALL)
        clock.now += LIFETIME_SECONDS

    assert len(receiver._seen) <= 4


def test_secrets_can_be_changed_one_daemon_at_a_time() -> None:
    """First all learn the new one, then all sign with it, then the old one goes: every pair on the way agrees."""
    stages = [(KEY,), (KEY, OTHER), (OTHER, KEY), (OTHER,)]

    for before, after in pairwise(stages):
        for sender, receiver in ((before, after), (after, before)):
            value = signer("b1", *sender).sign(ALICE, CALL, receiver="b2 p")
            signer("b2", *receiver).verify(value, CALL)


def test_a_token_is_no_call_and_a_call_no_token_though_the_secret_be_the_same() -> None:
    with pytest.raises(Unauthenticated):
        signer("b2").verify(hs256({"sub": "alice"}, KEY), CALL)
    with pytest.raises(Unauthenticated):
        verifier(secret_key(KEY)).role_of(signer("b1").sign(ALICE, CALL, receiver="b2 p"))


@given(st.text(max_size=100) | st.binary(max_size=60).map(lambda data: f"{b64(data)}.{b64(data[:32])}"))
def test_a_random_header_never_passes(value: str) -> None:
    with pytest.raises(Unauthenticated):
        signer("b2").verify(value, CALL)


@given(st.data())
def test_a_mutated_header_never_passes(data: st.DataObject) -> None:
    value = signer("b1").sign(ALICE, CALL, receiver="b2 p")
    place, length = data.draw(st.integers(0, len(value))), data.draw(st.integers(0, 3))
    mutated = value[:place] + data.draw(st.text("ABCDyz019-_=. \n!é", max_size=3)) + value[place + length :]

    if mutated != value:
        with pytest.raises(Unauthenticated):
            signer("b2").verify(mutated, CALL)


CALLS: Final = st.builds(
    Call, method=st.text(max_size=4), target=st.text(max_size=8), body=st.binary(max_size=8), headers=st.just({})
)


@given(CALLS, CALLS)
def test_no_call_stands_for_another(signed: Call, sent: Call) -> None:
    value = signer("b1").sign(ALICE, signed, receiver="b2 p")

    if (signed.method.upper(), signed.target, signed.body) != (sent.method.upper(), sent.target, sent.body):
        with pytest.raises(Unauthenticated):
            signer("b2").verify(value, sent)


def test_a_header_that_is_too_long_is_refused_before_it_is_read() -> None:
    with pytest.raises(Unauthenticated):
        signer("b2").verify("x" * (MAX_CALL_CHARS + 1), CALL)


def test_what_is_signed_fits_into_a_header_and_holds_no_token() -> None:
    value = signer("b" * 200).sign(role("r" * 256, "2001:db8::1"), CALL, receiver="c" * 200)
    text = value.partition(".")[0]

    assert len(value) < MAX_CALL_CHARS
    assert b"ways=2" not in base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))
