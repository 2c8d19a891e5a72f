"""From a decision to the layout change that it asks for."""

from scalable_topics.model.autoscale_policy import AutoScalePolicy
from scalable_topics.model.layout import Replacements, SegmentLayout
from scalable_topics.model.replacements import merge, rebucket, split
from scalable_topics.policy.autoscale.view import Decision, Merge, NoAction, Rebucket, Split


def replacements_of(
    decision: Decision, layout: SegmentLayout, policy: AutoScalePolicy, *, at_ms: int
) -> Replacements | None:
    """The layout change that a decision asks for; None = none. The caps were the decision's business."""
    match decision:
        case Split(ways=ways):
            return split(layout, ways, at_ms=at_ms)
        case Merge(segment_ids=segment_ids):
            return merge(layout, segment_ids, at_ms=at_ms, max_buckets=policy.entry_bucket_max_per_segment)
        case Rebucket(segment_ids=segment_ids, bucket_count=count):
            return rebucket(layout, segment_ids, count, at_ms=at_ms, max_buckets=count)
        case NoAction():
            return None
