"""A sample of the crash matrix: every kind of work and every fault, at places that differ. All cells: `make chaos`."""

import pytest

from tests.cluster.matrix import CELLS, Cell, F, Fault, Work, run_cell

SAMPLE = (
    Cell(Work.CREATE, F.ONE_CHILD_MADE, Fault.KILL),
    Cell(Work.SPLIT, F.BEFORE_COMMIT_1, Fault.CUT),
    Cell(Work.SPLIT, F.COMMIT_2_ANSWER_LOST, Fault.PAUSE),
    Cell(Work.SPLIT, F.ALL_TERMINATED, Fault.KILL),
    Cell(Work.SPLIT, F.TERMINATE_SENT, Fault.OWNER_DOWN),
    Cell(Work.MERGE, F.ONE_PARENT_TERMINATED, Fault.KILL),
    Cell(Work.MERGE, F.ONE_PARENT_TERMINATED, Fault.OWNER_DOWN),
    Cell(Work.MERGE, F.CURSOR_MISSING, Fault.PAUSE),
    Cell(Work.REBUCKET, F.COMMIT_3_ANSWER_LOST, Fault.CUT),
    Cell(Work.SUBSCRIBE, F.CURSOR_MISSING, Fault.KILL),
    Cell(Work.DELETE, F.CLEAN_UP_HALF_DONE, Fault.PAUSE),
    Cell(Work.PRUNE, F.COMMIT_1_ANSWER_LOST, Fault.KILL),
)


@pytest.mark.parametrize("cell", SAMPLE, ids=str)
async def test_whole_without_help(cell: Cell) -> None:
    await run_cell(cell)


def test_the_sample_is_of_the_matrix_and_knows_every_work_and_every_fault() -> None:
    assert set(SAMPLE) <= set(CELLS)
    assert {cell.work for cell in SAMPLE} == set(Work)
    assert {cell.fault for cell in SAMPLE} == set(Fault)
