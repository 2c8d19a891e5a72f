"""A leader's work asked of another daemon: PROTOCOL 10, with two real daemons on one etcd."""

import asyncio
import logging
import ssl
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp
import pytest
import trustme
from msgspec import Struct

from scalable_topics.metadata.etcd import EtcdSettings, EtcdStore
from scalable_topics.metadata.local_etcd import EtcdCluster
from scalable_topics.metadata.repository import Repository
from scalable_topics.metadata.store import Put
from scalable_topics.model.names import TopicName
from scalable_topics.model.paths import StorePaths
from scalable_topics.server.auth.forwarding import HOP_HEADER
from tests.server.auth.makers import SECRET, written
from tests.server.daemons import Client, daemon_at

TOPIC = TopicName.parse("topic://t/n/orders")
PATH = "/admin/v2/scalable/t/n/orders"


class Two(Struct):
    leader: Client
    other: Client
    leader_id: str
    repository: Repository


@asynccontextmanager
async def two(
    etcd: EtcdCluster, root: str, http: aiohttp.ClientSession, data: Path, *, role: str = "", **flags: str
) -> AsyncIterator[Two]:
    """Two daemons and a topic with one segment, when both know who leads it."""
    store = EtcdStore(EtcdSettings(endpoints=etcd.endpoints))
    repository = Repository(store, StorePaths(root))
    async with daemon_at(etcd, root, data, "d1", flags=flags) as a, daemon_at(etcd, root, data, "d2", flags=flags) as b:
        clients = {"d1": Client(http, a, role), "d2": Client(http, b, role)}
        assert (await clients["d1"]("PUT", PATH)).status == 204
        leads: list[str] = []
        async with asyncio.timeout(20):
            while len(leads) != 1:
                answers = {
                    name: await client("POST", f"{PATH}/split/77", headers={"X-No-Forward": "1"})
                    for name, client in clients.items()
                }
                leads = [name for name, answer in answers.items() if answer.status == 404]
        (leader,) = leads
        (other,) = clients.keys() - {leader}
        yield Two(clients[leader], clients[other], leader, repository)
    await store.close()


async def test_any_daemon_does_it_and_the_leader_answers(
    etcd: EtcdCluster, root: str, http: aiohttp.ClientSession, tmp_path: Path
) -> None:
    async with two(etcd, root, http, tmp_path / "data") as c:
        done = await c.other("POST", f"{PATH}/split/0?ways=3", headers={"Idempotency-Key": "k1"})
        again = await c.leader("POST", f"{PATH}/split/0?ways=3", headers={"Idempotency-Key": "k1"})
        assert (done.status, done.body) == (200, again.body)
        refused = await c.other("POST", f"{PATH}/split/0")
        assert (refused.status, refused.headers["Content-Type"]) == (409, "application/json")
        stale = await c.other("POST", f"{PATH}/split/1", headers={"If-Match": '"0000000000000000:9"'})
        assert (stale.status, stale.reason) == (409, "wrong-state")
        odd = f"{PATH}/subscriptions/with%20%2F%C3%BC"
        assert (await c.other("PUT", odd)).status == 204
        assert "with /ü" in await c.repository.subscriptions(TOPIC)


async def test_who_does_not_want_it_forwarded_is_redirected(
    etcd: EtcdCluster, root: str, http: aiohttp.ClientSession, tmp_path: Path
) -> None:
    async with two(etcd, root, http, tmp_path / "data") as c:
        told = await c.other("POST", f"{PATH}/split/0?ways=2", headers={"X-No-Forward": "1"})
        assert told.status == 307
        assert told.headers["Location"] == f"{c.leader.url}{PATH}/split/0?ways=2"
        assert told.reason == "not-leading"


async def test_what_was_forwarded_goes_no_further(
    etcd: EtcdCluster, root: str, http: aiohttp.ClientSession, tmp_path: Path
) -> None:
    async with two(etcd, root, http, tmp_path / "data") as c:
        told = await c.other("POST", f"{PATH}/split/0", headers={HOP_HEADER: "1", "X-Once": "1"})
        assert (told.status, told.reason, told.headers["Retry-After"]) == (503, "not-leading", "1")
        assert "Location" not in told.headers
        known = await c.repository.topic(TOPIC)
        assert known is not None
        assert known.value.layout.epoch == 0


@pytest.mark.parametrize("signed", [True, False])
async def test_the_leader_decides_by_the_rights_of_the_caller(
    signed: bool,
    etcd: EtcdCluster,
    root: str,
    http: aiohttp.ClientSession,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO, "scalable_topics.audit")
    flags: Mapping[str, str] = {
        "authenticationEnabled": "true",
        "authorizationEnabled": "true",
        "tokenSecretKeyFile": str(written(tmp_path / "key", SECRET)),
        "superUserRoles": "root",
    }
    if signed:
        flags = {**flags, "daemonSecretFile": str(written(tmp_path / "shared", b"s" * 40))}
    async with two(etcd, root, http, tmp_path / "data", role="root", **flags) as c:
        assert (await c.other.named("eve")("POST", f"{PATH}/split/0")).status == 403
        assert (await c.other.named("")("POST", f"{PATH}/split/0")).status == 401
        assert (await c.other("POST", f"{PATH}/split/0", headers={"Idempotency-Key": "once"})).status == 200
    lines = [entry.getMessage() for entry in caplog.records if '"once"' in entry.getMessage()]
    assert len(lines) == 2, "one where it came in, one where it was done"
    assert all('who="root"' in line and 'address="127.0.0.1"' in line for line in lines)
    assert any("via=" in line for line in lines) is signed


async def test_a_leader_that_does_not_answer_is_503(
    etcd: EtcdCluster, root: str, http: aiohttp.ClientSession, tmp_path: Path
) -> None:
    """Its key is still there, and nobody listens any more."""
    async with daemon_at(etcd, root, tmp_path / "data", "d1") as url:
        client = Client(http, url)
        store = EtcdStore(EtcdSettings(endpoints=etcd.endpoints))
        paths = StorePaths(root)
        lease = await store.grant_lease(60)
        dead = b'{"brokerId":"dead","brokerUrl":"http://127.0.0.1:9","webUrl":"http://127.0.0.1:9","process":"p"}'
        await store.commit([Put(paths.broker("dead"), dead, lease), Put(paths.controller(TOPIC), dead, lease)])
        async with asyncio.timeout(10):
            while (answer := await client("POST", f"{PATH}/split/0")).status == 404:
                await asyncio.sleep(0.02)
        assert (answer.status, answer.reason, answer.headers["Retry-After"]) == (503, "unavailable", "1")
        await store.revoke_lease(lease)
        await store.close()


async def test_between_daemons_with_tls(etcd: EtcdCluster, root: str, tmp_path: Path) -> None:
    """Each shows its certificate and believes only the authority it was given."""
    authority = trustme.CA()
    certificate = authority.issue_cert("127.0.0.1")
    authority.cert_pem.write_to_path(tmp_path / "ca.pem")
    certificate.private_key_and_cert_chain_pem.write_to_path(tmp_path / "server.pem")
    flags = {
        "tlsCertificateFilePath": str(tmp_path / "server.pem"),
        "tlsKeyFilePath": str(tmp_path / "server.pem"),
        "tlsTrustCertsFilePath": str(tmp_path / "ca.pem"),
    }
    trusting = ssl.create_default_context(cafile=tmp_path / "ca.pem")
    async with (
        aiohttp.ClientSession(connector=aiohttp.TCPConnector(ssl=trusting)) as http,
        two(etcd, root, http, tmp_path / "data", **flags) as c,
    ):
        assert c.other.url.startswith("https://127.0.0.1:")
        assert (await c.other("POST", f"{PATH}/split/0")).status == 204
        async with aiohttp.ClientSession() as stranger:
            with pytest.raises(aiohttp.ClientConnectorCertificateError):
                await stranger.get(f"{c.other.url}/health")
