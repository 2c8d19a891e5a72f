"""The simulation inside `make test`: a fresh slice of seeds each time, and every cell of the crash matrix."""

import os
import random

import pytest

from tests.simulation.matrix import CELLS, Cell, run_cell
from tests.simulation.scenario import run_seed

SLICE = int(os.environ.get("SIMULATION_SLICE", "60"))


@pytest.mark.parametrize("part", range(4))
def test_a_fresh_slice_of_seeds(part: int, capsys: pytest.CaptureFixture[str]) -> None:
    first = random.SystemRandom().randrange(1 << 31)
    with capsys.disabled():
        print(f" seeds {first}:+{SLICE}", end="")
    for seed in range(first + part, first + part + SLICE):
        run_seed(seed)


@pytest.mark.parametrize("cell", CELLS, ids=str)
def test_crash_matrix(cell: Cell) -> None:
    run_cell(cell)


def test_a_seed_replays_exactly() -> None:
    first, second = run_seed(20061), run_seed(20061)

    assert first.story == second.story
    assert (first.steps, first.requests) == (second.steps, second.requests)
