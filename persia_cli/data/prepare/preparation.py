"""From parts to a data set: several threads, progress, bounded memory; after a kill, finished parts are kept.

A data set in preparation is a hidden folder next to its final place, from which a later run continues. Each finished
Parquet file has a state file that records its sources: recipe, options, and size, times and inode of the source files.
A file with no state file, or with a different one, is made again. State files are renamed into place after the Parquet
file is on disk, so that after a kill at any moment no unfinished file looks finished.
"""

import json
import os
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from hashlib import sha256
from pathlib import Path
from threading import Lock
from typing import Any, TypeVar

import msgspec
from pydantic import ValidationError

from persia_cli.config.explain import explain
from persia_cli.config.schema.dataset import ParquetDataset
from persia_cli.data.prepare.options import PrepareOptions, PrepareReport
from persia_cli.data.prepare.parts import DatasetPart, PartLog
from persia_cli.data.prepare.prescan import SPLIT, Prescan
from persia_cli.data.read.bad_rows import BadRow, BadRows
from persia_cli.data.read.dataset_yaml import NAME, to_yaml
from persia_cli.data.read.row_groups import GroupedWriter
from persia_cli.disk import is_held, rename, sync, write_whole, writing
from persia_cli.errors import DataError, DiskError
from persia_cli.version import __version__

KEPT = "finished files are kept; the same command continues from there"
_STATE = ".state"
RECORD = "preparation.json"
"""File that records the sources of a data set."""


class PartState(msgspec.Struct, frozen=True):
    """A finished part."""

    made_of: str
    """`fingerprint` of its sources."""
    rows: int
    nbytes: int
    """Size of the Parquet file; 0 for a part without rows, which has no file."""
    bad_rows: int
    found: tuple[BadRow, ...]
    """The first of the bad rows."""

    def count_in(self, bad: BadRows) -> None:
        """Add the part's bad rows to those of the data set."""
        bad.add(self.found, self.bad_rows)


class _Record(msgspec.Struct):
    """The facts about a finished data set."""

    made_of: dict[str, str]
    """Fingerprint of each part."""
    rows: int
    nbytes: int
    files: list[str]
    bad_rows: int
    first_bad_rows: tuple[BadRow, ...]


_STATES, _RECORDS = msgspec.json.Decoder(PartState), msgspec.json.Decoder(_Record)


def fingerprint(part: DatasetPart, options: PrepareOptions, others: Sequence[DatasetPart] = ()) -> str:
    """Return 64 hexadecimal digits of all that a part's rows depend on, including the parts `others`."""
    dependencies = {
        "version": __version__,
        "recipe": options.recipe,
        "row_group_rows": options.row_group_rows,
        "min_count": options.min_count,
        "split": options.split,
        "parts": [(source.name, source.nbytes, [_stamp(file) for file in source.inputs]) for source in (part, *others)],
    }
    return sha256(json.dumps(dependencies).encode()).hexdigest()


def _stamp(file: Path) -> tuple[str, int, int, int, int]:
    stat = file.stat()
    # A replaced file may have the same size and time: cp -p, rsync -t.
    return str(file.absolute()), stat.st_size, stat.st_mtime_ns, stat.st_ino, stat.st_ctime_ns


class UnfinishedFolder:
    """The hidden folder: Parquet files, and the state of those that are finished."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def file(self, part: DatasetPart) -> Path:
        """Return the path of a part's file."""
        return self._folder / f"{part.name}.parquet"

    def finished(self, part: DatasetPart, made_of: str) -> PartState | None:
        """Return the state of a finished part with the same fingerprint; otherwise remove its files and return None."""
        state = _read_state(self._state(part))
        if state is not None and state.made_of == made_of and _size(self.file(part)) == state.nbytes:
            return state
        self._state(part).unlink(missing_ok=True)
        self.file(part).unlink(missing_ok=True)
        return None

    def finish(self, part: DatasetPart, state: PartState) -> None:
        """Record that a part is finished, after its file is on disk."""
        if state.rows:
            sync(self.file(part))
        write_whole(self._state(part), msgspec.json.encode(state))

    def keep_only(self, parts: Sequence[DatasetPart]) -> None:
        """Remove the files that belong to none of these parts, such as those of other options or sources."""
        known = {path.name for part in parts for path in (self.file(part), self._state(part))}
        for path in self._folder.iterdir():
            if path.name not in known:
                shutil.rmtree(path) if path.is_dir() else path.unlink()

    def write(self, name: str, text: str | bytes) -> None:
        """Write a file next to the Parquet files, atomically."""
        write_whole(self._folder / name, text)

    def publish(self, output: Path) -> None:
        """Give the folder its final name; it is then a finished data set."""
        rename(self._folder, output)
        for path in output.glob(f"*{_STATE}"):
            path.unlink()

    @property
    def holds_finished_parts(self) -> bool:
        """Return True if a later run can continue from finished parts."""
        return any(self._folder.glob(f"*{_STATE}"))

    def remove_if_nothing_is_finished(self) -> None:
        """Remove the folder if no part is finished."""
        if self._folder.is_dir() and not self.holds_finished_parts:
            shutil.rmtree(self._folder)

    def _state(self, part: DatasetPart) -> Path:
        return self._folder / f"{part.name}{_STATE}"


@contextmanager
def unfinished(output: Path) -> Iterator[UnfinishedFolder]:
    """Yield the hidden folder to write in, which gets its final name at the end; on failure, finished parts are kept.

    Raises DataError if the output exists and is not an empty folder, or if another process prepares it; DiskError if it
    cannot be written.
    """
    if output.exists() and (not output.is_dir() or any(output.iterdir())):
        raise DataError(f"{output} exists already; name a folder that does not exist, or remove it")
    if output.is_symlink() or output.is_mount():
        raise DataError(f"{output} is a link or a mount point, which cannot be replaced; name a folder inside it")
    output = output.absolute()
    hidden = output.with_name(f".{output.name}.partial")
    with writing(output):
        hidden.mkdir(parents=True, exist_ok=True)
        with locked(hidden, output):
            folder = UnfinishedFolder(hidden)
            try:
                with writing(output):
                    yield folder
                    folder.publish(output)
            except (DataError, DiskError) as error:
                if folder.holds_finished_parts:
                    raise type(error)(f"{error}\n  {KEPT}") from error
                raise
            finally:
                folder.remove_if_nothing_is_finished()


@contextmanager
def locked(folder: Path, output: Path) -> Iterator[None]:
    """Lock the folder for this process; the lock ends with the process, even if that is killed."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        if is_held(descriptor):
            raise DataError(f"{output} is being prepared by another process; wait for it to finish, or stop it")
        yield
    finally:
        os.close(descriptor)


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


def _read_state(path: Path) -> PartState | None:
    try:
        return _STATES.decode(path.read_bytes())
    except (OSError, msgspec.DecodeError):
        return None


def to_record(report: PrepareReport, fingerprints: dict[str, str]) -> bytes:
    """Return the content of RECORD; `made_of` holds the fingerprint of each part by name."""
    names = [file.name for file in report.files]
    record = _Record(fingerprints, report.rows, report.nbytes, names, report.bad_rows, report.first_bad_rows)
    return msgspec.json.format(msgspec.json.encode(record), indent=1) + b"\n"


def find_finished(output: Path, fingerprints: dict[str, str], allowed_bad_rows: int) -> PrepareReport | None:
    """Return the report of the finished data set in `output` if it was made from the same sources, else None."""
    try:
        record = _RECORDS.decode((output / RECORD).read_bytes())
    except (OSError, msgspec.DecodeError):
        return None
    files = tuple(output / name for name in record.files)
    is_whole = (output / NAME).is_file() and sum(map(_size, files)) == record.nbytes
    if record.made_of != fingerprints or not is_whole:
        return None
    if record.bad_rows > allowed_bad_rows:
        raise DataError(
            f"{output} was made without {record.bad_rows} rows that do not parse, and {allowed_bad_rows} may fail; "
            "give a higher --max-bad-rows, or correct the source and remove the folder"
        )
    return PrepareReport(
        record.rows, files, record.nbytes, record.bad_rows, record.first_bad_rows, output / NAME, kept=len(files)
    )


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
    fingerprints = {part.name: fingerprint(part, options, parts if prescan.is_needed else ()) for part in parts}
    if (report := find_finished(output, fingerprints, bad.allowed)) is not None:
        return report
    pool = WorkerPool(options.workers, progress, total * (1 + prescan.is_needed))
    with unfinished(output) as folder:
        folder.keep_only(parts)
        kept = {part.name: folder.finished(part, fingerprints[part.name]) for part in parts}
        if prescan.is_needed and not all(kept.values()):
            seen = BadRows(options.max_bad_rows, bad.count, list(bad.found))
            pool.each(parts, lambda part: _look(part, prescan, PartLog(seen, pool.read)))

        def finish(part: DatasetPart) -> PartState:
            state = kept[part.name]
            if state is not None:
                state.count_in(bad)
                pool.read(part.source_bytes)
                return state
            return _make(
                part, fingerprints[part.name], folder, prescan, PartLog(bad, pool.read), options.row_group_rows
            )

        states = dict(zip((part.name for part in parts), pool.each(parts, finish), strict=True))
        bad.raise_if_too_many()
        written = [part for part in parts if states[part.name].rows]
        if not written:
            raise DataError(f"no row of the source can be used, so there is nothing to write to {output}")
        report = PrepareReport(
            rows=sum(state.rows for state in states.values()),
            files=tuple(output / folder.file(part).name for part in written),
            nbytes=sum(state.nbytes for state in states.values()),
            bad_rows=bad.count,
            first_bad_rows=bad.first(),
            dataset=output / NAME,
            kept=sum(kept[part.name] is not None for part in written),
        )
        folder.write(NAME, to_yaml(described))
        folder.write(RECORD, to_record(report, fingerprints))
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
