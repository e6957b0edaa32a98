"""The data set configs that ship, and what the schema refuses."""

from typing import Any

import pytest
from omegaconf import OmegaConf
from pydantic import TypeAdapter, ValidationError

from persia_cli.config.schema.dataset import Dataset, GeneratedDataset, ParquetDataset
from persia_cli.data.read.facts import inspect
from persia_cli.shipped import shipped

OF_TEXT = {"format", "csv", "max_bad_rows"}
"""Keys of text files; what recipes prepare is Parquet."""

ADAPTER: TypeAdapter[ParquetDataset | GeneratedDataset] = TypeAdapter(Dataset)


def keys(name: str) -> Any:
    return OmegaConf.to_container(OmegaConf.load(shipped("conf") / "dataset" / f"{name}.yaml"), resolve=True)


@pytest.mark.parametrize(
    ("name", "train_rows", "eval_rows", "dense", "sparse"),
    [
        ("adult_income", 32_561, 16_281, 5, 12),
        ("adult_income_original", 32_561, 16_281, 5, 8),
        ("synthetic", 200_000, 20_000, 8, 16),
    ],
)
def test_shipped_data_sets_are_ready(name: str, train_rows: int, eval_rows: int, dense: int, sparse: int) -> None:
    facts = inspect(ADAPTER.validate_python(keys(name)))
    assert (facts.train_rows, facts.eval_rows) == (train_rows, eval_rows)
    assert (facts.dense, len(facts.sparse), facts.tasks, facts.stand_in) == (dense, sparse, 1, False)


def test_criteo_has_a_stand_in_of_its_shape(tmp_path_factory: pytest.TempPathFactory) -> None:
    nowhere = tmp_path_factory.mktemp("cwd") / "criteo"
    dataset = ADAPTER.validate_python({**keys("criteo"), "path": str(nowhere)})
    facts = inspect(dataset)
    assert facts.stand_in
    assert (facts.dense, len(facts.sparse)) == (13, 26)
    assert facts.train_rows >= 1_000_000


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"split": {"kind": "column", "column": "s", "train": 1, "eval": 1}}, "train and eval are both 1"),
        ({"split": {"kind": "every", "n": 3, "offset": 3}}, "offset must be below n = 3"),
        ({"dense": ["I1"]}, "dataset.generator has 13 dense and 26 sparse features, but the data set has 1 and 26"),
        ({"sparse": ["C1"] * 26}, "dataset.sparse lists C1 twice"),
    ],
)
def test_configs_that_contradict_themselves_are_refused(changes: dict[str, Any], text: str) -> None:
    with pytest.raises(ValidationError, match=text):
        ADAPTER.validate_python({**keys("criteo"), **changes})
