"""An operation: a layout change on its way through PROTOCOL 3, kept inside the topic's record."""

from enum import StrEnum

from msgspec import Struct

from scalable_topics.model.layout import Replacements


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


class FinishedOperation(Struct, frozen=True, rename="camel", kw_only=True):
    """What is remembered of an operation, so that a lost answer can be looked up and a repeated request recognised."""

    id: str
    kind: OperationKind
    outcome: Outcome
    finished_at_ms: int
    request_key: str | None = None
