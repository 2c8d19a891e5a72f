"""Policies: resolved field by field, valid as a whole, and never an exception at run time."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import to_builtins

from scalable_topics.model.autoscale_policy import (
    AutoScaleMode,
    AutoScalePolicy,
    effective_policy,
    parse_override,
    resolve_policy,
)
from scalable_topics.model.errors import InvalidArgument
from tests.strategies import policies


@pytest.mark.parametrize(
    ("fields", "story"),
    [
        ({"min_segments": 0}, "minSegments (0) must be 1 or more"),
        ({"min_segments": 5, "max_segments": 4}, "at most maxSegments (4)"),
        ({"max_segments": 65_537}, "at most 65536"),
        ({"max_dag_depth": -1}, "maxDagDepth must be 0 or more, not -1"),
        ({"max_new_segments_per_evaluation": 0}, "maxNewSegmentsPerEvaluation must be 1 or more"),
        ({"entry_bucket_max_per_segment": 0}, "entryBucketMaxPerSegment must be 1 to 65536"),
        ({"entry_bucket_max_per_segment": 65_537}, "entryBucketMaxPerSegment must be 1 to 65536"),
        ({"entry_bucket_budget": -1}, "entryBucketBudget must be 0 or more"),
        ({"split_cooldown_seconds": -1.0}, "splitCooldownSeconds must be a finite number"),
        ({"merge_cooldown_seconds": -0.1}, "mergeCooldownSeconds must be a finite number"),
        ({"merge_window_seconds": float("nan")}, "mergeWindowSeconds must be a finite number"),
        ({"rebucket_cooldown_seconds": float("inf")}, "rebucketCooldownSeconds must be a finite number"),
        ({"rebucket_down_window_seconds": -1.0}, "rebucketDownWindowSeconds must be a finite number"),
        ({"split_vs_rebucket_min_msg_rate_in_threshold": -1.0}, "splitVsRebucketMinMsgRateInThreshold must be"),
        ({"merge_bytes_rate_in_threshold": -1.0}, "mergeBytesRateInThreshold must be a finite number"),
        ({"split_msg_rate_in_threshold": 1_000.0}, "split threshold of msgRateIn (1000.0) must be above 0"),
        ({"split_bytes_rate_in_threshold": 1.0}, "split threshold of bytesRateIn"),
        ({"split_msg_rate_out_threshold": 1.0}, "split threshold of msgRateOut"),
        ({"merge_bytes_rate_out_threshold": 250_000_000.0}, "split threshold of bytesRateOut"),
    ],
)
def test_policies_that_contradict_themselves(fields: dict[str, Any], story: str) -> None:
    with pytest.raises(InvalidArgument) as caught:
        AutoScalePolicy(**fields)
    assert story in str(caught.value)
    assert str(caught.value).startswith("autoScalePolicy: ")


def test_policies_at_their_limits() -> None:
    policy = AutoScalePolicy(
        min_segments=1,
        max_segments=65_536,
        max_dag_depth=0,
        entry_bucket_max_per_segment=65_536,
        entry_bucket_budget=0,
        split_cooldown_seconds=0,
        merge_msg_rate_in_threshold=0,
        split_msg_rate_in_threshold=0.001,
        split_vs_rebucket_min_msg_rate_in_threshold=0,
    )
    assert list(policy.thresholds.merge) == [0, 5_000_000, 5_000, 25_000_000]
    assert list(policy.thresholds.split) == [0.001, 50_000_000, 50_000, 250_000_000]
    AutoScalePolicy(min_segments=3, max_segments=3, entry_bucket_max_per_segment=1)


def test_pitfall_49_a_zero_threshold_is_refused_for_splits_and_means_never_for_merges() -> None:
    with pytest.raises(InvalidArgument, match="must be above 0"):
        resolve_policy({"splitMsgRateInThreshold": 0, "mergeMsgRateInThreshold": 0})
    assert resolve_policy({"mergeMsgRateInThreshold": 0}).merge_msg_rate_in_threshold == 0


def test_pitfall_51_overrides_that_are_invalid_together_disable_and_say_why() -> None:
    effective = effective_policy({}, {"mergeMsgRateInThreshold": 5_000}, {"splitMsgRateInThreshold": "2000"})

    assert not effective.valid
    assert not effective.policy.enabled
    assert "msgRateIn (2000) must be above 0 and above its merge threshold (5000)" in effective.problems[0]
    broken_broker = effective_policy({"maxSegments": "many"}, None, None)
    assert "autoScalePolicy.maxSegments: 'many' is not a whole number" in broken_broker.problems[0]
    assert effective_policy(None).valid
    for nonsense in ({"splitCooldownSeconds": "9" * 400}, {"splitMsgRateInThreshold": 10**400}, [1]):
        assert not effective_policy(nonsense).valid  # type: ignore[arg-type]


def test_pitfall_95_units_are_in_the_names_and_text_may_say_them() -> None:
    override = parse_override(
        {
            "splitCooldownSeconds": "0.5s",
            "mergeWindowSeconds": "5m",
            "splitBytesRateInThreshold": "80MB",
            "mode": "advise",
        }
    )
    policy = resolve_policy(override)

    assert policy.split_cooldown_seconds == 0.5
    assert policy.merge_window_seconds == 300
    assert policy.split_bytes_rate_in_threshold == 80_000_000
    assert policy.mode is AutoScaleMode.ADVISE


@pytest.mark.parametrize(
    ("raw", "story"),
    [
        ([], "is not a policy"),
        ({"maxSegment": 4}, "did you mean maxSegments?"),
        ({"qqqqqqqqqq": 4}, "fields: enabled, mode, maxSegments"),
        ({"enabled": 1}, "autoScalePolicy.enabled: 1 is not a switch (use true or false)"),
        ({"maxSegments": True}, "True is not a whole number"),
        ({"maxSegments": 4.0}, "4.0 is not a whole number"),
        ({"mode": "yolo"}, "'yolo' is not a mode (use one of auto, advise)"),
        ({"mode": ["auto"]}, "is not a mode"),
        ({"splitCooldownSeconds": "fast"}, "autoScalePolicy.splitCooldownSeconds: 'fast' is not a duration"),
        ({"splitMsgRateInThreshold": "5m"}, "autoScalePolicy.splitMsgRateInThreshold: '5m' is not an amount"),
    ],
)
def test_overrides_that_are_refused(raw: object, story: str) -> None:
    with pytest.raises(InvalidArgument) as caught:
        parse_override(raw)
    assert story in str(caught.value)


def test_null_falls_through_and_names_of_a_later_version_are_not_used() -> None:
    assert parse_override({"maxSegments": None}) == {}
    assert resolve_policy({"maxSegments": 8}, {"maxSegments": None, "fromTheFuture": [1]}, None).max_segments == 8


@given(policies())
def test_a_policy_written_out_is_itself_again(policy: AutoScalePolicy) -> None:
    assert resolve_policy(parse_override(json.loads(json.dumps(to_builtins(policy))))) == policy


anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=3), inner, max_size=2),
    max_leaves=3,
)


@given(st.dictionaries(st.sampled_from(list(to_builtins(AutoScalePolicy()))), anything, max_size=3))
def test_any_override_is_effective_or_says_why_not(raw: dict[str, Any]) -> None:
    effective = effective_policy(raw)

    assert effective.valid or (effective.problems[0] and not effective.policy.enabled)
