"""Prepared data sets as the dataset section of a configuration."""

from pathlib import Path

from persia_cli.config.compose import compose_run
from persia_cli.config.schema import ParquetDataset


def dataset_of(file: Path) -> ParquetDataset:
    """The data set that a dataset.yaml describes."""
    dataset = compose_run([f"dataset={file}"]).dataset
    assert isinstance(dataset, ParquetDataset)
    return dataset
