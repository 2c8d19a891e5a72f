"""Verbs about decisions: autoscaling, assignment, retention, load reports, migration."""

from typing import Any

from msgspec import to_builtins

from scalable_topics.model import entry_buckets
from scalable_topics.model.autoscale_policy import AutoScalePolicy, effective_policy, resolve_policy
from scalable_topics.model.errors import NotFound, WrongState
from scalable_topics.model.load import METRICS, SegmentLoadStats, Thresholds
from scalable_topics.model.names import TopicName
from scalable_topics.model.subscription import SubscriptionType
from scalable_topics.policy import assignment, load_reports, migration, retention, seek
from scalable_topics.policy.autoscale import (
    ConsumerCount,
    KnownLoad,
    Merge,
    Rebucket,
    Split,
    TopicView,
    decide,
    explain,
)
from scalable_topics.policy.cooldowns import last_operations
from tests.conformance.adapters.layouts import budget_of, build, layout_fields, pair, segment_fields
from tests.conformance.adapters.values import as_pair
from tests.conformance.runner import Answer, Given, Keyed, runs

CASES_DEFAULTS = {"rebucketDownWindowSeconds": 0, "dagDepthWindowSeconds": 0}
"""Where the cases' default is not the product's."""


@runs("AutoScaleConfig", "resolve")
def _(given: Given) -> Answer:
    policy: Answer = to_builtins(resolve_policy(given["broker"], given["namespace"], given["topic"]))
    return policy


@runs("AutoScaleConfig", "effective")
def _(given: Given) -> Answer:
    effective = effective_policy(given["broker"], given["namespace"], given["topic"])
    return {**to_builtins(effective.policy), "valid": effective.valid}


@runs("AutoScalePolicyEvaluator", "decide")
def _(given: Given) -> Answer:
    config = given["config"]
    budget = {"entryBucketBudget": budget_of(given["layout"])}
    policy = resolve_policy(CASES_DEFAULTS, budget, config)
    view = TopicView(
        layout=build(given["layout"]),
        load={
            int(key): KnownLoad((a, b, c, d), cold_ms)
            for key, (a, b, c, d, cold_ms) in given["load"].items()
            if int(key) not in given.get("unknownLoad", [])
        },
        consumers={
            name: ConsumerCount(SubscriptionType(kind), connected, restored)
            for name, (kind, connected, restored) in given["consumers"].items()
        },
        record_bytes=given.get("recordBytes", 0),
        since_last_split_ms=given.get("sinceLastSplitMs"),
        since_last_merge_ms=given.get("sinceLastMergeMs"),
        since_last_rebucket_ms=given.get("sinceLastRebucketMs"),
        demand_low_ms=given.get("demandLowMs"),
        standing_ms={int(key): standing_ms for key, standing_ms in given.get("standingMs", {}).items()},
    )
    decision = decide(view, policy)
    if explain(view, policy).decision != decision:
        return {"decision": f"explain does not agree with {decision}"}
    match decision:
        case Split(ways=ways, reason=reason):
            return {"decision": "split", "ways": Keyed({str(k): n for k, n in ways.items()}), "reason": reason.value}
        case Merge(segment_ids=segment_ids, reason=reason):
            return {"decision": "merge", "segmentIds": segment_ids, "reason": reason.value}
        case Rebucket(segment_ids=segment_ids, bucket_count=count, reason=reason):
            return {"decision": "rebucket", "segmentIds": segment_ids, "bucketCount": count, "reason": reason.value}
        case _:
            return {"decision": "none"}


@runs("ControllerAutoScale", "seed")
def _(given: Given) -> Answer:
    last = last_operations(build(given["layout"]))
    return {
        "lastSplitAtMs": last.split_at_ms,
        "lastMergeAtMs": last.merge_at_ms,
        "lastRebucketAtMs": last.rebucket_at_ms,
    }


def as_unit(entry: Any) -> assignment.Unit:
    return assignment.Unit(entry) if isinstance(entry, int) else assignment.Unit(entry[0], (entry[1], entry[2]))


def unit_json(unit: assignment.Unit) -> Any:
    return unit.segment_id if unit.buckets is None else [unit.segment_id, *unit.buckets]


@runs("Assignment", "assign")
def _(given: Given) -> Answer:
    previous = {name: tuple(map(as_unit, entries)) for name, entries in given["previous"].items()}
    assigned = assignment.assign(
        build(given["layout"]), given["consumers"], drained=given["drained"], previous=previous
    )
    return {
        "assignment": Keyed({name: [unit_json(unit) for unit in units] for name, units in assigned.items()}),
        "pushed": assignment.changed(previous, assigned),
    }


@runs("BucketSpread", "slice")
def _(given: Given) -> Answer:
    return {"owners": assignment.bucket_owners(given["bucketCount"], given["sharers"])}


@runs("BucketSpread", "ranges")
def _(given: Given) -> Answer:
    parts = entry_buckets.bucket_ranges(tuple(given["splits"]))
    ranges = assignment.sharer_ranges(parts, given["sharers"])
    return {"ranges": Keyed({name: [as_pair(part)] if part else [] for name, part in ranges.items()})}


@runs("BucketSpread", "handoff")
def _(given: Given) -> Answer:
    unacked = {int(bucket): count for bucket, count in given["unacked"].items()}
    handoff = assignment.handoff(given["bucketCount"], before=given["before"], after=given["after"], unacked=unacked)
    return {"moved": handoff.moved, "withheld": handoff.withheld}


@runs("GC", "collect")
def _(given: Given) -> Answer:
    layout = build(given["layout"])
    swept = retention.sweep(
        layout,
        now_ms=given["nowMs"],
        retention_minutes=given["retentionMinutes"],
        drained={name: subscription["drained"] for name, subscription in given["subscriptions"].items()},
    )
    return {"prune": swept.prune, "epoch": (layout.prune(swept.prune) if swept.prune else layout).epoch}


@runs("GC", "isDrained")
def _(given: Given) -> Answer:
    terminated_at, mark_delete = (tuple(p) if p else None for p in (given["terminatedAt"], given["markDelete"]))
    return {"result": retention.is_drained(terminated_at=terminated_at, mark_delete=mark_delete, empty=given["empty"])}


@runs("GC", "retention")
def _(given: Given) -> Answer:
    minutes = retention.retention_minutes(
        topic=given["topicMinutes"], namespace=given["namespaceMinutes"], broker=given["brokerMinutes"]
    )
    return {"minutes": minutes}


@runs("Controller", "planSeek")
def _(given: Given) -> Answer:
    return {
        "actions": Keyed(
            {
                str(segment["id"]): str(
                    seek.plan_seek(
                        created_at_ms=segment["createdAtMs"],
                        sealed_at_ms=segment["sealedAtMs"],
                        timestamp_ms=given["timestampMs"],
                    )
                )
                for segment in given["segments"]
            }
        )
    }


def thresholds_of(given: Given) -> Thresholds:
    """The lines of a case, as they are: a case may draw two of them the wrong way round for a policy."""
    fields = {**to_builtins(AutoScalePolicy()), **given["policy"]}
    split, merge = (
        tuple(fields[f"{kind}{metric[0].upper()}{metric[1:]}Threshold"] for metric in METRICS)
        for kind in ("split", "merge")
    )
    return Thresholds(split, merge)


@runs("SegmentLoadReporter", "isMaterial")
def _(given: Given) -> Answer:
    last = None if given["last"] is None else tuple(given["last"])
    thresholds = thresholds_of(given)
    return {
        "result": [
            load_reports.is_material(last, tuple(now), change_threshold=given["threshold"], thresholds=thresholds)
            for now in given["currents"]
        ]
    }


@runs("SegmentLoadReporter", "report")
def _(given: Given) -> Answer:
    stored = None
    if given["stored"] is not None:
        stored = _stats(**given["stored"])
    thresholds = thresholds_of(given)
    material = []
    for step in given["steps"]:
        if step["do"] == "delete":
            stored = None
        elif step["do"] == "sample":
            sample = load_reports.Sample(
                rates=tuple(step["rates"]),
                at_ms=step["atMs"],
                reporter=step["reporter"],
                reporter_session=step["reporterSession"],
            )
            before = stored
            stored = load_reports.report(
                before, sample, in_record=given["inRecord"], change_threshold=given["threshold"], thresholds=thresholds
            )
            news = load_reports.is_material(
                before.rates if before else None,
                sample.rates,
                change_threshold=given["threshold"],
                thresholds=thresholds,
            )
            material.append(news and given["inRecord"])
    if stored is None:
        return {"material": material, "stored": None}
    kept = {
        "rates": stored.rates,
        "changedAtMs": stored.changed_at_ms,
        "reporter": stored.reporter,
        "reporterSession": stored.reporter_session,
    }
    return {"material": material, "stored": kept}


def _stats(*, rates: list[float], changedAtMs: int, reporter: str, reporterSession: int) -> SegmentLoadStats:  # noqa: N803
    a, b, c, d = rates
    return SegmentLoadStats(
        msg_rate_in=a,
        bytes_rate_in=b,
        msg_rate_out=c,
        bytes_rate_out=d,
        changed_at_ms=changedAtMs,
        reporter=reporter,
        reporter_session=reporterSession,
    )


@runs("SegmentLoadReporter", "coldTime")
def _(given: Given) -> Answer:
    cold_ms = load_reports.cold_ms(
        now_ms=given["nowMs"], changed_at_ms=given["changedAtMs"], seen_for_ms=given["seenForMs"]
    )
    return {"coldMs": cold_ms}


@runs("SegmentLoadReporter", "isKnown")
def _(given: Given) -> Answer:
    load = _stats(
        rates=[0, 0, 0, 0], changedAtMs=0, reporter=given["reporter"], reporterSession=given["reporterSession"]
    )
    known = load_reports.is_known(
        load, broker_sessions=given["brokers"], sweep_age_ms=given["sweepAgeMs"], interval_ms=given["intervalMs"]
    )
    return {"result": known}


@runs("SegmentLoadReporter", "sweep")
def _(given: Given) -> Answer:
    return {"reported": load_reports.reportable(given["loadedTopics"])}


@runs("Migration", "plan")
def _(given: Given) -> Answer:
    plan = migration.plan_migration(
        TopicName.parse(given["topic"]),
        given["partitions"],
        bucket_budget=given["budget"],
        subscriptions=given["subscriptionsByPartition"],
        now_ms=given["nowMs"],
    )
    return {
        **layout_fields(plan.after),
        "migratedFrom": {"topic": plan.migrated_from.topic, "partitions": plan.migrated_from.partitions},
        "childSubscriptions": plan.subscriptions,
    }


@runs("Migration", "precheck")
def _(given: Given) -> Answer:
    try:
        migration.precheck(
            record_exists=given["recordExists"],
            topic_exists=given["topicExists"],
            connections=[migration.Connection(*connection) for connection in given["connections"]],
            force=given["force"],
        )
    except migration.OldClients as refusal:
        return {"status": 409, "v4Connections": len(refusal.connections)}
    except WrongState:
        return {"status": 409}
    except NotFound:
        return {"status": 404}
    return {"status": 204}


@runs("Synthetic", "build")
def _(given: Given) -> Answer:
    topic = TopicName.parse(given["topic"])
    layout = migration.synthetic_layout(topic, given["partitions"])
    segments = {
        str(key): {**segment_fields(segment), "range": pair(segment)} for key, segment in layout.segments.items()
    }
    return {"epoch": layout.epoch, "resolvedTopicName": str(topic.to_scalable()), "segments": Keyed(segments)}
