"""The one family of errors.

Each says what happened, to what, and what would work instead. `kind` is the word that the conformance cases, the
REST bodies and the metrics use; which HTTP status a kind becomes is mapped in one place, in the server.
"""

from typing import ClassVar


class ScalableTopicsError(Exception):
    """Base of everything this package raises on purpose."""

    kind: ClassVar[str] = "error"

    def __init__(self, what: str, *, subject: str | None = None, remedy: str | None = None) -> None:
        super().__init__(what)
        self.what = what
        self.subject = subject
        self.remedy = remedy

    def __str__(self) -> str:
        text = f"{self.subject}: {self.what}" if self.subject else self.what
        return f"{text} ({self.remedy})" if self.remedy else text


class NotFound(ScalableTopicsError):
    """There is no such topic, segment or subscription."""

    kind = "not-found"


class WrongState(ScalableTopicsError):
    """It exists, but in a state in which this cannot be done."""

    kind = "wrong-state"


class MustStop(WrongState):
    """No waiting mends this: the daemon that meets it stops, and says why."""

    kind = "must-stop"


class InvalidArgument(ScalableTopicsError, ValueError):
    """An argument is malformed, or arguments contradict each other.

    A `ValueError` too, so that a refusal inside a value's constructor reads as a validation error to msgspec.
    """

    kind = "invalid-argument"


class InvalidLayout(InvalidArgument):
    """A layout that cannot be: `problems` tells the whole story, not only its first line."""

    def __init__(self, problems: tuple[str, ...], *, subject: str | None = None) -> None:
        shown = "; ".join(problems[:8])
        more = f"; and {len(problems) - 8} more" if len(problems) > 8 else ""
        super().__init__(shown + more, subject=subject, remedy="restore the record from a backup or the journal")
        self.problems = problems


class CapReached(ScalableTopicsError):
    """A configured limit stands in the way."""

    kind = "cap-reached"


class Unsupported(ScalableTopicsError):
    """The form of the input is understood, and refused."""

    kind = "unsupported"


class DecodeError(ScalableTopicsError):
    """Bytes that cannot be read as what they should be."""

    kind = "decode"


class Unavailable(ScalableTopicsError):
    """Somebody we need does not answer. Nothing was changed; try again."""

    kind = "unavailable"


class UnknownOutcome(Unavailable):
    """The answer to a write was lost: it may or may not have happened. Read before doing anything else."""

    kind = "unknown-outcome"


class Compacted(ScalableTopicsError):
    """That part of the store's history is forgotten: list again, and go on from there."""

    kind = "compacted"


class TooLarge(ScalableTopicsError):
    """More than the store takes in one write. Nothing was written."""

    kind = "too-large"


class NoSpace(ScalableTopicsError):
    """The store is full and refuses every write until somebody makes room."""

    kind = "no-space"


class LeaseLost(ScalableTopicsError):
    """The lease that was to carry a key is gone, and with it the session it stood for."""

    kind = "lease-lost"


class Forbidden(ScalableTopicsError):
    """Whoever asks may not."""

    kind = "forbidden"
