"""The manifest of a checkpoint: written last, so that a checkpoint with one is complete.

It has a checksum of itself and of every file, and the number of rows of each table in each file. So a damaged or
incomplete checkpoint is refused and never read in part.
"""

import re
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, Literal

import msgspec
from xxhash import xxh128

from persia_cli.config.schema import Run
from persia_cli.config.schema.embedding import DENSE_TABLE
from persia_cli.control.calibration import Calibration
from persia_cli.control.phases import Trigger
from persia_cli.control.position import TrainingData
from persia_cli.errors import CheckpointError, FormatError
from persia_cli.storage import locations
from persia_cli.storage.checked_json import checked, read_checked
from persia_cli.storage.hashed_files import read_ahead
from persia_cli.storage.locations import Location, location_of, prefix_in, put, reading, size_of, subfolders
from persia_cli.store.checkpoints.saved import Count, Positive, Record, SavedFile

FORMAT_VERSION = 14
MANIFEST = "manifest.json"
CHECKPOINTS = "checkpoints"
EMBEDDINGS = "embeddings"
"""Subfolder of a checkpoint with the rows."""
COLD = "cold"
"""Subfolder with the rows that were not in memory: segments of logs, and a list of those of each file of rows."""
FREQUENCIES = "frequencies"
"""Subfolder with the frequencies of ids without a row."""
DELETED = "deleted"
"""Subfolder, of a cut that has only a part of the rows, with the keys that have left since the cut before."""
CHUNK_BYTES = 2**22

_FINISHED = re.compile(r"step-(\d+)")


class SavedTable(Record, frozen=True, forbid_unknown_fields=True):
    """A table of a checkpoint; `rows` is the number in all files together."""

    name: str
    dim: Positive
    dtype: str
    group: Count
    rows: Count


class TrackedMetric(Record, frozen=True, forbid_unknown_fields=True):
    """The best evaluation so far by a metric, and the number of evaluations after it."""

    metric: str
    step: Count | None
    value: float | None
    since: Count


class TrackedPlateau(Record, frozen=True, forbid_unknown_fields=True):
    """The state of a plateau schedule of dense weights or of rows."""

    of: Literal["dense", "embedding"]
    best: TrackedMetric
    reductions: Count
    """Number of reductions of the learning rate so far."""


class RunProgress(Record, frozen=True, forbid_unknown_fields=True):
    """The state of a run in addition to its model, from which a resumed run continues."""

    train_rows: Count
    eval_rows: Count
    metrics_bytes: Count
    """Size of `metrics.jsonl` when the checkpoint was saved."""
    look_ups: Count
    unknown: Count
    """Number of look-ups of training so far, and of those that found no row."""
    hits: Count
    misses: Count
    evicted: Count
    """Counters of all tables of features so far."""
    tracked: list[TrackedMetric]
    evaluation_due: bool = False
    """True if the model was saved before its evaluation at this step."""
    plateaus: tuple[TrackedPlateau, ...] = ()
    train_data: TrainingData | None = None
    calibration: tuple[Calibration, ...] = ()
    """Corrections of the model's labels, fitted by its evaluation; none if it has not been evaluated."""
    decayed: dict[str, tuple[float, float]] = msgspec.field(default_factory=dict)
    """Of data that grows, of each metric of portions: a sum and its weight, both decayed (`observe.record`)."""


class CutFacts(Record, frozen=True, forbid_unknown_fields=True):
    """The facts of a cut, which no checkpoint has; see `persia_cli.store.checkpoints.cuts`."""

    since: Count
    """The cut has the rows used in this step or later: the step of the cut before, or 0 for all rows."""
    time: float
    """When training was at this step, in seconds since 1970."""


class Manifest(Record, frozen=True, forbid_unknown_fields=True):
    """The contents of a checkpoint."""

    format_version: int
    persia_version: str
    step: Count
    samples: Count
    seed: Count
    config: dict[str, Any]
    tables: list[SavedTable]
    groups: dict[str, Count]
    """Rows of each feature group, by its number."""
    progress: RunProgress
    files: list[SavedFile]
    trigger: Trigger = "end"
    """The reason for saving."""
    cut: CutFacts | None = None

    def tables_of(self, group: int) -> tuple[str, ...]:
        """Return the names of a feature group's tables, in the order of rows with equal keys."""
        return tuple(table.name for table in self.tables if table.group == group)

    def row_count(self, with_dense: bool) -> int:
        """Return the number of rows of all files, without those of dense weights unless `with_dense`."""
        files = [*self.row_files(with_dense), *self.cold_files(with_dense)]
        return sum(sum(file.rows.tables.values()) for file in files if file.rows is not None)

    def row_files(self, with_dense: bool) -> list[SavedFile]:
        """Return the files of rows, ordered by name, without those of dense weights unless `with_dense`."""
        return self._with_rows(EMBEDDINGS, with_dense)

    def cold_files(self, with_dense: bool) -> list[SavedFile]:
        """Return the lists of segments, which have the names of the files of rows of the same partitions."""
        return self._with_rows(COLD, with_dense)

    def segments_of(self, listed: SavedFile) -> list[SavedFile]:
        """Return the segments of one of `cold_files`, the oldest first."""
        segments = [file for file in self._files_in(COLD) if file.rows is None and list_of(file) == listed.name]
        return sorted(segments, key=lambda file: file.name)

    def _with_rows(self, folder: str, with_dense: bool) -> list[SavedFile]:
        dense = {table.group for table in self.tables if table.name == DENSE_TABLE and not with_dense}
        files = [file for file in self._files_in(folder) if file.rows is not None and file.rows.group not in dense]
        return sorted(files, key=lambda file: file.name)

    def _files_in(self, folder: str) -> list[SavedFile]:
        return [file for file in self.files if kind_of(file) == folder]


class _Version(msgspec.Struct):
    """The key of a manifest that decides whether the others can be read."""

    format_version: int


# Created at import, like the decoder of jobs in `plan/job.py`, since threads must not be the first to use a type.
_DECODER = msgspec.json.Decoder(Manifest)
_VERSION_DECODER = msgspec.json.Decoder(_Version)


def checkpoints_of(run_dir: Path, path: str | None) -> Location:
    """Return the folder of a run's checkpoints, given its `checkpoint.path`; raises CheckpointError for a wrong URI."""
    return run_dir / CHECKPOINTS if path is None else location_of(path)


def checkpoint_folder(checkpoints: Location, step: int) -> Location:
    """Return the folder of the finished checkpoint of a step."""
    return checkpoints / f"step-{step}"


def owner(checkpoints: Location) -> Location:
    """Return the place that identifies a run's checkpoints to users: the run directory, unless they are elsewhere."""
    return checkpoints.parent if isinstance(checkpoints, Path) and checkpoints.name == CHECKPOINTS else checkpoints


def begin_checkpoint(checkpoints: Location, step: int) -> Location:
    """Return the folder in which the checkpoint of a step is written before it is published; writing creates it."""
    return locations.draft_of(checkpoint_folder(checkpoints, step))


def publish(checkpoints: Location, draft: Location, manifest: Manifest) -> Location:
    """Publish the files of a draft, and the manifest, as the checkpoint of a step; return its folder.

    All is on disk then. Raise CheckpointError if a file is missing or has another size (a role wrote it to a disk that
    this process cannot see) or if the files are not a whole model, DiskError if the manifest cannot be written.
    """
    for saved in manifest.files:
        path = draft / saved.folder / saved.name
        if size_of(path) != saved.nbytes:
            raise CheckpointError(
                f"{path} was written by another replica and cannot be seen from here; run all roles on a shared disk, "
                "or give checkpoint.path a URI that all of them reach"
            )
    if gap := contradiction(manifest):
        raise CheckpointError(f"the checkpoint {draft} is incomplete: {gap}")
    final = checkpoint_folder(checkpoints, manifest.step)
    beginning = prefix_in(final, draft)
    files = [msgspec.structs.replace(file, folder=f"{beginning}{file.folder}") for file in manifest.files]
    locations.publish(final, draft, MANIFEST, checked(msgspec.structs.replace(manifest, files=files)))
    return final


def unfinished_folders(checkpoints: Location) -> list[Location]:
    """Return the folders of checkpoints that were not finished or not completely removed."""
    return [folder for folder in locations.drafts(checkpoints, MANIFEST) if folder.name.startswith("step-")]


def finished_steps(checkpoints: Location) -> list[int]:
    """Return the steps of all complete checkpoints of a run, in ascending order."""
    return sorted(
        int(match[1])
        for folder in subfolders(checkpoints)
        if (match := _FINISHED.fullmatch(folder.name)) and (folder / MANIFEST).is_file()
    )


def folders_without_manifest(checkpoints: Location) -> list[Location]:
    """Return the folders on a disk that have the name of a complete checkpoint and no manifest.

    No killed save leaves one: a user has removed the manifest, or has copied a part of the folder.
    """
    named = [folder for folder in subfolders(checkpoints) if _FINISHED.fullmatch(folder.name)]
    # In a store such a folder is an unfinished one. On a disk, a folder that vanishes meanwhile was removed regularly.
    return [
        folder for folder in named if isinstance(folder, Path) and not (folder / MANIFEST).is_file() and folder.is_dir()
    ]


def step_of(checkpoint: Location) -> int:
    """Return the step in the name of a finished checkpoint's folder; raises ValueError for another name."""
    match = _FINISHED.fullmatch(checkpoint.name)
    if match is None:
        raise ValueError(f"{checkpoint} is not named after a step")
    return int(match[1])


def newest_checkpoint(checkpoints: Location) -> Location:
    """Return the folder of the last complete checkpoint.

    Raises CheckpointError if there is none, or a later folder that has lost its manifest.
    """
    steps = finished_steps(checkpoints)
    if not steps:
        raise CheckpointError(
            f"{owner(checkpoints)} has no complete checkpoint; train again, with checkpoint.every_steps=N, or to "
            "the end with checkpoint.at_end=true"
        )
    newest = checkpoint_folder(checkpoints, steps[-1])
    if later := [folder for folder in folders_without_manifest(checkpoints) if step_of(folder) > steps[-1]]:
        raise CheckpointError(
            f"{later[-1]} is damaged, or was copied in part: it has no {MANIFEST}; remove it to use {newest}"
        )
    return newest


def read_manifest(folder: Location) -> Manifest:
    """Return a checkpoint's manifest, after checking names and sizes of the files, but not their contents.

    Raises CheckpointError if it is missing, damaged or of another format, and if a file is missing, has another size or
    is not listed.
    """
    manifest = decode_manifest(folder)
    for flaw in file_flaws(folder, manifest):
        raise CheckpointError(flaw)
    return manifest


def decode_manifest(folder: Location) -> Manifest:
    """Return a checkpoint's manifest without checking other files.

    Raises CheckpointError if it is missing, damaged or of another format.
    """
    path = folder / MANIFEST
    try:
        content = read_checked(path)
        # Before the rest: another version may have the same keys with another meaning.
        if (version := _VERSION_DECODER.decode(content).format_version) != FORMAT_VERSION:
            raise FormatError(f"{folder} has checkpoint format {version}; this persia reads format {FORMAT_VERSION}")
        manifest = _DECODER.decode(content)
    except FileNotFoundError as error:
        raise CheckpointError(f"{folder} is not a complete checkpoint: it has no {MANIFEST}") from error
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{path} is damaged: {error}; use another checkpoint") from error
    named = _FINISHED.fullmatch(folder.name)
    if named and int(named[1]) != manifest.step:
        raise CheckpointError(
            f"{folder} contains the checkpoint of step {manifest.step}; rename the folder to step-{manifest.step}"
        )
    if flaw := contradiction(manifest):
        raise CheckpointError(f"{path} is damaged: {flaw}; use another checkpoint")
    return manifest


def file_flaws(folder: Location, manifest: Manifest) -> Iterator[str]:
    """Yield an error for each file that is missing, has another size than in the manifest, or is not listed there."""
    for file in manifest.files:
        path = folder / file.folder / file.name
        nbytes = size_of(path)
        if nbytes is None:
            yield f"{path} is missing; the checkpoint is incomplete, use another"
        elif nbytes != file.nbytes:
            yield (
                f"{path} has changed since it was saved: it has {nbytes:,} bytes, not {file.nbytes:,}; "
                "use another checkpoint"
            )
    if isinstance(folder, Path):
        yield from _unlisted(folder, manifest)


def _unlisted(folder: Path, manifest: Manifest) -> Iterator[str]:
    """Yield an error for each file that is not listed; at a URI such files are leftovers of other attempts."""
    listed = {folder / MANIFEST} | {folder / file.folder / file.name for file in manifest.files}
    for part in sorted({folder, *(path.parent for path in listed)}):
        for path in sorted(part.iterdir()) if part.is_dir() else ():
            # Network file systems leave hidden files behind for a while.
            if path not in listed and not path.is_dir() and not path.name.startswith("."):
                yield f"{path} is not listed in the checkpoint's {MANIFEST}; move it elsewhere"


def verify(path: Location, file: SavedFile, on_bytes: Callable[[int], None] = lambda nbytes: None) -> None:
    """Compare the content of a file with its checksum; call `on_bytes` with the size of each portion read.

    Raise CheckpointError if the file is missing or has changed.
    """
    digest = xxh128()
    with reading(path) as source:
        for chunk in read_ahead(iter(partial(source.read, CHUNK_BYTES), b"")):
            digest.update(chunk)
            on_bytes(len(chunk))
    require_digest(path, file, digest.hexdigest())


def require_digest(path: Location, file: SavedFile, digest: str) -> None:
    """Raise CheckpointError unless the XXH128 checksum of a file's content is that of the saved file."""
    if digest != file.xxh128:
        raise CheckpointError(
            f"{path} has changed since it was saved (its xxh128 is {digest[:12]}…); use another checkpoint"
        )


def verified_folder(folder: Location, part: str) -> Location:
    """Return the checkpoint's subfolder `part` after comparing its files with their checksums.

    Raises CheckpointError if a file is missing or has changed.
    """
    manifest = read_manifest(folder)
    files = [file for file in manifest.files if kind_of(file) == part]
    for file in files:
        verify(folder / file.folder / file.name, file)
    return folder / (files[0].folder if files else part)


def calibration_of(run: Run, checkpoint: Location) -> tuple[Calibration, ...]:
    """Return the corrections of a saved model's labels that a run applies; raises CheckpointError."""
    return read_manifest(checkpoint).progress.calibration if run.train.calibrate == "auto" else ()


def kind_of(file: SavedFile) -> str:
    return file.folder.rpartition("/")[2]


def segment_name(listed: str, sequence: int) -> str:
    """Return the name of a segment whose list has this name."""
    return f"{listed.removesuffix('.arrow')}-{sequence:012d}.segment"


def list_of(segment: SavedFile) -> str:
    """Return the name of the list of a segment."""
    return f"{segment.name.rpartition('-')[0]}.arrow"


def write_checked(path: Location, content: Any) -> None:
    """Write the result of `checked` as a whole file; raise DiskError."""
    put(path, checked(content))


def contradiction(manifest: Manifest) -> str | None:
    """Return a description of a contradiction in a manifest, None if it describes a whole model."""
    names = Counter((file.folder, file.name) for file in manifest.files)
    if twice := [name for (_, name), times in names.items() if times > 1]:
        return f"{twice[0]} is listed twice"
    saved = [file.rows for file in manifest.row_files(with_dense=True) if file.rows is not None]
    cold = [file.rows for file in manifest.cold_files(with_dense=True) if file.rows is not None]
    if not {rows.partition_range for rows in cold} <= {rows.partition_range for rows in saved}:
        return f"files in {COLD} have rows of other partitions than those in {EMBEDDINGS}"
    lists = {file.name for file in manifest.cold_files(with_dense=True)}
    if {list_of(file) for file in manifest.files if kind_of(file) == COLD and file.rows is None} != lists:
        return f"its segments in {COLD} are not those of its lists"
    counts: Counter[tuple[int, str]] = Counter()
    for rows in saved + cold:
        counts.update({(rows.group, name): number for name, number in rows.tables.items()})
    listed = {(table.group, table.name): table.rows for table in manifest.tables}
    for group, name in sorted(counts.keys() | listed.keys()):
        if counts[group, name] != listed.get((group, name), 0):
            return f"its files have {counts[group, name]:,} rows of table {name}, not {listed.get((group, name), 0):,}"
    totals = {str(group): sum(t.rows for t in manifest.tables if t.group == group) for group, _ in listed}
    if totals != manifest.groups or {str(rows.group) for rows in saved} != totals.keys():
        return "its feature groups are not those of its tables and files"
    for group in {rows.group for rows in saved}:
        parts = sorted((rows.first, rows.stop, rows.partitions) for rows in saved if rows.group == group)
        edges = [0, *(stop for _, stop, _ in parts)]
        if [first for first, _, _ in parts] != edges[:-1] or {of for _, _, of in parts} != {edges[-1]}:
            return f"its files do not have every partition of feature group {group} exactly once"
    return None
