"""The comparison of two checkpoints: rows by table, dense weights by name, and settings."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import chain
from tempfile import TemporaryDirectory
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from persia_cli.checkpoint.dense_flaws import DENSE, WEIGHTS, read_tensors
from persia_cli.errors import CheckpointError, PersiaError, one_line
from persia_cli.observe.saved_run import locate_model
from persia_cli.plan.saved_model import differences
from persia_cli.storage.locations import Location
from persia_cli.store.checkpoints.manifest import Manifest, kind_of, read_manifest
from persia_cli.store.checkpoints.record_batches import understanding_rows
from persia_cli.store.checkpoints.saved_rows import RowFile, saved_rows

MAX_CHANGED = 5
"""Maximum number of rows of a table that are named."""
MEMORY = "2GB"
MAX_ID = 2**64 - 1
JOIN = """
WITH pairs AS (
    SELECT "table", id, other.id IS NULL AS removed, one.id IS NULL AS added, {same} AS same,
           one.last_used <> other.last_used AS used, one.embedding AS old, other.embedding AS new,
           array_distance(one.embedding::DOUBLE[{dim}], other.embedding::DOUBLE[{dim}]) AS change
    FROM one FULL JOIN other USING ("table", id)
)
SELECT "table", count(*) FILTER (removed), count(*) FILTER (added), count(*) FILTER (same),
       count(*) FILTER (same AND used), count(*) FILTER (NOT same AND NOT removed AND NOT added),
       avg(change) FILTER (NOT same), max(change) FILTER (NOT same),
       max({{'change': change, 'rank': ~id, 'old': old, 'new': new}}, {most})
           FILTER (NOT same AND NOT removed AND NOT added)
FROM pairs GROUP BY "table"
"""
"""Of equal distances the lower id comes first; NaN is equal to itself, and above all numbers."""


@dataclass(frozen=True)
class ChangedRow:
    """A row with the Euclidean distance and the cosine of its embeddings before and after."""

    id: int
    change: float
    cosine: float | None
    """None if one of the embeddings has no direction: zeros, or values that are not finite."""


@dataclass
class TableDiff:
    """The rows of a table in two checkpoints; a row is `equal` if embedding and states have the same values."""

    name: str
    before: int = 0
    after: int = 0
    added: int = 0
    removed: int = 0
    changed: int = 0
    equal: int = 0
    touched: int = 0
    """Number of equal rows that were used in between."""
    mean_change: float = 0.0
    """Mean Euclidean distance of embeddings, over the rows of both that are not equal."""
    max_change: float = 0.0
    most_changed: list[ChangedRow] = field(default_factory=list)
    note: str = ""
    """The reason why rows could not be compared."""


@dataclass(frozen=True)
class DenseDiff:
    """A dense tensor in two checkpoints: the norm of its change, and that norm relative to the norm before."""

    name: str
    change: float | None
    relative: float | None
    note: str = ""


@dataclass(frozen=True)
class Diff:
    """The differences between two checkpoints."""

    before: str
    after: str
    steps: tuple[int, int]
    tables: list[TableDiff]
    dense: list[DenseDiff]
    settings: dict[str, tuple[Any, Any]]


def compare_checkpoints(
    one: Location, other: Location, on_rows: Callable[[int, int], None] = lambda done, of: None
) -> Diff:
    """Return the differences between two checkpoints, or the best (else newest) of runs; `one` is the earlier.

    DuckDB joins the rows in MEMORY, and in temporary files where that is too little. Calls `on_rows` with the number of
    rows read so far and the total. Raises CheckpointError for a damaged checkpoint.
    """
    folders = [locate_model(each)[0] for each in (one, other)]
    manifests = [read_manifest(folder) for folder in folders]
    count = sum(manifest.row_count(with_dense=True) for manifest in manifests)
    done = 0

    def add(rows: int) -> None:
        nonlocal done
        done += rows
        on_rows(done, count)

    return Diff(
        before=str(folders[0]),
        after=str(folders[1]),
        steps=(manifests[0].step, manifests[1].step),
        tables=_compare_tables(folders, manifests, add),
        dense=_compare_dense(folders, manifests),
        settings=dict(differences(manifests[0].config, manifests[1].config)),
    )


def _compare_tables(
    folders: list[Location], manifests: list[Manifest], on_rows: Callable[[int], None]
) -> list[TableDiff]:
    """Compare the groups that have a table in common; a table may be of another group in the other checkpoint."""
    before, after = ({table.name: table for table in manifest.tables} for manifest in manifests)
    found: dict[str, TableDiff] = {}
    common: dict[tuple[int, int], list[str]] = {}
    for name in dict.fromkeys([*before, *after]):
        one, other = before.get(name), after.get(name)
        table = found[name] = TableDiff(name, one.rows if one else 0, other.rows if other else 0)
        if one is None or other is None:
            table.added, table.removed = table.after, table.before
        elif one.dim != other.dim:
            table.note = f"rows have {one.dim} and {other.dim} columns, so they were not compared"
        else:
            common.setdefault((one.group, other.group), []).append(name)
    for groups, names in common.items():
        sides = [
            _GroupRows(folder, manifest, group, names, on_rows)
            for folder, manifest, group in zip(folders, manifests, groups, strict=True)
        ]
        _compare_groups(sides[0], sides[1], [found[name] for name in names])
    return list(found.values())


class _GroupRows:
    """The rows of some tables of a group as a stream of record batches; `error` is why it ended too early."""

    def __init__(
        self, folder: Location, manifest: Manifest, group: int, names: list[str], on_rows: Callable[[int], None]
    ) -> None:
        self.folder = folder
        self.error: PersiaError | None = None
        files = [file for file in saved_rows(folder, manifest, with_dense=True) if file.rows.group == group]
        batches = self._batches(files, pa.array(names), on_rows)
        first = next(batches, None)
        self.vectors: dict[str, int] = {}
        """Columns of vectors with their sizes."""
        self.reader = None
        if first is not None:
            vectors = [field for field in first.schema if pa.types.is_fixed_size_list(field.type)]
            self.vectors = {field.name: field.type.list_size for field in vectors}
            self.reader = pa.RecordBatchReader.from_batches(first.schema, chain([first], batches))

    def _batches(
        self, files: list[RowFile], names: pa.Array, on_rows: Callable[[int], None]
    ) -> Iterator[pa.RecordBatch]:
        try:
            for file in files:
                with understanding_rows(file.path):
                    for batch in file.batches():
                        on_rows(batch.num_rows)
                        table = batch.column("table").cast(pa.string())
                        batch = batch.set_column(batch.schema.get_field_index("table"), "table", table)
                        yield batch.filter(pc.is_in(table, names))
        except PersiaError as error:
            self.error = error
            raise


def _compare_groups(one: _GroupRows, other: _GroupRows, tables: list[TableDiff]) -> None:
    """Compare the rows of two groups by table."""
    if one.reader is None or other.reader is None:
        for table in tables:
            table.added, table.removed = table.after, table.before
        return
    same = [f"one.{_quoted(name)} = other.{_quoted(name)}" for name in one.vectors]
    sql = JOIN.format(
        same=" AND ".join(same) if one.vectors == other.vectors else "false",
        dim=one.vectors["embedding"],
        most=MAX_CHANGED,
    )
    with TemporaryDirectory(prefix="persia-diff-") as folder, duckdb.connect() as database:
        settings = {"memory_limit": MEMORY, "temp_directory": folder, "preserve_insertion_order": "false"}
        for name, value in settings.items():
            database.execute(f"SET {name} = '{value}'")
        database.register("one", one.reader)
        database.register("other", other.reader)
        try:
            rows = database.execute(sql).fetchall()
        except duckdb.Error as error:
            if cause := one.error or other.error:
                raise cause from error
            raise CheckpointError(f"{one.folder} and {other.folder} cannot be compared: {one_line(error)}") from error
    by_name = {table.name: table for table in tables}
    for name, removed, added, equal, touched, changed, mean, furthest, most in rows:
        table = by_name[name]
        table.removed, table.added, table.equal, table.touched, table.changed = removed, added, equal, touched, changed
        table.mean_change, table.max_change = mean or 0.0, furthest or 0.0
        table.most_changed = [
            ChangedRow(MAX_ID - each["rank"], each["change"], _cosine(np.array(each["old"]), np.array(each["new"])))
            for each in most or []
        ]


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def _cosine(before: NDArray[np.float64], after: NDArray[np.float64]) -> float | None:
    with np.errstate(invalid="ignore", over="ignore"):
        norms = float(np.linalg.norm(before) * np.linalg.norm(after))
        cosine = float(before @ after) / norms if norms and np.isfinite(norms) else None
    return None if cosine is None else max(-1.0, min(1.0, cosine))


def _compare_dense(folders: list[Location], manifests: list[Manifest]) -> list[DenseDiff]:
    sides = []
    for folder, manifest in zip(folders, manifests, strict=True):
        path = next((f for f in manifest.files if kind_of(f) == DENSE and f.name == WEIGHTS), None)
        if path is None:
            raise CheckpointError(f"{folder} has no {WEIGHTS}; check it with persia checkpoint verify")
        sides.append(read_tensors(folder / path.folder / path.name).tensors)
    before, after = sides
    found = []
    for name in dict.fromkeys([*before, *after]):
        if name not in before or name not in after:
            found.append(DenseDiff(name, None, None, "added" if name in after else "removed"))
        elif before[name].shape != after[name].shape:
            found.append(DenseDiff(name, None, None, f"{list(before[name].shape)} became {list(after[name].shape)}"))
        else:
            old, new = (side[name].astype(np.float64) for side in sides)
            norm, change = float(np.linalg.norm(old)), float(np.linalg.norm(new - old))
            found.append(DenseDiff(name, change, change / norm if norm else None))
    return found
