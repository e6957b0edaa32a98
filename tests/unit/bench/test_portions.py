"""Baselines get the same data as the job."""

from pathlib import Path

import numpy as np
import pytest

from persia_cli.bench.portions import Feeder, RingPortions, portion_shape
from persia_cli.config.compose import compose_run
from persia_cli.config.record import write_run
from persia_cli.config.schema import Run
from persia_cli.data.read.batch import assemble
from persia_cli.data.read.source import open_source
from persia_cli.errors import RoleError, UserError
from tests.support.small import WORDS


def small(*words: str) -> Run:
    return compose_run([*WORDS, "dataset.generator.train_rows=100", *words])


def test_a_portion_holds_the_rows_of_one_concatenated_table() -> None:
    shape = portion_shape(small())
    assert shape.sizes == (20, 300)
    ids = [np.array([3, 19], np.uint64), np.array([0, 299], np.uint64)]
    dense, labels = np.arange(4, dtype=np.float32).reshape(2, 2), np.array([[0.0], [1.0]], np.float32)
    portion = shape.portion(assemble(dense, labels, None, ids, [None, None]))
    assert portion.rows.tolist() == [[3, 20], [19, 319]]
    assert portion.rows.flags.c_contiguous


def test_lists_of_ids_are_refused() -> None:
    shape = portion_shape(small())
    ids = [np.array([3, 1, 19], np.uint64), np.array([0], np.uint64)]
    offsets = [np.array([0, 3, 3]), np.array([0, 0, 1])]
    batch = assemble(np.zeros((2, 2), np.float32), np.zeros((2, 1), np.float32), None, ids, offsets)
    with pytest.raises(UserError, match="one id per sample"):
        shape.portion(batch)


def test_table_sizes_must_be_known(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="size of every table"):
        portion_shape(compose_run(["dataset=adult_income"]))


def test_a_ring_repeats_the_first_batches() -> None:
    run = small()
    shape = portion_shape(run)
    source = open_source(run.dataset, "train", run.seed)
    expected = [shape.portion(source.read(0, 32 * slot, 32 * slot + 32)) for slot in range(2)]
    ring = RingPortions(run, shape, 2)
    for step in range(5):
        assert np.array_equal(ring.take().rows, expected[step % 2].rows)


def test_a_feeder_reads_the_same_in_a_separate_process(tmp_path: Path) -> None:
    run = small()
    write_run(run, tmp_path / "config.yaml")
    shape = portion_shape(run)
    source = open_source(run.dataset, "train", run.seed)
    feeder = Feeder(tmp_path / "config.yaml", shape)
    try:
        # 100 rows have three whole batches; the short fourth is left out.
        for step in range(8):
            start = step % 3 * 32
            expected, portion = shape.portion(source.read(0, start, start + 32)), feeder.take()
            assert np.array_equal(portion.rows, expected.rows)
            assert np.array_equal(portion.dense, expected.dense)
            assert np.array_equal(portion.labels, expected.labels)
            assert portion.weights.size == 0
    finally:
        feeder.close()


def test_a_feeder_that_dies_is_reported(tmp_path: Path) -> None:
    feeder = Feeder(tmp_path / "nowhere.yaml", portion_shape(small()))
    try:
        with pytest.raises(RoleError, match="the process that reads batches"):
            feeder.take()
    finally:
        feeder.close()
