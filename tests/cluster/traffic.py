"""Writers and readers over HTTP, and the history of what they were told."""

import asyncio
import base64
from typing import Any

from msgspec import Struct, field

from scalable_topics.model.hash_range import HashRange
from scalable_topics.model.hashing import raw_hash, segment_hash
from scalable_topics.model.names import TopicName
from tests.cluster.harness import Cluster

KEYS = 5
PAUSE_SECONDS = 0.02
REPEATED = 3
"""Every so many-th message is sent once more after its answer, as if that had been lost."""

Word = tuple[str, int]
"""Producer and sequence."""
Place = tuple[int, int]
"""Segment and entry."""


class History(Struct):
    acknowledged: dict[Word, str] = field(default_factory=dict)
    """And their keys, in the order of their acknowledgement."""
    delivered: dict[str, list[tuple[Word, str, Place]]] = field(default_factory=dict)
    """By subscription, in order; repetitions too."""

    def problems(self) -> list[str]:
        """What must never happen, and did."""
        found = []
        for name, deliveries in self.delivered.items():
            places: dict[Word, set[Place]] = {}
            for word, _, place in deliveries:
                places.setdefault(word, set()).add(place)
            found += [f"{word} is stored twice: {sorted(at)}" for word, at in places.items() if len(at) > 1]
            first = list(dict.fromkeys((word, key) for word, key, _ in deliveries))
            lost = self.acknowledged.keys() - places.keys()
            if lost:
                found.append(f"{name} never got {len(lost)} acknowledged messages, such as {sorted(lost)[:3]}")
            last: dict[tuple[str, str], int] = {}
            for (producer, sequence), key in first:
                if sequence < last.get((producer, key), -1):
                    found.append(f"{name} got {producer} {sequence} of {key} after {last[producer, key]}")
                last[producer, key] = max(sequence, last.get((producer, key), -1))
        return found


def admin_path(topic: TopicName) -> str:
    return f"/admin/v2/scalable/{topic.tenant}/{topic.namespace}/{topic.local}"


def segment_path(topic: TopicName, segment_id: int, what: str, incarnation: str) -> str:
    name = f"{topic.tenant}/{topic.namespace}/{topic.local}"
    return f"/segments/{name}/{segment_id}/{what}?incarnation={incarnation}"


async def read_topic(c: Cluster, topic: TopicName) -> dict[str, Any] | None:
    answer = await c.ask("GET", admin_path(topic))
    if answer.status == 404:
        return None
    assert answer.status == 200, answer
    found = answer.json()
    assert isinstance(found, dict)
    return found


async def make_topic(c: Cluster, topic: TopicName, *, segments: int = 1) -> str:
    """Its incarnation."""
    key = {"Idempotency-Key": f"make {topic}"}  # asked again if the answer is late
    answer = await c.ask("PUT", f"{admin_path(topic)}?segments={segments}", headers=key)
    assert answer.status == 204, answer
    record = await read_topic(c, topic)
    assert record is not None
    return str(record["incarnation"])


class TopicGone(Exception):
    pass


class Writer:
    """Sends one message after the other, each until it is acknowledged, some of them twice; follows terminated
    segments to the children that their owners announce.
    """

    def __init__(self, c: Cluster, topic: TopicName, name: str, history: History) -> None:
        self.c = c
        self.topic = topic
        self.name = name
        self.history = history
        self.sent = 0
        self.followed = 0
        """How often it was told of announced children."""
        self._incarnation = ""
        self._routes: dict[int, HashRange] = {}
        self._owners: dict[int, str] = {}

    async def run(self) -> None:
        """Until it is cancelled, or the topic is gone."""
        try:
            while True:
                await self.send()
                await asyncio.sleep(PAUSE_SECONDS)
        except TopicGone:
            return

    async def send(self) -> None:
        sequence = self.sent
        key = f"{self.name}-{sequence % KEYS}"
        payload = base64.b64encode(f"{self.name} {sequence}".encode()).decode()
        message = {"payload": payload, "producer": self.name, "sequence": sequence, "key": key}
        for _ in range(2 if sequence % REPEATED == 0 else 1):
            while not await self._offer(key, {"messages": [message]}):
                pass
        self.history.acknowledged[self.name, sequence] = key
        self.sent += 1

    async def _offer(self, key: str, body: object) -> bool:
        if not self._routes:
            await self._learn()
        place = segment_hash(raw_hash(key))
        segment_id = next(each for each, covered in self._routes.items() if place in covered)
        path = segment_path(self.topic, segment_id, "append", self._incarnation)
        answer = await self.c.ask("POST", path, body=body, first=self._owners.get(segment_id, ""))
        if answer.status == 200:
            self._owners[segment_id] = answer.url
            return True
        if answer.reason == "terminated":
            await self._follow(segment_id, answer.json())
        elif answer.status in {404, 409, 412}:
            await asyncio.sleep(PAUSE_SECONDS)
            await self._learn()
        else:
            raise AssertionError(f"append to {path} was answered {answer}")
        return False

    async def _follow(self, segment_id: int, told: Any) -> None:
        if not told.get("children"):
            await asyncio.sleep(PAUSE_SECONDS)
            await self._learn()
            return
        self.followed += 1
        del self._routes[segment_id]
        for child in told["children"]:
            covered = HashRange(child["hashRange"]["start"], child["hashRange"]["end"])
            self._routes[child["segmentId"]] = covered
            self._owners[child["segmentId"]] = child["webUrl"] or ""
        # The other parent of a merge is asked first as long as it does not say so itself: it has the lower id.
        self._routes = dict(sorted(self._routes.items()))

    async def _learn(self) -> None:
        record = await read_topic(self.c, self.topic)
        if record is None or record["incarnation"] != (self._incarnation or record["incarnation"]):
            raise TopicGone
        self._incarnation = record["incarnation"]
        self._routes = {
            int(segment_id): HashRange(one["hashRange"]["start"], one["hashRange"]["end"])
            for segment_id, one in record["segments"].items()
            if one["state"] == "ACTIVE"
        }


class Reader:
    """Reads every segment of a subscription in the order of the DAG: nothing of a child before its parents are
    drained.
    """

    def __init__(self, c: Cluster, topic: TopicName, subscription: str, history: History) -> None:
        self.c = c
        self.topic = topic
        self.subscription = subscription
        self.history = history
        self._drained: set[int] = set()
        self._got = history.delivered.setdefault(subscription, [])

    async def run(self) -> None:
        """Until it is cancelled, or the topic is gone."""
        while await self.read_round() is not None:
            await asyncio.sleep(PAUSE_SECONDS)

    async def read_round(self) -> int | None:
        """How many deliveries; None = there is no topic."""
        record = await read_topic(self.c, self.topic)
        if record is None:
            return None
        listed = {int(segment_id): one for segment_id, one in record["segments"].items()}
        before = len(self._got)
        for segment_id in sorted(listed):
            parents = set(_ids(listed[segment_id]["parentIds"])) & listed.keys()
            if parents <= self._drained and segment_id not in self._drained:
                await self._read(segment_id, record["incarnation"])
        return len(self._got) - before

    async def _read(self, segment_id: int, incarnation: str) -> None:
        def path(what: str) -> str:
            return segment_path(self.topic, segment_id, what, incarnation)

        described = await self.c.ask("GET", path("describe"))
        if described.status == 404:
            return  # the record that we read is older than this
        facts: Any = described.json()
        cursor = facts["subscriptions"].get(self.subscription)
        if cursor is None:
            return
        mark = cursor["markDelete"]
        if facts["terminated"] is not None and mark >= facts["terminated"]:
            self._drained.add(segment_id)
            return
        answer = await self.c.ask("GET", f"{path('read')}&from=0:{mark[1] + 1}&max=1000")
        if answer.status != 200:
            return
        read: Any = answer.json()
        for entry in read["entries"]:
            message = entry["message"]
            if message["producer"] != "probe":
                word = message["producer"], message["sequence"]
                self._got.append((word, message["key"], (segment_id, entry["position"][1])))
        if read["entries"]:
            through = read["entries"][-1]["position"]
            await self.c.ask("POST", path("ack"), body={"subscription": self.subscription, "through": through})


def _ids(runs: list[Any]) -> list[int]:
    """Runs of consecutive ids are written as pairs."""
    ids: list[int] = []
    for run in runs:
        ids += range(run[0], run[1] + 1) if isinstance(run, list) else [run]
    return ids
