"""The manifest of a checkpoint: written last, so that a checkpoint with one is complete.

It has a checksum of itself and of every file, and the number of rows of each table in each file. So a checkpoint that
is damaged or incomplete is refused and never read in part.
"""

import hashlib
import json
import re
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from persia_cli.disk import rename, sync, write_whole, writing
from persia_cli.errors import CheckpointError
from persia_cli.store.layout import DENSE_TABLE
from persia_cli.wire.figures import Positive, Record, SavedFile
from persia_cli.wire.parts import Count

FORMAT_VERSION = 4
MANIFEST = "manifest.json"
CHECKPOINTS = "checkpoints"
EMBEDDINGS = "embeddings"
"""Subfolder of a checkpoint with the rows."""
PARTIAL, REMOVED = ".partial", ".removed"
"""Suffixes of a checkpoint's folder while it is written, and while it is removed."""
CHUNK_BYTES = 2**22

_FINISHED = re.compile(r"step-(\d+)")

_OPENING = b'{\n  "sha256": "%s",\n'
_CHECKED = re.compile(rb'\{\n  "sha256": "([0-9a-f]{64})",\n')


class SavedTable(Record, frozen=True, forbid_unknown_fields=True):
    """A table of a checkpoint; `rows` is the number in all files together."""

    name: str
    dim: Positive
    dtype: str
    group: Count
    rows: Count


class TrackedFigure(Record, frozen=True, forbid_unknown_fields=True):
    """The best evaluation so far by a metric, and the number of evaluations after it."""

    metric: str
    step: Count | None
    value: float | None
    since: Count


class RunProgress(Record, frozen=True, forbid_unknown_fields=True):
    """The state of a run beside its model, from which a resumed run goes on."""

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
    tracked: list[TrackedFigure]


class Manifest(Record, frozen=True, forbid_unknown_fields=True):
    """The contents of a checkpoint."""

    format_version: int
    persia_version: str
    generation: Count
    step: Count
    samples: Count
    seed: Count
    config: dict[str, Any]
    tables: list[SavedTable]
    groups: dict[str, Count]
    """Rows of each feature group, by its number."""
    progress: RunProgress
    files: list[SavedFile]

    def row_count(self, with_dense: bool) -> int:
        """Return the number of rows of all files, without those of dense weights unless `with_dense`."""
        return sum(file.rows.total for file in self.row_files(with_dense) if file.rows is not None)

    def row_files(self, with_dense: bool) -> list[SavedFile]:
        """Return the files of rows, ordered by name, without those of dense weights unless `with_dense`."""
        dense = {table.group for table in self.tables if table.name == DENSE_TABLE and not with_dense}
        found = [file for file in self.files if file.rows is not None and file.rows.group not in dense]
        return sorted(found, key=lambda file: file.name)


# Made at import, like the decoder of jobs in `plan/job.py`, since threads must not be the first to use a type.
_DECODER = msgspec.json.Decoder(Manifest)


def checkpoint_folder(run_dir: Path, step: int) -> Path:
    """Return the folder of the finished checkpoint of a step."""
    return run_dir / CHECKPOINTS / f"step-{step}"


def unfinished_folder(run_dir: Path, step: int) -> Path:
    """Return the folder in which a checkpoint is written before it is published."""
    return run_dir / CHECKPOINTS / f"step-{step}{PARTIAL}"


def publish(run_dir: Path, manifest: Manifest) -> Path:
    """Write the manifest to the unfinished checkpoint and give the folder its final name; returns the folder.

    Everything is synced to disk then. Raises CheckpointError if a file is missing or has another size (a role wrote it
    to a disk that this process cannot see) or if the files are not a whole model, DiskError if the manifest cannot be
    written.
    """
    partial = unfinished_folder(run_dir, manifest.step)
    for saved in manifest.files:
        path = partial / saved.folder / saved.name
        if not path.is_file() or path.stat().st_size != saved.nbytes:
            raise CheckpointError(
                f"{path} was written by another replica and cannot be seen from here; run all roles on a shared disk"
            )
    if gap := contradiction(manifest):
        raise CheckpointError(f"the checkpoint {partial} is incomplete: {gap}")
    final = checkpoint_folder(run_dir, manifest.step)
    with writing(final):
        for folder in {saved.folder for saved in manifest.files}:
            sync(partial / folder)
        write_checked(partial / MANIFEST, manifest)
        rename(partial, final)
        sync(run_dir)
    return final


def contradiction(manifest: Manifest) -> str | None:
    """Return a description of a contradiction in a manifest, None if it describes a whole model."""
    places = Counter((file.folder, file.name) for file in manifest.files)
    if twice := [name for (_, name), times in places.items() if times > 1]:
        return f"{twice[0]} is listed twice"
    saved = [file.rows for file in manifest.files if file.rows is not None]
    found: Counter[tuple[int, str]] = Counter()
    for rows in saved:
        found.update({(rows.group, name): number for name, number in rows.tables.items()})
    listed = {(table.group, table.name): table.rows for table in manifest.tables}
    for group, name in sorted(found.keys() | listed.keys()):
        if found[group, name] != listed.get((group, name), 0):
            return f"its files have {found[group, name]:,} rows of table {name}, not {listed.get((group, name), 0):,}"
    totals = {str(group): sum(t.rows for t in manifest.tables if t.group == group) for group, _ in listed}
    if totals != manifest.groups or {str(rows.group) for rows in saved} != totals.keys():
        return "its feature groups are not those of its tables and files"
    for group in {rows.group for rows in saved}:
        parts = sorted((rows.first, rows.stop, rows.partitions) for rows in saved if rows.group == group)
        edges = [0, *(stop for _, stop, _ in parts)]
        if [first for first, _, _ in parts] != edges[:-1] or {of for _, _, of in parts} != {edges[-1]}:
            return f"its files do not have every partition of feature group {group} exactly once"
    return None


def unfinished_folders(run_dir: Path) -> list[Path]:
    """Return the folders of checkpoints that were not finished or not completely removed."""
    return sorted(path for path in (run_dir / CHECKPOINTS).glob("step-*") if path.suffix in (PARTIAL, REMOVED))


def finished_steps(run_dir: Path) -> list[int]:
    """Return the steps of all complete checkpoints of a run, in ascending order."""
    return sorted(
        int(match[1])
        for path in (run_dir / CHECKPOINTS).glob("step-*")
        if (match := _FINISHED.fullmatch(path.name)) and (path / MANIFEST).is_file()
    )


def step_of(checkpoint: Path) -> int:
    """Return the step in the name of a finished checkpoint's folder; raises ValueError for another name."""
    match = _FINISHED.fullmatch(checkpoint.name)
    if match is None:
        raise ValueError(f"{checkpoint} is not named after a step")
    return int(match[1])


def newest_checkpoint(run_dir: Path) -> Path:
    """Return the folder of the last complete checkpoint; raises CheckpointError if there is none."""
    steps = finished_steps(run_dir)
    if not steps:
        raise CheckpointError(
            f"{run_dir} has no complete checkpoint; train it to its end, or set checkpoint.every_steps"
        )
    return checkpoint_folder(run_dir, steps[-1])


def read_manifest(folder: Path) -> Manifest:
    """Return a checkpoint's manifest, after checking names and sizes of the files, but not their contents.

    Raises CheckpointError if it is missing, damaged or of another format, and if a file is missing, has another size or
    is not listed.
    """
    path = folder / MANIFEST
    try:
        manifest = _DECODER.decode(read_checked(path))
    except FileNotFoundError as error:
        raise CheckpointError(f"{folder} is not a complete checkpoint: it has no {MANIFEST}") from error
    except (OSError, ValueError) as error:
        if not isinstance(error, ChangedError):
            _refuse_other_format(folder)
        raise CheckpointError(f"{path} is damaged: {error}; use another checkpoint") from error
    named = _FINISHED.fullmatch(folder.name)
    if named and int(named[1]) != manifest.step:
        raise CheckpointError(
            f"{folder} contains the checkpoint of step {manifest.step}; rename the folder to step-{manifest.step}"
        )
    if flaw := contradiction(manifest):
        raise CheckpointError(f"{path} is damaged: {flaw}; use another checkpoint")
    _check_files(folder, manifest)
    return manifest


def _refuse_other_format(folder: Path) -> None:
    """Raise CheckpointError for a manifest of another format version; version 1 had no checksum."""
    try:
        version = json.loads((folder / MANIFEST).read_bytes())["format_version"]
    except (OSError, ValueError, KeyError, TypeError):
        return
    if isinstance(version, int) and version != FORMAT_VERSION:
        raise CheckpointError(f"{folder} has checkpoint format {version}; this persia reads format {FORMAT_VERSION}")


def _check_files(folder: Path, manifest: Manifest) -> None:
    for file in manifest.files:
        path = folder / file.folder / file.name
        if not path.is_file():
            raise CheckpointError(f"{path} is missing; the checkpoint is incomplete, use another")
        if (found := path.stat().st_size) != file.nbytes:
            raise CheckpointError(
                f"{path} has changed since it was saved: it has {found:,} bytes, not {file.nbytes:,}; "
                "use another checkpoint"
            )
    listed = {folder / MANIFEST} | {folder / file.folder / file.name for file in manifest.files}
    for part in sorted({folder, *(path.parent for path in listed)}):
        for path in sorted(part.iterdir()):
            # Network file systems leave hidden files behind for a while.
            if path not in listed and not path.is_dir() and not path.name.startswith("."):
                raise CheckpointError(f"{path} is not listed in the checkpoint's {MANIFEST}; move it elsewhere")


def verify(path: Path, file: SavedFile, on_bytes: Callable[[int], None] = lambda nbytes: None) -> None:
    """Compare the content of a file with its checksum; calls `on_bytes` with the size of each portion read.

    Raises CheckpointError if the file is missing or has changed.
    """
    digest = hashlib.sha256()
    try:
        with path.open("rb", buffering=0) as source:
            while chunk := source.read(CHUNK_BYTES):
                digest.update(chunk)
                on_bytes(len(chunk))
    except OSError as error:
        raise CheckpointError(f"{path} cannot be read: {error.strerror}; use another checkpoint") from error
    if digest.hexdigest() != file.sha256:
        raise CheckpointError(
            f"{path} has changed since it was saved (its sha256 is {digest.hexdigest()[:12]}…); use another checkpoint"
        )


def verified_folder(folder: Path, part: str) -> Path:
    """Return the checkpoint's subfolder `part` after comparing its files with their checksums.

    Raises CheckpointError if a file is missing or has changed.
    """
    for file in read_manifest(folder).files:
        if file.folder == part:
            verify(folder / part / file.name, file)
    return folder / part


class ChangedError(ValueError):
    """An error for a file whose text does not match its checksum."""


def write_checked(path: Path, content: Any) -> None:
    """Write an object as JSON with `write_whole`; its first key is the SHA-256 of the text after it."""
    text = msgspec.json.format(msgspec.json.encode(content), indent=2).removeprefix(b"{\n") + b"\n"
    write_whole(path, _OPENING % hashlib.sha256(text).hexdigest().encode() + text)


def read_checked(path: Path) -> bytes:
    """Return the JSON object that `write_checked` wrote, without its checksum.

    Raises OSError if it cannot be read, ValueError if it has no checksum, ChangedError if the checksum does not match.
    """
    content = path.read_bytes()
    opening = _CHECKED.match(content)
    if opening is None:
        raise ValueError("it does not begin with its own checksum")
    text = content[opening.end() :]
    if hashlib.sha256(text).hexdigest().encode() != opening[1]:
        raise ChangedError("it does not match its own checksum")
    return b"{\n" + text
