"""What /metrics tells, and docs/metrics.md about it."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from aiohttp import web
from aiohttp.test_utils import TestClient, TestServer
from prometheus_client.parser import text_string_to_metric_families

from scalable_topics.metadata.store import StoreHealth
from scalable_topics.model.names import TopicName
from scalable_topics.model.operation import FinishedOperation, OperationKind, Outcome
from scalable_topics.server.daemon import Daemon
from scalable_topics.server.metrics import (
    CATALOGUE,
    METRICS,
    RESERVED,
    ROUTES,
    DaemonMetrics,
    Described,
    Kind,
    OfTopic,
    as_markdown,
)
from tests.control.worlds import ME, PATHS, TOPIC, World, created, daemons
from tests.control.worlds import Daemon as Member
from tests.virtual_time import run_virtual

LABELS = {"cluster": "c", "namespace": "t/n", "topic": "topic://t/n/orders"}
FULL = StoreHealth(version="3.5", used_bytes=90, quota_bytes=100, no_space=False, auto_compaction=True)
Series = dict[tuple[str, frozenset[tuple[str, str]]], float]


def as_daemon(member: Member) -> Daemon:
    """As much of one as metrics read, on virtual time."""
    return cast(
        Daemon,
        SimpleNamespace(
            settings=SimpleNamespace(cluster_name="c", broker_id=member.name),
            paths=PATHS,
            keeper=member.keeper,
            view=member.view,
            elections=member.elections,
            control=member.service,
            monitor=SimpleNamespace(health=FULL),
            owners=SimpleNamespace(serving=[(TOPIC, 0)]),
        ),
    )


@asynccontextmanager
async def measured(*members: Member) -> AsyncIterator[list[DaemonMetrics]]:
    async with AsyncExitStack() as stack:
        yield [await stack.enter_async_context(DaemonMetrics(as_daemon(member)).running()) for member in members]


async def scraped(metrics: DaemonMetrics) -> Series:
    body, _ = await metrics.scrape()
    families = text_string_to_metric_families(body.decode())
    return {(one.name, frozenset(one.labels.items())): one.value for family in families for one in family.samples}


def value(series: Series, name: str, **labels: str) -> float | None:
    return series.get((name, frozenset(labels.items())))


def about_topics(series: Series) -> set[str]:
    return {name for name, _ in series if name.startswith("pulsar_")}


def test_a_topics_series_come_from_its_leader_only_and_vanish_with_leadership() -> None:
    async def lead() -> None:
        world = World()
        async with daemons(world, "a", "b") as members, measured(*members) as both:
            topic = await created(members, segments=2)
            (leads,) = [index for index, member in enumerate(members) if TOPIC in member.elections.led]
            await topic.split({0: 3}, ME)
            await topic.rebucket([1], 8, ME)

            told, silent = await scraped(both[leads]), await scraped(both[1 - leads])
            assert about_topics(told) == {one.name for one in CATALOGUE if one.name.startswith("pulsar_")}
            assert about_topics(silent) == set()
            assert value(told, "pulsar_scalable_topic_active_segments", **LABELS) == 4
            assert value(told, OfTopic.SEALS, **LABELS) == 2
            assert value(told, OfTopic.REBUCKET_ROLLOVERS, **LABELS) == 1
            for never in (OfTopic.AUTO_SPLITS, OfTopic.AUTO_MERGES, OfTopic.SPLIT_SUPPRESSED, OfTopic.MERGE_SUPPRESSED):
                assert value(told, never, **LABELS) == 0
            buckets = {dict(labels)["segment"]: n for (name, labels), n in told.items() if "entry_buckets" in name}
            assert sorted(buckets) == ["2", "3", "4", "5"]
            assert buckets["5"] == 8
            assert value(told, "scalable_topics_operations_total", kind="SPLIT", outcome="DONE") == 1
            assert value(told, "scalable_topics_operations_total", kind="CREATE", outcome="DONE") == 1
            assert value(silent, "scalable_topics_operations_total", kind="SPLIT", outcome="DONE") == 0
            assert value(told, "scalable_topics_controller_failovers_total") == 0

            members[leads].link.cut = True
            async with asyncio.timeout(60):
                while TOPIC not in members[1 - leads].service.controllers:
                    await asyncio.sleep(0.5)
            was, now = await scraped(both[leads]), await scraped(both[1 - leads])
            assert about_topics(was) == set()
            assert value(was, "scalable_topics_leaderships_lost_total") == 1
            assert value(was, "scalable_topics_session_seconds_left") == 0
            assert value(was, "scalable_topics_operations_total", kind="SPLIT", outcome="DONE") == 1, "of the daemon"
            assert value(now, "pulsar_scalable_topic_active_segments", **LABELS) == 4
            assert value(now, OfTopic.SEALS, **LABELS) == 0, "counters of a topic begin anew"
            assert value(now, "scalable_topics_controller_failovers_total") == 1
            assert (value(was, "scalable_topics_watch_stale_seconds") or 0) > 5

    run_virtual(lead())


def test_nothing_is_told_of_a_topic_that_somebody_else_leads_by_the_end_of_a_scrape() -> None:
    """Its controller may be there for a moment longer. And names are written so that they cannot forge a series."""

    async def lose() -> None:
        world = World()
        hostile = TopicName.parse('topic://t/n/a"} 1\nforged{x="\\')
        async with daemons(world, "a") as (member,):
            await created([member])
            await created([member], topic=hostile)
            of = cast(Any, as_daemon(member))
            metrics = DaemonMetrics(of)
            of.elections = SimpleNamespace(led={hostile: member.elections.led[hostile]})
            told = await scraped(metrics)
            assert {dict(labels)["topic"] for name, labels in told if name in about_topics(told)} == {str(hostile)}
            assert value(told, "pulsar_scalable_topic_active_segments", **LABELS | {"topic": str(hostile)}) == 2
            of.elections = SimpleNamespace(led={})
            assert about_topics(await scraped(metrics)) == set()

    run_virtual(lose())


def test_every_end_of_an_operation_is_counted_once() -> None:
    async def count() -> None:
        world = World()
        async with daemons(world, "a") as members, measured(*members) as (metrics,):
            topic = await created(members, segments=1)
            splitting = asyncio.ensure_future(topic.split({0: 2}, ME))
            while topic.executor is None:
                await asyncio.sleep(0)
            assert metrics._values()["scalable_topics_operations_running"] == [((), 1)]
            topic.abort(topic.executor.operation_id, "changed my mind")
            await splitting
            await topic.split({0: 2}, ME)
            await topic.delete(ME)
            ended = {
                (dict(labels)["kind"], dict(labels)["outcome"]): n
                for (name, labels), n in (await scraped(metrics)).items()
                if name == "scalable_topics_operations_total" and n
            }
            assert ended == {
                ("CREATE", "DONE"): 1,
                ("SPLIT", "ABORTED"): 1,
                ("SPLIT", "DONE"): 1,
                ("DELETE", "DONE"): 1,
            }

    run_virtual(count())


def test_a_listener_that_fails_harms_no_operation(caplog: pytest.LogCaptureFixture) -> None:
    async def fail() -> None:
        world = World()
        async with daemons(world, "a") as members:

            def broken(*_: object) -> None:
                raise ValueError("broken")

            members[0].service.listen(broken)
            topic = await created(members, segments=1)
            assert (await topic.split({0: 2}, ME)).outcome is Outcome.DONE

    run_virtual(fail())
    assert "a listener failed" in caplog.text


def test_the_state_of_the_daemon() -> None:
    async def state() -> None:
        world = World()
        async with daemons(world, "a") as members, measured(*members) as (metrics,):
            await created(members)
            await asyncio.sleep(10)
            told = await scraped(metrics)
            assert value(told, "scalable_topics_led_topics") == 1
            assert value(told, "scalable_topics_leaderships_gained_total") == 1
            assert value(told, "scalable_topics_controllers", state="ready") == 1
            assert value(told, "scalable_topics_controllers", state="failed") == 0
            assert value(told, "scalable_topics_segments_served") == 1
            assert 0 < (value(told, "scalable_topics_session_seconds_left") or 0) < 10
            assert value(told, "scalable_topics_watch_revision") == members[0].view.state.revision
            assert value(told, "scalable_topics_store_used_bytes") == 90
            assert value(told, "scalable_topics_store_quota_bytes") == 100
            assert value(told, "scalable_topics_store_nearly_full") == 1
            assert value(told, "scalable_topics_store_no_space") == 0
            assert value(told, "scalable_topics_operations_queued") == 0
            delays = value(told, "scalable_topics_event_loop_delay_seconds_count")
            assert delays is not None
            assert delays > 90

    run_virtual(state())


def test_what_an_autoscaler_tells_is_counted_for_led_topics_only() -> None:
    async def tell() -> None:
        world = World()
        async with daemons(world, "a") as members, measured(*members) as (metrics,):
            metrics.count(TOPIC, OfTopic.AUTO_SPLITS)
            await created(members)
            metrics.count(TOPIC, OfTopic.AUTO_SPLITS, 2)
            assert value(await scraped(metrics), OfTopic.AUTO_SPLITS, **LABELS) == 2

    run_virtual(tell())


def test_a_blocked_loop_is_seen() -> None:
    async def block() -> None:
        world = World()
        async with daemons(world, "a") as members, measured(*members) as (metrics,):
            loop = asyncio.get_running_loop()
            await asyncio.sleep(1)
            loop.jump(3)  # type: ignore[attr-defined]
            await asyncio.sleep(1)
            told = await scraped(metrics)
            name = "scalable_topics_event_loop_delay_seconds"
            late = (value(told, f"{name}_count") or 0) - (value(told, f"{name}_bucket", le="2.5") or 0)
            assert late == 1
            assert value(told, f"{name}_bucket", le="5.0") == value(told, f"{name}_count")

    run_virtual(block())


def test_what_is_told_is_what_is_catalogued() -> None:
    """Names, types and labels, all of them, and nothing beside them but what prometheus-client tells of a process."""

    async def compare() -> None:
        world = World()
        async with daemons(world, "a") as members, measured(*members) as (metrics,):
            await created(members)
            body, content_type = await metrics.scrape()
            assert content_type.startswith("text/plain; version=0.0.4")
            assert b"_created" not in body
            found = {}
            for family in text_string_to_metric_families(body.decode()):
                if not family.name.startswith(("process_", "python_")):
                    name = family.name + ("_total" if family.type == "counter" else "")
                    labels = {frozenset(sample.labels) - {"le"} for sample in family.samples}
                    found[name] = (family.type, labels)
            assert found == {one.name: (one.kind, {frozenset(one.labels)}) for one in CATALOGUE}
            assert b"process_resident_memory_bytes" in body
            openly, content_type = await metrics.scrape("application/openmetrics-text; version=1.0.0")
            assert content_type.startswith("application/openmetrics-text")
            assert openly.endswith(b"# EOF\n")

    run_virtual(compare())


def test_names_are_pip_483s_and_tidy() -> None:
    names = [one.name for one in (*CATALOGUE, *RESERVED)]
    assert len(set(names)) == len(names)
    assert {
        "pulsar_scalable_topic_active_segments",
        "pulsar_scalable_topic_auto_splits_total",
        "pulsar_scalable_topic_auto_merges_total",
        "pulsar_scalable_topic_split_suppressed_max_segments_total",
        "pulsar_scalable_topic_merge_suppressed_max_depth_total",
    } <= {one.name for one in CATALOGUE}
    for one in (*CATALOGUE, *RESERVED):
        assert (one.kind is Kind.COUNTER) is one.name.endswith("_total"), one.name
        assert ("topic" in one.labels) is one.name.startswith("pulsar_scalable_topic_"), one.name
    assert {what.value for what in OfTopic} <= set(names)


@pytest.mark.parametrize("names", [CATALOGUE, RESERVED], ids=["exported", "reserved"])
def test_the_document_has_every_name(names: tuple[Described, ...]) -> None:
    document = (Path(__file__).parents[2] / "docs" / "metrics.md").read_text()
    assert as_markdown(names) in document, "write the tables anew with scalable_topics.server.metrics.as_markdown"


async def test_over_http() -> None:
    """Compressed for whoever takes that, as Prometheus does."""
    told = SimpleNamespace(scrape=lambda accept: _answer(f"x {accept}".encode() + b" " * 2_000))
    app = web.Application()
    app[METRICS] = cast(DaemonMetrics, told)
    app.add_routes(ROUTES)
    async with TestClient(TestServer(app)) as client:
        answer = await client.get("/metrics", headers={"Accept": "text/plain", "Accept-Encoding": "gzip"})
        assert answer.status == 200
        assert answer.headers["Content-Encoding"] == "gzip"
        assert answer.headers["Content-Type"] == "text/plain; version=0.0.4; charset=utf-8"
        assert (await answer.text()).startswith("x text/plain")


async def _answer(body: bytes) -> tuple[bytes, str]:
    return body, "text/plain; version=0.0.4; charset=utf-8"


def test_a_seek_counts_too() -> None:
    operation = FinishedOperation(id="x", kind=OperationKind.SEEK, outcome=Outcome.DONE, finished_at_ms=1)

    async def seek() -> None:
        world = World()
        async with daemons(world, "a") as members, measured(*members) as (metrics,):
            metrics.finished(TOPIC, operation)
            told = await scraped(metrics)
            assert value(told, "scalable_topics_operations_total", kind="SEEK", outcome="DONE") == 1

    run_virtual(seek())
