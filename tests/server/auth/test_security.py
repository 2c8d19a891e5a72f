"""The parts put together, without HTTP."""

from pathlib import Path

import pytest
from cryptography.hazmat.primitives.serialization import Encoding

from scalable_topics.model.errors import Forbidden, InvalidArgument
from scalable_topics.server.auth.authorizer import CLUSTER
from scalable_topics.server.auth.caller import CallerKind, anonymous, daemon, role
from scalable_topics.server.auth.errors import Unauthenticated
from scalable_topics.server.auth.forwarding import Call
from scalable_topics.server.auth.security import Security, SecuritySettings, process_identity
from scalable_topics.server.auth.table import Action
from tests.server.auth.makers import (
    OTHER_SECRET,
    SECRET,
    Clock,
    Grants,
    hs256,
    public_bytes,
    rs256,
    rsa_key,
    written,
)

CALL = Call(method="POST", target="/x", body=b"", headers={})


def made(settings: SecuritySettings, name: str = "b1") -> Security:
    return Security(settings, Grants(), broker_id=name, process="p", wall_clock=Clock(), clock=Clock())


def test_two_token_keys_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidArgument, match="two token keys"):
        SecuritySettings(token_secret_key=tmp_path / "a", token_public_key=tmp_path / "b")


@pytest.mark.parametrize("leeway", [-1, float("nan")])
def test_settings_that_say_nothing_are_refused(leeway: float) -> None:
    with pytest.raises(InvalidArgument):
        SecuritySettings(token_leeway_seconds=leeway)
    with pytest.raises(InvalidArgument):
        SecuritySettings(token_auth_claim="")


async def test_without_a_token_key_everybody_may_everything() -> None:
    security = made(SecuritySettings())
    caller = security.from_client(["Bearer whatever"], address="127.0.0.1")

    assert caller == anonymous("127.0.0.1")
    assert (await security.ensure(caller, Action.LIST_TENANTS, CLUSTER)).because == "authentication is off"


async def test_with_a_token_key_a_token_is_needed(tmp_path: Path) -> None:
    key = written(tmp_path / "key", SECRET)
    security = made(SecuritySettings(token_secret_key=key, super_user_roles=("root",)))

    for values in ([], [f"Bearer {hs256({'sub': 'root'}, OTHER_SECRET)}"], ["Basic cm9vdDo="]):
        with pytest.raises(Unauthenticated):
            security.from_client(values, address=None)
    root = security.from_client([f"Bearer {hs256({'sub': 'root'})}"], address="10.0.0.7")
    assert root == role("root", "10.0.0.7")
    assert (await security.ensure(root, Action.LIST_TENANTS, CLUSTER)).because == "super-user"
    with pytest.raises(Forbidden):
        await security.ensure(role("eve"), Action.LIST_TENANTS, CLUSTER)
    with pytest.raises(Unauthenticated):
        await security.ensure(anonymous(), Action.LIST_TENANTS, CLUSTER)
    assert (await security.ensure(anonymous(), Action.CHECK_HEALTH, CLUSTER)).allowed


def test_a_new_key_takes_over_and_tokens_of_the_old_one_pass_no_more(tmp_path: Path) -> None:
    path = written(tmp_path / "key", public_bytes(rsa_key(0), Encoding.DER))
    security = made(SecuritySettings(token_public_key=path))
    old, new = (f"Bearer {rs256({'sub': 'alice'}, rsa_key(number))}" for number in (0, 1))
    assert security.from_client([old], address=None).name == "alice"

    written(tmp_path / "next", public_bytes(rsa_key(1), Encoding.PEM)).replace(path)
    security.reload()

    assert security.from_client([new], address=None).name == "alice"
    with pytest.raises(Unauthenticated):
        security.from_client([old], address=None)


def test_a_daemon_that_asks_nobody_for_tokens_cannot_vouch_for_one_that_does(tmp_path: Path) -> None:
    secret, key = written(tmp_path / "cluster", b"c" * 32), written(tmp_path / "key", SECRET)
    open_one = made(SecuritySettings(cluster_secret=secret), "b1")
    closed = made(SecuritySettings(cluster_secret=secret, token_secret_key=key), "b2")
    assert open_one.signer is not None
    assert closed.signer is not None
    receiver = process_identity("b2", "p")

    with pytest.raises(Unauthenticated, match="knows no caller"):
        closed.from_daemon(closed.signer, open_one.signer.sign(anonymous(), CALL, receiver=receiver), CALL)
    own = closed.from_daemon(closed.signer, open_one.signer.sign(daemon("b1"), CALL, receiver=receiver), CALL)
    assert own.kind is CallerKind.DAEMON


def test_settings_and_parts_do_not_tell_a_secret(tmp_path: Path) -> None:
    settings = SecuritySettings(
        token_secret_key=written(tmp_path / "key", b"sesame" * 8),
        cluster_secret=written(tmp_path / "c", b"opensez" * 8),
    )
    security = made(settings)

    told = repr(settings) + repr(security) + repr(vars(security)) + str(security.signer)
    assert "sesame" not in told
    assert "opensez" not in told
