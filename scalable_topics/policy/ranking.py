"""Who leads what, by agreement without talking: every daemon ranks the living ones for a topic in the same order.

Rendezvous hashing: a daemon that comes or goes changes the first rank of only its own share of the topics.
"""

from collections.abc import Iterable

import mmh3


def ranked(topic: str, brokers: Iterable[str]) -> list[str]:
    """First rank first."""
    return sorted(brokers, key=lambda broker: (-_weight(topic, broker), broker))


def _weight(topic: str, broker: str) -> int:
    return mmh3.mmh3_x64_128_uintdigest(f"{topic}\0{broker}".encode())
