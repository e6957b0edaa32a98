"""The state of a run's record in a checkpoint: what lines of metrics count from the first step of the run on."""

from pathlib import Path
from typing import NamedTuple

from safetensors import SafetensorError
from safetensors.numpy import load, save
from xxhash import xxh128

from persia_cli.config.record import CONFIG
from persia_cli.errors import CheckpointError, WireError
from persia_cli.observe.journal import EVENTS, METRICS
from persia_cli.observe.scores import MOST_IN_TRAINING, ScoreHistogram
from persia_cli.storage.places import Place, put
from persia_cli.store.checkpoints.manifest import Manifest, kind_of, verified_folder
from persia_cli.wire.figures import SavedFile
from persia_cli.wire.job_messages import ScoreCounts
from persia_cli.wire.message import TableTotals

RECORD = "record"
"""Folder of a checkpoint that holds the state of the record."""
COPIES = ("run", "run-renewed")
"""Folders of a checkpoint, of which one at a time holds the files of the record: each renewal writes the other one."""
COPIED_FILES = (CONFIG, METRICS, EVENTS)
SCORES = "scores.safetensors"


class RecordState(NamedTuple):
    """The figures of a run that have no end of interval: they count from its first step."""

    scores: ScoreHistogram
    """Scores of all samples trained so far, each before the model learnt from it."""
    look_ups: int
    """Number of look-ups of training so far, and of those that found no row."""
    unknown: int
    tables: TableTotals
    """Counters of all tables that features read; `rows` has no meaning."""
    metrics_bytes: int
    """Size of the file of metrics."""


def save_scores(folder: Place, scores: ScoreHistogram) -> SavedFile:
    """Write the scores into the checkpoint `folder` as safetensors; raises DiskError.

    The tensors are those of `ScoreHistogram.encode`: counted uint64[k], counts float64[k], sums float64[tasks, 7].
    """
    content = save(scores.encode()._asdict())
    path = folder / RECORD / SCORES
    put(path, content)
    return SavedFile(RECORD, SCORES, len(content), xxh128(content).hexdigest())


def save_copies(run_dir: Path, checkpoint: Place, folder: str) -> list[SavedFile]:
    """Put the files of a run's record into a folder of a checkpoint; raises DiskError.

    They have all lines so far, and so at least those that the checkpoint counts.
    """
    saved = []
    for name in COPIED_FILES:
        content = (run_dir / name).read_bytes() if (run_dir / name).exists() else b""
        put(checkpoint / folder / name, content)
        saved.append(SavedFile(folder, name, len(content), xxh128(content).hexdigest()))
    return saved


def copies_in(manifest: Manifest) -> list[SavedFile]:
    """Return the files of the run's record in a checkpoint; none if it is not complete."""
    found = [file for file in manifest.files if kind_of(file) in COPIES]
    return found if {file.name for file in found} == set(COPIED_FILES) else []


def load_state(folder: Place, manifest: Manifest, tasks: int) -> RecordState:
    """Return the state in a checkpoint, with scores equal to the bit.

    Raises CheckpointError if they are damaged or not of so many tasks.
    """
    path, progress = folder / RECORD / SCORES, manifest.progress
    try:
        found = load((verified_folder(folder, RECORD) / SCORES).read_bytes())
        scores = ScoreHistogram.restored(tasks, MOST_IN_TRAINING, ScoreCounts(**found))
    except (OSError, SafetensorError, TypeError, WireError) as error:
        raise CheckpointError(f"{path} cannot be read: {error}; use another checkpoint") from error
    tables = TableTotals(evicted=progress.evicted, hits=progress.hits, misses=progress.misses)
    return RecordState(scores, progress.look_ups, progress.unknown, tables, progress.metrics_bytes)
