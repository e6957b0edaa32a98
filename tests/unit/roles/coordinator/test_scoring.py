"""The coordinator writes scores in the order of the data, for any order of arrival, and refuses unexpected ones."""

from itertools import product
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from persia_cli.control.position import EVAL, TRAIN
from persia_cli.errors import WireError
from persia_cli.plan.job import Job
from persia_cli.roles.coordinator.scoring import Scoring
from persia_cli.wire.message import BatchId
from tests.support.runs import make_run

ROWS, BATCH, RANKS = 50, 12, 3
SHARE = BATCH // RANKS
STEPS = 5
"""The last one has 2 rows, all of them rank 0's."""

Array = np.ndarray[Any, Any]
LOGITS = np.random.default_rng(0).normal(-1.0, 2.0, (ROWS, 2)).astype(np.float32)


@pytest.fixture
def scoring(tmp_path: Path) -> Scoring:
    """A prediction of 50 rows by three ranks, in steps of 12."""
    data = tmp_path / "samples.parquet"
    columns = {"d0": np.zeros(ROWS), "d1": np.zeros(ROWS), "row": np.arange(ROWS)}
    pq.write_table(pa.table(columns | {name: np.zeros(ROWS, np.int64) for name in "ab"}), data, row_group_size=7)
    run = make_run(
        dataset={"path": str(data), "labels": ["click", "buy"], "split": {"kind": "predict"}},
        train={"batch_size": BATCH},
        cluster={"kind": "local", "nn_workers": RANKS},
    )
    output = str(tmp_path / "scores.parquet")
    job = Job("predict", "", None, 0, ROWS, 0, STEPS, output=output, keep=("row",), logits=True)
    return Scoring(run, job)


def share(step: int, rank: int) -> Array:
    first = step * BATCH + rank * SHARE
    return LOGITS[first : min(first + SHARE, (step + 1) * BATCH, ROWS)]


def batch(step: int, rank: int, split: int = EVAL) -> BatchId:
    return BatchId(split, step, rank)


def test_scores_are_written_in_order_and_once(scoring: Scoring, tmp_path: Path) -> None:
    keys = list(product(range(STEPS), range(RANKS)))
    for seed, (step, rank) in enumerate(Random(3).sample(keys * 2, 2 * len(keys))):
        arrived = share(step, rank).copy()
        scoring.add(batch(step, rank), arrived)
        arrived[:] = seed  # its buffer is reused
    assert scoring.rows == ROWS
    told = scoring.publish()
    written = pq.read_table(tmp_path / "scores.parquet")
    assert written.column("row").to_pylist() == list(range(ROWS))
    for task, label in enumerate(("click", "buy")):
        assert written.column(f"{label}_logit").to_numpy().tobytes() == LOGITS[:, task].tobytes()
        probabilities = written.column(f"{label}_probability").to_numpy()
        spread = told["spread"][label]
        assert spread["mean"] == pytest.approx(float(probabilities.mean()), rel=1e-6)
        assert spread["median"] == pytest.approx(float(np.sort(probabilities)[ROWS // 2 - 1]), rel=1e-3)
    assert (told["path"], told["rows"]) == (str(tmp_path / "scores.parquet"), ROWS)


@pytest.mark.parametrize(
    ("rank", "which", "logits", "sentence"),
    [
        (0, batch(0, 0, TRAIN), share(0, 0), "rank 0 must not send scores of step 0 and rank 0"),
        (0, batch(0, 1), share(0, 1), "rank 0 must not send scores of step 0 and rank 1"),
        (0, batch(STEPS, 0), share(0, 0), "scores of step 5"),
        (0, batch(0, 0), share(0, 0)[1:], r"expected logits \(4, 2\), received \(3, 2\)"),
        (0, batch(0, 0), share(0, 0)[:, :1], r"expected logits \(4, 2\), received \(4, 1\)"),
        (1, batch(4, 1), share(0, 1), r"expected logits \(0, 2\)"),
        (0, batch(0, 0), np.full((4, 2), np.nan, np.float32), "NaN or infinite"),
    ],
)
def test_other_scores_are_refused(scoring: Scoring, rank: int, which: BatchId, logits: Array, sentence: str) -> None:
    with pytest.raises(WireError, match=sentence):
        scoring.check(rank, which, logits)
    assert scoring.rows == 0
    scoring.discard()


def test_an_end_without_publishing_leaves_no_file_of_that_name(scoring: Scoring, tmp_path: Path) -> None:
    scoring.add(batch(0, 0), share(0, 0))
    scoring.discard()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["samples.parquet", "scores.parquet.part"]
