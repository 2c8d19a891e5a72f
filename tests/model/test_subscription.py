"""What the store keeps of subscriptions."""

from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from scalable_topics.model.errors import InvalidArgument
from scalable_topics.model.subscription import (
    InitialPosition,
    SubscriptionRecord,
    SubscriptionState,
    SubscriptionType,
)

SEEKING = SubscriptionRecord(
    type=SubscriptionType.STREAM,
    state=SubscriptionState.SEEKING,
    initial_position=InitialPosition.EARLIEST,
    created_at_ms=5,
    seek_generation=2,
    operation_id="op",
    request_key="key",
    seek_to_ms=77,
)


def test_whoever_leads_next_knows_where_a_seek_was_going() -> None:
    document = msgspec.to_builtins(SEEKING)

    assert msgspec.convert(document, SubscriptionRecord) == SEEKING
    assert (document["seekToMs"], document["requestKey"], document["seekGeneration"]) == (77, "key", 2)
    assert replace(SEEKING, seek_to_ms=None).seek_to_ms is None, "past everything"


@pytest.mark.parametrize("state", [state for state in SubscriptionState if state is not SubscriptionState.SEEKING])
def test_only_a_seeking_one_is_going_somewhere(state: SubscriptionState) -> None:
    replace(SEEKING, state=state, seek_to_ms=None)
    with pytest.raises(InvalidArgument, match=f"a subscription that is {state} cannot seek to 77"):
        replace(SEEKING, state=state)


@pytest.mark.parametrize(
    "change", [{"seek_to_ms": -1}, {"seek_to_ms": 2**63}, {"seek_generation": -1}, {"created_at_ms": -1}]
)
def test_subscriptions_that_cannot_be(change: dict[str, Any]) -> None:
    with pytest.raises(InvalidArgument):
        replace(SEEKING, **change)
