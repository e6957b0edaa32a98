"""Data sorted by label, in many row groups, train as well as in random order."""

from pathlib import Path

import pyarrow.parquet as pq
import pytest

from tests.support.jobs import evaluation, train

pytestmark = pytest.mark.slow

CENSUS = Path(__file__).parents[2] / "recipes/adult_income/data/adult_income.parquet"
WORDS = ["conf=adult_income", "cluster=embedded", "mode=sync", "train.epochs=2", "checkpoint.at_end=false"]


@pytest.mark.timeout(600)
def test_data_sorted_by_label_train_as_well(tmp_path: Path) -> None:
    """Rows that are mixed only within eight row groups lower AUC from 0.9264 to 0.9213."""
    path = tmp_path / "sorted.parquet"
    pq.write_table(pq.read_table(CENSUS).sort_by("label"), path, row_group_size=500)
    plain = evaluation(train(WORDS, tmp_path / "plain"))
    ordered = evaluation(train([*WORDS, f"dataset.path={path}"], tmp_path / "ordered"))
    assert ordered["eval_samples"] == plain["eval_samples"]
    assert plain["auc"] > 0.926
    assert abs(ordered["auc"] - plain["auc"]) < 0.002
    assert abs(ordered["log_loss"] - plain["log_loss"]) < 0.005
