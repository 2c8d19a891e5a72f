"""From a decision to the layout change that it asks for."""

from collections.abc import Collection

from scalable_topics.model.autoscale_policy import AutoScalePolicy
from scalable_topics.model.entry_buckets import count_for_budget
from scalable_topics.model.layout import Replacements, SegmentLayout
from scalable_topics.model.replacements import merge, rebucket, split
from scalable_topics.policy.autoscale.view import Decision, Merge, NoAction, Rebucket, Split


def replacements_of(
    decision: Decision, layout: SegmentLayout, policy: AutoScalePolicy, *, at_ms: int
) -> Replacements | None:
    """The layout change that a decision asks for; None = none. The caps were the decision's business."""
    window = policy.dag_depth_window_seconds
    match decision:
        case Split(ways=ways):
            return split(layout, ways, at_ms=at_ms, depth_window_seconds=window)
        case Merge(segment_ids=segment_ids):
            buckets = merged_buckets(segment_ids, layout, policy)
            return merge(
                layout, segment_ids, at_ms=at_ms, max_buckets=buckets, buckets=buckets, depth_window_seconds=window
            )
        case Rebucket(segment_ids=segment_ids, bucket_count=count):
            return rebucket(layout, segment_ids, count, at_ms=at_ms, max_buckets=count, depth_window_seconds=window)
        case NoAction():
            return None


def merged_buckets(segment_ids: Collection[int], layout: SegmentLayout, policy: AutoScalePolicy) -> int:
    """The buckets of a segment that autoscaling merges: its share of the topic's budget, so that rule 6 has nothing to
    undo half an hour later; never more than its parents have, nor than a segment may have.

    Their consumers fit: a merge leaves at least as many segments as consumers, and a segment has a bucket.
    """
    share = count_for_budget(policy.entry_bucket_budget, len(layout.active) - len(segment_ids) + 1)
    together = sum(layout.segment(segment_id).bucket_count for segment_id in segment_ids)
    return min(share, together, policy.entry_bucket_max_per_segment)
