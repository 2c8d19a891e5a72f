"""Topics, operations and subscriptions over REST, as upstream-facts 16 has them."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest_asyncio

from scalable_topics.metadata.local_etcd import EtcdCluster
from tests.server.daemons import Answer, Client, daemon_at

NAMESPACE = "/admin/v2/scalable/t/n"
PATH = f"{NAMESPACE}/orders"


@pytest_asyncio.fixture
async def client(etcd: EtcdCluster, root: str, http: aiohttp.ClientSession, tmp_path: Path) -> AsyncIterator[Client]:
    """Of one daemon by itself."""
    async with daemon_at(etcd, root, tmp_path / "data", "d1") as url:
        yield Client(http, url)


def refusal(answer: Answer) -> tuple[int, str]:
    return answer.status, answer.reason


async def record_of(client: Client, path: str = PATH) -> dict[str, Any]:
    found = (await client("GET", path)).json()
    assert isinstance(found, dict)
    return found


async def test_a_namespace_is_listed_by_properties(client: Client) -> None:
    for name, properties in (("a", {"team": "x", "env": "p"}), ("b", {"team": "x"}), ("c", None)):
        assert (await client("PUT", f"{NAMESPACE}/{name}", properties)).status == 204
    assert (await client("PUT", "/admin/v2/scalable/t/m/a", {"team": "x"})).status == 204

    async def listed(query: str) -> object:
        return (await client("GET", f"{NAMESPACE}{query}")).json()

    assert await listed("") == ["topic://t/n/a", "topic://t/n/b", "topic://t/n/c"]
    assert await listed("?property=team=x") == ["topic://t/n/a", "topic://t/n/b"]
    assert await listed("?property=team=x&property=env=p") == ["topic://t/n/a"]
    assert await listed("?property=team=") == []
    assert (await client("GET", "/admin/v2/scalable/t/none")).json() == []
    assert refusal(await client("GET", f"{NAMESPACE}?property=team")) == (412, "invalid-argument")
    assert refusal(await client("GET", f"{NAMESPACE}?property=team=x&property=team=y")) == (412, "invalid-argument")
    assert (await record_of(client, f"{NAMESPACE}/b"))["properties"] == {"team": "x"}
    assert refusal(await client("PUT", f"{NAMESPACE}/d", ["no", "map"])) == (412, "invalid-argument")


async def test_a_change_answers_204_or_the_operation_to_who_named_it(client: Client) -> None:
    await client("PUT", f"{PATH}?numInitialSegments=1")
    plain = await client("POST", f"{PATH}/split/0?ways=4")
    assert (plain.status, plain.body) == (204, b"")
    named = await client("POST", f"{PATH}/merge", [1, 2, 3], headers={"Idempotency-Key": "k"})
    told = named.json()
    assert isinstance(told, dict)
    assert (named.status, told["kind"], told["outcome"], told["requestKey"]) == (200, "MERGE", "DONE", "k")
    assert (await client("POST", f"{PATH}/merge/5/4")).status == 204
    assert (await client("POST", f"{PATH}/rebucket/6?bucketCount=8")).status == 204
    active = [one for one in (await record_of(client))["segments"].values() if one["state"] == "ACTIVE"]
    assert len(active) == 1

    assert refusal(await client("POST", f"{PATH}/merge", [7])) == (412, "invalid-argument")
    assert refusal(await client("POST", f"{PATH}/merge", {"a": 1})) == (412, "invalid-argument")
    assert refusal(await client("POST", f"{PATH}/merge/6/7")) == (409, "wrong-state")
    assert refusal(await client("POST", f"{PATH}/split/7?force=maybe")) == (412, "invalid-argument")


async def test_a_dry_run_tells_the_plan_and_changes_nothing(client: Client) -> None:
    await client("PUT", f"{PATH}?numInitialSegments=2")
    await client("PUT", f"{PATH}/subscriptions/s")
    before = await record_of(client)

    plans = {
        path: (await client("POST", f"{PATH}/{path}dryRun=true", body)).json()
        for path, body in (("split/0?ways=3&", None), ("merge?", [0, 1]), ("rebucket/1?bucketCount=8&", None))
    }
    told = plans["split/0?ways=3&"]
    assert isinstance(told, dict)
    (replacement,) = told["replacements"]
    assert (told["kind"], told["subscriptions"], replacement["parents"]) == ("SPLIT", ["s"], [0])
    assert [child["segmentId"] for child in replacement["children"]] == [2, 3, 4]
    assert told["etag"] == (await client("GET", PATH)).headers["ETag"].strip('"')
    assert [plan["kind"] for plan in plans.values() if isinstance(plan, dict)] == ["SPLIT", "MERGE", "REBUCKET"]

    assert refusal(await client("POST", f"{PATH}/split/9?dryRun=true")) == (404, "not-found")
    assert refusal(await client("POST", f"{PATH}/split/0?ways=65&dryRun=true")) == (412, "cap-reached")
    old = {"If-Match": '"0000000000000000:0"'}
    assert refusal(await client("POST", f"{PATH}/split/0?dryRun=true", headers=old)) == (409, "wrong-state")
    assert await record_of(client) == before


async def test_a_dry_run_of_what_cannot_be_planned_is_refused_and_not_done(client: Client) -> None:
    await client("PUT", PATH)
    before = await record_of(client)
    for method, path in (("DELETE", PATH), ("PUT", f"{PATH}2"), ("PUT", f"{PATH}/subscriptions/s")):
        assert refusal(await client(method, f"{path}?dryRun=true")) == (412, "invalid-argument")
    assert refusal(await client("POST", f"{PATH}/split/0?dryRun=yes")) == (412, "invalid-argument")
    assert await record_of(client) == before
    assert (await client("GET", NAMESPACE)).json() == ["topic://t/n/orders"]


async def test_operations_are_listed_and_what_is_over_cannot_be_aborted(client: Client) -> None:
    await client("PUT", PATH)
    await client("POST", f"{PATH}/split/0?reason=because", headers={"Idempotency-Key": "k"})
    told = (await client("GET", f"{PATH}/operations")).json()
    assert isinstance(told, dict)
    assert (told["running"], told["queued"]) == (None, [])
    assert [one["kind"] for one in told["recent"]] == ["SPLIT", "CREATE"]
    done = told["recent"][0]["id"]
    assert refusal(await client("POST", f"{PATH}/operations/{done}/abort")) == (404, "not-found")
    assert refusal(await client("GET", f"{NAMESPACE}/none/operations")) == (404, "not-found")


async def test_subscriptions(client: Client) -> None:
    await client("PUT", PATH)
    at = f"{PATH}/subscriptions"
    for _ in range(2):
        assert (await client("PUT", f"{at}/early?type=QUEUE&initialPosition=earliest")).status == 204
    assert (await client("PUT", f"{at}/late?initialPosition=latest")).status == 204
    assert refusal(await client("PUT", f"{at}/early?type=STREAM")) == (409, "wrong-state")
    assert refusal(await client("PUT", f"{at}/x?type=ROUND")) == (412, "invalid-argument")
    assert refusal(await client("PUT", f"{at}/x?initialPosition=middle")) == (412, "invalid-argument")
    assert (await client("POST", f"{at}/early/seek?timestamp=1")).status == 204
    assert (await client("POST", f"{at}/early/skip-all")).status == 204
    assert refusal(await client("POST", f"{at}/none/skip-all")) == (404, "not-found")
    assert (await client("DELETE", f"{at}/early")).status == 204
    assert refusal(await client("DELETE", f"{at}/early")) == (404, "not-found")


async def test_two_changes_at_once_are_queued_and_both_are_done(client: Client) -> None:
    await client("PUT", f"{PATH}?numInitialSegments=4")
    answers = await asyncio.gather(*(client("POST", f"{PATH}/split/{number}") for number in range(4)))
    assert [one.status for one in answers] == [204] * 4
    assert (await record_of(client))["epoch"] == 4


async def test_stats_tell_segments_and_subscriptions(client: Client) -> None:
    assert refusal(await client("GET", f"{PATH}/stats")) == (404, "not-found")
    await client("PUT", PATH)
    await client("PUT", f"{PATH}/subscriptions/s")
    await client("POST", f"{PATH}/split/0")
    told = (await client("GET", f"{PATH}/stats")).json()
    assert isinstance(told, dict)
    segments, subscriptions = told.pop("segments"), told.pop("subscriptions")
    assert told == {"epoch": 1, "totalSegments": 3, "activeSegments": 2, "sealedSegments": 1}
    assert segments["0"] == {"name": "segment://t/n/orders/0000-ffff-0", "state": "SEALED"}
    assert subscriptions == {"s": {"consumerCount": 0}}
