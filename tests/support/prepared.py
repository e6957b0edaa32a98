"""Data sets that recipes make, and their description as the dataset section of a configuration."""

from pathlib import Path
from typing import Any

from persia_cli.config.compose import compose_run
from persia_cli.config.schema import ParquetDataset
from persia_cli.data.prepare.recipe import PrepareOptions, PrepareReport, load_recipe


def prepare(recipe: str, source: Path, output: Path, **options: Any) -> PrepareReport:
    """Make a data set by a recipe that ships."""
    return load_recipe(recipe).prepare(source, output, PrepareOptions(**options), lambda done, total: None)


def dataset_of(file: Path) -> ParquetDataset:
    """The data set that a dataset.yaml describes."""
    dataset = compose_run([f"dataset={file}"]).dataset
    assert isinstance(dataset, ParquetDataset)
    return dataset
