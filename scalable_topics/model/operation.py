"""An operation: a layout change on its way through PROTOCOL 3, kept inside the topic's record."""

from enum import StrEnum

from msgspec import Struct

from scalable_topics.model.errors import InvalidArgument
from scalable_topics.model.layout import Replacements
from scalable_topics.model.limits import is_long


class OperationKind(StrEnum):
    SPLIT = "SPLIT"
    MERGE = "MERGE"
    REBUCKET = "REBUCKET"
    MIGRATION = "MIGRATION"


class Phase(StrEnum):
    """PREPARING can still be aborted; SEALING is past the point of no return. A done operation is no longer there."""

    PREPARING = "PREPARING"
    SEALING = "SEALING"


class Outcome(StrEnum):
    DONE = "DONE"
    ABORTED = "ABORTED"


class Operation(Struct, frozen=True, rename="camel", kw_only=True):
    """What is being done to the topic, by whom and why. The children are complete: nobody computes them again."""

    id: str
    kind: OperationKind
    phase: Phase
    replacements: Replacements
    reason: str
    by: str
    started_at_ms: int
    request_key: str | None = None

    def __post_init__(self) -> None:
        _ensure_time("startedAtMs", self.started_at_ms)


class FinishedOperation(Struct, frozen=True, rename="camel", kw_only=True):
    """What is remembered of an operation, so that a lost answer can be looked up and a repeated request recognised."""

    id: str
    kind: OperationKind
    outcome: Outcome
    finished_at_ms: int
    request_key: str | None = None

    def __post_init__(self) -> None:
        _ensure_time("finishedAtMs", self.finished_at_ms)


def _ensure_time(name: str, at_ms: int) -> None:
    if not is_long(at_ms):
        raise InvalidArgument(f"{name} {at_ms} is not a time", remedy="milliseconds, a long of 0 or more")
