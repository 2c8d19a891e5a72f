"""Lists of ids as runs: one spelling, the same ids, and nothing made of a run before it is known to be short enough."""

import tracemalloc
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scalable_topics.model.errors import InvalidArgument
from scalable_topics.model.id_runs import MAX_IDS, IdRuns, canonical_runs, count_ids, ids_of

ends = st.integers(0, 30) | st.integers(2**63 - 20, 2**63 - 1)
spans = st.builds(lambda first, length: (first, min(first + length, 2**63 - 1)), ends, st.integers(0, 6))


@st.composite
def spelled(draw: st.DrawFn) -> tuple[IdRuns, tuple[int, ...]]:
    """A list of ids in some spelling, and the ids."""
    made: list[int | tuple[int, int]] = []
    ids: list[int] = []
    for first, last in draw(st.lists(spans, max_size=6)):
        members = range(first, last + 1)
        ids += members
        made += members if draw(st.booleans()) else [(first, last)]
    return tuple(made), tuple(ids)


@given(spelled())
def test_every_spelling_of_a_list_has_the_same_ids_and_one_canonical_spelling(
    both: tuple[IdRuns, tuple[int, ...]],
) -> None:
    spelling, ids = both

    runs = canonical_runs(spelling)

    assert ids_of(runs) == ids
    assert count_ids(runs) == count_ids(spelling) == len(ids)
    assert runs == canonical_runs(ids) == canonical_runs(runs)
    spans = [run if isinstance(run, tuple) else (run, run) for run in runs]
    assert all(last - first >= 2 for first, last in (run for run in runs if isinstance(run, tuple)))
    longest = [span for span in spans if span[1] > span[0]]
    for (first, last), (following, end) in pairwise(spans):
        if last + 1 == following:
            assert (first, last) not in longest, "a run that goes on was cut off"
            assert (following, end) not in longest, "a run that goes on was cut off"


def test_three_that_follow_each_other_are_a_run_and_two_are_not() -> None:
    assert canonical_runs((4, 5)) == (4, 5)
    assert canonical_runs((4, 5, 6)) == ((4, 6),)
    assert canonical_runs(((4, 5),)) == (4, 5)
    assert canonical_runs((6, 5, 4)) == (6, 5, 4), "the order is somebody's"
    assert canonical_runs((0, (1, 5), 6, 8)) == ((0, 6), 8)


def test_a_long_list_is_made_once_for_all_who_hold_it() -> None:
    one, another = canonical_runs(((0, 999),)), canonical_runs((*range(500), (500, 999)))

    assert ids_of(one) is ids_of(another)
    assert canonical_runs(((7, 77),)) is canonical_runs(((7, 77),))


@pytest.mark.parametrize(
    "runs",
    [
        ((0, MAX_IDS),),
        ((0, 2**63 - 1),),
        (((0, 40_000),) * 2),
        ((5, 4),),
        ((-1, 4),),
        (0, 1, -1),
        (-1,),
        (2**63,),
        ((4, 2**63),),
    ],
)
def test_what_is_no_list_of_relatives_is_refused_before_memory_is_spent(runs: IdRuns) -> None:
    tracemalloc.start()
    try:
        with pytest.raises(InvalidArgument, match="segment id"):
            canonical_runs(runs)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()

    assert peak < 200_000


@pytest.mark.parametrize("odd", [(True,), (0, 1, True), ((False, 3),), (0, 1, "2"), ((0, 3.0),), ("12",)])
def test_only_whole_numbers_are_ids(odd: IdRuns) -> None:
    with pytest.raises(InvalidArgument, match="neither a segment id nor a run"):
        canonical_runs(odd)


def test_as_many_relatives_as_a_topic_can_have() -> None:
    assert count_ids(canonical_runs(((0, MAX_IDS - 1),))) == MAX_IDS
