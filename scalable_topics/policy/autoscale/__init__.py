"""What should change about a topic now, and why (PIP-483, PIP-486).

`view` is what the caller brings and what it gets back, `rules` decides, `explanation` tells. There is one
implementation: the rules answer *what holds me back* guard by guard; `decide` stops at the first answer, `explain`
asks for all of them.
"""

from scalable_topics.policy.autoscale.explanation import Bound, Change, Explanation, Finding, describe, explain
from scalable_topics.policy.autoscale.rules import Guard, Rule, decide, demand_is_low
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
    "Merge",
    "NoAction",
    "Reason",
    "Rebucket",
    "Rule",
    "Split",
    "TopicView",
    "decide",
    "demand_is_low",
    "describe",
    "explain",
]
