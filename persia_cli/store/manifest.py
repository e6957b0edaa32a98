"""The manifest of a checkpoint: written last, so that a checkpoint with one is complete."""

import hashlib
import json
import os
import re
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from persia_cli.errors import CheckpointError

FORMAT_VERSION = 1
MANIFEST = "manifest.json"
CHECKPOINTS = "checkpoints"
EMBEDDINGS = "embeddings"
"""Folder of a checkpoint that holds the rows."""

_FINISHED = re.compile(r"step-(\d+)")


@dataclass(frozen=True, slots=True)
class SavedFile:
    """A file of a checkpoint: where it lies in it, and how to know it again; of rows, the group and their number."""

    folder: str
    name: str
    nbytes: int
    sha256: str
    group: int | None = None
    rows: int | None = None


@dataclass(frozen=True, slots=True)
class Manifest:
    """What a checkpoint holds."""

    format_version: int
    persia_version: str
    generation: int
    step: int
    samples: int
    seed: int
    config: dict[str, Any]
    tables: list[dict[str, Any]]
    files: list[SavedFile]


def checkpoint_folder(run_dir: Path, step: int) -> Path:
    """Return the folder of the finished checkpoint of a step."""
    return run_dir / CHECKPOINTS / f"step-{step}"


def unfinished_folder(run_dir: Path, step: int) -> Path:
    """Return the folder a checkpoint is written in before it is published."""
    return run_dir / CHECKPOINTS / f"step-{step}.partial"


def publish(run_dir: Path, manifest: Manifest) -> Path:
    """Write the manifest into the unfinished checkpoint and give the folder its final name; return it.

    Raises CheckpointError if a file is not there in full: then some role wrote it where this one cannot see it.
    """
    partial = unfinished_folder(run_dir, manifest.step)
    for saved in manifest.files:
        path = partial / saved.folder / saved.name
        if not path.is_file() or path.stat().st_size != saved.nbytes:
            raise CheckpointError(
                f"{path} was written by another replica and is not to be seen from here; run all roles on a shared disk"
            )
    with (partial / MANIFEST).open("w", encoding="utf-8") as file:
        file.write(json.dumps(asdict(manifest), indent=2) + "\n")
        file.flush()
        os.fsync(file.fileno())
    _sync_folder(partial)
    final = checkpoint_folder(run_dir, manifest.step)
    partial.rename(final)
    _sync_folder(final.parent)
    return final


def _sync_folder(folder: Path) -> None:
    """Have the names in a folder survive a power cut."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def finished_steps(run_dir: Path) -> list[int]:
    """Return the steps of all complete checkpoints of a run, rising."""
    return sorted(
        int(match[1])
        for path in (run_dir / CHECKPOINTS).glob("step-*")
        if (match := _FINISHED.fullmatch(path.name)) and (path / MANIFEST).is_file()
    )


def newest_checkpoint(run_dir: Path) -> Path:
    """Return the folder of the last complete checkpoint; raises CheckpointError if there is none."""
    steps = finished_steps(run_dir)
    if not steps:
        raise CheckpointError(
            f"{run_dir} holds no complete checkpoint; train it to its end, or set checkpoint.every_steps"
        )
    return checkpoint_folder(run_dir, steps[-1])


def checksums(manifest: Manifest, part: str) -> dict[str, str]:
    """Return the sha256 of each file in one folder of the checkpoint, by name."""
    return {file.name: file.sha256 for file in manifest.files if file.folder == part}


def verify(folder: Path, part: str) -> Path:
    """Return the checkpoint's subfolder `part` after comparing its files with the manifest.

    Raises CheckpointError for a file that is missing or not what was written.
    """
    for name, expected in checksums(read_manifest(folder), part).items():
        path = folder / part / name
        if not path.is_file():
            raise CheckpointError(f"{path} is missing; the checkpoint is incomplete, use another")
        with path.open("rb") as file:
            found = hashlib.file_digest(file, "sha256").hexdigest()
        if found != expected:
            raise CheckpointError(
                f"{path} has changed since it was written (sha256 {found[:12]}…); use another checkpoint"
            )
    return folder / part


def read_manifest(folder: Path) -> Manifest:
    """Read a checkpoint's manifest; raises CheckpointError if it is missing, damaged or of another format."""
    try:
        fields = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
        version = fields["format_version"]
        if version != FORMAT_VERSION:
            raise CheckpointError(
                f"{folder} has checkpoint format {version}; this persia reads format {FORMAT_VERSION}"
            )
        return Manifest(**fields | {"files": [SavedFile(**file) for file in fields["files"]]})
    except FileNotFoundError as error:
        raise CheckpointError(f"{folder} is not a complete checkpoint: it has no {MANIFEST}") from error
    except (ValueError, KeyError, TypeError) as error:
        raise CheckpointError(f"{folder / MANIFEST} is damaged: {error}") from error
