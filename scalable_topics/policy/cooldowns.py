"""When a topic was last split, merged, rebucketed: read off its layout, so that a new leader knows what the old one
did.
"""

from msgspec import Struct

from scalable_topics.model.layout import SegmentLayout
from scalable_topics.model.segment import CreatedBy


class LastOperations(Struct, frozen=True):
    """Times in ms; None = nothing left in the layout tells of one."""

    split_at_ms: int | None = None
    merge_at_ms: int | None = None
    rebucket_at_ms: int | None = None


def last_operations(layout: SegmentLayout) -> LastOperations:
    newest: dict[CreatedBy, int] = {}
    for segment in layout.segments.values():
        newest[segment.created_by] = max(segment.created_at_ms, newest.get(segment.created_by, 0))
    return LastOperations(newest.get(CreatedBy.SPLIT), newest.get(CreatedBy.MERGE), newest.get(CreatedBy.REBUCKET))
