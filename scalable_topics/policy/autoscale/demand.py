"""How long fewer buckets would have been enough: the one thing autoscaling has to remember from look to look."""

from msgspec import Struct

from scalable_topics.model.autoscale_policy import AutoScalePolicy
from scalable_topics.policy.autoscale.rules import Evaluation, Guard
from scalable_topics.policy.autoscale.view import TopicView


class LowDemand(Struct, frozen=True):
    """Since `since_ms` nobody has asked for more than `target` buckets per segment, and there are more."""

    target: int
    since_ms: int


def follow_demand(
    before: LowDemand | None, view: TopicView, policy: AutoScalePolicy, *, now_ms: int
) -> LowDemand | None:
    """The demand after one more look; `TopicView.demand_low_ms` is its age.

    A target that falls starts anew: that less was enough is only known from now on. One that rises does not.
    """
    evaluation = Evaluation(view, policy)
    if Guard.NOTHING_TO_LOWER in evaluation.rebucket_down_guards():
        return None
    target = evaluation.idle_target
    if before is None or target < before.target:
        return LowDemand(target, now_ms)
    return LowDemand(target, before.since_ms)
