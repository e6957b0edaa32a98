"""From parts to a data set: several threads, progress, bounded memory; after a kill, finished parts are kept."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from persia_cli.data.bad_rows import BadRows
from persia_cli.data.dataset_yaml import NAME, describe_dataset, to_yaml
from persia_cli.data.finished import RECORD, find_finished, to_record
from persia_cli.data.parts import DatasetPart, PartLog
from persia_cli.data.prepare_options import PrepareOptions, PrepareReport
from persia_cli.data.prescan import Prescan
from persia_cli.data.row_groups import GroupedWriter
from persia_cli.data.unfinished import PartState, UnfinishedFolder, fingerprint, unfinished
from persia_cli.data.worker_pool import Progress, WorkerPool
from persia_cli.errors import DataError


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
    described = describe_dataset(dataset, options)
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
