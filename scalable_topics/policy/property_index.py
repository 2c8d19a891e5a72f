"""Topics by their properties."""

from collections.abc import Mapping


def topics_with(topics: Mapping[str, Mapping[str, str]], wanted: Mapping[str, str]) -> list[str]:
    """The topics that have all of these properties, sorted; no filter = all of them."""
    return sorted(name for name, properties in topics.items() if wanted.items() <= properties.items())
