"""A daemon with tokens, as its callers meet it; and what SIGHUP changes."""

import logging
import os
import signal
from collections.abc import Mapping
from pathlib import Path

import aiohttp
import pytest

from scalable_topics.metadata.etcd import EtcdSettings, EtcdStore
from scalable_topics.metadata.local_etcd import EtcdCluster
from scalable_topics.metadata.repository import Repository
from scalable_topics.model.administration import TenantInfo
from scalable_topics.model.errors import InvalidArgument
from scalable_topics.model.paths import StorePaths
from scalable_topics.server.auth.forwarding import CALL_HEADER, HOP_HEADER
from scalable_topics.server.configuration import InvalidConfiguration, load
from tests.server.auth.makers import OTHER_SECRET, SECRET, hs256, written
from tests.server.daemons import Client, bearer, daemon_at

PATH = "/admin/v2/scalable/t/n/orders"


def with_tokens(tmp_path: Path, **more: str) -> Mapping[str, str]:
    return {
        "authenticationEnabled": "true",
        "authorizationEnabled": "true",
        "tokenSecretKeyFile": str(written(tmp_path / "key", SECRET)),
        "superUserRoles": "root",
        **more,
    }


async def grant(etcd: EtcdCluster, root: str) -> None:
    """alice administers the tenant t; paul may produce and carol consume in t/n."""
    store = EtcdStore(EtcdSettings(endpoints=etcd.endpoints))
    repository = Repository(store, StorePaths(root))
    await repository.set_tenant("t", TenantInfo(admin_roles=("alice",)), known=None)
    await repository.set_permissions("t", "n", {"paul": ("produce",), "carol": ("consume",)}, known=None)
    await store.close()


async def test_who_may_do_what(
    etcd: EtcdCluster, root: str, http: aiohttp.ClientSession, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "scalable_topics.audit")
    await grant(etcd, root)
    async with daemon_at(etcd, root, tmp_path / "data", "d1", flags=with_tokens(tmp_path)) as url:
        nobody = Client(http, url)
        refused = await nobody("PUT", PATH)
        assert (refused.status, refused.reason, refused.headers["WWW-Authenticate"]) == (
            401,
            "unauthenticated",
            "Bearer",
        )
        forged = {"Authorization": f"Bearer {hs256({'sub': 'root'}, OTHER_SECRET)}"}
        assert (await nobody("PUT", PATH, headers=forged)).status == 401
        assert (await nobody("GET", "/health")).status == 200

        statuses = {
            role: [
                (await nobody.named(role)(method, path)).status
                for method, path in (
                    ("PUT", PATH),
                    ("GET", PATH),
                    ("PUT", f"{PATH}/subscriptions/s"),
                    ("POST", f"{PATH}/collect"),
                )
            ]
            for role in ("eve", "alice", "paul", "carol", "root")
        }
    assert statuses == {
        "eve": [403, 403, 403, 403],
        "alice": [204, 200, 204, 403],
        "paul": [403, 200, 403, 403],
        "carol": [403, 200, 204, 403],
        "root": [409, 200, 204, 200],
    }
    lines = [entry.getMessage() for entry in caplog.records if entry.name == "scalable_topics.audit"]
    assert any('who="alice"' in line and '"create-topic"' in line and 'outcome="done"' in line for line in lines)
    assert any('who="eve"' in line and 'outcome="forbidden"' in line for line in lines)
    assert not any("eyJ" in line for line in lines), "no part of a token"


async def test_a_client_that_forges_what_daemons_send_is_refused(
    etcd: EtcdCluster, root: str, http: aiohttp.ClientSession, tmp_path: Path
) -> None:
    await grant(etcd, root)
    secret = {"daemonSecretFile": str(written(tmp_path / "shared", b"s" * 40))}
    async with daemon_at(etcd, root, tmp_path / "data", "d1", flags=with_tokens(tmp_path, **secret)) as url:
        client = Client(http, url)
        forged = {CALL_HEADER: "e30.AAAA", HOP_HEADER: "1"}
        assert (await client("PUT", PATH, headers=forged)).status == 401
        assert (await client("PUT", PATH, headers={HOP_HEADER: "1", "X-Forwarded-User": "root"})).status == 401
        # A good token does not help: the header claims to be a daemon's word, and is not.
        assert (await client.named("root")("PUT", PATH, headers=forged)).status == 401
        assert (await client.named("root")("PUT", PATH)).status == 204


async def test_with_authorization_off_a_token_is_enough(
    etcd: EtcdCluster, root: str, http: aiohttp.ClientSession, tmp_path: Path
) -> None:
    flags = with_tokens(tmp_path, authorizationEnabled="false")
    async with daemon_at(etcd, root, tmp_path / "data", "d1", flags=flags) as url:
        assert (await Client(http, url)("PUT", PATH)).status == 401
        assert (await Client(http, url, "anybody")("PUT", PATH)).status == 204


async def test_a_key_that_is_none_is_refused_before_anything_begins(
    etcd: EtcdCluster, root: str, tmp_path: Path
) -> None:
    flags = {**with_tokens(tmp_path), "tokenSecretKeyFile": str(written(tmp_path / "short", b"short"))}
    with pytest.raises(InvalidArgument, match="at least 32 bytes"):
        async with daemon_at(etcd, root, tmp_path / "data", "d1", flags=flags):
            raise AssertionError("it started")


def test_without_authentication_it_listens_on_loopback_only() -> None:
    with pytest.raises(InvalidConfiguration, match="beyond loopback"):
        load(flags={"bindAddress": ["0.0.0.0"]})  # noqa: S104
    told = load(flags={"bindAddress": ["0.0.0.0"], "allowUnauthenticatedAccess": ["true"]})  # noqa: S104
    assert told.listen_addresses() == (("0.0.0.0", 0),)  # noqa: S104


async def test_sighup_takes_new_keys_and_super_users_and_names_what_waits(
    etcd: EtcdCluster, root: str, http: aiohttp.ClientSession, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = tmp_path / "config.toml"
    fixed = with_tokens(tmp_path)
    fixed = {name: value for name, value in fixed.items() if name not in {"superUserRoles", "tokenSecretKeyFile"}}
    told = {"brokerId": "d1", "dataDirectory": str(tmp_path / "data"), "metadataStoreRoot": root, **fixed}
    given = {key: [value] for key, value in told.items()} | {"etcdEndpoints": list(etcd.endpoints)}

    def write(key: bytes, users: str, level: str) -> None:
        (tmp_path / "key").write_bytes(key)
        file.write_text(
            f'tokenSecretKeyFile = "{tmp_path / "key"}"\nsuperUserRoles = ["{users}"]\nlogLevel = "{level}"\n'
            f"defaultRetentionTimeInMinutes = {5 if level == 'DEBUG' else 0}\n"
        )

    write(SECRET, "root", "INFO")
    before = {"tokenSecretKeyFile": str(tmp_path / "key"), "superUserRoles": "root", **fixed}
    reread = lambda: load(file, flags=given)  # noqa: E731
    logger = logging.getLogger()
    level = logger.level
    try:
        async with daemon_at(etcd, root, tmp_path / "data", "d1", flags=before, reread=reread) as url:
            client = Client(http, url)
            old, new = bearer("root"), {"Authorization": f"Bearer {hs256({'sub': 'boss'}, OTHER_SECRET)}"}
            assert [(await client("PUT", PATH, headers=one)).status for one in (new, old)] == [401, 204]

            write(OTHER_SECRET, "boss", "DEBUG")
            os.kill(os.getpid(), signal.SIGHUP)
            answers: list[int] = []
            for _ in range(3):
                answers = [(await client("GET", PATH, headers=one)).status for one in (old, new)]
            assert answers == [401, 200]
            assert logger.level == logging.DEBUG
            assert "needs a restart defaultRetentionTimeInMinutes" in caplog.text

            file.write_text("nonsense = 1\n")
            os.kill(os.getpid(), signal.SIGHUP)
            for _ in range(3):
                assert (await client("GET", PATH, headers=new)).status == 200
            assert "nothing was reloaded" in caplog.text
    finally:
        logger.setLevel(level)
