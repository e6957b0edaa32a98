"""All that is known of the tables of a checkpoint: what its files hold, its config allows, and its run has counted."""

from dataclasses import dataclass
from pathlib import Path

from persia_cli.config.schema import Run
from persia_cli.errors import ConfigError, UserError
from persia_cli.observe.journal import EVENTS, Tail
from persia_cli.plan.embedding import embedding_layout, group_rows
from persia_cli.store.layout import DENSE_TABLE, EmbeddingLayout
from persia_cli.store.manifest import CHECKPOINTS, MANIFEST, Manifest, read_manifest
from persia_cli.store.retention import choose_checkpoint
from persia_cli.store.table_stats import TableStats, table_stats

CONFIG = "config.yaml"
"""File of a run directory."""


@dataclass(frozen=True)
class TableReport:
    """One table; None where it is not known."""

    stats: TableStats
    row_bytes: int | None
    """Memory of a row: embedding, states, padding."""
    capacity: int | None
    """Rows there is room for, all servers together; tables of equal rows share it. Dense weights have no such end."""
    counters: dict[str, int] | None
    """What the embedding servers counted, from the start of the run to its end."""

    @property
    def nbytes(self) -> int | None:
        """Memory of the table's rows."""
        return None if self.row_bytes is None else self.stats.rows * self.row_bytes

    @property
    def share(self) -> float | None:
        """Part of the capacity that the table's rows take."""
        return None if self.capacity is None else self.stats.rows / self.capacity

    @property
    def hit_rate(self) -> float | None:
        """Part of the looked up keys whose row was there; None also if none was looked up."""
        counters = self.counters or {}
        asked = counters.get("hits", 0) + counters.get("misses", 0)
        return counters["hits"] / asked if asked else None


@dataclass(frozen=True)
class CheckpointReport:
    """The tables of one checkpoint, by name."""

    checkpoint: Path
    run_dir: Path | None
    """The run that the checkpoint lies in."""
    step: int
    tables: dict[str, TableReport]


def report_tables(folder: Path) -> CheckpointReport:
    """Report on the newest checkpoint of a run directory, or on a checkpoint itself.

    Raises UserError for a folder that is neither, CheckpointError for a run without a checkpoint or a damaged one.
    """
    checkpoint, run_dir = _find(folder)
    manifest = read_manifest(checkpoint)
    layout = _layout(manifest)
    groups = {table.name: group for group in layout.groups for table in group.tables} if layout else {}
    counted = _counters(run_dir)
    tables = {}
    for name, stats in table_stats(checkpoint, manifest).items():
        group = groups.get(name)
        tables[name] = TableReport(
            stats=stats,
            row_bytes=group.width * 4 if group else None,
            capacity=group_rows(group) if group and name != DENSE_TABLE else None,
            counters=counted.get(name),
        )
    return CheckpointReport(checkpoint, run_dir, manifest.step, tables)


def _find(folder: Path) -> tuple[Path, Path | None]:
    """Return the checkpoint that is meant, and the run it is of, if it lies in one."""
    if (folder / MANIFEST).is_file():
        run_dir = folder.resolve().parents[1] if folder.resolve().parent.name == CHECKPOINTS else None
        return folder, run_dir if run_dir and (run_dir / CONFIG).is_file() else None
    if not (folder / CONFIG).is_file():
        raise UserError(
            f"{folder} is neither a run directory nor a checkpoint: it has no {CONFIG} and no {MANIFEST}; "
            "give the folder that persia train named at its start"
        )
    return choose_checkpoint(folder), folder


def _layout(manifest: Manifest) -> EmbeddingLayout | None:
    """Return the layout by the checkpoint's config; None if this version does not understand it."""
    try:
        return embedding_layout(Run.model_validate(manifest.config))
    except (ValueError, ConfigError):
        return None


def _counters(run_dir: Path | None) -> dict[str, dict[str, int]]:
    """Return the counters of each table when the run ended; empty if it has not."""
    counted: dict[str, dict[str, int]] = {}
    if run_dir is not None:
        for event in Tail(run_dir / EVENTS).new():
            if event["event"] == "tables":
                counted = event["tables"]
    return counted
