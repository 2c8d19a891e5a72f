"""The layout shorthand, and the verbs about layouts and records."""

from typing import Any

import msgspec

from scalable_topics.model.entry_buckets import DEFAULT_MAX_PER_SEGMENT
from scalable_topics.model.errors import InvalidArgument
from scalable_topics.model.layout import SegmentLayout, initial_layout
from scalable_topics.model.names import TopicName
from scalable_topics.model.paths import StorePaths
from scalable_topics.model.record import TopicRecord, encode_record
from scalable_topics.model.replacements import merge, rebucket, split
from scalable_topics.model.segment import SegmentInfo
from scalable_topics.model.subscription import SubscriptionType
from scalable_topics.policy.auto_create import may_create_on_connect
from scalable_topics.policy.migration import plan_migration
from tests.conformance.runner import Answer, Given, Keyed, runs

INCARNATION = "0" * 16
UNKNOWN_MS = 0
"""Time of whatever the case gives no time for."""


def build(shorthand: Given) -> SegmentLayout:
    created_at_ms = shorthand.get("createdAtMs", UNKNOWN_MS)
    if "migrated" in shorthand:
        topic, partitions, budget = shorthand["migrated"]
        plan = plan_migration(
            TopicName.parse(topic), partitions, bucket_budget=budget, subscriptions=(), now_ms=created_at_ms
        )
        layout = plan.after
    else:
        segments, budget = shorthand["initial"]
        layout = initial_layout(segments, bucket_budget=budget, at_ms=created_at_ms)
    ops = shorthand.get("ops", [])
    times = shorthand.get("opAtMs") or [UNKNOWN_MS] * len(ops)
    for op, at_ms in zip(ops, times, strict=True):
        layout = _apply(layout, op, at_ms, shorthand)
        layout.check()
    return layout


def _apply(layout: SegmentLayout, op: list[Any], at_ms: int, shorthand: Given) -> SegmentLayout:
    max_buckets = shorthand.get("entryBucketMaxPerSegment", DEFAULT_MAX_PER_SEGMENT)
    window = shorthand.get("dagDepthWindowSeconds", 0)
    match op:
        case ["split", segment_id, *ways]:
            change = split(
                layout,
                {segment_id: ways[0] if ways else 2},
                at_ms=at_ms,
                max_segments=shorthand.get("maxSegments"),
                depth_window_seconds=window,
            )
        case ["merge", *segment_ids]:
            change = merge(layout, segment_ids, at_ms=at_ms, max_buckets=max_buckets, depth_window_seconds=window)
        case ["rebucket", segment_id, count]:
            change = rebucket(
                layout, [segment_id], count, at_ms=at_ms, max_buckets=max_buckets, depth_window_seconds=window
            )
        case ["prune", segment_ids]:
            return layout.prune(segment_ids)
        case _:
            raise InvalidArgument(f"unknown op {op}")
    return layout.apply(change, at_ms=at_ms)


def budget_of(shorthand: Given) -> int:
    budget: int = shorthand["migrated"][2] if "migrated" in shorthand else shorthand["initial"][1]
    return budget


def segment_fields(segment: SegmentInfo) -> Answer:
    return {
        "range": pair(segment),
        "state": segment.state.value,
        "parentIds": segment.parent_ids,
        "childIds": segment.child_ids,
        "createdAtEpoch": segment.created_at_epoch,
        "sealedAtEpoch": segment.sealed_at_epoch,
        "createdAtMs": segment.created_at_ms,
        "sealedAtMs": segment.sealed_at_ms,
        "entryBucketSplits": segment.entry_bucket_splits,
        "mergeDepth": segment.merge_depth,
        "createdBy": segment.created_by.value,
        "legacyTopicName": segment.legacy_topic_name,
    }


def layout_fields(layout: SegmentLayout) -> Answer:
    return {
        "epoch": layout.epoch,
        "nextSegmentId": layout.next_segment_id,
        "activeIds": [segment.segment_id for segment in layout.active],
        "segments": Keyed({str(key): segment_fields(segment) for key, segment in layout.segments.items()}),
        "ranges": [pair(segment) for segment in layout.active],
    }


def pair(segment: SegmentInfo) -> list[int]:
    return [segment.hash_range.start, segment.hash_range.end]


@runs("SegmentLayout", "build")
def _(given: Given) -> Answer:
    return layout_fields(build(given["layout"]))


@runs("SegmentLayout", "findActive")
def _(given: Given) -> Answer:
    layout = build(given["layout"])
    return {"segmentIds": [layout.find_active(hash_value).segment_id for hash_value in given["hashes"]]}


@runs("SegmentLayout", "lineage")
def _(given: Given) -> Answer:
    return {"segmentIds": build(given["layout"]).lineage(given["segmentId"])}


@runs("EntryBucketSplits", "countsInLayout")
def _(given: Given) -> Answer:
    segments = build(given["layout"]).segments
    return {"countById": Keyed({str(key): segment.bucket_count for key, segment in segments.items()})}


@runs("AutoCreate", "mayCreate")
def _(given: Given) -> Answer:
    layout = None if given["layout"] is None else build(given["layout"])
    return {"result": may_create_on_connect(layout, given["segmentId"])}


@runs("Metadata", "emptyRecord")
def _(_given: Given) -> Answer:
    return _record_json(TopicRecord(incarnation=INCARNATION))


@runs("Metadata", "toRecord")
def _(given: Given) -> Answer:
    record = TopicRecord(
        incarnation=INCARNATION,
        layout=build(given["layout"]),
        properties=given["properties"],
        auto_scale_policy=given["autoScalePolicy"],
    )
    return {"record": _record_json(record)}


def _record_json(record: TopicRecord) -> Answer:
    """As REST shows it: every segment by itself, ids as full lists."""
    document: dict[str, Any] = msgspec.json.decode(encode_record(record))
    document["segments"] = {
        str(key): {
            **msgspec.to_builtins(segment),
            "parentIds": segment.parent_ids,
            "childIds": segment.child_ids,
        }
        for key, segment in record.layout.segments.items()
    }
    for name in ("segments", "properties"):
        document[name] = Keyed(document[name])
    return document


@runs("Metadata", "isLegacy")
def _(given: Given) -> Answer:
    legacy = given["legacyTopicName"]
    segment = initial_layout(1).active[0]
    created_by = "LEGACY" if legacy else segment.created_by
    document = {**msgspec.to_builtins(segment), "legacyTopicName": legacy, "createdBy": created_by}
    return {"result": msgspec.convert(document, SegmentInfo).is_legacy}


@runs("Metadata", "parseSubscriptionType")
def _(given: Given) -> Answer:
    return {"type": SubscriptionType.parse(given["type"]).value}


@runs("Metadata", "paths")
def _(given: Given) -> Answer:
    paths, topic = StorePaths(given["root"]), TopicName.parse(given["topic"])
    segment_id, subscription = given["segmentId"], given["subscription"]
    return {
        "record": paths.record(topic),
        "controller": paths.controller(topic),
        "subscription": paths.subscription(topic, subscription),
        "assignment": paths.assignment(topic, subscription),
        "consumer": paths.consumer(topic, subscription, given["consumer"]),
        "load": paths.load(topic, segment_id),
        "owner": paths.owner(topic, segment_id),
        "drained": paths.drained(topic, segment_id, subscription),
        "index": paths.index(topic),
        "policies": paths.policies(topic.tenant, topic.namespace),
    }
