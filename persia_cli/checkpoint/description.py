"""The description of a checkpoint: its manifest, tables, position, dense weights and files."""

from dataclasses import dataclass
from typing import Any

import msgspec

from persia_cli.checkpoint.content import DENSE, WEIGHTS, layout_of, read_tensors
from persia_cli.errors import ConfigError
from persia_cli.observe.saved_run import locate_model
from persia_cli.storage.locations import Location, modified_s
from persia_cli.store.checkpoints.manifest import MANIFEST, Manifest, kind_of, read_manifest
from persia_cli.store.layout import GroupSpec


@dataclass(frozen=True)
class DescribedTable:
    """A table as stored in the files; `states` are the optimizer's columns and their sizes, None if unknown."""

    name: str
    rows: int
    dim: int
    dtype: str
    group: int
    optimizer: str | None
    states: dict[str, int] | None
    nbytes: int
    """Bytes of its rows in the files, in proportion where tables share a file."""


@dataclass(frozen=True)
class Description:
    """The content of a checkpoint by its manifest; `persia checkpoint verify` checks the files against it."""

    path: str
    run_dir: str | None
    saved_s: float
    persia_version: str
    format_version: int
    step: int
    samples: int
    epoch: int | None
    """Number of whole passes over the training data before it."""
    samples_into_epoch: int | None
    seed: int
    model: str
    mode: str
    optimizer: str
    nbytes: int
    rows: int
    tables: list[DescribedTable]
    dense: dict[str, list[int]]
    """Shape of each dense tensor by name."""
    progress: dict[str, Any]
    files: list[dict[str, Any]]
    """Path below the checkpoint, bytes, rows, and the partitions of rows."""


def describe_checkpoint(folder: Location) -> Description:
    """Return the content of a checkpoint, or of the best (else newest) of a run directory; reads no rows.

    Raises UserError for a folder that is neither, CheckpointError if its manifest is damaged or a file is missing.
    """
    checkpoint, run_dir = locate_model(folder)
    manifest = read_manifest(checkpoint)
    config = manifest.config
    paths = [checkpoint / file.folder / file.name for file in manifest.files if kind_of(file) == DENSE]
    weights = next((read_tensors(path).tensors for path in paths if path.name == WEIGHTS), {})
    per_epoch = manifest.progress.train_rows
    return Description(
        path=str(checkpoint),
        run_dir=None if run_dir is None else str(run_dir),
        saved_s=modified_s(checkpoint / MANIFEST),
        persia_version=manifest.persia_version,
        format_version=manifest.format_version,
        step=manifest.step,
        samples=manifest.samples,
        epoch=manifest.samples // per_epoch if per_epoch else None,
        samples_into_epoch=manifest.samples % per_epoch if per_epoch else None,
        seed=manifest.seed,
        model=_kind(config, "model"),
        mode=_kind(config, "mode"),
        optimizer=_kind(config.get("optimizer", {}), "embedding"),
        nbytes=sum(file.nbytes for file in manifest.files),
        rows=manifest.row_count(with_dense=False),
        tables=_tables(manifest),
        dense={name: list(values.shape) for name, values in weights.items()},
        progress=msgspec.to_builtins(manifest.progress),
        files=[
            {
                "name": f"{file.folder}/{file.name}",
                "nbytes": file.nbytes,
                "rows": None if file.rows is None else file.rows.total,
                "partitions": None if file.rows is None else [file.rows.first, file.rows.stop, file.rows.partitions],
                "xxh128": file.xxh128,
            }
            for file in manifest.files
        ],
    )


def groups_of(manifest: Manifest) -> dict[str, GroupSpec]:
    """Return the feature group of each table by name; empty if the configuration is not one of this version."""
    try:
        layout = layout_of(manifest)
    except ConfigError:
        return {}
    return {table.name: group for group in layout.groups for table in group.tables}


def _tables(manifest: Manifest) -> list[DescribedTable]:
    groups = groups_of(manifest)
    nbytes: dict[str, float] = {}
    for file in manifest.files:
        size = file.nbytes + sum(segment.nbytes for segment in manifest.segments_of(file))
        for name, rows in file.rows.tables.items() if file.rows else ():
            nbytes[name] = nbytes.get(name, 0.0) + size * rows / max(file.rows.total if file.rows else 0, 1)
    return [
        DescribedTable(
            name=table.name,
            rows=table.rows,
            dim=table.dim,
            dtype=table.dtype,
            group=table.group,
            optimizer=groups[table.name].optimizer.kind if table.name in groups else None,
            states=groups[table.name].optimizer.states(table.dim) if table.name in groups else None,
            nbytes=round(nbytes.get(table.name, 0.0)),
        )
        for table in manifest.tables
    ]


def _kind(config: Any, key: str) -> str:
    part = config.get(key) if isinstance(config, dict) else None
    return str(part.get("kind", "-")) if isinstance(part, dict) else "-"
