"""The verification of checkpoints: every file is read whole, and every flaw is a sentence."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from persia_cli.checkpoint.dense_flaws import dense_flaws
from persia_cli.checkpoint.listing import list_checkpoints, run_checkpoints
from persia_cli.checkpoint.record_flaws import metrics_flaws, position_flaws
from persia_cli.checkpoint.row_flaws import RowFlaws
from persia_cli.checkpoint.rows import tables_of
from persia_cli.config.schema import CustomModel, Run
from persia_cli.errors import CheckpointError, ConfigError, UserError, one_line
from persia_cli.launch.readiness import ask_torch
from persia_cli.observe.record_state import copies_in
from persia_cli.observe.saved_run import locate_model
from persia_cli.plan.embedding import embedding_layout
from persia_cli.storage.places import Place, size_of
from persia_cli.store.checkpoints.chain import read_chain
from persia_cli.store.checkpoints.manifest import (
    DELETED,
    MANIFEST,
    Manifest,
    checkpoint_folder,
    decode_manifest,
    file_flaws,
    kind_of,
    verify,
)
from persia_cli.store.checkpoints.merged_rows import ordered_rows
from persia_cli.store.layout import EmbeddingLayout
from persia_cli.wire.figures import SavedFile


@dataclass
class Verification:
    """What came of the verification of one checkpoint; it is sound if there are no flaws."""

    path: str
    step: int | None = None
    rows: int = 0
    """Rows that were read."""
    nbytes: int = 0
    """Bytes whose checksum was computed."""
    flaws: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    """What could not be verified, and why."""


@dataclass
class VerifyingProgress:
    """How far a verification has come; its numbers only rise, and work is in bytes."""

    work: int = 0
    of: int = 0
    rows: int = 0
    on_change: Callable[["VerifyingProgress"], None] = lambda progress: None

    def add(self, work: int, rows: int = 0) -> None:
        """Note work that is done."""
        self.work, self.rows = self.work + work, self.rows + rows
        self.on_change(self)


def checkpoints_in(folder: Place) -> tuple[list[Place], Path | None, list[str]]:
    """Return the checkpoints in a run directory, or the one that `folder` is; their run directory; the run's flaws.

    Raises UserError for a folder that is neither, CheckpointError for a run without a checkpoint.
    """
    if (folder / MANIFEST).is_file():
        return [folder], locate_model(folder)[1], []
    if not isinstance(folder, Path):
        raise UserError(f"{folder} has no {MANIFEST}, so it is no checkpoint")
    found = list_checkpoints(folder)
    if not found.checkpoints:
        raise CheckpointError(f"{folder} has no complete checkpoint")
    bare = [f"{left.path} has no {MANIFEST}: it is damaged, or was copied in part" for left in found.bare]
    return (
        [checkpoint_folder(run_checkpoints(folder), each.step) for each in found.checkpoints],
        folder,
        [*([found.note] if found.note else []), *bare],
    )


class Verifier:
    """Verifies one checkpoint after another; each needs the memory of a few record batches and its dense weights."""

    def __init__(self, progress: VerifyingProgress) -> None:
        self._progress = progress
        self._expected: dict[str, Mapping[str, Any] | str] = {}
        """By configuration: the tensors of its network, or why they are not known."""

    def verify(self, folder: Place, run_dir: Path | None) -> Verification:
        """Return all flaws of a checkpoint, and of its position in the record of its run, or in its copy of that."""
        found = Verification(str(folder))
        try:
            manifest = decode_manifest(folder)
        except CheckpointError as error:
            found.flaws.append(one_line(error))
            return found
        found.step = manifest.step
        found.flaws += file_flaws(folder, manifest)
        self._progress.of += 2 * sum(file.nbytes for file in manifest.files)
        run, layout, problem = _understood(manifest)
        if problem:
            found.notes.append(problem)
        self._verify_files(folder, manifest, layout, found)
        self._verify_chain(folder, manifest, found)
        found.flaws += dense_flaws(folder, manifest, self._expected_of(run, found))
        found.flaws += position_flaws(folder, manifest, run)
        for record in [run_dir] if run_dir else [folder / file.folder for file in copies_in(manifest)[:1]]:
            found.flaws += metrics_flaws(folder, manifest, record)
        if found.flaws and not (folder / MANIFEST).is_file():
            found.flaws, found.notes = [], [f"{folder} was removed while it was being verified"]
        return found

    def _verify_files(
        self, folder: Place, manifest: Manifest, layout: EmbeddingLayout | None, found: Verification
    ) -> None:
        for file in manifest.files:
            path, done = folder / file.folder / file.name, self._progress.work
            if (size := size_of(path)) is not None:
                try:
                    verify(path, file, self._progress.add)
                except CheckpointError as error:
                    found.flaws.append(one_line(error))
                found.nbytes += size
                if kind_of(file) == DELETED:
                    found.flaws += self._flaws_of_ids(path, file, manifest)
                elif file.rows is not None:
                    rows = self._progress.rows
                    count = partial(self._count_rows, file.nbytes, max(file.rows.total, 1))
                    found.flaws += RowFlaws(path, file.rows, manifest, layout).sentences(count)
                    found.rows += self._progress.rows - rows
            self._progress.add(max(0, done + 2 * file.nbytes - self._progress.work))

    def _flaws_of_ids(self, path: Place, file: SavedFile, manifest: Manifest) -> list[str]:
        """Return the flaws of a file of ids whose rows are gone."""
        assert file.rows is not None
        try:
            ids = sum(block.keys.size for block in ordered_rows(path, tables_of(manifest, file.rows.group)))
        except CheckpointError as error:
            return [one_line(error)]
        return [] if ids == file.rows.total else [f"{path} has {ids:,} ids, but {file.rows.total:,} were saved"]

    def _verify_chain(self, folder: Place, manifest: Manifest, found: Verification) -> None:
        """Read all rows of a checkpoint that has only changes, with those that it depends on."""
        if manifest.parent is None or found.flaws:
            return
        try:
            for file in read_chain(folder).row_files(with_dense=True):
                for _ in file.batches():
                    pass
        except CheckpointError as error:
            found.flaws.append(one_line(error))

    def _count_rows(self, nbytes: int, of: int, rows: int) -> None:
        self._progress.add(nbytes * rows // of, rows)

    def _expected_of(self, run: Run | None, found: Verification) -> Mapping[str, Any] | None:
        if run is None:
            return None
        key = run.model_dump_json()
        if key not in self._expected:
            self._expected[key] = _ask(run)
        answer = self._expected[key]
        if isinstance(answer, str):
            found.notes.append(f"the dense weights were not compared with the network: {answer}")
            return None
        return answer


def _understood(manifest: Manifest) -> tuple[Run | None, EmbeddingLayout | None, str]:
    """Return the run and the layout of a checkpoint's configuration, or the reason why there are none."""
    try:
        run = Run.model_validate(manifest.config)
        return run, embedding_layout(run), ""
    except (ValidationError, ConfigError) as error:
        reason = one_line(error)
        return None, None, f"its configuration is not one of this version, so it was not compared with it: {reason}"


def _ask(run: Run) -> Mapping[str, Any] | str:
    """Return the tensors that a network must have; a network of one's own is code, which verifying does not run."""
    if isinstance(run.model, CustomModel):
        return f"it is code in {run.model.file}, which persia eval runs"
    if find_spec("torch") is None:
        return "torch is not installed here"
    try:
        [answer] = ask_torch("persia_cli.train.expected_state", [run])
    except ConfigError as error:
        return one_line(error)
    known: Mapping[str, Any] | str = answer
    return known


def each_verified(folders: list[Place], run_dir: Path | None, progress: VerifyingProgress) -> Iterator[Verification]:
    """Yield what came of each checkpoint, one after another."""
    verifier = Verifier(progress)
    for folder in folders:
        yield verifier.verify(folder, run_dir)
