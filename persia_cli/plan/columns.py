"""The columns of a run's samples, whether they are read from files or generated."""

from persia_cli.config.schema import ParquetDataset, Run, SparseFeature


def sparse_features(run: Run) -> tuple[SparseFeature, ...]:
    """Return the sparse features, in the order of the ids on the wire."""
    if isinstance(run.dataset, ParquetDataset):
        return run.dataset.sparse
    return tuple(SparseFeature(name=f"feature_{i}") for i in range(len(run.dataset.generator.cardinalities)))


def dense_count(run: Run) -> int:
    """Return the number of dense features."""
    return len(run.dataset.dense) if isinstance(run.dataset, ParquetDataset) else run.dataset.generator.dense


def pass_through(run: Run) -> tuple[str, ...]:
    """Return the columns that accompany evaluation samples."""
    return run.dataset.pass_through if isinstance(run.dataset, ParquetDataset) else ()


def label_names(run: Run) -> tuple[str, ...]:
    """Return the name of each task's label."""
    return run.dataset.labels if isinstance(run.dataset, ParquetDataset) else ("label",)
