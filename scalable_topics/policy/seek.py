"""What a seek to a time means for each segment."""

from enum import StrEnum

from msgspec import Struct


class SeekAction(StrEnum):
    SKIP_ALL = "skip-all"
    SEEK = "seek"


class SegmentSeek(Struct, frozen=True):
    action: SeekAction
    timestamp_ms: int = 0

    def __str__(self) -> str:
        return self.action if self.action is SeekAction.SKIP_ALL else f"{self.action} {self.timestamp_ms}"


def plan_seek(*, created_at_ms: int, sealed_at_ms: int | None, timestamp_ms: int) -> SegmentSeek:
    """All before the time: skip it. All after: from its start. Around it: ask the segment. None or 0 = not sealed."""
    if sealed_at_ms and sealed_at_ms <= timestamp_ms:
        return SegmentSeek(SeekAction.SKIP_ALL)
    return SegmentSeek(SeekAction.SEEK, 0 if created_at_ms >= timestamp_ms else timestamp_ms)
