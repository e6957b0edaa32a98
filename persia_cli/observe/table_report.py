"""The report on a checkpoint's tables: statistics of its files, limits of its config, and counters of its run."""

from dataclasses import dataclass
from pathlib import Path

from persia_cli.config.schema import Run
from persia_cli.config.schema.embedding import DENSE_TABLE
from persia_cli.errors import ConfigError
from persia_cli.observe.journal import EVENTS, Tail, understanding
from persia_cli.observe.saved_run import locate_model
from persia_cli.observe.table_stats import TableStats, table_stats
from persia_cli.plan.embedding import embedding_layout
from persia_cli.storage.locations import Location
from persia_cli.store.checkpoints.manifest import Manifest, read_manifest
from persia_cli.store.layout import EmbeddingLayout


@dataclass(frozen=True)
class TableReport:
    """The report on a table; unknown values are None."""

    stats: TableStats
    row_bytes: int | None
    """Memory of a row in bytes: embedding, states, padding."""
    sharing: tuple[str, ...]
    """Names of the tables that share a capacity with this one, itself included; empty if there are no others."""
    capacity: int | None
    """Capacity in rows of all servers and all tables that share it; None for dense weights, which have no limit."""
    counters: dict[str, int] | None
    """Counters of the embedding servers over the whole run."""

    @property
    def nbytes(self) -> int | None:
        """Memory of the table's rows in bytes; if some are on disks, of those in memory at the end of the run."""
        return None if self.row_bytes is None else self._rows_in_memory * self.row_bytes

    @property
    def _rows_in_memory(self) -> int:
        counters = self.counters or {}
        return counters["rows"] if "cold_rows" in counters else self.stats.rows

    @property
    def room_fraction(self) -> float | None:
        """Fraction of the capacity, which other tables may share, that this table's rows take."""
        return None if self.capacity is None else self._rows_in_memory / self.capacity

    @property
    def hit_rate(self) -> float | None:
        """Fraction of the distinct ids of each batch that had a row; None if unknown or without look-ups."""
        counters = self.counters or {}
        asked = counters.get("hits", 0) + counters.get("misses", 0)
        return counters["hits"] / asked if asked else None

    @property
    def look_up_hit_rate(self) -> float | None:
        """Fraction of all training look-ups that found a row, repeats included; None as for `hit_rate`."""
        counters = self.counters or {}
        asked = counters.get("look_ups", 0)
        return counters["look_ups_known"] / asked if asked else None


@dataclass(frozen=True)
class CheckpointReport:
    """The tables of one checkpoint, by name."""

    checkpoint: Location
    run_dir: Path | None
    """Run directory of the checkpoint; None if it is not in one."""
    step: int
    tables: dict[str, TableReport]


def report_tables(folder: Location) -> CheckpointReport:
    """Return the report on the chosen checkpoint of a run directory, or on a checkpoint itself.

    Raises UserError for a folder that is neither, CheckpointError for a run without a checkpoint or a damaged one.
    """
    checkpoint, run_dir = locate_model(folder)
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
            sharing=tuple(table.name for table in group.tables) if group and len(group.tables) > 1 else (),
            capacity=group.capacity if group and name != DENSE_TABLE else None,
            counters=counted.get(name),
        )
    return CheckpointReport(checkpoint, run_dir, manifest.step, tables)


def _layout(manifest: Manifest) -> EmbeddingLayout | None:
    """Return the layout of the checkpoint's config; None if this version does not support that config."""
    try:
        return embedding_layout(Run.model_validate(manifest.config))
    except (ValueError, ConfigError):
        return None


def _counters(run_dir: Path | None) -> dict[str, dict[str, int]]:
    """Return the counters of each table at the end of the run; empty if it has not ended."""
    counted: dict[str, dict[str, int]] = {}
    if run_dir is not None:
        with understanding(run_dir):
            for event in Tail(run_dir / EVENTS).new():
                if event["event"] == "tables":
                    counted = {str(name): dict(counters) for name, counters in event["tables"].items()}
    return counted
