"""The comparison of two checkpoints: rows by table, dense weights by name, and settings."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from persia_cli.checkpoint.dense_flaws import DENSE, WEIGHTS, read_tensors
from persia_cli.checkpoint.rows import RowBlock, SortedRows, tables_of
from persia_cli.errors import CheckpointError
from persia_cli.observe.saved_run import locate_model
from persia_cli.plan.saved_model import differences
from persia_cli.storage.places import Place
from persia_cli.store.checkpoints.manifest import Manifest, kind_of, read_manifest

MOST_CHANGED = 5
"""Number of rows of a table that are named."""


@dataclass(frozen=True)
class ChangedRow:
    """A row with how far its embedding has moved, as a Euclidean distance, and the cosine of both embeddings."""

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
    """Number of the equal rows that were used in between."""
    mean_change: float = 0.0
    """Mean Euclidean distance of embeddings, over the rows of both that are not equal."""
    max_change: float = 0.0
    most_changed: list[ChangedRow] = field(default_factory=list)
    note: str = ""
    """Why rows could not be compared."""
    total: float = 0.0


@dataclass(frozen=True)
class DenseDiff:
    """A dense tensor in two checkpoints: the norm of its change, and that relative to the norm before."""

    name: str
    change: float | None
    relative: float | None
    note: str = ""


@dataclass(frozen=True)
class Diff:
    """What differs between two checkpoints."""

    before: str
    after: str
    steps: tuple[int, int]
    tables: list[TableDiff]
    dense: list[DenseDiff]
    settings: dict[str, tuple[Any, Any]]


def compare_checkpoints(one: Place, other: Place, on_rows: Callable[[int, int], None] = lambda done, of: None) -> Diff:
    """Return what differs between two checkpoints, or the best (else newest) of runs; `one` counts as the earlier.

    Rows are read in the order of their keys, so a few record batches are in memory, whatever the number of servers and
    partitions. Calls `on_rows` with rows read so far and in all. Raises CheckpointError for a damaged one.
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


def _compare_tables(folders: list[Place], manifests: list[Manifest], on_rows: Callable[[int], None]) -> list[TableDiff]:
    """Compare the groups that have a table in common; a table may be of another group in the other checkpoint."""
    before, after = manifests
    names = dict.fromkeys(table.name for manifest in manifests for table in manifest.tables)
    found = {name: TableDiff(name) for name in names}
    group_of = [{table.name: table for table in manifest.tables} for manifest in manifests]
    for name, table in found.items():
        one, other = (tables.get(name) for tables in group_of)
        table.before, table.after = (each.rows if each else 0 for each in (one, other))
        if one is None or other is None:
            table.added, table.removed = table.after, table.before
        elif one.dim != other.dim:
            table.note = f"rows have {one.dim} and {other.dim} columns, so they were not compared"
    pairs = dict.fromkeys(
        (group_of[0][name].group, group_of[1][name].group)
        for name, table in found.items()
        if name in group_of[0] and name in group_of[1] and not table.note
    )
    for one_group, other_group in pairs:
        common = [name for name in tables_of(before, one_group) if name in tables_of(after, other_group)]
        rows = [
            _only(SortedRows(folder, manifest, group), common, on_rows)
            for folder, manifest, group in zip(folders, manifests, (one_group, other_group), strict=True)
        ]
        for left, right in aligned(*rows):
            for place, name in enumerate(common):
                if not found[name].note:
                    _compare(found[name], left, right, place)
    for table in found.values():
        table.mean_change = table.total / table.changed if table.changed else 0.0
    return list(found.values())


def _only(rows: SortedRows, names: list[str], on_rows: Callable[[int], None]) -> Iterator[RowBlock]:
    """Yield the rows of these tables, with their positions in `names`."""
    places = np.array([names.index(name) if name in names else len(names) for name in rows.names], np.uint16)
    for block in rows:
        on_rows(block.keys.size)
        tables = places[block.tables]
        renumbered = block._replace(names=names, tables=tables)
        yield renumbered if len(names) == len(rows.names) else renumbered.part(tables < len(names))


def aligned(one: Iterator[RowBlock], other: Iterator[RowBlock]) -> Iterator[tuple[RowBlock | None, RowBlock | None]]:
    """Yield parts of two streams, both in the order of keys, that have all rows of the same range of keys.

    None stands for no rows.
    """
    streams = [one, other]
    waiting: list[list[RowBlock]] = [[], []]
    ended = [False, False]
    while True:
        for side in (0, 1):
            while not waiting[side] and not ended[side]:
                block = next(streams[side], None)
                ended[side] = block is None
                if block is not None and block.keys.size:
                    waiting[side].append(block)
        if not any(waiting):
            return
        # Rows below the lesser of the last keys are complete on both sides; those of that key itself may go on.
        lasts = [int(waiting[side][-1].keys[-1]) for side in (0, 1) if waiting[side] and not ended[side]]
        limit = min(lasts, default=None)
        parts: list[RowBlock | None] = []
        for side in (0, 1):
            mine = _joined(waiting[side])
            stop = 0 if mine is None else mine.keys.size
            if mine is not None and limit is not None:
                stop = int(np.searchsorted(mine.keys, np.uint64(limit)))
            waiting[side] = [] if mine is None or stop == mine.keys.size else [mine.part(slice(stop, None))]
            parts.append(None if mine is None or not stop else mine.part(slice(0, stop)))
        if parts != [None, None]:
            yield parts[0], parts[1]
            continue
        # Nothing lies below the limit: more rows are needed of the side that ends with it.
        for side in (0, 1):
            if waiting[side] and not ended[side] and int(waiting[side][-1].keys[-1]) == limit:
                block = next(streams[side], None)
                ended[side] = block is None
                if block is not None and block.keys.size:
                    waiting[side].append(block)


def _joined(blocks: list[RowBlock]) -> RowBlock | None:
    if len(blocks) <= 1:
        return blocks[0] if blocks else None
    first = blocks[0]
    return RowBlock(
        names=first.names,
        keys=np.concatenate([block.keys for block in blocks]),
        tables=np.concatenate([block.tables for block in blocks]),
        ids=np.concatenate([block.ids for block in blocks]),
        last_used=np.concatenate([block.last_used for block in blocks]),
        vectors={name: np.concatenate([block.vectors[name] for block in blocks]) for name in first.vectors},
    )


def _compare(table: TableDiff, left: RowBlock | None, right: RowBlock | None, place: int) -> None:
    """Add the rows of one table, of the same range of keys, to its comparison."""
    one, other = (None if rows is None else rows.part(rows.tables == place) for rows in (left, right))
    if one is None or other is None:
        table.removed += 0 if one is None else one.keys.size
        table.added += 0 if other is None else other.keys.size
        return
    if not one.keys.size or not other.keys.size:
        table.removed, table.added = table.removed + one.keys.size, table.added + other.keys.size
        return
    place_there = np.minimum(np.searchsorted(other.keys, one.keys), other.keys.size - 1)
    common = np.flatnonzero(other.keys[place_there] == one.keys)
    table.removed += one.keys.size - common.size
    table.added += other.keys.size - common.size
    one, other = one.part(common), other.part(place_there[common])
    same = np.full(common.size, one.vectors.keys() == other.vectors.keys())
    for name in one.vectors.keys() & other.vectors.keys():
        if one.vectors[name].shape != other.vectors[name].shape:
            same[:] = False
        else:
            # Bits are compared: NaN is equal to itself then, and 0.0 is not -0.0.
            same &= (one.vectors[name].view(np.uint32) == other.vectors[name].view(np.uint32)).all(axis=1)
    table.equal += int(np.count_nonzero(same))
    table.touched += int(np.count_nonzero(same & (one.last_used != other.last_used)))
    table.changed += int(np.count_nonzero(~same))
    if same.all():
        return
    one, other = one.part(~same), other.part(~same)
    before, after = (rows.vectors["embedding"].astype(np.float64) for rows in (one, other))
    with np.errstate(invalid="ignore", over="ignore"):
        change = np.sqrt(((after - before) ** 2).sum(axis=1))
    table.total += float(change.sum())
    table.max_change = float(np.fmax(table.max_change, np.max(change)))
    _keep_most_changed(table, one.ids, change, before, after)


def _keep_most_changed(
    table: TableDiff,
    ids: NDArray[np.uint64],
    change: NDArray[np.float64],
    before: NDArray[np.float64],
    after: NDArray[np.float64],
) -> None:
    # What is not finite has moved furthest; of equal distances the lower id comes first.
    far = np.where(np.isfinite(change), change, np.inf)
    for row in np.lexsort((ids, -far))[:MOST_CHANGED].tolist():
        table.most_changed.append(ChangedRow(int(ids[row]), float(change[row]), _cosine(before[row], after[row])))
    table.most_changed.sort(key=lambda each: (-(each.change if np.isfinite(each.change) else np.inf), each.id))
    del table.most_changed[MOST_CHANGED:]


def _cosine(before: NDArray[np.float64], after: NDArray[np.float64]) -> float | None:
    with np.errstate(invalid="ignore", over="ignore"):
        norms = float(np.linalg.norm(before) * np.linalg.norm(after))
        cosine = float(before @ after) / norms if norms and np.isfinite(norms) else None
    return None if cosine is None else max(-1.0, min(1.0, cosine))


def _compare_dense(folders: list[Place], manifests: list[Manifest]) -> list[DenseDiff]:
    sides = []
    for folder, manifest in zip(folders, manifests, strict=True):
        path = next((f for f in manifest.files if kind_of(f) == DENSE and f.name == WEIGHTS), None)
        if path is None:
            raise CheckpointError(f"{folder} has no {WEIGHTS}; persia checkpoint verify says more")
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
