"""From parts to a data set: several threads, a bar, bounded memory, and nothing done twice after a kill."""

import json
import os
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from dataclasses import asdict, dataclass
from pathlib import Path
from threading import Event, Lock
from typing import Any, TypeVar

from persia_cli.data.bad_rows import BadRow, BadRows
from persia_cli.data.dataset_yaml import NAME, describe_dataset, to_yaml
from persia_cli.data.parts import Part, PartLog
from persia_cli.data.prepare_options import PrepareOptions, PrepareReport
from persia_cli.data.row_groups import GroupedWriter
from persia_cli.data.survey import Survey
from persia_cli.data.unfinished import RECORD, PartState, UnfinishedFolder, fingerprint, unfinished
from persia_cli.errors import DataError

Progress = Callable[[int, int], None]
"""Called with bytes of the source read so far and in all."""

Result = TypeVar("Result")

_MOST_WORKERS = 8
"""Threads unless told otherwise: each takes up to 100 MB."""


def write_dataset(
    parts: Sequence[Part],
    dataset: Mapping[str, Any],
    output: Path,
    options: PrepareOptions,
    progress: Progress,
    bad: BadRows | None = None,
    time: str | None = None,
) -> PrepareReport:
    """Make the folder `output` with a Parquet file of each part that has rows, and a dataset.yaml.

    `dataset` says what the columns are, in the keys of conf/dataset/*.yaml but kind, path and recipe; `bad` holds the
    bad rows of files read before; `time` names the column of integers that a chronological split goes by, which
    otherwise goes by the order of parts and rows.

    Parts that an earlier run of the same recipe, options and source files finished are kept; what this run finished is
    kept for the next where it fails. A finished `output` of the same is left as it is. Raises DataError.
    """
    described = describe_dataset(dataset, options)
    if len({part.name for part in parts}) < len(parts):
        raise DataError("the source holds files whose names differ in their endings only; keep one of each")
    bad = bad or BadRows(options.max_bad_rows)
    total = sum(part.source_bytes for part in parts)
    survey = Survey([part.name for part in parts], described.sparse, options, time, total)
    made_of = {part.name: fingerprint(part, options, parts if survey.is_needed else ()) for part in parts}
    if (report := _finished(output, made_of, bad)) is not None:
        return report
    crew = _Crew(options.workers, progress, total * (1 + survey.is_needed))
    with unfinished(output) as folder:
        folder.keep_only(parts)
        kept = {part.name: folder.finished(part, made_of[part.name]) for part in parts}
        if survey.is_needed and not all(kept.values()):
            seen = BadRows(options.max_bad_rows, bad.count, list(bad.found))
            crew.each(parts, lambda part: _look(part, survey, PartLog(seen, crew.read)))

        def finish(part: Part) -> PartState:
            state = kept[part.name]
            if state is None:
                log = PartLog(bad, crew.read)
                state = _make(part, made_of[part.name], folder, survey, log, options.row_group_rows)
                folder.finish(part, state)
            else:
                state.count_in(bad)
                crew.read(part.source_bytes)
            return state

        states = crew.each(parts, finish)
        bad.raise_if_too_many()
        made = [(part, state) for part, state in zip(parts, states, strict=True) if state.rows]
        if not made:
            raise DataError(f"no row of the source can be used, so there is nothing to write to {output}")
        report = PrepareReport(
            rows=sum(state.rows for state in states),
            files=tuple(output / folder.file(part).name for part, _ in made),
            nbytes=sum(state.nbytes for state in states),
            bad_rows=bad.count,
            first_bad_rows=bad.first(),
            dataset=output / NAME,
            kept=sum(kept[part.name] is not None for part, _ in made),
        )
        folder.write(NAME, to_yaml(described))
        folder.write(RECORD, _record(report, made_of))
    return report


def _look(part: Part, survey: Survey, log: PartLog) -> None:
    for table in part.tables(log):
        survey.see(part.name, table)


def _make(
    part: Part, made_of: str, folder: UnfinishedFolder, survey: Survey, log: PartLog, row_group_rows: int
) -> PartState:
    file = folder.file(part)
    with GroupedWriter(file, row_group_rows) as writer:
        for table in part.tables(log):
            if table.num_rows:
                writer.write(survey.change(part.name, table, writer.rows))
    nbytes = file.stat().st_size if writer.rows else 0
    return PartState(made_of, writer.rows, nbytes, log.bad.count, tuple(log.bad.found))


class _OtherFailedError(Exception):
    """Another part has failed."""


class _Crew:
    """Threads that work on parts, and the bar of what they have read; the first failure ends all."""

    def __init__(self, workers: int | None, progress: Progress, total: int) -> None:
        self._workers = workers or min(len(os.sched_getaffinity(0)), _MOST_WORKERS)
        self._progress = progress
        self._total = total
        self._done = 0
        self._lock = Lock()
        self._stop = Event()

    def each(self, parts: Sequence[Part], work: Callable[[Part], Result]) -> list[Result]:
        """Return the result of each part, in order; raises what the first of them to fail raised."""
        with ThreadPoolExecutor(self._workers, thread_name_prefix="prepare") as pool:
            futures = [pool.submit(work, part) for part in parts]
            try:
                done, _ = wait(futures, return_when=FIRST_EXCEPTION)
            finally:
                self._stop.set()
                pool.shutdown(cancel_futures=True)
        self._stop.clear()
        errors = [future.exception() for future in futures if future in done]
        for error in errors:
            if error is not None and not isinstance(error, _OtherFailedError):
                raise error
        return [future.result() for future in futures]

    def read(self, nbytes: int) -> None:
        """Move the bar; raises to end the part where another one has failed."""
        if self._stop.is_set():
            raise _OtherFailedError
        with self._lock:
            self._done += nbytes
            self._progress(self._done, self._total)


@dataclass(frozen=True)
class _Record:
    """What RECORD holds."""

    made_of: dict[str, str]
    rows: int
    nbytes: int
    files: list[str]
    bad_rows: int
    first_bad_rows: list[dict[str, Any]]


def _record(report: PrepareReport, made_of: dict[str, str]) -> str:
    rows = [asdict(row) for row in report.first_bad_rows]
    record = _Record(made_of, report.rows, report.nbytes, [file.name for file in report.files], report.bad_rows, rows)
    return json.dumps(asdict(record), indent=1)


def _finished(output: Path, made_of: dict[str, str], bad: BadRows) -> PrepareReport | None:
    """Return the report of a finished data set that was made of the same, if `output` is one."""
    try:
        record = _Record(**json.loads((output / RECORD).read_text(encoding="utf-8")))
        first = tuple(BadRow(**row) for row in record.first_bad_rows)
    except (OSError, ValueError, TypeError):
        return None
    files = tuple(output / name for name in record.files)
    if record.made_of != made_of or not all(file.is_file() for file in (output / NAME, *files)):
        return None
    if record.bad_rows > bad.allowed:
        return None
    return PrepareReport(record.rows, files, record.nbytes, record.bad_rows, first, output / NAME, kept=len(files))
