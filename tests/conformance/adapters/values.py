"""Verbs about values: ranges, hashes, buckets, names, ids, checkpoints, routes, statistics."""

from typing import Any

from scalable_topics.model import entry_buckets, hashing
from scalable_topics.model.hash_range import FULL_RANGE, HashRange
from scalable_topics.model.names import (
    SegmentName,
    TopicName,
    client_topic,
    descriptor_of,
    inner_producer_name,
    outer_producer_name,
    parse_name,
    topic_list_hash,
)
from scalable_topics.model.positions import EARLIEST, LATEST, Checkpoint, MessageId, Sentinel
from scalable_topics.model.segment import CreatedBy, new_segment, segment_address
from scalable_topics.model.subscription import SubscriptionType
from scalable_topics.policy import routing, stats
from scalable_topics.policy.frame_order import AssignmentAge, LayoutAge, is_current
from scalable_topics.policy.property_index import topics_with
from tests.conformance.runner import Answer, Given, Keyed, runs


def as_range(pair: list[int]) -> HashRange:
    return HashRange(*pair)


def as_pair(hash_range: HashRange) -> list[int]:
    return [hash_range.start, hash_range.end]


@runs("HashRange", "full")
def _(_given: Given) -> Answer:
    return {"range": as_pair(FULL_RANGE), "size": FULL_RANGE.size}


@runs("HashRange", "construct")
def _(given: Given) -> Answer:
    hash_range = as_range(given["range"])
    return {"range": as_pair(hash_range), "size": hash_range.size}


@runs("HashRange", "contains")
def _(given: Given) -> Answer:
    return {"result": [hash_value in as_range(given["range"]) for hash_value in given["hashes"]]}


@runs("HashRange", "containsRange")
def _(given: Given) -> Answer:
    return {"result": as_range(given["range"]).covers(as_range(given["other"]))}


@runs("HashRange", "split")
def _(given: Given) -> Answer:
    left, right = as_range(given["range"]).split()
    return {"left": as_pair(left), "right": as_pair(right)}


@runs("HashRange", "merge")
def _(given: Given) -> Answer:
    return {"range": as_pair(as_range(given["a"]).merge(as_range(given["b"])))}


@runs("HashRange", "isAdjacent")
def _(given: Given) -> Answer:
    return {"result": [as_range(a).is_adjacent_to(as_range(b)) for a, b in given["pairs"]]}


@runs("HashRange", "toText")
def _(given: Given) -> Answer:
    hash_range = as_range(given["range"])
    return {"hex": hash_range.hex, "display": str(hash_range)}


@runs("HashRange", "parse")
def _(given: Given) -> Answer:
    return {"range": as_pair(HashRange.parse(given["text"]))}


@runs("HashRange", "compare")
def _(given: Given) -> Answer:
    a, b = as_range(given["a"]), as_range(given["b"])
    return {"result": (a > b) - (a < b)}


@runs("hash", "hash")
def _(given: Given) -> Answer:
    raw = hashing.raw_hash(given["key"])
    return {
        "raw": raw,
        "rawHex": f"{raw:08x}",
        "segmentHash": hashing.segment_hash(raw),
        "bucketHash": hashing.bucket_hash(raw),
        "legacyMod": Keyed({str(count): hashing.legacy_partition(raw, count) for count in given["partitions"]}),
    }


@runs("EntryBucketSplits", "equalWidth")
def _(given: Given) -> Answer:
    return {"splits": [entry_buckets.equal_width_splits(count) for count in given["bucketCounts"]]}


@runs("EntryBucketSplits", "forBudget")
def _(given: Given) -> Answer:
    return {"bucketCounts": [entry_buckets.count_for_budget(*pair) for pair in given["budgetAndSegments"]]}


@runs("EntryBucketSplits", "ranges")
def _(given: Given) -> Answer:
    return {"ranges": [as_pair(part) for part in entry_buckets.bucket_ranges(tuple(given["splits"]))]}


@runs("EntryBucketSplits", "bucketOf")
def _(given: Given) -> Answer:
    return {"buckets": [entry_buckets.bucket_of(tuple(given["splits"]), value) for value in given["hashes"]]}


@runs("EntryBucketSplits", "validate")
def _(given: Given) -> Answer:
    return {"bucketCount": entry_buckets.validate_splits(tuple(given["splits"]))}


@runs("SegmentTopicName", "build")
def _(given: Given) -> Answer:
    return {"name": str(SegmentName(TopicName.parse(given["parent"]), as_range(given["range"]), given["id"]))}


@runs("SegmentTopicName", "parent")
def _(given: Given) -> Answer:
    return {"parent": str(SegmentName.parse(given["name"]).parent)}


@runs("SegmentTopicName", "descriptor")
def _(given: Given) -> Answer:
    return {"descriptor": descriptor_of(as_range(given["range"]), given["id"])}


@runs("SegmentTopicName", "parse")
def _(given: Given) -> Answer:
    name = parse_name(given["name"])
    if isinstance(name, TopicName):
        return {"domain": name.domain.value, "local": name.local, "descriptor": None, "segmentId": -1, "range": None}
    return {
        "domain": name.domain.value,
        "local": name.parent.local,
        "descriptor": name.descriptor,
        "segmentId": name.segment_id,
        "range": as_pair(name.hash_range),
    }


@runs("SegmentTopicName", "encode")
def _(given: Given) -> Answer:
    return {"encoded": parse_name(given["name"]).storage_name}


@runs("SegmentTopicName", "decode")
def _(given: Given) -> Answer:
    return {"name": str(SegmentName.decode(given["encoded"]))}


@runs("SegmentTopicName", "schema")
def _(given: Given) -> Answer:
    return {"schema": parse_name(given["name"]).schema_name}


@runs("SegmentTopicName", "flags")
def _(given: Given) -> Answer:
    name = parse_name(given["name"])
    return {"persistent": name.is_persistent, "scalable": name.is_scalable}


@runs("SegmentTopicName", "toScalable")
def _(given: Given) -> Answer:
    return {"name": str(TopicName.parse(given["name"]).to_scalable())}


@runs("ClientTopicInput", "normalize")
def _(given: Given) -> Answer:
    return {"topic": str(client_topic(given["input"]))}


@runs("TopicListHash", "hash")
def _(given: Given) -> Answer:
    return {"hash": topic_list_hash(given["names"])}


def as_message_id(fields: Given) -> MessageId:
    vector = {int(segment): tuple(position) for segment, position in fields.get("vector", {}).items()}
    return MessageId(fields["segment"], tuple(fields["id"]), vector)


@runs("MessageId", "compare")
def _(given: Given) -> Answer:
    a, b = as_message_id(given["a"]), as_message_id(given["b"])
    return {"result": (a > b) - (a < b)}


@runs("MessageId", "equal")
def _(given: Given) -> Answer:
    return {"result": as_message_id(given["a"]) == as_message_id(given["b"])}


@runs("MessageId", "roundTrip")
def _(given: Given) -> Answer:
    decoded = MessageId.decode(as_message_id(given["messageId"]).encode())
    vector = Keyed({str(segment): position for segment, position in decoded.vector.items()})
    return {"messageId": {"segment": decoded.segment_id, "id": decoded.position, "vector": vector}}


@runs("MessageId", "decode")
def _(given: Given) -> Answer:
    decoded = MessageId.decode(bytes.fromhex(given["bytesHex"]))
    return {"messageId": {"segment": decoded.segment_id, "id": decoded.position}}


@runs("MessageId", "sentinel")
def _(given: Given) -> Answer:
    sentinel = {Sentinel.EARLIEST: EARLIEST, Sentinel.LATEST: LATEST}[Sentinel(given["sentinel"])]
    return {"segment": sentinel.segment_id}


def as_checkpoint(given: Any) -> Checkpoint:
    if isinstance(given, str):
        return Checkpoint(Sentinel(given))
    return Checkpoint({int(segment): tuple(at) if isinstance(at, list) else at for segment, at in given.items()})


def checkpoint_json(checkpoint: Checkpoint) -> Any:
    if isinstance(checkpoint.positions, Sentinel):
        return checkpoint.positions.value
    return Keyed({str(segment): position for segment, position in checkpoint.positions.items()})


@runs("Checkpoint", "roundTrip")
def _(given: Given) -> Answer:
    return {"checkpoint": checkpoint_json(Checkpoint.decode(as_checkpoint(given["checkpoint"]).encode()))}


@runs("Checkpoint", "decode")
def _(given: Given) -> Answer:
    return {"checkpoint": checkpoint_json(Checkpoint.decode(bytes.fromhex(given["bytesHex"])))}


@runs("Checkpoint", "resume")
def _(given: Given) -> Answer:
    resumption = as_checkpoint(given["checkpoint"]).resume(given["segmentIds"])
    start = {str(k): at.value.lower() if isinstance(at, Sentinel) else at for k, at in resumption.start.items()}
    return {"start": Keyed(start), "skipped": resumption.skipped}


@runs("ClientLayout", "address")
def _(given: Given) -> Answer:
    segment_id, start, end = given["segment"]
    legacy = given["legacyTopicName"]
    created_by = CreatedBy.LEGACY if legacy else CreatedBy.INITIAL
    segment = new_segment(
        segment_id,
        HashRange(start, end),
        created_by=created_by,
        epoch=0,
        at_ms=0,
        buckets=1,
        legacy_topic_name=legacy,
    )
    return {"address": segment_address(TopicName.parse(given["topic"]), segment, incarnation="0" * 16).logical}


def accepted(given: Given, age: Any) -> Answer:
    newest = None if given["current"] is None else age(given["current"])
    answers = []
    for frame in given["arriving"]:
        arriving = age(frame)
        answers.append(is_current(arriving, newest))
        if answers[-1]:
            newest = arriving
    return {"accepted": answers}


@runs("ClientLayout", "acceptLayouts")
def _(given: Given) -> Answer:
    return accepted(given, lambda frame: LayoutAge(frame[0], frame[2]))


@runs("ClientLayout", "acceptAssignments")
def _(given: Given) -> Answer:
    return accepted(given, lambda frame: AssignmentAge(*frame))


@runs("Router", "route")
def _(given: Given) -> Answer:
    routes = [routing.Route(start, end, key, key in given["legacy"]) for key, start, end in given["segments"]]
    router = routing.Router(routes)
    turn = 0
    segment_ids = []
    for key in given["keys"]:
        if key is None:
            segment_ids.append(router.route_keyless(turn))
            turn += 1
        else:
            segment_ids.append(router.route(key))
    return {"segmentIds": segment_ids}


@runs("Router", "bucket")
def _(given: Given) -> Answer:
    hashes = [routing.message_bucket_hash(key, ordering_key) for key, ordering_key in given["messages"]]
    splits = tuple(given["splits"])
    return {"bucketHashes": hashes, "buckets": [entry_buckets.bucket_of(splits, value) for value in hashes]}


@runs("Producer", "batch")
def _(given: Given) -> Answer:
    batches = routing.bucket_batches(tuple(given["splits"]), given["hashes"])
    return {"batches": [[batch.hash_min, batch.hash_max] for batch in batches]}


@runs("Producer", "configure")
def _(given: Given) -> Answer:
    batches = routing.batches_by_bucket(batching=given["batching"], encryption=given["encryption"])
    return {"batching": batches, "bucketBatcher": batches}


@runs("Producer", "innerName")
def _(given: Given) -> Answer:
    return {"name": inner_producer_name(given["name"], given["segmentId"])}


@runs("Stats", "stripSuffix")
def _(given: Given) -> Answer:
    return {"names": [None if name is None else outer_producer_name(name, at) for name, at in given["producers"]]}


@runs("Stats", "aggregate")
def _(given: Given) -> Answer:
    parts = (
        stats.SegmentTotals(part["msgRateIn"], part["bytesRateIn"], part["storageSize"], part["backlogSize"])
        for part in given["segmentStats"].values()
    )
    totals = stats.total(parts)
    return {
        "msgRateIn": totals.msg_rate_in,
        "bytesRateIn": totals.bytes_rate_in,
        "storageSize": totals.storage_size,
        "backlogSize": totals.backlog_size,
        "averageMsgSize": totals.average_msg_size,
    }


@runs("Stats", "foldProducers")
def _(given: Given) -> Answer:
    by_segment = {
        int(segment): {name: stats.ProducerTotals(*rates) for name, rates in producers.items()}
        for segment, producers in given["producersBySegment"].items()
    }
    folded = stats.fold_producers(by_segment)
    return {
        "producers": Keyed(
            {name: {"msgRateIn": of.msg_rate_in, "bytesRateIn": of.bytes_rate_in} for name, of in folded.items()}
        )
    }


@runs("Stats", "subscription")
def _(given: Given) -> Answer:
    parts = (
        stats.SubscriptionTotals(part["msgBacklog"], part["unackedMessages"], part["backlogSize"])
        for part in given["perSegment"].values()
    )
    totals = stats.total_subscription(parts)
    recorded = None if given["type"] is None else SubscriptionType.parse(given["type"])
    return {
        "type": stats.shown_type(recorded).value,
        "msgBacklog": totals.msg_backlog,
        "unackedMessages": totals.unacked_messages,
        "backlogSize": totals.backlog_size,
    }


@runs("PropertyIndex", "find")
def _(given: Given) -> Answer:
    return {"results": [topics_with(given["topics"], wanted) for wanted in given["filters"]]}
