"""Cuts: what has changed in a model since the cut before, as a folder for the publisher.

    RUN/cuts/START/step-N     START is a start of the run, a name that rises

A cut has the files of a checkpoint, but only rows last used since a step, and `deleted` the ids that have left since.
The first cut of a start has all rows, and so has each one after a cut that failed. So the cuts of a start, in their
order, from one with all rows on, are the model. The publisher removes cuts that are published.
"""

from pathlib import Path
from typing import NamedTuple

from persia_cli.storage.locations import Location, modified_s
from persia_cli.store.checkpoints.manifest import (
    MANIFEST,
    CutFacts,
    Manifest,
    checkpoint_folder,
    finished_steps,
    kind_of,
    read_manifest,
)

CUTS = "cuts"
WHOLE = "whole"
"""File in the folder of a start with which the publisher requests a cut with all rows."""
MOST_WAITING = 3
"""Cuts that may wait for the publisher; there is no other until it has removed one."""


class Cut(NamedTuple):
    """A complete cut, or a checkpoint as one with all rows."""

    folder: Location
    manifest: Manifest
    facts: CutFacts

    @property
    def start(self) -> str:
        """The start of the run."""
        return self.folder.parent.name

    def files(self, kind: str, group: int) -> list[Location]:
        """Return the files of a feature group in one of the folders EMBEDDINGS and DELETED."""
        files = [f for f in self.manifest.files if kind_of(f) == kind and f.rows and f.rows.group == group]
        return [self.folder / file.folder / file.name for file in sorted(files, key=lambda file: file.name)]


def read_cut(folder: Location) -> Cut:
    """Return a complete cut, or a checkpoint; raises CheckpointError for a damaged one."""
    manifest = read_manifest(folder)
    return Cut(folder, manifest, manifest.cut or CutFacts(0, modified_s(folder / MANIFEST)))


def cuts_of(start: Path) -> list[Path]:
    """Return the folders of the complete cuts of a start of a run, in their order."""
    return [Path(str(checkpoint_folder(start, step))) for step in finished_steps(start)]


def starts_of(run_dir: Path) -> list[Path]:
    """Return the folders of cuts of all starts of a run, in their order."""
    cuts = run_dir / CUTS
    return sorted(path for path in cuts.iterdir() if path.is_dir()) if cuts.is_dir() else []
