"""What should change about a topic now, and why (PIP-483, PIP-486).

`view` is what the caller brings and what it gets back, `rules` decides, `explanation` tells, `flips` says what
would have changed its mind, `changes` turns a decision into a layout change. There is one implementation: the rules
answer *what holds me back* guard by guard; `decide` stops at the first answer, `explain` asks for all of them.
"""

from scalable_topics.policy.autoscale.changes import replacements_of
from scalable_topics.policy.autoscale.demand import LowDemand, follow_demand
from scalable_topics.policy.autoscale.explanation import Explanation, Finding, describe, explain
from scalable_topics.policy.autoscale.flips import Bound, Change
from scalable_topics.policy.autoscale.rules import Guard, Rule, decide
from scalable_topics.policy.autoscale.view import (
    ConsumerCount,
    Decision,
    KnownLoad,
    Merge,
    NoAction,
    Reason,
    Rebucket,
    Split,
    TopicView,
    standing_times,
)

__all__ = [
    "Bound",
    "Change",
    "ConsumerCount",
    "Decision",
    "Explanation",
    "Finding",
    "Guard",
    "KnownLoad",
    "LowDemand",
    "Merge",
    "NoAction",
    "Reason",
    "Rebucket",
    "Rule",
    "Split",
    "TopicView",
    "decide",
    "describe",
    "explain",
    "follow_demand",
    "replacements_of",
    "standing_times",
]
