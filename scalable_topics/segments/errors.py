"""What only a store of segments refuses. Each `kind` is what REST bodies and metrics call it."""

from scalable_topics.model.errors import ScalableTopicsError, WrongState


class StaleTerm(WrongState):
    """A leader with a higher term has worked on this segment. Stop at once, and compensate nothing."""

    kind = "stale-term"


class Unusable(WrongState):
    """There is a segment of this name, and it cannot become the one that was asked for.

    Whoever creates burns the id and takes the next one (PROTOCOL 4).
    """

    kind = "unusable"


class ForeignStamp(Unusable):
    """It was made by somebody else: another life of the topic, another segment or another operation."""

    kind = "foreign-stamp"


class Tombstoned(Unusable):
    """It was deleted. What was deleted is never made again under the same name."""

    kind = "tombstoned"


class Terminated(WrongState):
    """It accepts no more messages, for ever. Nothing of the refused append was stored: write to its children."""

    kind = "terminated"


class WritersFenced(WrongState):
    """A migration keeps other producers out for the moment."""

    kind = "writers-fenced"


class Fenced(WrongState):
    """Another daemon has taken this segment over. Nothing of what was refused has happened; ask who owns it now."""

    kind = "fenced"


class StaleGeneration(WrongState):
    """The unit was handed on: whoever holds the newer generation delivers it."""

    kind = "stale-generation"


class Detached(WrongState):
    """This attachment has ended: it was closed, the cursor was moved, or its segment is served here no more."""

    kind = "detached"


class OutOfOrder(WrongState):
    """A sequence number below one that was stored, and not itself stored. Accepting it would reorder the producer."""

    kind = "out-of-order"


class Damaged(ScalableTopicsError):
    """A file of the store cannot be read as what it should be."""

    kind = "damaged"


def again(error: ScalableTopicsError) -> ScalableTopicsError:
    """The same refusal once more, as an exception of its own."""
    return type(error)(error.what, subject=error.subject, remedy=error.remedy)
