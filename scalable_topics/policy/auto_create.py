"""What may be brought to life by somebody who only connects."""

from scalable_topics.model.layout import SegmentLayout


def may_create_on_connect(layout: SegmentLayout | None, segment_id: int) -> bool:
    """May somebody who connects to a missing segment have it created? Only what the record lists as ACTIVE; SEALED
    never comes back.
    """
    segment = layout.segments.get(segment_id) if layout else None
    return segment is not None and segment.is_active
