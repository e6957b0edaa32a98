"""The report on a checkpoint's tables: statistics of its files, limits of its config, and counters of its run.

Statistics of rows are read from the files one record batch at a time.
"""

import math
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from persia_cli.config.schema import Run
from persia_cli.config.schema.embedding import DENSE_TABLE
from persia_cli.errors import ConfigError
from persia_cli.observe.journal import EVENTS, Tail, understanding
from persia_cli.observe.saved_run import locate_model
from persia_cli.plan.embedding import embedding_layout
from persia_cli.storage.locations import Location
from persia_cli.store.checkpoints.manifest import Manifest, read_manifest
from persia_cli.store.checkpoints.saved_rows import saved_rows
from persia_cli.store.layout import EmbeddingLayout

BINS = 10
"""Largest number of bins of a histogram."""
PER_OCTAVE = 16
"""Number of fine bins, in which norms are counted first, from a power of two to the next."""
LOWEST_OCTAVE, HIGHEST_OCTAVE = -150, 134
"""Powers of two that hold every norm above 0 of up to 1024 float32 values."""
FINE_EDGES = np.exp2(np.arange(LOWEST_OCTAVE * PER_OCTAVE, HIGHEST_OCTAVE * PER_OCTAVE + 1) / PER_OCTAVE)

ZERO, NOT_FINITE = 0, 1


@dataclass(frozen=True)
class Histogram:
    """The number of rows with a value in each bin; bin i is [edges[i], edges[i + 1])."""

    edges: tuple[float, ...]
    counts: tuple[int, ...]


@dataclass(frozen=True)
class TableStats:
    """The statistics of one table's rows."""

    rows: int
    norms: Histogram
    """Euclidean norms of the embeddings above 0; bins are equally wide in their logarithm."""
    zeros: int
    """Number of embeddings of zeros only."""
    not_finite: int
    """Number of embeddings with NaN or infinite values."""
    ages: Histogram
    """Steps from a row's last use to the checkpoint: 1 for rows of the last step before it."""


def table_stats(folder: Location, manifest: Manifest) -> dict[str, TableStats]:
    """Return the statistics of every table of the checkpoint in `folder`, in its manifest's order.

    It needs the memory of one record batch, for files of any size. Raise CheckpointError for a file that is missing,
    damaged or not a file of rows.
    """
    counts = {table.name: _Counts() for table in manifest.tables}
    for file in saved_rows(folder, manifest, with_dense=True):
        file.verify()
        for batch in file.batches():
            _count(batch, manifest.step, counts)
    return {name: counted.stats(manifest.step) for name, counted in counts.items()}


def norm_histogram(counts: Mapping[int, int]) -> Histogram:
    """Return a histogram of at most BINS bins, given counts by number of the fine bin between FINE_EDGES."""
    if not counts:
        return Histogram((), ())
    first, last = min(counts), max(counts) + 1
    width = math.ceil((last - first) / BINS)
    bins = [0] * math.ceil((last - first) / width)
    for bin_, count in counts.items():
        bins[(bin_ - first) // width] += count
    edges = FINE_EDGES[np.minimum(first + width * np.arange(len(bins) + 1), FINE_EDGES.size - 1)]
    return Histogram(tuple(edges.tolist()), tuple(bins))


def age_edges(step: int) -> NDArray[np.int64]:
    """Return the edges of at most BINS equally wide bins of the ages 1 to `step`, the step of the checkpoint."""
    width = max(1, math.ceil(step / BINS))
    return 1 + width * np.arange(max(1, math.ceil(step / width)) + 1, dtype=np.int64)


@dataclass
class _Counts:
    """The counts of a table so far."""

    norms: Counter[int] = field(default_factory=Counter)
    """Number of rows by bin between FINE_EDGES."""
    ages: Counter[int] = field(default_factory=Counter)
    """Number of rows by bin between the edges of ages."""
    odd: Counter[int] = field(default_factory=Counter)
    """Number of rows whose norm is in no bin, by reason: ZERO or NOT_FINITE."""

    def stats(self, step: int) -> TableStats:
        edges = age_edges(step)
        ages = Histogram(tuple(edges.tolist()), tuple(self.ages[bin_] for bin_ in range(edges.size - 1)))
        return TableStats(self.ages.total(), norm_histogram(self.norms), self.odd[ZERO], self.odd[NOT_FINITE], ages)


def _count(batch: pa.RecordBatch, step: int, counts: Mapping[str, _Counts]) -> None:
    """Add the rows of a record batch to the counts of their tables."""
    column = batch.column("table")
    names, positions = column.dictionary.to_pylist(), column.indices.to_numpy()
    embedding = batch.column("embedding")
    values = embedding.flatten().to_numpy().reshape(batch.num_rows, embedding.type.list_size)
    norms = np.sqrt(np.einsum("ij,ij->i", values, values, dtype=np.float64))
    fine = np.searchsorted(FINE_EDGES, norms, side="right") - 1
    edges = age_edges(step)
    ages = step - batch.column("last_used").to_numpy()
    aged = np.clip(np.searchsorted(edges, ages, side="right") - 1, 0, edges.size - 2)
    finite = np.isfinite(norms)
    regular = finite & (norms > 0.0)
    known = [counts[name] for name in names]
    for kind, rows, bins in (
        ("norms", regular, fine),
        ("ages", slice(None), aged),
        ("odd", ~regular, np.where(finite, ZERO, NOT_FINITE)),
    ):
        for position, bin_, number in _tally(positions[rows], bins[rows]):
            getattr(known[position], kind)[bin_] += number


def _tally(positions: NDArray[np.int32], bins: NDArray[np.int64]) -> Iterator[tuple[int, int, int]]:
    """Yield (place, bin, number of times that both occur together)."""
    pairs, counts = np.unique(positions * np.int64(FINE_EDGES.size) + bins, return_counts=True)
    yield from zip(
        (pairs // FINE_EDGES.size).tolist(), (pairs % FINE_EDGES.size).tolist(), counts.tolist(), strict=True
    )


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
        requested = counters.get("hits", 0) + counters.get("misses", 0)
        return counters["hits"] / requested if requested else None

    @property
    def look_up_hit_rate(self) -> float | None:
        """Fraction of all training look-ups that found a row, repeats included; None as for `hit_rate`."""
        counters = self.counters or {}
        requested = counters.get("look_ups", 0)
        return counters["look_ups_known"] / requested if requested else None


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
