"""What answers the verbs of the cases.

An adapter translates `given` into our types and our answer back; it decides nothing.
"""

from tests.conformance.adapters import decisions, layouts, values

__all__ = ["decisions", "layouts", "values"]
