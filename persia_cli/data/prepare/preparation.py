"""From parts to a data set: several threads, progress, bounded memory; after a kill, finished parts are kept."""

import os
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from threading import Lock
from typing import Any, TypeVar

from pydantic import ValidationError

from persia_cli.config.explain import explain
from persia_cli.config.schema.dataset import ParquetDataset
from persia_cli.data.prepare.options import PrepareOptions, PrepareReport
from persia_cli.data.prepare.parts import DatasetPart, PartLog
from persia_cli.data.prepare.prescan import SPLIT, Prescan
from persia_cli.data.prepare.unfinished import (
    RECORD,
    PartState,
    UnfinishedFolder,
    find_finished,
    fingerprint,
    to_record,
    unfinished,
)
from persia_cli.data.read.bad_rows import BadRows
from persia_cli.data.read.dataset_yaml import NAME, to_yaml
from persia_cli.data.read.row_groups import GroupedWriter
from persia_cli.errors import DataError

Progress = Callable[[int, int], None]
"""Called with the bytes of the source read so far and in total."""

Result = TypeVar("Result")

_MOST_WORKERS = 8
"""Default limit of threads: each takes up to 100 MB."""


class WorkerPool:
    """Threads that work on parts, and the progress of what they read; the first failure stops all of them."""

    def __init__(self, workers: int | None, progress: Progress, total: int) -> None:
        self._workers = workers or min(len(os.sched_getaffinity(0)), _MOST_WORKERS)
        self._progress = progress
        self._total = total
        self._done = 0
        self._lock = Lock()
        self._error: BaseException | None = None

    def each(self, parts: Sequence[DatasetPart], work: Callable[[DatasetPart], Result]) -> list[Result]:
        """Return the result of each part, in order; raises the first exception."""
        with ThreadPoolExecutor(self._workers, thread_name_prefix="prepare") as pool:
            try:
                return list(pool.map(partial(self._work, work), parts))
            except BaseException as error:  # after Ctrl-C, threads would go on
                self._error = self._error or error
                raise

    def _work(self, work: Callable[[DatasetPart], Result], part: DatasetPart) -> Result:
        try:
            self.read(0)
            return work(part)
        except BaseException as error:
            self._error = self._error or error
            raise

    def read(self, nbytes: int) -> None:
        """Report bytes read; raises the error of another part, which so ends this part."""
        if self._error is not None:
            raise self._error
        with self._lock:
            self._done += nbytes
            self._progress(self._done, self._total)


def write_dataset(
    parts: Sequence[DatasetPart],
    dataset: Mapping[str, Any],
    output: Path,
    options: PrepareOptions,
    progress: Progress,
    bad: BadRows | None = None,
    time: str | None = None,
) -> PrepareReport:
    """Make the folder `output` with a Parquet file of each part that has rows, and a dataset.yaml.

    `dataset` describes the columns in the keys of conf/dataset/*.yaml, without kind, path and recipe. `bad` holds the
    bad rows of files read before. `time` names the integer column for a chronological split; without it, that split
    follows the order of parts and rows.

    Parts that an earlier run of the same recipe, options and source files finished are kept, as are the finished parts
    of this run if it fails. An `output` that is finished already is left unchanged. Raises DataError.
    """
    described = _described(dataset, options)
    if len({part.name for part in parts}) < len(parts):
        raise DataError("the source holds files whose names are equal up to their first dot; keep one of each")
    for part in parts:
        if part.name.startswith(("_", ".")):
            raise DataError(f"{part.name}: files with such a name are never read as data; rename the source file")
    bad = bad or BadRows(options.max_bad_rows)
    total = sum(part.source_bytes for part in parts)
    prescan = Prescan([part.name for part in parts], described.sparse, options, time, total)
    made_of = {part.name: fingerprint(part, options, parts if prescan.is_needed else ()) for part in parts}
    if (report := find_finished(output, made_of, bad.allowed)) is not None:
        return report
    pool = WorkerPool(options.workers, progress, total * (1 + prescan.is_needed))
    with unfinished(output) as folder:
        folder.keep_only(parts)
        kept = {part.name: folder.finished(part, made_of[part.name]) for part in parts}
        if prescan.is_needed and not all(kept.values()):
            seen = BadRows(options.max_bad_rows, bad.count, list(bad.found))
            pool.each(parts, lambda part: _look(part, prescan, PartLog(seen, pool.read)))

        def finish(part: DatasetPart) -> PartState:
            state = kept[part.name]
            if state is not None:
                state.count_in(bad)
                pool.read(part.source_bytes)
                return state
            return _make(part, made_of[part.name], folder, prescan, PartLog(bad, pool.read), options.row_group_rows)

        states = dict(zip((part.name for part in parts), pool.each(parts, finish), strict=True))
        bad.raise_if_too_many()
        made = [part for part in parts if states[part.name].rows]
        if not made:
            raise DataError(f"no row of the source can be used, so there is nothing to write to {output}")
        report = PrepareReport(
            rows=sum(state.rows for state in states.values()),
            files=tuple(output / folder.file(part).name for part in made),
            nbytes=sum(state.nbytes for state in states.values()),
            bad_rows=bad.count,
            first_bad_rows=bad.first(),
            dataset=output / NAME,
            kept=sum(kept[part.name] is not None for part in made),
        )
        folder.write(NAME, to_yaml(described))
        folder.write(RECORD, to_record(report, made_of))
    return report


def _described(keys: Mapping[str, Any], options: PrepareOptions) -> ParquetDataset:
    """Check a recipe's description of its columns, in the keys of conf/dataset/*.yaml.

    Raises DataError naming the wrong keys.
    """
    values = {**keys, "kind": "parquet", "path": ".", "recipe": options.recipe.name if options.recipe else None}
    if options.split is not None:
        values["split"] = {"kind": "column", "column": SPLIT, "train": "train", "eval": "eval"}
    try:
        return ParquetDataset.model_validate(values)
    except ValidationError as error:
        mistakes = explain(error, ParquetDataset, values).values()
        raise DataError(f"the recipe's description of its columns is wrong: {'; '.join(mistakes)}") from error


def _look(part: DatasetPart, prescan: Prescan, log: PartLog) -> None:
    """Show a part's rows to the prescan."""
    for table in part.tables(log):
        prescan.see(part.name, table)


def _make(
    part: DatasetPart, made_of: str, folder: UnfinishedFolder, prescan: Prescan, log: PartLog, row_group_rows: int
) -> PartState:
    """Write a part's file and record that it is finished."""
    file = folder.file(part)
    with GroupedWriter(file, row_group_rows) as writer:
        for table in part.tables(log):
            if table.num_rows:
                writer.write(prescan.change(part.name, table, writer.rows))
    nbytes = file.stat().st_size if writer.rows else 0
    state = PartState(made_of, writer.rows, nbytes, log.bad.count, tuple(log.bad.found))
    folder.finish(part, state)
    return state
