"""Lists of segment ids in which a run of consecutive ones is one entry.

Every child of a migration follows every old partition, and each of them names every child: with 1,000 partitions that
is two million ids, or two runs. A list keeps its order (the parents of a merge are in the order somebody gave), has one
spelling (`canonical_runs`), and the ids in it are made once for all who hold it (`ids_of`).
"""

from functools import lru_cache
from typing import Final

from scalable_topics.model.errors import InvalidArgument
from scalable_topics.model.hash_range import RING_SIZE
from scalable_topics.model.limits import MAX_LONG

IdRuns = tuple[int | tuple[int, int], ...]
"""Ids, and (first, last) for three or more that follow each other; both inclusive."""

SHORTEST_RUN: Final = 3
MAX_IDS: Final = RING_SIZE
"""A topic never has more segments at one time, nor more partitions, so nobody has more parents or children."""

_SHARED_LISTS: Final = 32
"""How many lists are remembered. A topic has two long ones, and only while its migration is young."""


def canonical_runs(runs: IdRuns) -> IdRuns:
    """The one spelling of a list of ids, given any: plain ids are gathered into runs, runs that touch are joined.

    Long lists that are equal share their memory, as far as they are remembered. What is no list of ids, or names more
    than `MAX_IDS`, is refused before anything is made of it.
    """
    plain = True
    for run in runs:
        if type(run) is not int or not 0 <= run <= MAX_LONG:
            # Here and not in `_canonical`, which would remember True as 1.
            _ensure_run(run)
            plain = False
    # Fewer than three ids, which is all but a few lists, cannot be a run.
    return runs if plain and len(runs) < SHORTEST_RUN else _canonical(runs)


def ids_of(runs: IdRuns) -> tuple[int, ...]:
    """The ids one by one, in order; the same tuple for everybody who asks about the same runs."""
    for run in runs:
        if type(run) is not int:
            return _expanded(runs)
    return runs  # type: ignore[return-value]  # nothing but ids in it


def count_ids(runs: IdRuns) -> int:
    """How many ids there are, without making them."""
    for run in runs:
        if type(run) is not int:
            return sum(1 if isinstance(run, int) else run[1] - run[0] + 1 for run in runs)
    return len(runs)


def _ensure_run(run: object) -> None:
    match run:
        case (first, last) if type(first) is type(last) is int and 0 <= first <= last <= MAX_LONG:
            return
    raise InvalidArgument(
        f"{run!r} is neither a segment id nor a run of them",
        remedy=f"give an id, or [first, last] with 0 <= first <= last <= {MAX_LONG}",
    )


@lru_cache(maxsize=_SHARED_LISTS)
def _canonical(runs: IdRuns) -> IdRuns:
    spans: list[tuple[int, int]] = []
    for run in runs:
        first, last = run if isinstance(run, tuple) else (run, run)
        if spans and spans[-1][1] + 1 == first:
            first = spans.pop()[0]
        spans.append((first, last))
    number = sum(last - first + 1 for first, last in spans)
    if number > MAX_IDS:
        raise InvalidArgument(f"a list of {number} segment ids", remedy=f"a segment has at most {MAX_IDS} relatives")
    made: list[int | tuple[int, int]] = []
    for first, last in spans:
        made += [(first, last)] if last - first + 1 >= SHORTEST_RUN else range(first, last + 1)
    canonical = tuple(made)
    return runs if runs == canonical else canonical


@lru_cache(maxsize=_SHARED_LISTS)
def _expanded(runs: IdRuns) -> tuple[int, ...]:
    ids: list[int] = []
    for run in runs:
        ids += (run,) if isinstance(run, int) else range(run[0], run[1] + 1)
    return tuple(ids)
