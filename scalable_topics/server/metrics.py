"""What Prometheus is told, read from the daemon's state when it asks. Nothing here decides anything.

`pulsar_scalable_topic_…` is about one topic and comes from its leader only: its series vanish with the leadership, and
its counters begin at 0 with the next one. `scalable_topics_…` is about this daemon. `CATALOGUE` has them all, and
docs/metrics.md is written from it.

On the event loop a scrape only picks up values that never change; the text, which is long where many topics are led, is
written in a thread.
"""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from enum import StrEnum
from itertools import chain
from types import MappingProxyType
from typing import Final, cast

import msgspec
from aiohttp import web
from msgspec import Struct
from prometheus_client import CollectorRegistry, GCCollector, PlatformCollector, ProcessCollector
from prometheus_client.exposition import choose_encoder
from prometheus_client.metrics_core import HistogramMetricFamily, Metric
from prometheus_client.registry import Collector
from prometheus_client.samples import Sample

from scalable_topics.metadata.leadership import Leadership
from scalable_topics.metadata.patience import keep_running
from scalable_topics.model.entry_buckets import bucket_count
from scalable_topics.model.names import TopicName
from scalable_topics.model.operation import FinishedOperation, OperationKind, Outcome
from scalable_topics.model.record import TopicRecord, TopicState
from scalable_topics.server.auth.middleware import acts
from scalable_topics.server.auth.table import Action
from scalable_topics.server.daemon import Daemon
from scalable_topics.server.keys import DAEMON

SAMPLE_SECONDS: Final = 0.1
"""Between two looks at how late the event loop is. What holds it up for longer than this is always seen."""
TOPICS_AT_ONCE: Final = 1_000
"""Picked up before others get their turn: well below 20 ms."""
DELAY_BUCKETS: Final = (0.001, 0.005, 0.01, 0.02, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
OF_TOPIC: Final = ("cluster", "namespace", "topic")
"""Labels of a topic's series, with the values that Pulsar's own have."""


class Kind(StrEnum):
    GAUGE = "gauge"
    COUNTER = "counter"
    HISTOGRAM = "histogram"


class Described(Struct, frozen=True):
    """One name: what it is and how it is to be read."""

    name: str
    kind: Kind
    labels: tuple[str, ...]
    meaning: str


class OfTopic(StrEnum):
    """What is counted for a topic while it is led here. The first four are PIP-483's, told by the autoscaler."""

    AUTO_SPLITS = "pulsar_scalable_topic_auto_splits_total"
    AUTO_MERGES = "pulsar_scalable_topic_auto_merges_total"
    SPLIT_SUPPRESSED = "pulsar_scalable_topic_split_suppressed_max_segments_total"
    MERGE_SUPPRESSED = "pulsar_scalable_topic_merge_suppressed_max_depth_total"
    REBUCKET_ROLLOVERS = "pulsar_scalable_topic_rebucket_rollovers_total"
    SEALS = "pulsar_scalable_topic_seals_total"


_ACTIVE_SEGMENTS: Final = "pulsar_scalable_topic_active_segments"
_ENTRY_BUCKETS: Final = "pulsar_scalable_topic_segment_entry_buckets"
_LOOP_DELAY: Final = "scalable_topics_event_loop_delay_seconds"

CATALOGUE: Final = (
    Described(_ACTIVE_SEGMENTS, Kind.GAUGE, OF_TOPIC, "Segments that accept messages (PIP-483)."),
    Described(OfTopic.AUTO_SPLITS, Kind.COUNTER, OF_TOPIC, "Splits that the autoscaler has done (PIP-483)."),
    Described(OfTopic.AUTO_MERGES, Kind.COUNTER, OF_TOPIC, "Merges that the autoscaler has done (PIP-483)."),
    Described(
        OfTopic.SPLIT_SUPPRESSED,
        Kind.COUNTER,
        OF_TOPIC,
        "Automatic splits that were wanted and not done, because the topic has maxSegments (PIP-483).",
    ),
    Described(
        OfTopic.MERGE_SUPPRESSED,
        Kind.COUNTER,
        OF_TOPIC,
        "Automatic merges that were wanted and not done, because the lineage is at maxDagDepth (PIP-483).",
    ),
    Described(
        OfTopic.REBUCKET_ROLLOVERS,
        Kind.COUNTER,
        OF_TOPIC,
        "Finished changes of bucket counts. Often: the bucket budget does not suit the load (PIP-486).",
    ),
    Described(OfTopic.SEALS, Kind.COUNTER, OF_TOPIC, "Segments sealed by finished operations of any kind (PIP-460)."),
    Described(_ENTRY_BUCKETS, Kind.GAUGE, (*OF_TOPIC, "segment"), "Entry buckets N of an active segment (PIP-486)."),
    Described(
        "scalable_topics_operations_total",
        Kind.COUNTER,
        ("kind", "outcome"),
        "Operations that ended under a leadership of this daemon: splits, merges, seeks and the others.",
    ),
    Described("scalable_topics_operations_running", Kind.GAUGE, (), "Operations under way on this daemon."),
    Described("scalable_topics_operations_queued", Kind.GAUGE, (), "Changes that wait for their turn, all topics."),
    Described("scalable_topics_led_topics", Kind.GAUGE, (), "Topics that this daemon leads."),
    Described(
        "scalable_topics_controllers",
        Kind.GAUGE,
        ("state",),
        "Of the led topics: `ready`, `starting`, or `failed` (does not start; /health/ready says why).",
    ),
    Described("scalable_topics_leaderships_gained_total", Kind.COUNTER, (), "Elections that this daemon has won."),
    Described("scalable_topics_leaderships_lost_total", Kind.COUNTER, (), "Leaderships that ended, for any reason."),
    Described(
        "scalable_topics_controller_failovers_total",
        Kind.COUNTER,
        (),
        "Gained leaderships of topics that another leader, or an earlier life of this one, had led (PIP-460).",
    ),
    Described("scalable_topics_segments_served", Kind.GAUGE, (), "Embedded segments that this daemon serves."),
    Described(
        "scalable_topics_session_seconds_left",
        Kind.GAUGE,
        (),
        "How long this daemon believes in its session without another renewal; 0 = it has none and leads nothing.",
    ),
    Described(
        "scalable_topics_watch_stale_seconds",
        Kind.GAUGE,
        (),
        "Since the store was last heard of. Seconds while all is well, above 30 when the store is away.",
    ),
    Described(
        "scalable_topics_watch_revision",
        Kind.GAUGE,
        (),
        "Revision of the store up to which this daemon has heard: compare daemons for their lag.",
    ),
    Described("scalable_topics_store_used_bytes", Kind.GAUGE, (), "Size of the metadata store, as it last said."),
    Described("scalable_topics_store_quota_bytes", Kind.GAUGE, (), "Its quota; absent when it does not tell."),
    Described("scalable_topics_store_no_space", Kind.GAUGE, (), "1 = it refuses writes until somebody makes room."),
    Described(
        "scalable_topics_store_nearly_full", Kind.GAUGE, (), "1 = from 80 % of the quota on: automatic operations stop."
    ),
    Described(
        _LOOP_DELAY,
        Kind.HISTOGRAM,
        (),
        f"How late the event loop is, looked at every {SAMPLE_SECONDS:g} s. Above 0.02: something blocks it.",
    ),
)

RESERVED: Final = (
    Described(
        "pulsar_scalable_topic_segment_sharers",
        Kind.GAUGE,
        (*OF_TOPIC, "subscription", "segment"),
        "Consumers that share the segment (PIP-486).",
    ),
    Described(
        "pulsar_scalable_topic_segment_bucket_reassignments_total",
        Kind.COUNTER,
        (*OF_TOPIC, "subscription", "segment"),
        "Buckets that went from one consumer to another (PIP-486).",
    ),
    Described(
        "pulsar_scalable_topic_segment_buckets_withheld",
        Kind.GAUGE,
        (*OF_TOPIC, "subscription", "segment"),
        "Buckets that nobody gets until their former owner has acknowledged. Stays above 0: stuck (PIP-486).",
    ),
    Described(
        "pulsar_scalable_topic_segment_drain_mode",
        Kind.GAUGE,
        (*OF_TOPIC, "subscription", "segment"),
        "1 = a sealed segment's backlog is shared while it lasts. Stays 1: it does not clear (PIP-486).",
    ),
    Described(
        "pulsar_scalable_topic_rebalances_total",
        Kind.COUNTER,
        (*OF_TOPIC, "subscription"),
        "Assignments that gave a consumer other segments than before (PIP-460).",
    ),
)
"""Names of what is counted by parts that are not built yet. They are not exported: no series says "not known", 0 would
say "none".
"""


class _StateOnly(Struct):
    """As little of a record as tells whether it had a leader before."""

    state: TopicState


class _LedTopic(Struct, frozen=True, gc=False):
    """One led topic at the time of a scrape."""

    topic: TopicName
    record: TopicRecord
    counts: Mapping[OfTopic, int]


_Rows = Sequence[tuple[Sequence[str], float]]
_NOTHING: Final[Mapping[OfTopic, int]] = MappingProxyType({})
_OPEN_METRICS_END: Final = b"# EOF\n"
_state: Final = msgspec.json.Decoder(_StateOnly)


class LoopDelay:
    """How late the event loop was, as a histogram."""

    def __init__(self) -> None:
        self._counts = [0] * (len(DELAY_BUCKETS) + 1)
        self._sum = 0.0

    def observe(self, seconds: float) -> None:
        self._sum += seconds
        self._counts[sum(seconds > bound for bound in DELAY_BUCKETS)] += 1

    def family(self, described: Described) -> Metric:
        bounds = [*map(str, DELAY_BUCKETS), "+Inf"]
        reached = [sum(self._counts[: index + 1]) for index in range(len(bounds))]
        buckets: Sequence[tuple[str, float]] = list(zip(bounds, reached, strict=True))
        return HistogramMetricFamily(described.name, described.meaning, buckets=buckets, sum_value=self._sum)


class DaemonMetrics:
    """Counts what passes, and answers scrapes. To be kept `running`, beside a running daemon."""

    def __init__(self, of: Daemon) -> None:
        self.registry = CollectorRegistry()
        """What is known of the process, under the names that all of prometheus-client's users have."""
        ProcessCollector(registry=self.registry)
        PlatformCollector(registry=self.registry)
        GCCollector(registry=self.registry)
        self.delay = LoopDelay()
        self._of = of
        self._operations = Counter[tuple[OperationKind, Outcome]]()
        self._by_topic: dict[TopicName, Counter[OfTopic]] = {}
        self._gained = 0
        self._lost = 0
        self._failovers = 0
        self._scraping = asyncio.Lock()

    @asynccontextmanager
    async def running(self) -> AsyncIterator["DaemonMetrics"]:
        ends = [self._of.elections.listen(self), self._of.control.listen(self.finished)]
        for leadership in self._of.elections.led.values():
            self.gained(leadership)
        name = "event-loop delay"
        try:
            async with asyncio.TaskGroup() as tasks:
                sampling = tasks.create_task(keep_running(self._sample_for_ever, name=name), name=name)
                try:
                    yield self
                finally:
                    sampling.cancel()
        finally:
            for end in ends:
                end()

    def gained(self, leadership: Leadership) -> None:
        self._gained += 1
        self._failovers += self._was_led_before(leadership.topic)
        self._by_topic[leadership.topic] = Counter()

    def lost(self, leadership: Leadership) -> None:
        self._lost += 1
        self._by_topic.pop(leadership.topic, None)

    def finished(self, topic: TopicName, operation: FinishedOperation) -> None:
        self._operations[operation.kind, operation.outcome] += 1
        if operation.outcome is Outcome.DONE:
            self.count(topic, OfTopic.SEALS, len(operation.parents))
            self.count(topic, OfTopic.REBUCKET_ROLLOVERS, operation.kind is OperationKind.REBUCKET)

    def count(self, topic: TopicName, what: OfTopic, times: int = 1) -> None:
        """Counts nothing for a topic that is not led here."""
        counts = self._by_topic.get(topic)
        if counts is not None:
            counts[what] += times

    async def scrape(self, accept: str = "") -> tuple[bytes, str]:
        """All there is to tell, and its content type: OpenMetrics for whoever accepts it, else Prometheus' text."""
        encode, content_type = choose_encoder(accept)
        async with self._scraping:
            scrape = _Scrape(self._families(), await self._led_topics(), self._of.settings.cluster_name, self.registry)
            return await asyncio.to_thread(_written, scrape, encode), content_type

    async def _led_topics(self) -> list[_LedTopic]:
        """With a look at the end at what is still led: nothing is told of a topic that has another leader by then."""
        found: list[_LedTopic] = []
        for index, (topic, controller) in enumerate(list(self._of.control.controllers.items())):
            counts = self._by_topic.get(topic)
            found.append(_LedTopic(topic, controller.record, dict(counts) if counts else _NOTHING))
            if index % TOPICS_AT_ONCE == TOPICS_AT_ONCE - 1:
                await asyncio.sleep(0)
        led = self._of.elections.led
        return [one for one in found if one.topic in led]

    def _families(self) -> list[Metric]:
        """Of the daemon."""
        values = self._values()
        told: list[Metric] = []
        for described in CATALOGUE:
            if described.name in values:
                told.append(_family(described, values[described.name]))
            elif described.name == _LOOP_DELAY:
                told.append(self.delay.family(described))
        return told

    def _values(self) -> dict[str, _Rows]:
        of = self._of
        led, controllers, failed = of.elections.led, of.control.controllers, of.control.failures.keys()
        session, health = of.keeper.session, of.monitor.health
        ready = sum(one.ready for topic, one in controllers.items() if topic in led)
        failing = len(failed & led.keys())
        states = {"ready": ready, "failed": failing, "starting": max(0, len(led) - ready - failing)}
        values: dict[str, _Rows] = {
            "scalable_topics_operations_total": [
                ((kind, outcome), self._operations[kind, outcome]) for kind in OperationKind for outcome in Outcome
            ],
            "scalable_topics_controllers": [((state,), count) for state, count in states.items()],
        }
        plain: dict[str, float | None] = {
            "scalable_topics_operations_running": sum(one.executor is not None for one in controllers.values()),
            "scalable_topics_operations_queued": sum(len(one.queued) for one in controllers.values()),
            "scalable_topics_led_topics": len(led),
            "scalable_topics_leaderships_gained_total": self._gained,
            "scalable_topics_leaderships_lost_total": self._lost,
            "scalable_topics_controller_failovers_total": self._failovers,
            "scalable_topics_segments_served": len(of.owners.serving),
            "scalable_topics_session_seconds_left": session.seconds_left() if session is not None else 0,
            "scalable_topics_watch_stale_seconds": of.view.stale_seconds,
            "scalable_topics_watch_revision": of.view.state.revision,
            "scalable_topics_store_used_bytes": health.used_bytes if health is not None else None,
            "scalable_topics_store_quota_bytes": health.quota_bytes if health is not None else None,
            "scalable_topics_store_no_space": health.no_space if health is not None else None,
            "scalable_topics_store_nearly_full": health.nearly_full if health is not None else None,
        }
        return values | {name: [] if value is None else [((), value)] for name, value in plain.items()}

    def _was_led_before(self, topic: TopicName) -> bool:
        """A topic that is still being made has its first leader."""
        record = self._of.view.state.items.get(self._of.paths.record(topic))
        try:
            return record is not None and _state.decode(record.value).state is not TopicState.CREATING
        except msgspec.MsgspecError:
            return False

    async def _sample_for_ever(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            due = loop.time() + SAMPLE_SECONDS
            await asyncio.sleep(SAMPLE_SECONDS)
            self.delay.observe(max(0.0, loop.time() - due))


class _Scrape:
    """One scrape, written out in a thread: it holds nothing that changes."""

    def __init__(
        self, of_daemon: Iterable[Metric], topics: Sequence[_LedTopic], cluster: str, registry: CollectorRegistry
    ) -> None:
        self._of_daemon = of_daemon
        self._topics = topics
        self._cluster = cluster
        self._registry = registry

    def families(self) -> Iterator[Metric]:
        for described in CATALOGUE:
            rows = self._rows_of(described.name)
            if rows is not None:
                yield _family(described, chain.from_iterable(map(rows, self._topics)))
        yield from self._of_daemon
        yield from self._registry.collect()

    def _rows_of(self, name: str) -> Callable[[_LedTopic], _Rows] | None:
        if name == _ACTIVE_SEGMENTS:
            return lambda one: [(self._labels(one.topic), len(one.record.layout.active))]
        if name == _ENTRY_BUCKETS:
            return self._entry_buckets
        if name in set(OfTopic):
            return lambda one: [(self._labels(one.topic), one.counts.get(OfTopic(name), 0))]
        return None

    def _entry_buckets(self, one: _LedTopic) -> _Rows:
        labels = self._labels(one.topic)
        return [
            ((*labels, str(segment.segment_id)), bucket_count(segment.entry_buckets))
            for segment in one.record.layout.active
        ]

    def _labels(self, topic: TopicName) -> tuple[str, str, str]:
        return self._cluster, f"{topic.tenant}/{topic.namespace}", str(topic)


class _One(Collector):
    def __init__(self, family: Metric) -> None:
        self._family = family

    def collect(self) -> Iterator[Metric]:
        yield self._family


def _written(scrape: _Scrape, encode: Callable[[Collector], bytes]) -> bytes:
    """Family by family: one join of the whole text would keep everybody else from running for too long."""
    parts = [encode(_One(family)).removesuffix(_OPEN_METRICS_END) for family in scrape.families()]
    end = encode(CollectorRegistry())  # of nothing: how a text of this format ends
    return b"".join((*parts, end))


def _family(described: Described, rows: Iterable[tuple[Sequence[str], float]]) -> Metric:
    """Its samples are made while they are written: a long list of them would keep the garbage collector busy, and with
    it the event loop.
    """
    name, labels = described.name, described.labels
    family = Metric(name.removesuffix("_total"), described.meaning, described.kind)
    samples = (Sample(name, dict(zip(labels, values, strict=True)), value) for values, value in rows)
    family.samples = cast("list[Sample]", samples)  # walked through once
    return family


def as_markdown(names: Iterable[Described]) -> str:
    """The table of docs/metrics.md."""
    lines = ["| name | type | labels | meaning |", "|---|---|---|---|"]
    for one in names:
        labels = ", ".join(f"`{label}`" for label in one.labels)
        lines.append(f"| `{one.name}` | {one.kind} | {labels} | {one.meaning} |")
    return "\n".join(lines) + "\n"


METRICS: Final = web.AppKey("metrics", DaemonMetrics)


def install(app: web.Application) -> None:
    """What `ROUTES` needs, for as long as the application runs. To be called when its daemon is known."""
    app[METRICS] = DaemonMetrics(app[DAEMON])
    app.cleanup_ctx.append(_keep_running)


async def _keep_running(app: web.Application) -> AsyncIterator[None]:
    async with app[METRICS].running():
        yield


@acts(Action.READ_METRICS)
async def read_metrics(request: web.Request) -> web.Response:
    body, content_type = await request.app[METRICS].scrape(request.headers.get("Accept", ""))
    response = web.Response(body=body, headers={"Content-Type": content_type})
    response.enable_compression()
    return response


ROUTES: Final = (web.get("/metrics", read_metrics, allow_head=False),)
