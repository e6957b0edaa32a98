"""Which batches a job has: each has a size, all others are refused."""

import pytest

from persia_cli.control.batches import JobBatches
from persia_cli.control.position import StepGrid
from persia_cli.control.splits import EVAL, SPLIT_NAMES, TRAIN
from persia_cli.errors import WireError

JOB = JobBatches({TRAIN: StepGrid(20, 8, 2), EVAL: StepGrid(9, 8, 2)}, steps=5, world_size=2, generation=1)


def test_batches_have_the_size_of_the_ranks_share() -> None:
    assert [[JOB.size(1, TRAIN, step, rank) for rank in range(2)] for step in range(5)] == [
        [4, 4], [4, 4], [4, 0], [4, 4], [4, 4],
    ]  # fmt: skip
    assert [[JOB.size(1, EVAL, step, rank) for rank in range(2)] for step in (0, 1)] == [[4, 4], [1, 0]]


def test_evaluation_goes_on_pass_after_pass() -> None:
    assert JOB.size(1, EVAL, 2001, 0) == 1


@pytest.mark.parametrize(
    ("generation", "split", "step", "rank", "told"),
    [
        (0, TRAIN, 0, 0, "generation 0 is over; this replica is at 1"),
        (2, TRAIN, 0, 0, "generation 2 is over; this replica is at 1"),
        (1, TRAIN, 0, 2, "no rank 2 in a world of 2"),
        (1, TRAIN, 0, -1, "no rank -1 in a world of 2"),
        (1, TRAIN, 5, 0, "no step 5 of the split 'train'"),
        (1, TRAIN, -1, 0, "no step -1 of the split 'train'"),
        (1, EVAL, -1, 0, "no step -1 of the split 'eval'"),
        (1, 7, 0, 0, "no step 0 of the split '7'"),
    ],
)
def test_other_batches_are_refused(generation: int, split: int, step: int, rank: int, told: str) -> None:
    with pytest.raises(WireError, match=told):
        JOB.size(generation, split, step, rank)


def test_a_split_without_rows_has_no_batches() -> None:
    job = JobBatches({TRAIN: StepGrid(20, 8, 1)}, steps=5, world_size=1)
    with pytest.raises(WireError, match="no step 0 of the split 'eval'"):
        job.size(0, EVAL, 0, 0)


def test_splits_have_the_names_of_the_metrics() -> None:
    assert SPLIT_NAMES == {TRAIN: "train", EVAL: "eval"}
