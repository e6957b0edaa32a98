"""The versions of a published folder, each prepared as an exported model that servers open.

A prepared version is a folder: links to the rows of the base, the overlay of all deltas up to it, and the network of
its step. It has passed all checks: every file has the checksum that its version lists, each delta follows its parent,
and the model predicts the golden samples as the training code did. Folders never change. They stay as long as the
published folder has their versions, so that a rollback needs no work; processes that have mapped a file keep it after
its folder was removed.
"""

import shutil
from pathlib import Path
from typing import NamedTuple

import msgspec

from persia_cli.disk import link_briefly
from persia_cli.errors import CheckpointError
from persia_cli.publish.version import Version, chain_of, versions_of
from persia_cli.serving import description as artefact
from persia_cli.serving.description import (
    Missing,
    ModelDescription,
    read_description,
    require_files,
    write_description,
)
from persia_cli.serving.golden import require_golden
from persia_cli.serving.overlay import GroupOverlay, TableChanges, read_changes, rows_file
from persia_cli.serving.predictor import Predictor

KEPT = 8
"""Number of prepared versions that stay in any case."""
VALUES, VERSIONS = "values", "versions"
"""Folders of the working folder: files of changed rows, and prepared versions."""


class PreparedVersion(NamedTuple):
    """A version that can be served."""

    version: Version
    number: int
    """Its number among those prepared, which is the name of its folder."""
    nbytes: int
    """Size of the files that no other version has."""


def folder_of(work: Path, number: int) -> Path:
    """Return the folder of a prepared version."""
    return work / VERSIONS / str(number)


class Follower:
    """Prepares versions of a published folder, one at a time."""

    def __init__(self, source: Path, work: Path, missing: Missing | None, last: int = 0) -> None:
        """`work` is the folder for prepared versions; `last` is the number of the last one that another prepared."""
        self._source, self._work, self._missing, self._last = source, work, missing, last
        self._kept: list[PreparedVersion] = []
        """Oldest use first."""
        self._newest: Predictor | None = None
        """The last version that was prepared, whose mapped files the next one has in common."""
        self._at: Version | None = None
        """The version of the overlays; None if they are of no version."""
        self._model: ModelDescription
        self._overlays: list[GroupOverlay] = []

    def prepare(self, number: int) -> PreparedVersion:
        """Return a version of the folder; raises UserError, CheckpointError, OSError, and then changes nothing."""
        chain = chain_of(self._source, number)
        known = [each for each in self._kept if each.version == chain[-1]]
        found = known[0] if known else self._prepared(chain)
        self._kept = [*(each for each in self._kept if each is not found), found]
        self._remove_others()
        return found

    def _prepared(self, chain: list[Version]) -> PreparedVersion:
        self._merge(chain)
        self._last += 1
        folder = folder_of(self._work, self._last)
        shutil.rmtree(folder, ignore_errors=True)  # what a follower has left that was killed while it prepared it
        try:
            self._write(folder, chain)
            predictor = Predictor.open(folder, self._missing, before=self._newest)
            require_golden(predictor)
        except BaseException:
            shutil.rmtree(folder, ignore_errors=True)
            raise
        self._newest = predictor
        files = [path.lstat() for path in (folder / artefact.ROWS).iterdir()]
        return PreparedVersion(chain[-1], self._last, sum(each.st_size for each in files if each.st_nlink == 1))

    def _merge(self, chain: list[Version]) -> None:
        """Bring the overlays to the last version of a chain: from their version if it is in the chain, or its base."""
        if self._at is None or self._at not in chain:
            self._begin(chain[0])
            self._at = chain[0]
        for delta in chain[chain.index(self._at) + 1 :]:
            found, self._at = self._changes_of(delta), None  # until all are merged
            for overlay, changes in zip(self._overlays, found, strict=True):
                overlay.apply(changes)
            self._at = delta

    def _begin(self, base: Version) -> None:
        """Bring the overlays to a base."""
        self._at = None
        folder, values = self._source / base.folder, self._work / VALUES
        require_files(folder, base.files, contents=True)
        self._model = read_description(folder)
        require_files(folder, self._model.files, contents=False)
        shutil.rmtree(values, ignore_errors=True)
        values.mkdir(parents=True)
        self._overlays = [GroupOverlay(group, values) for group in self._model.groups]

    def _changes_of(self, delta: Version) -> list[list[TableChanges]]:
        """Return the changed rows of all groups in a delta, whose files have been checked."""
        folder, groups = self._source / delta.folder, self._model.groups
        listed = {file.path for file in delta.files}
        for path in (artefact.NETWORK, artefact.GOLDEN, *(rows_file(group.number) for group in groups)):
            if path not in listed:
                raise CheckpointError(f"{folder} vouches for no {path}: its description does not list it; publish anew")
        require_files(folder, delta.files, contents=True)
        return [read_changes(folder / rows_file(group.number), group) for group in groups]

    def _write(self, folder: Path, chain: list[Version]) -> None:
        """Write the folder of a prepared version."""
        (folder / artefact.ROWS).mkdir(parents=True)
        base, last = self._source / chain[0].folder, self._source / chain[-1].folder
        for group in self._model.groups:
            for path in (group.index, group.values):
                link_briefly(base / path, folder / path)
        shutil.copyfile(base / artefact.FEATURES, folder / artefact.FEATURES)
        notes = {note.path: note for note in self._model.files}
        for path in (artefact.NETWORK, artefact.GOLDEN):
            shutil.copyfile(last / path, folder / path)
        notes |= {file.path: file for file in chain[-1].files if file.path in notes}
        overlays = [overlay.write(folder) for overlay in self._overlays] if len(chain) > 1 else []
        known = {"step": chain[-1].step, "samples": chain[-1].samples, "version": chain[-1].version}
        changed = msgspec.structs.replace(self._model, **known, overlays=overlays, files=list(notes.values()))
        write_description(folder, changed)

    def _remove_others(self) -> None:
        """Remove prepared versions that are published no more, and the oldest while they use half of the free space."""
        published, free = versions_of(self._source), shutil.disk_usage(self._work).free
        used = sum(each.nbytes for each in self._kept)
        for each in self._kept[:-KEPT]:
            if each.version.version not in published or used > free:
                self._kept.remove(each)
                used, free = used - each.nbytes, free + each.nbytes
        stay = {str(each.number) for each in self._kept}
        for folder in (self._work / VERSIONS).iterdir():
            if folder.name not in stay:
                shutil.rmtree(folder, ignore_errors=True)
