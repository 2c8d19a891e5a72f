"""The knobs of autoscaling: what one level overrides, and the policy that comes out.

Resolution is per field: topic over namespace over broker over the defaults below. A policy that exists is valid as
a whole; overrides that are each fine but contradict each other are refused when they are set, and mean *disabled,
with the reasons* when they meet at run time.
"""

from collections.abc import Callable, Mapping
from difflib import get_close_matches
from enum import StrEnum
from functools import cached_property
from typing import Final

from msgspec import Struct
from msgspec.structs import fields

from scalable_topics.model.entry_buckets import DEFAULT_BUDGET, DEFAULT_MAX_PER_SEGMENT
from scalable_topics.model.errors import InvalidArgument
from scalable_topics.model.hash_range import RING_SIZE
from scalable_topics.model.load import Rates, Thresholds, by_metric
from scalable_topics.model.quantities import is_finite, parse_amount, parse_seconds


class AutoScaleMode(StrEnum):
    """AUTO acts; ADVISE recommends and waits for a person."""

    AUTO = "auto"
    ADVISE = "advise"


class AutoScalePolicy(Struct, frozen=True, rename="camel", kw_only=True, dict=True):
    """A resolved policy. Durations are seconds, fractions allowed; rates are messages/s and bytes/s."""

    enabled: bool = True
    """False wins over everything: no automatic change at all."""
    mode: AutoScaleMode = AutoScaleMode.AUTO
    max_segments: int = 64
    """Splits stop here. Bounds metadata and open ledgers per topic."""
    min_segments: int = 1
    """Merges stop here."""
    max_dag_depth: int = 10
    """Merges in one lineage before merging stops for it. Never stops a split."""
    dag_depth_window_seconds: float = 3600
    """A segment that has stood for this long counts as depth 0: the cap is against churn, and a topic with day and
    night must still merge on its eleventh night. 0 = depth is never forgiven, PIP-483's letter.
    """
    max_new_segments_per_evaluation: int = 1
    """How many segments one evaluation may add; 1 is PIP-483's one midpoint split."""
    split_cooldown_seconds: float = 60
    """Lets a burst of triggers become one split."""
    merge_cooldown_seconds: float = 300
    merge_window_seconds: float = 300
    """How long both segments of a pair must have been cold."""
    rebucket_cooldown_seconds: float = 60
    rebucket_down_window_seconds: float = 1800
    """How long fewer buckets must have been enough before they are lowered; 0 = never lower them."""
    split_msg_rate_in_threshold: float = 10_000
    split_bytes_rate_in_threshold: float = 50_000_000
    split_msg_rate_out_threshold: float = 50_000
    split_bytes_rate_out_threshold: float = 250_000_000
    merge_msg_rate_in_threshold: float = 1_000
    """Both segments must be below every merge threshold; 0 = never merge."""
    merge_bytes_rate_in_threshold: float = 5_000_000
    merge_msg_rate_out_threshold: float = 5_000
    merge_bytes_rate_out_threshold: float = 25_000_000
    split_vs_rebucket_min_msg_rate_in_threshold: float = 1_000
    """Consumers beyond the segments get a new segment above this rate, more buckets below it."""
    entry_bucket_budget: int = DEFAULT_BUDGET
    """Buckets a topic has in all, shared by its segments, when nobody asks for more."""
    entry_bucket_max_per_segment: int = DEFAULT_MAX_PER_SEGMENT

    def __post_init__(self) -> None:
        problems = policy_problems(self)
        if problems:
            raise InvalidArgument("; ".join(problems), subject="autoScalePolicy", remedy="mend every part of it")

    @cached_property
    def split_thresholds(self) -> Rates:
        """In the order of `METRICS`."""
        return (
            self.split_msg_rate_in_threshold,
            self.split_bytes_rate_in_threshold,
            self.split_msg_rate_out_threshold,
            self.split_bytes_rate_out_threshold,
        )

    @cached_property
    def merge_thresholds(self) -> Rates:
        return (
            self.merge_msg_rate_in_threshold,
            self.merge_bytes_rate_in_threshold,
            self.merge_msg_rate_out_threshold,
            self.merge_bytes_rate_out_threshold,
        )

    @property
    def thresholds(self) -> Thresholds:
        return Thresholds(self.split_thresholds, self.merge_thresholds)


AutoScalePolicyOverride = Mapping[str, object]
"""What one level changes, by PIP name; what is absent or null falls through. Names of a later version are kept, and
not used.
"""


class EffectivePolicy(Struct, frozen=True):
    """The policy in force. Not valid = autoscaling is off, and `problems` says what to mend."""

    policy: AutoScalePolicy
    problems: tuple[str, ...] = ()

    @property
    def valid(self) -> bool:
        return not self.problems


def parse_override(raw: object) -> AutoScalePolicyOverride:
    """Read what an operator sends. Durations and sizes may be text; a name that does not exist is refused, not
    ignored.
    """
    if not isinstance(raw, Mapping):
        raise InvalidArgument(f"{raw!r} is not a policy", subject="autoScalePolicy", remedy="send a JSON object")
    unknown = sorted(str(name) for name in raw.keys() - _PARSERS.keys())
    if unknown:
        near = get_close_matches(unknown[0], _PARSERS, n=1)
        raise InvalidArgument(
            f"there is no policy field {unknown[0]!r}",
            subject="autoScalePolicy",
            remedy=f"did you mean {near[0]}?" if near else f"fields: {', '.join(_PARSERS)}",
        )
    return {name: _parse_field(name, value) for name, value in raw.items() if value is not None}


def resolve_policy(*overrides: AutoScalePolicyOverride | None) -> AutoScalePolicy:
    """The policy of these levels, broadest first; `InvalidArgument` names everything that is wrong with it."""
    merged: dict[str, object] = {}
    for override in overrides:
        if not isinstance(override, Mapping | None):
            raise InvalidArgument(
                f"{override!r} is not a policy", subject="autoScalePolicy", remedy="store a JSON object"
            )
        for name, value in (override or {}).items():
            if value is not None and name in _PARSERS:
                merged[_ATTRIBUTES[name]] = _parse_field(name, value)
    return AutoScalePolicy(**merged)  # type: ignore[arg-type]  # _parse_field gave each the type of its field


def effective_policy(*overrides: AutoScalePolicyOverride | None) -> EffectivePolicy:
    """The same at run time: what cannot be resolved is switched off, never an exception in the middle of an
    evaluation.
    """
    try:
        return EffectivePolicy(resolve_policy(*overrides))
    except InvalidArgument as error:
        return EffectivePolicy(AutoScalePolicy(enabled=False), (str(error),))


def policy_problems(policy: AutoScalePolicy) -> list[str]:
    """What is wrong with a policy, each as a sentence."""
    problems = []
    if not 1 <= policy.min_segments <= policy.max_segments <= RING_SIZE:
        problems.append(
            f"minSegments ({policy.min_segments}) must be 1 or more and at most maxSegments ({policy.max_segments}),"
            f" which must be at most {RING_SIZE}"
        )
    if policy.max_dag_depth < 0:
        problems.append(f"maxDagDepth must be 0 or more, not {policy.max_dag_depth}")
    if policy.max_new_segments_per_evaluation < 1:
        problems.append(f"maxNewSegmentsPerEvaluation must be 1 or more, not {policy.max_new_segments_per_evaluation}")
    if not 1 <= policy.entry_bucket_max_per_segment <= RING_SIZE:
        problems.append(f"entryBucketMaxPerSegment must be 1 to {RING_SIZE}, not {policy.entry_bucket_max_per_segment}")
    if policy.entry_bucket_budget < 0:
        problems.append(f"entryBucketBudget must be 0 or more, not {policy.entry_bucket_budget}")
    for name, value in _numbers(policy):
        if not is_finite(value) or value < 0:
            problems.append(f"{name} must be a finite number of 0 or more, not {value}")
    for metric, split, merge in by_metric(policy.split_thresholds, policy.merge_thresholds):
        if not split > max(merge, 0):
            problems.append(
                f"the split threshold of {metric} ({split}) must be above 0 and above its merge threshold ({merge})"
            )
    return problems


def _numbers(policy: AutoScalePolicy) -> list[tuple[str, float]]:
    return [(name, getattr(policy, attribute)) for name, attribute in _ATTRIBUTES.items() if _KINDS[name] is float]


def _parse_field(name: str, value: object) -> object:
    try:
        return _PARSERS[name](value)
    except InvalidArgument as error:
        raise InvalidArgument(error.what, subject=f"autoScalePolicy.{name}", remedy=error.remedy) from None


def _parse_flag(value: object) -> bool:
    if not isinstance(value, bool):
        raise InvalidArgument(f"{value!r} is not a switch", remedy="use true or false")
    return value


def _parse_count(value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise InvalidArgument(f"{value!r} is not a whole number", remedy="give a whole number")
    return value


def _parse_mode(value: object) -> AutoScaleMode:
    try:
        return AutoScaleMode(value)  # type: ignore[arg-type]  # anything else is exactly what must be refused
    except ValueError:
        raise InvalidArgument(f"{value!r} is not a mode", remedy=f"use one of {', '.join(AutoScaleMode)}") from None


def _parser_of(name: str, kind: object) -> Callable[[object], object]:
    if kind is bool:
        return _parse_flag
    if kind is int:
        return _parse_count
    if kind is AutoScaleMode:
        return _parse_mode
    return parse_seconds if name.endswith("Seconds") else parse_amount


_KINDS: Final = {field.encode_name: field.type for field in fields(AutoScalePolicy)}
_ATTRIBUTES: Final = {field.encode_name: field.name for field in fields(AutoScalePolicy)}
_PARSERS: Final = {name: _parser_of(name, kind) for name, kind in _KINDS.items()}
