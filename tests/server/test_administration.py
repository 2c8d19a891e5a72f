"""Policies, retention, tenants, permissions and brokers over REST; and reads while the store is away."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
import pytest
import pytest_asyncio

from scalable_topics.metadata.etcd import EtcdSettings, EtcdStore
from scalable_topics.metadata.local_etcd import EtcdCluster, etcd_cluster
from scalable_topics.metadata.repository import Repository
from scalable_topics.model.paths import StorePaths
from tests.server.auth.makers import SECRET, written
from tests.server.daemons import Answer, Client, daemon_at

PATH = "/admin/v2/scalable/t/n/orders"
NAMESPACE = "/admin/v2/namespaces/t/n"


@pytest_asyncio.fixture
async def client(etcd: EtcdCluster, root: str, http: aiohttp.ClientSession, tmp_path: Path) -> AsyncIterator[Client]:
    """Of one daemon by itself."""
    async with daemon_at(etcd, root, tmp_path / "data", "d1") as url:
        yield Client(http, url)


def refusal(answer: Answer) -> tuple[int, str]:
    return answer.status, answer.reason


async def test_a_policy_is_checked_stored_and_removed(client: Client) -> None:
    assert refusal(await client("GET", f"{PATH}/autoScalePolicy")) == (404, "not-found")
    assert refusal(await client("POST", f"{PATH}/autoScalePolicy", {"maxSegments": 4})) == (404, "not-found")
    await client("PUT", PATH)
    for path in (f"{PATH}/autoScalePolicy", f"{NAMESPACE}/scalableTopicAutoScalePolicy"):
        assert (await client("GET", path)).status == 204
        assert (await client("POST", path, {"maxSegments": 4, "splitCooldownSeconds": "2m"})).status == 204
        answer = await client("GET", path)
        assert (answer.status, answer.json()) == (200, {"maxSegments": 4, "splitCooldownSeconds": 120})
        assert refusal(await client("POST", path, {"maxSegment": 4})) == (412, "invalid-argument")
        assert refusal(await client("POST", path, {"minSegments": 9, "maxSegments": 4})) == (412, "invalid-argument")
        assert refusal(await client("POST", path, ["maxSegments"])) == (412, "invalid-argument")
    # By itself it is fine, but the namespace allows four.
    assert refusal(await client("POST", f"{PATH}/autoScalePolicy", {"minSegments": 5})) == (412, "invalid-argument")
    for path in (f"{PATH}/autoScalePolicy", f"{NAMESPACE}/scalableTopicAutoScalePolicy"):
        assert [(await client("DELETE", path)).status for _ in range(2)] == [204, 204]
        assert (await client("GET", path)).status == 204


async def test_retention_of_a_namespace_beside_its_policy(client: Client, etcd: EtcdCluster, root: str) -> None:
    path = f"{NAMESPACE}/retention"
    assert (await client("GET", path)).status == 204
    assert (await client("POST", f"{NAMESPACE}/scalableTopicAutoScalePolicy", {"enabled": False})).status == 204
    body = {"retentionTimeInMinutes": 30, "retentionSizeInMB": -1}
    assert (await client("POST", path, body)).status == 204
    assert (await client("GET", path)).json() == body
    for wrong in ({"retentionTimeInMinutes": -2}, {"retentionTimeInMinutes": 1, "retentionSizeInMB": 9}, {}):
        assert refusal(await client("POST", path, wrong)) == (412, "invalid-argument")
    store = EtcdStore(EtcdSettings(endpoints=etcd.endpoints))
    known = await Repository(store, StorePaths(root)).namespace_policies("t", "n")
    await store.close()
    assert known is not None
    assert (known.value.retention_minutes, known.value.scalable_topic_auto_scale_policy) == (30, {"enabled": False})
    assert (await client("DELETE", path)).status == 204
    assert (await client("GET", path)).status == 204
    assert (await client("GET", f"{NAMESPACE}/scalableTopicAutoScalePolicy")).json() == {"enabled": False}


async def test_tenants(client: Client) -> None:
    body = {"adminRoles": ["alice"], "allowedClusters": ["standalone"]}
    assert refusal(await client("GET", "/admin/v2/tenants/t")) == (404, "not-found")
    assert refusal(await client("POST", "/admin/v2/tenants/t", body)) == (404, "not-found")
    assert (await client("PUT", "/admin/v2/tenants/t", body)).status == 204
    assert refusal(await client("PUT", "/admin/v2/tenants/t", body)) == (409, "wrong-state")
    assert (await client("GET", "/admin/v2/tenants/t")).json() == body
    assert (await client("PUT", "/admin/v2/tenants/u.v")).status == 204
    assert (await client("GET", "/admin/v2/tenants")).json() == ["t", "u.v"]
    assert (await client("POST", "/admin/v2/tenants/t", {"adminRoles": ["bob"]})).status == 204
    await client("PUT", PATH)
    assert refusal(await client("DELETE", "/admin/v2/tenants/t")) == (409, "wrong-state")
    await client("DELETE", PATH)
    assert (await client("DELETE", "/admin/v2/tenants/t")).status == 204
    assert refusal(await client("DELETE", "/admin/v2/tenants/t")) == (404, "not-found")


@pytest.mark.parametrize(
    "path",
    [f"{NAMESPACE}/permissions", f"{PATH}/permissions", "/admin/v2/persistent/t/n/orders/permissions"],
)
async def test_permissions(client: Client, path: str) -> None:
    assert (await client("GET", path)).json() == {}
    assert (await client("POST", f"{path}/paul", ["produce"])).status == 204
    assert (await client("POST", f"{path}/carol", ["consume", "functions"])).status == 204
    assert (await client("POST", f"{path}/paul", ["produce", "consume"])).status == 204
    assert (await client("GET", path)).json() == {"paul": ["produce", "consume"], "carol": ["consume", "functions"]}
    for wrong in (["fly"], [], "produce"):
        assert refusal(await client("POST", f"{path}/paul", wrong)) == (412, "invalid-argument")
    assert [(await client("DELETE", f"{path}/{role}")).status for role in ("paul", "carol", "nobody")] == [204] * 3
    assert (await client("GET", path)).json() == {}


async def test_a_grant_counts_at_once_also_on_the_other_daemon(
    etcd: EtcdCluster, root: str, http: aiohttp.ClientSession, tmp_path: Path
) -> None:
    flags = {
        "authenticationEnabled": "true",
        "authorizationEnabled": "true",
        "tokenSecretKeyFile": str(written(tmp_path / "key", SECRET)),
        "superUserRoles": "root",
    }
    data = tmp_path / "data"
    async with daemon_at(etcd, root, data, "d1", flags=flags) as a, daemon_at(etcd, root, data, "d2", flags=flags) as b:
        chief, paul = Client(http, a, "root"), Client(http, b, "paul")
        await chief("PUT", PATH)
        assert (await paul("GET", PATH)).status == 403
        assert (await chief("POST", f"{NAMESPACE}/permissions/paul", ["produce"])).status == 204
        async with asyncio.timeout(2):  # less than what is remembered lasts
            while (await paul("GET", PATH)).status != 200:
                await asyncio.sleep(0.02)
        assert (await paul("DELETE", PATH)).status == 403
        assert (await chief("DELETE", f"{NAMESPACE}/permissions/paul")).status == 204
        async with asyncio.timeout(2):
            while (await paul("GET", PATH)).status != 403:
                await asyncio.sleep(0.02)


async def test_brokers(client: Client) -> None:
    assert (await client("GET", "/admin/v2/brokers")).json() == [client.url.removeprefix("http://")]
    detailed = (await client("GET", "/admin/v2/brokers?details=true")).json()
    assert detailed == [{"brokerId": "d1", "webUrl": client.url, "roles": ["controller"]}]


async def test_health_and_metrics_are_there(client: Client) -> None:
    for path in ("/health", "/health/live", "/health/ready", "/status.html", "/metrics"):
        assert (await client("GET", path)).status == 200, path


async def test_while_the_store_is_away_reads_are_answered_and_marked(
    http: aiohttp.ClientSession, tmp_path: Path
) -> None:
    async with etcd_cluster(1) as own:
        flags = {"metadataStoreSessionTimeout": "2", "etcdCallTimeout": "1s", "etcdAttemptTimeout": "1s"}
        async with daemon_at(own, "/stale", tmp_path / "data", "d1", flags=flags) as url:
            client = Client(http, url)
            await client("PUT", PATH, {"team": "x"})
            await client("POST", f"{PATH}/autoScalePolicy", {"maxSegments": 4})
            before = await client("GET", PATH)
            assert "X-Stale-Seconds" not in before.headers
            async with asyncio.timeout(5):
                while not (await client("GET", "/admin/v2/scalable/t/n?property=team=x")).json():
                    await asyncio.sleep(0.02)
            own.members[0].pause()
            try:
                for path in (
                    PATH,
                    f"{PATH}/stats",
                    f"{PATH}/autoScalePolicy",
                    "/admin/v2/scalable/t/n?property=team=x",
                ):
                    answer = await client("GET", path)
                    assert (answer.status, int(answer.headers["X-Stale-Seconds"]) > 0) == (200, True), path
                stale = await client("GET", PATH)
                assert (stale.json(), stale.headers["ETag"]) == (
                    {**before.json(), "autoScalePolicy": {"maxSegments": 4}},  # type: ignore[dict-item]
                    before.headers["ETag"],
                )
                assert (await client("GET", f"{PATH}2")).status == 404
            finally:
                own.members[0].resume()
