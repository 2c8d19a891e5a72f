"""The refusal that is not about rights but about who asks; `model.errors.Forbidden` is the other one."""

from scalable_topics.model.errors import ScalableTopicsError


class Unauthenticated(ScalableTopicsError):
    """Nobody knows who asks. Never holds any part of what was presented."""

    kind = "unauthenticated"
