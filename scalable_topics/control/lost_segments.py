"""A segment that should accept messages and is not there: made again, empty, and written down as a loss."""

import logging
from typing import Final

from scalable_topics.control.led_topic import LedTopic
from scalable_topics.model.journal import JournalRow
from scalable_topics.model.segment import SegmentInfo
from scalable_topics.model.subscription import SubscriptionState

MADE_AGAIN: Final = "made-again"
"""Stamp of what was made again: the same at each attempt, so that a repeated one finds its own."""

log = logging.getLogger(__name__)


async def make_lost_segment(topic: LedTopic, segment: SegmentInfo) -> None:
    """With the cursors of all recorded subscriptions (pitfall 9). Never done for a SEALED one (pitfall 8)."""
    operation_id = MADE_AGAIN
    found = await topic.around.repository.subscriptions(topic.topic)
    names = tuple(name for name, one in found.items() if one.value.state is not SubscriptionState.DELETING)
    address, stamp = topic.address(segment), topic.stamp(segment, operation_id)
    log.error("a segment was lost and is made again, empty topic=%s segment=%d", topic.topic, segment.segment_id)
    await topic.insist(
        operation_id, lambda call: topic.around.segments.create(address, stamp, names, call, must_be_empty=False)
    )
    row = JournalRow(
        at_ms=topic.around.now_ms(),
        what="DATA_LOSS",
        by="controller",
        reason=f"segment {segment.segment_id} was missing and has been made again, empty",
        operation_id=operation_id,
        epoch=topic.now.layout.epoch,
    )
    await topic.write_journal(row)
