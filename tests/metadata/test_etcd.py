"""What only an etcd has: several endpoints, users, certificates, quotas, and answers that get lost."""

import asyncio
from pathlib import Path
from typing import Any

import msgspec
import pytest
import trustme

from scalable_topics.metadata import etcd as etcd_module
from scalable_topics.metadata.etcd import EtcdSettings, EtcdStore, TokenExpired, refusal
from scalable_topics.metadata.local_etcd import TlsFiles, etcd_cluster, etcd_version, find_etcd, free_ports
from scalable_topics.metadata.store import Put
from scalable_topics.model.errors import (
    Compacted,
    Forbidden,
    InvalidArgument,
    LeaseLost,
    NoSpace,
    NotFound,
    ScalableTopicsError,
    TooLarge,
    Unavailable,
    UnknownOutcome,
)


async def raw(store: EtcdStore, path: str, **request: Any) -> None:
    await store._call(path, request, etcd_module._nothing)


async def test_calls_go_on_while_a_minority_is_down() -> None:
    async with etcd_cluster(3) as cluster:
        store = EtcdStore(EtcdSettings(endpoints=cluster.endpoints, attempt_seconds=0.5))
        try:
            await store.commit([Put("/x", b"1")])
            lease = await store.grant_lease(600)
            await cluster.members[0].kill()
            for number in range(20):
                async with asyncio.timeout(10):
                    while True:
                        try:
                            await store.commit([Put("/x", str(number).encode())])
                            break
                        except Unavailable:
                            await asyncio.sleep(0.1)
            cluster.members[1].pause()
            with pytest.raises(Unavailable):  # the threads of a process do not all stop at the same moment
                while True:
                    await store.get("/x")
            with pytest.raises(Unavailable):
                await store.keep_alive(lease)
            with pytest.raises(UnknownOutcome):
                await store.commit([Put("/x", b"perhaps")])
            cluster.members[1].resume()
            await cluster.members[0].start()
            await cluster.ready()
            assert (await store.get("/x")).items[0].value in {b"19", b"perhaps"}
        finally:
            await store.close()


async def test_nobody_there_is_not_an_unknown_outcome() -> None:
    """What was never sent has not happened, and is told so."""
    (port,) = free_ports(1)
    store = EtcdStore(EtcdSettings(endpoints=(f"http://127.0.0.1:{port}",)))
    try:
        with pytest.raises(Unavailable) as caught:
            await store.commit([Put("/x", b"")])
        assert not isinstance(caught.value, UnknownOutcome)
        with pytest.raises(Unavailable, match="the watch broke"):
            await anext(store.watch("/", after_revision=1))
        health = asyncio.ensure_future(store.health())
        with pytest.raises(Unavailable, match="is it running and in quorum"):
            await health
    finally:
        await store.close()


async def test_users_passwords_and_tokens_that_run_out() -> None:
    async with etcd_cluster(options=["--auth-token-ttl=2"]) as cluster:
        admin = EtcdStore(EtcdSettings(endpoints=cluster.endpoints))
        await raw(admin, "/auth/user/add", name="root", password="secret")
        await raw(admin, "/auth/role/add", name="root")
        await raw(admin, "/auth/user/grant", user="root", role="root")
        await raw(admin, "/auth/user/add", name="guest", password="guest")
        await raw(admin, "/auth/enable")
        user = EtcdStore(EtcdSettings(endpoints=cluster.endpoints, username="root", password="secret"))
        wrong = EtcdStore(EtcdSettings(endpoints=cluster.endpoints, username="root", password="wrong"))
        guest = EtcdStore(EtcdSettings(endpoints=cluster.endpoints, username="guest", password="guest"))
        try:
            with pytest.raises(TokenExpired, match="wants a user and a password"):
                await admin.commit([Put("/x", b"")])
            with pytest.raises(ScalableTopicsError, match="authentication failed"):
                await wrong.get("/x")
            with pytest.raises(Forbidden, match="a user that may read and write"):
                await guest.commit([Put("/x", b"")])
            for _ in range(3):
                assert (await user.commit([Put("/x", b"")])).succeeded
                await asyncio.sleep(2.5)
            assert (await user.get("/x")).items
            idle = EtcdStore(EtcdSettings(endpoints=cluster.endpoints, username="root", password="secret"))
            revision = (await idle.commit([Put("/x", b"")])).revision
            idle._token = "one.that.ran.out"  # noqa: S105
            watch = idle.watch("/x", after_revision=revision - 1)
            async with asyncio.timeout(10):
                await anext(watch)
                assert (await anext(watch)).revision == revision, "a daemon that only watches gets a new token too"
            await watch.aclose()
            await idle.close()
            with pytest.raises(Forbidden, match="a user that may read and write"):
                await anext(admin.watch("/x", after_revision=1))
        finally:
            for store in (admin, user, wrong, guest):
                await store.close()


async def test_certificates_on_both_sides(tmp_path: Path) -> None:
    authority = trustme.CA()
    ca_file, pem, key = tmp_path / "ca.pem", tmp_path / "cert.pem", tmp_path / "key.pem"
    authority.cert_pem.write_to_path(ca_file)
    certificate = authority.issue_cert("127.0.0.1")
    certificate.private_key_pem.write_to_path(key)
    pem.write_bytes(b"".join(part.bytes() for part in certificate.cert_chain_pems))
    files = TlsFiles(str(ca_file), str(pem), str(key))
    async with etcd_cluster(tls=files) as cluster:
        secure = EtcdSettings(
            endpoints=cluster.endpoints, ca_file=str(ca_file), certificate_file=str(pem), key_file=str(key)
        )
        store, stranger, believer = (
            EtcdStore(secure),
            EtcdStore(EtcdSettings(endpoints=cluster.endpoints)),
            EtcdStore(EtcdSettings(endpoints=cluster.endpoints, ca_file=str(ca_file))),
        )
        try:
            revision = (await store.commit([Put("/x", b"1")])).revision
            watch = store.watch("/", after_revision=revision - 1)
            assert (await anext(watch)).revision == revision
            await watch.aclose()
            for other in (stranger, believer):
                with pytest.raises(Unavailable):
                    await other.get("/x")
        finally:
            for one in (store, stranger, believer):
                await one.close()


async def test_a_full_store_says_so() -> None:
    async with etcd_cluster(options=[f"--quota-backend-bytes={8 << 20}"]) as cluster:
        store = EtcdStore(EtcdSettings(endpoints=cluster.endpoints))
        try:
            empty = await store.health()
            assert empty.quota_bytes == 8 << 20
            assert not empty.nearly_full
            with pytest.raises(NoSpace, match="compact, defragment, disarm"):
                for number in range(40):
                    await store.commit([Put(f"/{number % 2}", bytes(1 << 20))])
            health = await store.health()
            assert health.no_space
            assert health.nearly_full
            assert health.used_bytes > 4 << 20
            both = await store.get("/0", "/1", "/absent")
            assert [item.key for item in both.items] == ["/0", "/1"], "it can still be read"
            assert both.revision == (await store.get()).revision
            with pytest.raises(NoSpace):
                await store.grant_lease(10)
            # What docs/metadata-store.md tells an operator to do.
            await raw(store, "/kv/compaction", revision=both.revision, physical=True)
            await raw(store, "/maintenance/defragment")
            alarms = await store._call("/maintenance/alarm", {}, msgspec.json.Decoder(dict[str, Any]))
            for alarm in alarms["alarms"]:
                await raw(store, "/maintenance/alarm", action="DEACTIVATE", **alarm)
            assert not (await store.health()).nearly_full
            assert (await store.commit([Put("/2", b"")])).succeeded
        finally:
            await store.close()


@pytest.mark.parametrize(
    ("settings", "story"),
    [
        ({"endpoints": ()}, "at least one"),
        ({"endpoints": ("localhost:2379",)}, "is not an endpoint"),
        ({"endpoints": ("ftp://x:1",)}, "is not an endpoint"),
        ({"username": "a"}, "needs a password"),
        ({"certificate_file": "a"}, "needs its key"),
    ],
)
def test_settings_that_cannot_work(settings: dict[str, Any], story: str) -> None:
    with pytest.raises(InvalidArgument, match=story):
        EtcdSettings(**settings)


@pytest.mark.parametrize(
    ("code", "message", "kind"),
    [
        (3, "etcdserver: request is too large", TooLarge),
        (3, "etcdserver: too many operations in txn request", TooLarge),
        (3, "etcdserver: duplicate key given in txn request", InvalidArgument),
        (5, "etcdserver: requested lease not found", LeaseLost),
        (7, "etcdserver: permission denied", Forbidden),
        (8, "etcdserver: mvcc: database space exceeded", NoSpace),
        (8, "etcdserver: too many requests", Unavailable),
        (11, "etcdserver: mvcc: required revision has been compacted", Compacted),
        (11, "etcdserver: mvcc: required revision is a future revision", InvalidArgument),
        (14, "etcdserver: leader changed", Unavailable),
        (16, "etcdserver: invalid auth token", TokenExpired),
    ],
)
def test_what_the_gateway_means(code: int, message: str, kind: type[Exception]) -> None:
    body = f'{{"error": "{message}", "code": {code}, "message": "{message}"}}'.encode()

    assert type(refusal(400, body)) is kind
    assert isinstance(refusal(502, b"<html>bad gateway</html>"), Unavailable)


@pytest.mark.parametrize("reason", ["permission denied", "invalid auth token", "user name is empty"])
def test_a_watch_that_may_not_be_is_forbidden(reason: str) -> None:
    """Whichever etcd these tests run on, all of its words are known."""
    line = etcd_module._watched.decode(
        f'{{"result": {{"canceled": true, "cancel_reason": "rpc error: etcdserver: {reason}"}}}}'
    )
    with pytest.raises(Forbidden, match="a user that may read and write"):
        etcd_module._batch(line)


def test_which_etcd_is_started(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("ETCD_BINARY", raising=False)
    assert etcd_version(find_etcd()) >= (3, 4)
    newer = tmp_path / "etcd"
    newer.write_text("#!/bin/sh\necho etcd Version: 99.0.0\n")
    newer.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    assert find_etcd() == str(newer)
    newer.write_text("#!/bin/sh\necho etcd Version: 2.0.0\n")
    assert find_etcd() != str(newer)
    monkeypatch.setenv("ETCD_BINARY", str(newer))
    assert find_etcd() == str(newer)
    monkeypatch.setenv("ETCD_BINARY", str(tmp_path / "missing"))
    with pytest.raises(NotFound, match="cannot be run"):
        find_etcd()
