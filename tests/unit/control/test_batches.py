"""Which batches a job has."""

import pytest

from persia_cli.control.batches import JobBatches
from persia_cli.control.position import StepGrid
from persia_cli.control.splits import EVAL, TRAIN
from persia_cli.errors import WireError

BATCHES = JobBatches({TRAIN: StepGrid(20, 8, 2), EVAL: StepGrid(5, 8, 2)}, steps=6, world_size=2, generation=3)


def test_the_size_of_a_batch_is_that_of_the_ranks_share():
    assert [BATCHES.size(3, TRAIN, step, 0) for step in range(6)] == [4, 4, 4, 4, 4, 4]
    assert [BATCHES.size(3, TRAIN, step, 1) for step in range(6)] == [4, 4, 0, 4, 4, 0]
    assert [BATCHES.size(3, EVAL, 1000, rank) for rank in range(2)] == [4, 1]


@pytest.mark.parametrize(
    ("batch", "words"),
    [
        ((2, TRAIN, 0, 0), "generation 2 is over; this replica is at 3"),
        ((3, TRAIN, 0, 2), "there is no rank 2 in a world of 2"),
        ((3, TRAIN, 0, -1), "there is no rank -1"),
        ((3, TRAIN, 6, 0), "this job has no step 6 of the split 'train'"),
        ((3, TRAIN, -1, 0), "this job has no step -1"),
        ((3, 2, 0, 0), "this job has no step 0 of the split '2'"),
    ],
)
def test_what_the_job_has_not_is_refused(batch, words):
    with pytest.raises(WireError, match=words):
        BATCHES.size(*batch)


def test_a_split_without_rows_has_no_batches():
    with pytest.raises(WireError, match="no step 0 of the split 'eval'"):
        JobBatches({TRAIN: StepGrid(20, 8, 1)}, steps=3, world_size=1).size(0, EVAL, 0, 0)
