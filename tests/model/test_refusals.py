"""Every refusal, word for word.

An error is part of the product: it says what happened, to what, and what would work instead. Whoever changes one
sees it here.
"""
# ruff: noqa: E501 - sentences are kept whole

from collections.abc import Callable
from math import inf

import pytest
from msgspec.structs import replace

from scalable_topics.model import entry_buckets
from scalable_topics.model.autoscale_policy import AutoScalePolicy, parse_override, resolve_policy
from scalable_topics.model.errors import ScalableTopicsError
from scalable_topics.model.hash_range import FULL_RANGE, HashRange, equal_ranges
from scalable_topics.model.hashing import legacy_partition, raw_hash
from scalable_topics.model.layout import Replacement, SegmentLayout, initial_layout, legacy_layout
from scalable_topics.model.load import SegmentLoadStats, decode_load, validate_rates
from scalable_topics.model.names import (
    Domain,
    SegmentName,
    TopicName,
    client_topic,
    decode,
    encode,
    parse_descriptor,
    topic_list_hash,
)
from scalable_topics.model.operation import FinishedOperation, OperationKind, Outcome
from scalable_topics.model.positions import Checkpoint, MessageId
from scalable_topics.model.quantities import parse_amount, parse_seconds
from scalable_topics.model.record import MigratedFrom, TopicRecord, decode_record, encode_record
from scalable_topics.model.replacements import merge, migrate, rebucket, split
from scalable_topics.model.segment import CreatedBy, SegmentInfo, new_segment
from scalable_topics.model.subscription import SubscriptionType
from scalable_topics.policy.autoscale import ConsumerCount, KnownLoad, TopicView
from scalable_topics.policy.migration import Connection, OldClients, plan_migration, precheck, synthetic_layout
from scalable_topics.policy.retention import sweep
from scalable_topics.policy.routing import Route, Router


def sealed() -> SegmentLayout:
    """0 was split into 1 and 2."""
    layout = initial_layout(1)
    return layout.apply(split(layout, {0: 2}, at_ms=1), at_ms=1)


def childless() -> SegmentLayout:
    """0 was sealed, and its children have been forgotten."""
    layout = sealed()
    return layout.apply(split(layout, {1: 2, 2: 2}, at_ms=2), at_ms=2).prune([1, 2])


def raise_it(error: Exception) -> None:
    raise error


def children(*parents: int, epoch: int = 2, first_id: int = 3) -> tuple[SegmentInfo, ...]:
    """Of segment 1, in halves, under the name of whatever parents."""
    halves = HashRange(0, 32767).split()
    return tuple(
        new_segment(first_id + n, half, created_by=CreatedBy.SPLIT, epoch=epoch, at_ms=1, buckets=1, parent_ids=parents)
        for n, half in enumerate(halves)
    )


REFUSALS: list[tuple[Callable[[], object], str]] = [
    (
        lambda: HashRange(5, 4),
        "invalid-argument | [5, 4] is not a hash range (give 0 <= start <= end <= 65535)",
    ),
    (
        lambda: HashRange.parse("xyz"),
        "invalid-argument | 'xyz' is not a hash range (write it as four hex digits each: 0000-7fff)",
    ),
    (
        lambda: HashRange(0, 9).split(1),
        "invalid-argument | [0000, 0009]: cannot split a range 1 ways (give 2 or more)",
    ),
    (
        lambda: HashRange(0, 1).split(3),
        "wrong-state | [0000, 0001]: holds 2 hash value(s), too few to split 3 ways (split at most 2 ways)",
    ),
    (
        lambda: HashRange(7, 7).split(),
        "wrong-state | [0007, 0007]: holds 1 hash value(s), too few to split 2 ways (a single hash value stays one segment)",
    ),
    (
        lambda: HashRange(0, 1).merge(HashRange(5, 6)),
        "invalid-argument | [0000, 0001] and [0005, 0006] are not adjacent (merge neighbours: one ends where the other starts)",
    ),
    (
        lambda: equal_ranges(0),
        "invalid-argument | a topic cannot have 0 segments (give 1 to 65536)",
    ),
    (
        lambda: raw_hash("\ud800"),
        "invalid-argument | the key '\\ud800' is not text that UTF-8 can encode (pass bytes instead)",
    ),
    (
        lambda: legacy_partition(1, 0),
        "invalid-argument | cannot route over 0 partitions (give 1 or more)",
    ),
    (
        lambda: entry_buckets.equal_width_splits(-1),
        "invalid-argument | cannot make -1 buckets (give 0 to 65536)",
    ),
    (
        lambda: entry_buckets.count_for_budget(-1, 1),
        "invalid-argument | a budget of -1 buckets cannot be shared by 1 segments (give a budget of 0 or more and at least one segment)",
    ),
    (
        lambda: entry_buckets.validate_splits((5, 5)),
        "invalid-argument | bucket split point 5 after 5 is out of order or off the ring (give ascending values from 1 to 65535; bucket 0 always starts at 0)",
    ),
    (
        lambda: entry_buckets.validate(0),
        "invalid-argument | a segment cannot have 0 entry buckets (give 1 to 65536)",
    ),
    (
        lambda: parse_seconds("soon"),
        "invalid-argument | 'soon' is not a duration (write 60s, 5m, 0.5s or a number of seconds)",
    ),
    (
        lambda: parse_seconds(None),
        "invalid-argument | None is not a duration (write 60s, 5m, 0.5s or a number of seconds)",
    ),
    (
        lambda: parse_seconds(inf),
        "invalid-argument | inf is not a duration (write 60s, 5m, 0.5s or a number of seconds)",
    ),
    (
        lambda: parse_amount("lots"),
        "invalid-argument | 'lots' is not an amount (write 50MB, 1.5GiB or a plain number)",
    ),
    (
        lambda: validate_rates((1, 2)),  # type: ignore[arg-type]
        "invalid-argument | expected 4 rates, got 2 (give msgRateIn, bytesRateIn, msgRateOut, bytesRateOut)",
    ),
    (
        lambda: validate_rates((1, 2, 3, -4)),
        "invalid-argument | bytesRateOut -4 is not a rate (rates are finite numbers of 0 or more)",
    ),
    (
        lambda: SegmentLoadStats(
            msg_rate_in=0,
            bytes_rate_in=0,
            msg_rate_out=0,
            bytes_rate_out=0,
            changed_at_ms=-1,
            reporter="b",
            reporter_session=1,
        ),
        "invalid-argument | changedAtMs and reporterSession must be longs of 0 or more",
    ),
    (
        lambda: TopicName.parse("a/b"),
        "invalid-argument | 'a/b' is not a topic name (write name, tenant/namespace/name or a full name)",
    ),
    (
        lambda: TopicName.parse("queue://t/n/x"),
        "invalid-argument | 'queue://t/n/x' has the unknown domain 'queue' (use topic://, persistent:// or segment://)",
    ),
    (
        lambda: TopicName.parse("topic://t/n"),
        "invalid-argument | 'topic://t/n' is not a topic name (write topic://tenant/namespace/name)",
    ),
    (
        lambda: TopicName.parse("topic://t t/n/x"),
        "invalid-argument | 't t' is not a tenant (use letters, digits and - = : . _)",
    ),
    (
        lambda: TopicName.parse("topic://t/n n/x"),
        "invalid-argument | 'n n' is not a namespace (use letters, digits and - = : . _)",
    ),
    (
        lambda: TopicName.parse("topic://t/n/ x"),
        "invalid-argument | ' x' is not a topic's local name: it starts or ends with white space",
    ),
    (
        lambda: TopicName.parse("topic://t/n/"),
        "invalid-argument | '' is not a topic's local name: it is blank",
    ),
    (
        lambda: TopicName.parse("topic://t/n/.."),
        "invalid-argument | '..' is not a topic's local name: a path would lose it",
    ),
    (
        lambda: TopicName.parse("topic://t/n/a\0"),
        "invalid-argument | 'a\\x00' is not a topic's local name: it holds a NUL",
    ),
    (
        lambda: TopicName.parse("topic://t/n/\ud800"),
        "invalid-argument | '\\ud800' is not a topic's local name: it holds half a surrogate pair",
    ),
    (
        lambda: TopicName(Domain.SEGMENT, "t", "n", "x"),
        "invalid-argument | a segment's name needs a descriptor (use segment://tenant/ns/topic/0000-ffff-0)",
    ),
    (
        lambda: TopicName.parse("non-persistent://t/n/x").to_scalable(),
        "unsupported | non-persistent://t/n/x: non-persistent topics cannot be scalable (use a persistent:// topic)",
    ),
    (
        lambda: SegmentName(TopicName.parse("x"), FULL_RANGE, 0),
        "invalid-argument | persistent://public/default/x has no segments (only topic:// names have segments)",
    ),
    (
        lambda: SegmentName(TopicName.parse("topic://t/n/x"), FULL_RANGE, -1),
        "invalid-argument | -1 is not a segment id (ids are longs of 0 or more)",
    ),
    (
        lambda: SegmentName.parse("topic://t/n/x"),
        "invalid-argument | 'topic://t/n/x' does not name a segment (use segment://tenant/namespace/topic/0000-ffff-0)",
    ),
    (
        lambda: SegmentName.decode("t/n/x"),
        "invalid-argument | 't/n/x' is not a segment's storage name (expected tenant/namespace/segment/topic/0000-ffff-0)",
    ),
    (
        lambda: client_topic("segment://t/n/x/0000-ffff-0"),
        "unsupported | segment://t/n/x/0000-ffff-0: segments cannot be opened by themselves (open the topic:// they belong to)",
    ),
    (
        lambda: client_topic("non-persistent://t/n/x"),
        "unsupported | non-persistent://t/n/x: non-persistent topics cannot be scalable (use a persistent:// topic)",
    ),
    (
        lambda: parse_descriptor("x"),
        "invalid-argument | 'x' is not a segment descriptor (write start-end-id: 0000-7fff-1)",
    ),
    (
        lambda: encode("\ud800"),
        "invalid-argument | '\\ud800' is not text that UTF-8 can encode",
    ),
    (
        lambda: decode("%ff"),
        "invalid-argument | '%ff' is not percent-encoded UTF-8",
    ),
    (
        lambda: SubscriptionType.parse("stream"),
        "invalid-argument | 'stream' is not a subscription type (use one of STREAM, CHECKPOINT, QUEUE)",
    ),
    (
        lambda: initial_layout(2).find_active(70_000),
        "wrong-state | no active segment holds the hash 70000",
    ),
    (
        lambda: initial_layout(2).segment(9),
        "not-found | segment 9: there is no such segment (active segments: [0, 1])",
    ),
    (
        lambda: sealed().active_segment(0),
        "wrong-state | segment 0: it was sealed at epoch 1 (its children are [1, 2])",
    ),
    (
        lambda: sealed().prune([]),
        "invalid-argument | nothing to prune (name at least one sealed segment)",
    ),
    (
        lambda: sealed().prune([1]),
        "wrong-state | segment 1: it is ACTIVE (only sealed segments are pruned)",
    ),
    (
        lambda: sealed().prune([7]),
        "not-found | segment 7: there is no such segment (active segments: [1, 2])",
    ),
    (
        lambda: sealed().prune([0]).active_segment(0),
        "not-found | segment 0: there is no such segment (active segments: [1, 2])",
    ),
    (
        lambda: sealed().apply((), at_ms=1),
        "invalid-argument | a change without replacements changes nothing",
    ),
    (
        lambda: sealed().apply((Replacement((), ()),), at_ms=1),
        "invalid-argument | a replacement needs parents and children",
    ),
    (
        lambda: sealed().apply((Replacement((0,), ()),), at_ms=1),
        "wrong-state | segment 0: it was sealed at epoch 1 (its children are [1, 2])",
    ),
    (
        lambda: sealed().apply((Replacement((1, 3), children(1, 3)),), at_ms=1),
        "not-found | segment 3: there is no such segment (active segments: [1, 2])",
    ),
    (
        lambda: sealed().apply((Replacement((1,), children(2)),), at_ms=1),
        "invalid-argument | segment 3: it is not a new child of [1] at epoch 2",
    ),
    (
        lambda: sealed().apply((Replacement((1,), children(1, epoch=3)),), at_ms=1),
        "invalid-argument | segment 3: it is not a new child of [1] at epoch 2",
    ),
    (
        lambda: sealed().apply((Replacement((1,), children(1, first_id=2)),), at_ms=1),
        "wrong-state | segment 2: this id is taken, and ids are never reused",
    ),
    (
        lambda: sealed().apply((Replacement((1,), children(1)), Replacement((1,), children(1, first_id=9))), at_ms=1),
        "wrong-state | segment 1: it is replaced twice or sealed already",
    ),
    (
        lambda: split(sealed(), {1: 1}, at_ms=1),
        "invalid-argument | segment 1 [0000, 7fff]: cannot split a range 1 ways (give 2 or more)",
    ),
    (
        lambda: split(sealed(), {1: 2, 2: 3}, at_ms=1, max_segments=4),
        "cap-reached | splitting [1, 2] would make 5 active segments, above maxSegments 4 (raise maxSegments in the policy, or force it)",
    ),
    (
        lambda: merge(sealed(), [1], at_ms=1),
        "invalid-argument | cannot merge [1] (name two or more different segments)",
    ),
    (
        lambda: merge(sealed(), [2, 1], at_ms=1, min_segments=3),
        "cap-reached | merging [2, 1] would leave 1 active segments, below minSegments 3 (lower minSegments in the policy, or force it)",
    ),
    (
        lambda: merge(initial_layout(3), [2, 0], at_ms=1),
        "invalid-argument | segment 0 [0000, 5554] and 2 [aaaa, ffff] do not touch (merge neighbours: one ends where the other starts)",
    ),
    (
        lambda: rebucket(sealed(), [1], 0, at_ms=1),
        "invalid-argument | cannot give a segment 0 buckets (give 1 to 1024)",
    ),
    (
        lambda: rebucket(sealed(), [2], 2, at_ms=1),
        "invalid-argument | segment 2: it has 2 buckets already",
    ),
    (
        lambda: sealed().apply((Replacement((1,), children(1)[:1]),), at_ms=1),
        "invalid-argument | the children [3] do not tile [0000, 7fff]: 4000 to 7fff is not covered (replace neighbours by the same range)",
    ),
    (
        lambda: initial_layout(3).apply((Replacement((0, 2), children(0, 2)),), at_ms=1),
        "invalid-argument | the parents [0, 2] do not tile [0000, ffff]: a gap at 5555: expected a range starting at 5555, found [aaaa, ffff] (replace neighbours by the same range)",
    ),
    (
        lambda: migrate(sealed(), at_ms=1),
        "wrong-state | this is not a layout of old partitions (only a regular topic can be migrated)",
    ),
    (
        lambda: replace(sealed().segments[1], segment_id=-1),
        "invalid-argument | segment -1: segment_id -1 is not a long of 0 or more",
    ),
    (
        lambda: replace(sealed().segments[1], entry_buckets=0),
        "invalid-argument | a segment cannot have 0 entry buckets (give 1 to 65536)",
    ),
    (
        lambda: SegmentLayout().check(subject="topic://t/n/x"),
        "invalid-argument | topic://t/n/x: the ACTIVE segments [] do not tile the ring: 0000 to ffff is not covered (restore the record from a backup or the journal)",
    ),
    (
        lambda: SegmentLayout(0, 0, initial_layout(9).segments).check(),
        "invalid-argument | segment 0 is not below nextSegmentId 0; segment 1 is not below nextSegmentId 0; segment 2 is not below nextSegmentId 0; segment 3 is not below nextSegmentId 0; segment 4 is not below nextSegmentId 0; segment 5 is not below nextSegmentId 0; segment 6 is not below nextSegmentId 0; segment 7 is not below nextSegmentId 0; and 1 more (restore the record from a backup or the journal)",
    ),
    (
        lambda: sealed().check_follows(SegmentLayout(5, 9, sealed().segments), subject="topic://t/n/x"),
        "invalid-argument | topic://t/n/x: epoch went from 5 to 1, nextSegmentId from 9 to 3 (restore the record from a backup or the journal)",
    ),
    (
        lambda: AutoScalePolicy(min_segments=0, max_dag_depth=-1, split_msg_rate_in_threshold=1.0),
        "invalid-argument | autoScalePolicy: minSegments (0) must be 1 or more and at most maxSegments (64), which must be at most 65536; maxDagDepth must be 0 or more, not -1; the split threshold of msgRateIn (1.0) must be above 0 and above its merge threshold (1000) (mend every part of it)",
    ),
    (
        lambda: parse_override([]),
        "invalid-argument | autoScalePolicy: [] is not a policy (send a JSON object)",
    ),
    (
        lambda: parse_override({"maxSegment": 1}),
        "invalid-argument | autoScalePolicy: there is no policy field 'maxSegment' (did you mean maxSegments?)",
    ),
    (
        lambda: parse_override({"zzzzzz": 1}),
        "invalid-argument | autoScalePolicy: there is no policy field 'zzzzzz' (fields: enabled, mode, maxSegments, minSegments, maxDagDepth, dagDepthWindowSeconds, maxNewSegmentsPerEvaluation, splitCooldownSeconds, mergeCooldownSeconds, mergeWindowSeconds, rebucketCooldownSeconds, rebucketDownWindowSeconds, splitMsgRateInThreshold, splitBytesRateInThreshold, splitMsgRateOutThreshold, splitBytesRateOutThreshold, mergeMsgRateInThreshold, mergeBytesRateInThreshold, mergeMsgRateOutThreshold, mergeBytesRateOutThreshold, splitVsRebucketMinMsgRateInThreshold, entryBucketBudget, entryBucketMaxPerSegment)",
    ),
    (
        lambda: parse_override({"enabled": "yes"}),
        "invalid-argument | autoScalePolicy.enabled: 'yes' is not a switch (use true or false)",
    ),
    (
        lambda: parse_override({"maxSegments": 1.5}),
        "invalid-argument | autoScalePolicy.maxSegments: 1.5 is not a whole number (give a whole number)",
    ),
    (
        lambda: parse_override({"mode": "maybe"}),
        "invalid-argument | autoScalePolicy.mode: 'maybe' is not a mode (use one of auto, advise)",
    ),
    (
        lambda: parse_override({"splitCooldownSeconds": "x"}),
        "invalid-argument | autoScalePolicy.splitCooldownSeconds: 'x' is not a duration (write 60s, 5m, 0.5s or a number of seconds)",
    ),
    (
        lambda: resolve_policy([1]),  # type: ignore[arg-type]
        "invalid-argument | autoScalePolicy: [1] is not a policy (store a JSON object)",
    ),
    (
        lambda: legacy_layout(["a"]).find_active(1),
        "wrong-state | old partitions are found by modulo, not by range (use policy.routing)",
    ),
    (
        lambda: split(childless(), {0: 2}, at_ms=1),
        "wrong-state | segment 0: it was sealed at epoch 1 (it has no children left)",
    ),
    (
        lambda: sealed().apply((Replacement((1,), children(1, first_id=2**63 - 2)),), at_ms=1),
        "cap-reached | the topic has used up all segment ids (create it anew)",
    ),
    (
        lambda: sealed().announce(()),
        "invalid-argument | there are no children to announce",
    ),
    (
        lambda: legacy_layout(["a", "b"]).apply((Replacement((0,), children(0, epoch=0)),), at_ms=1),
        "invalid-argument | old partitions are replaced all together (migrate the whole topic)",
    ),
    (
        lambda: SegmentLayout(-1).check(),
        "invalid-argument | a layout at epoch -1 holds the whole-ring LEGACY segments of a coming migration, and nothing else (restore the record from a backup or the journal)",
    ),
    (
        lambda: SegmentLayout(
            1, 3, {**sealed().segments, 1: replace(sealed().segments[1], parent_runs=(0, 0))}
        ).check(),
        "invalid-argument | a segment names a parent or a child twice (restore the record from a backup or the journal)",
    ),
    (
        lambda: decode_load(b"x"),
        "decode | load record: JSON is malformed: invalid character (byte 0) (it was not written by this software, or was damaged)",
    ),
    (
        lambda: topic_list_hash(["\ud800"]),
        "invalid-argument | a topic's name is not text that UTF-8 can encode",
    ),
    (
        lambda: FinishedOperation(id="x", kind=OperationKind.SPLIT, outcome=Outcome.DONE, finished_at_ms=-1),
        "invalid-argument | finishedAtMs -1 is not a time (milliseconds, a long of 0 or more)",
    ),
    (
        lambda: MessageId(2**63, (0, 0)).encode(),
        "invalid-argument | 9223372036854775808 is not a segment id (ids are longs)",
    ),
    (
        lambda: MigratedFrom("x", -1),
        "invalid-argument | -1 is not a number of partitions (give 0 or more)",
    ),
    (
        lambda: decode_record(
            encode_record(TopicRecord(incarnation="0" * 16, layout=initial_layout(1))).replace(b'"0":{', b'"-0":{'),
            subject="topic://t/n/x",
        ),
        "decode | topic://t/n/x: a segment is filed under an odd spelling of its id",
    ),
    (
        lambda: decode_record(
            encode_record(TopicRecord(incarnation="0" * 16, layout=initial_layout(1)))[:-1] + b',"x":1e400}',
            subject="topic://t/n/x",
        ),
        "decode | topic://t/n/x: Number out of range - at `$[...]` (it was not written by this software, or was damaged)",
    ),
    (
        lambda: replace(sealed().segments[1], segment_id=-1, merge_depth=-1),
        "invalid-argument | segment -1: segment_id -1 is not a long of 0 or more; merge_depth -1 is not a long of 0 or more",
    ),
    (
        lambda: replace(sealed().segments[1], child_runs=(5,)),
        "invalid-argument | segment 1: it is ACTIVE, and yet has children, a seal epoch or a seal time",
    ),
    (
        lambda: replace(sealed().segments[1], sealed_at_ms=5),
        "invalid-argument | segment 1: it is ACTIVE, and yet has children, a seal epoch or a seal time",
    ),
    (
        lambda: replace(sealed().segments[1], sealed_at_epoch=5),
        "invalid-argument | segment 1: it is ACTIVE, and yet has children, a seal epoch or a seal time",
    ),
    (
        lambda: replace(sealed().segments[0], created_at_epoch=4),
        "invalid-argument | segment 0: it was sealed at epoch 1, before it was created at 4",
    ),
    (
        lambda: replace(sealed().segments[0], merge_depth=-1, sealed_at_epoch=0),
        "invalid-argument | segment 0: merge_depth -1 is not a long of 0 or more",
    ),
    (
        lambda: replace(sealed().segments[1], created_by=CreatedBy.LEGACY),
        "invalid-argument | segment 1: it is LEGACY, and has no legacyTopicName",
    ),
    (
        lambda: replace(sealed().segments[1], legacy_topic_name="x"),
        "invalid-argument | segment 1: it is SPLIT, and yet has a legacyTopicName",
    ),
    (
        lambda: replace(legacy_layout(["a"]).segments[0], merge_depth=-1),
        "invalid-argument | segment 0: merge_depth -1 is not a long of 0 or more",
    ),
    (
        lambda: plan_migration(TopicName.parse("x"), 4_000, bucket_budget=4, subscriptions=(), now_ms=1),
        "cap-reached | persistent://public/default/x: the record of a migration of 4000 partitions would be 1315235 bytes, above 1048576 (every partition becomes a segment; about 3,000 of them fit)",
    ),
    (
        lambda: precheck(record_exists=True, topic_exists=True, connections=(), force=False),
        "wrong-state | the topic is scalable already",
    ),
    (
        lambda: precheck(record_exists=False, topic_exists=False, connections=(), force=False),
        "not-found | there is no such topic",
    ),
    (
        lambda: raise_it(OldClients([Connection(3, v5=False)], subject="persistent://t/n/x")),
        "wrong-state | persistent://t/n/x: 1 connection(s) of old clients on partitions [3] (upgrade them, or force it)",
    ),
    (
        lambda: sweep(sealed(), now_ms=1, retention_minutes=inf, drained={}),
        "invalid-argument | inf is not a retention (give minutes; negative = for ever)",
    ),
    (
        lambda: TopicRecord(incarnation="x"),
        "invalid-argument | 'x' is not an incarnation (give 16 lower-case hex digits)",
    ),
    (
        lambda: decode_record(b"{}", subject="topic://t/n/x"),
        "decode | topic://t/n/x: Object missing required field `epoch` (it was not written by this software, or was damaged)",
    ),
    (
        lambda: decode_record(encode_record(TopicRecord(incarnation="0" * 16, layout=SegmentLayout()))),
        "decode | topic record: the ACTIVE segments [] do not tile the ring: 0000 to ffff is not covered (restore the record from a backup or the journal)",
    ),
    (
        lambda: decode_record(
            encode_record(TopicRecord(incarnation="0" * 16, layout=initial_layout(1)))[:-1] + b',"x":1,"x":2}',
            subject="topic://t/n/x",
        ),
        "decode | topic://t/n/x: the field 'x' occurs twice in one object",
    ),
    (
        lambda: MessageId.decode(b""),
        "decode | message id: it ends after 0 bytes at byte 0 (it was cut off or is something else)",
    ),
    (
        lambda: MessageId.decode(bytes(16)),
        "decode | message id: it has no position",
    ),
    (
        lambda: MessageId.decode(bytes(8) + b"\0\0\0\5"),
        "decode | message id: a position of 5 bytes at byte 12 (it was cut off or is something else)",
    ),
    (
        lambda: MessageId.decode(MessageId(1, (2, 3)).encode() + b"!"),
        "decode | message id: 1 bytes too many at byte 32 (it was cut off or is something else)",
    ),
    (
        lambda: MessageId(1, (2**63, 0)).encode(),
        "invalid-argument | (9223372036854775808, 0) is not a position (give (ledger, entry), two longs)",
    ),
    (
        lambda: Checkpoint.decode(b"\7"),
        "decode | checkpoint: it is of the unknown type 7 (was it written by a newer client?)",
    ),
    (
        lambda: Checkpoint.decode(b"\0\0\0\0\6"),
        "decode | checkpoint: 6 positions at byte 5 (it was cut off or is something else)",
    ),
    (
        lambda: Checkpoint.decode(b"\0\0\0\0\1" + bytes(12) + b"\0\0"),
        "decode | checkpoint: 2 bytes too many at byte 17 (it was cut off or is something else)",
    ),
    (
        lambda: KnownLoad((0.0, 0.0, 0.0, 0.0), -1),
        "invalid-argument | a load cannot have lasted -1 ms",
    ),
    (
        lambda: ConsumerCount(SubscriptionType.STREAM, -1, 0),
        "invalid-argument | a subscription cannot have -1 connected and 0 restored consumers",
    ),
    (
        lambda: TopicView(layout=SegmentLayout()),
        "invalid-argument | a topic without active segments cannot be scaled (create or migrate it first)",
    ),
    (
        lambda: Router([]).route("a"),
        "wrong-state | there are no active segments to route to (wait for a layout)",
    ),
    (
        lambda: Router([Route(0, 1, 1)]).route("a"),
        "wrong-state | no active segment holds the hash 3c25 (wait for a complete layout)",
    ),
    (
        lambda: synthetic_layout(TopicName.parse("topic://t/n/x"), 1),
        "unsupported | topic://t/n/x: only a persistent:// topic is a regular topic",
    ),
    (
        lambda: synthetic_layout(TopicName.parse("x-partition-1"), 1),
        "invalid-argument | persistent://public/default/x-partition-1: it is one partition of 'x' (name the whole topic)",
    ),
    (
        lambda: synthetic_layout(TopicName.parse("x"), -1),
        "invalid-argument | persistent://public/default/x: a topic cannot have -1 partitions (give 0 to 65536)",
    ),
]


@pytest.mark.parametrize(("refused", "words"), REFUSALS, ids=[words[:60] for _, words in REFUSALS])
def test_refusal(refused: Callable[[], object], words: str) -> None:
    with pytest.raises(ScalableTopicsError) as caught:
        refused()

    error = caught.value
    assert f"{error.kind} | {error}" == words
    assert error.args == (error.what,)
    assert error.what in str(error)
