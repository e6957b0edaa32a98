"""A ring repeats the first batches of a source, the same ones every time."""

import numpy as np
import pytest

from persia_cli.config.schema import Generator
from persia_cli.control.position import StepGrid
from persia_cli.data.read.generator import GeneratedSource
from persia_cli.data.read.source import Ring

GENERATOR = Generator(train_rows=50, eval_rows=0, dense=2, cardinalities=(9, 4))


def source() -> GeneratedSource:
    return GeneratedSource(GENERATOR, 1, "train", 3)


def test_steps_go_round_also_over_the_end_of_an_epoch() -> None:
    ring, grid = Ring(source(), 3, 8), StepGrid(50, 8, 1)
    for step in range(20):
        epoch, start, stop = grid.locate(step)
        batch = ring.read(epoch, start, stop)
        place = step % 3
        expected = source().read(0, place * 8, place * 8 + stop - start)
        assert batch.size == stop - start
        assert np.array_equal(batch.ids, expected.ids)
        assert np.array_equal(batch.dense, expected.dense)


def test_whole_batches_are_the_same_memory_every_time() -> None:
    ring = Ring(source(), 2, 10)
    assert ring.read(0, 0, 10) is ring.read(0, 20, 30)
    assert ring.rows == 50


@pytest.mark.parametrize("batches", [0, 7])
def test_a_ring_needs_whole_batches(batches: int) -> None:
    with pytest.raises(ValueError, match="batches of 8"):
        Ring(source(), batches, 8)
