"""Checks of the settings of an evaluation or a prediction against the run whose model it loads."""

from collections.abc import Iterator, Mapping, Sequence, Set
from typing import Any

from persia_cli.config.schema import ParquetDataset, Run, Table
from persia_cli.errors import CheckpointError, ConfigError, DataError, count
from persia_cli.plan.columns import input_shape
from persia_cli.plan.embedding import embedding_layout
from persia_cli.store.checkpoints.manifest import SavedTable
from persia_cli.store.cold.geometry import rows_on_disk
from persia_cli.store.layout import EmbeddingLayout

_USED = (
    "name",
    "dataset",
    "model.file",
    "embedding.memory",
    "embedding.capacity",
    "embedding.cold",
    "embedding.dtype",
    "embedding.wire",
    "embedding.num_partitions",
    "mode",
    "train.batch_size",
    "train.accumulate",
    "train.calibrate",
    "train.threads",
    "train.losses",
    "train.precision",
    "train.device",
    "train.compile",
    "cluster",
)
"""Keys, with all keys below them, that have an effect when a saved model scores samples."""
_USED_OF_TABLES = ("dtype", "share")


def require_saved_model(saved: Run, run: Run, verb: str, dropped: tuple[str, ...] = ()) -> None:
    """Raise ConfigError for settings of `run` that differ from the `saved` run's but must not, or have no effect.

    `verb` names the task, such as "evaluating". The keys `dropped`, and those below them, differ since the command
    itself has set them.
    """
    tables = saved.embedding.tables.keys() | run.embedding.tables.keys()
    differing = dict(differences(_values(saved, tables), _values(run, tables)))
    wrong = [
        f"{key}={_spelled(now)}: {_why(key, before, verb)}"
        for key, (before, now) in differing.items()
        if not _is_below(key, dropped) and not _is_used(key)
    ]
    wrong = wrong or [*_other_inputs(saved, run)]
    if wrong:
        raise ConfigError("\n".join(wrong))


def require_same_widths(saved: Run, dataset: ParquetDataset) -> None:
    """Raise DataError for a dense column of lists whose rows had one number where the `saved` run was trained."""
    if not isinstance(saved.dataset, ParquetDataset):
        return
    plain = {each.name for each in saved.dataset.dense_features if each.width is None}
    for each in dataset.dense_features:
        if each.width is not None and each.name in plain:
            raise DataError(
                f"column {each.name} holds lists of {each.width} numbers, and the model was trained with one number "
                "per row; write numbers in their place"
            )


def require_space(saved: Sequence[SavedTable], layout: EmbeddingLayout, servers: int) -> None:
    """Raise CheckpointError if tables that share memory have more rows in the checkpoint than fit, there and on disks.

    Even if all of them fit together, a single server can have too little space; it reports that as it loads.
    """
    rows = {table.name: table.rows for table in saved}
    for group in layout.groups:
        wanted = sum(rows.get(table.name, 0) for table in group.tables)
        capacity = group.rows_per_partition * group.partitions + rows_on_disk(group, servers)
        if wanted > capacity:
            raise CheckpointError(
                f"the checkpoint has {wanted:,} rows of the tables that share memory "
                f"({', '.join(table.name for table in group.tables)}), but only {capacity:,} fit; give "
                f"{layout.budget} a higher value"
            )


def _values(run: Run, tables: Set[str]) -> dict[str, Any]:
    """Return all settings of a run as plain values, with an entry for each of these tables."""
    values = run.model_dump(mode="json")
    own = values["embedding"]["tables"]
    values["embedding"]["tables"] = {name: own.get(name) or Table().model_dump() for name in sorted(tables)}
    return values


def differences(before: Any, now: Any, path: str = "") -> Iterator[tuple[str, tuple[Any, Any]]]:
    """Yield each key path with different values, and both values; None if one does not exist."""
    if isinstance(before, Mapping) and isinstance(now, Mapping):
        for key in [*before, *(key for key in now if key not in before)]:
            yield from differences(before.get(key), now.get(key), f"{path}.{key}" if path else key)
    elif before != now:
        yield path, (before, now)


def _is_used(key: str) -> bool:
    parts = key.split(".")
    if parts[:2] == ["embedding", "tables"] and len(parts) > 3:
        return parts[3] in _USED_OF_TABLES
    return _is_below(key, _USED)


def _is_below(key: str, keys: tuple[str, ...]) -> bool:
    return any(key == each or key.startswith(f"{each}.") for each in keys)


def _why(key: str, before: Any, verb: str) -> str:
    if key.startswith(("model.", "embedding.tables.")):
        return f"the saved model has {_spelled(before)}, which {verb} cannot change; leave it out"
    return f"{verb} has no use for it, since nothing is trained; leave it out"


def _other_inputs(saved: Run, run: Run) -> Iterator[str]:
    """Yield a sentence for each difference between the inputs of the network in the two data sets."""
    old, new = embedding_layout(saved), embedding_layout(run)
    had, has = input_shape(saved, old), input_shape(run, new)
    if had.tasks != has.tasks:
        yield f"dataset.labels: the saved model has {count(had.tasks, 'label')}, and not {has.tasks}"
    if had.dense != has.dense:
        yield f"dataset.dense: the saved model reads {count(had.dense, 'dense feature')}, and not {has.dense}"
    before, now = _features(old), _features(new)
    if before != now:
        first = next((pair for pair in zip(before, now, strict=False) if pair[0] != pair[1]), None)
        what = (
            f"{first[0]}, and not {first[1]}"
            if first
            else f"{count(len(before), 'sparse feature')}, and not {len(now)}"
        )
        yield f"dataset.sparse: the saved model reads {what}; do not change names, tables, pooling and order"


def _features(layout: EmbeddingLayout) -> list[str]:
    """Return a description of each sparse feature, with all that the network and the tables depend on."""
    tables = {table.number: table.name for table in layout.tables()}
    return [
        f"{feature.name} (table {tables[feature.table]}, pooling {feature.pooling}"
        f"{f', max_length {feature.max_length}' if feature.pooling == 'none' else ''})"
        for feature in layout.features
    ]


def _spelled(value: Any) -> str:
    return "nothing" if value is None else str(value)
