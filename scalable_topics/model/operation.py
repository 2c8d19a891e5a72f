"""An operation: a change on its way through PROTOCOL 3, inside the topic's record, and what is remembered of it."""

from enum import StrEnum
from typing import Final

from msgspec import Struct, field
from msgspec.structs import force_setattr

from scalable_topics.model.errors import InvalidArgument
from scalable_topics.model.id_runs import IdRuns, canonical_runs, ids_of
from scalable_topics.model.layout import Replacements
from scalable_topics.model.limits import is_long


class OperationKind(StrEnum):
    """CREATE and DELETE are of a topic as a whole. SEEK and SKIP_ALL are of one subscription: its record has them while
    they run, the topic's `recentOperations` once they have ended. The others replace segments.
    """

    CREATE = "CREATE"
    SPLIT = "SPLIT"
    MERGE = "MERGE"
    REBUCKET = "REBUCKET"
    ROLLOVER = "ROLLOVER"
    MIGRATION = "MIGRATION"
    DELETE = "DELETE"
    SEEK = "SEEK"
    SKIP_ALL = "SKIP_ALL"


WHOLE_TOPIC_KINDS: Final = frozenset({OperationKind.CREATE, OperationKind.DELETE})
SUBSCRIPTION_KINDS: Final = frozenset({OperationKind.SEEK, OperationKind.SKIP_ALL})


class Phase(StrEnum):
    """PREPARING can still be aborted; SEALING is past the point of no return. A done operation is no longer there."""

    PREPARING = "PREPARING"
    SEALING = "SEALING"


class Outcome(StrEnum):
    """ABORTED: no parent was terminated. SUPERSEDED: the topic was deleted meanwhile."""

    DONE = "DONE"
    ABORTED = "ABORTED"
    SUPERSEDED = "SUPERSEDED"


class Operation(Struct, frozen=True, rename="camel", kw_only=True):
    """What is being done to the topic, by whom and why. The children are complete: nobody computes them again.

    Only CREATE and DELETE have no replacements.
    """

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
        if self.kind in SUBSCRIPTION_KINDS:
            raise InvalidArgument(f"a {self.kind} is no operation of a topic", remedy="it is its subscription's")
        if (self.kind in WHOLE_TOPIC_KINDS) is bool(self.replacements):
            but = "replaces no segments" if self.replacements else "without replacements changes nothing"
            raise InvalidArgument(f"a {self.kind} {but}")


class FinishedOperation(Struct, frozen=True, rename="camel", kw_only=True):
    """What is remembered of an operation, so that a lost answer can be looked up and a repeated request recognised."""

    id: str
    kind: OperationKind
    outcome: Outcome
    finished_at_ms: int
    request_key: str | None = None
    parent_runs: IdRuns = field(name="parents", default=())
    """What it replaced, or would have."""
    subscription: str | None = None
    """Whose SEEK or SKIP_ALL it was."""
    reason: str = ""
    """Why it was aborted."""

    def __post_init__(self) -> None:
        _ensure_time("finishedAtMs", self.finished_at_ms)
        force_setattr(self, "parent_runs", canonical_runs(self.parent_runs))

    @property
    def parents(self) -> tuple[int, ...]:
        return ids_of(self.parent_runs)


def _ensure_time(name: str, at_ms: int) -> None:
    if not is_long(at_ms):
        raise InvalidArgument(f"{name} {at_ms} is not a time", remedy="milliseconds, a long of 0 or more")
