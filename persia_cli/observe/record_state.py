"""The state of a run's record in a checkpoint: the sums that lines of metrics count from the run's first step on."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

from safetensors import SafetensorError
from safetensors.numpy import load, save
from xxhash import xxh128

from persia_cli.config.record import CONFIG, SAMPLES
from persia_cli.control.calibration import Calibration
from persia_cli.errors import CheckpointError, DiskFaultError, WireError
from persia_cli.observe.journal import EVENTS, METRICS, PORTIONS
from persia_cli.observe.scores import IN_TRAINING, ScoreHistogram
from persia_cli.storage.locations import Location, put
from persia_cli.store.checkpoints.manifest import Manifest, kind_of, verified_folder
from persia_cli.store.checkpoints.saved import SavedFile
from persia_cli.wire.job_messages import ScoreCounts
from persia_cli.wire.message import TableTotals

RECORD = "record"
"""Folder of a checkpoint that holds the state of the record."""
COPIES = ("run", "run-renewed")
"""Folders of a checkpoint, of which one at a time holds the files of the record: each renewal writes the other one."""
COPIED_FILES = (CONFIG, SAMPLES, METRICS, EVENTS)
"""The files of the record; that of portions is copied too, if there is one."""
SCORES = "scores.safetensors"


class RecordState(NamedTuple):
    """The metrics of a run without an interval: they count from its first step."""

    scores: ScoreHistogram
    """Scores of all samples trained so far, each before the model learnt from it."""
    look_ups: int
    """Number of look-ups of training so far, and of those that found no row."""
    unknown: int
    tables: TableTotals
    """Counters of all tables that features read; `rows` has no meaning."""
    recent: Sequence[ScoreHistogram]
    """Scores of the last lines of training, at most `WINDOW`."""
    calibration: tuple[Calibration, ...] = ()
    """Corrections by the evaluation of the present model; none if it has been trained since."""
    decayed: Mapping[str, tuple[float, float]] = MappingProxyType({})
    """Of each metric of portions that were scored before they were trained: a sum and its weight, both decayed."""


def save_scores(folder: Location, scores: ScoreHistogram, recent: Sequence[ScoreHistogram]) -> SavedFile:
    """Write the scores into the checkpoint `folder` as safetensors; raises DiskError.

    The tensors are those of `ScoreHistogram.encode`: counted uint64[k], counts float64[k], sums float64[tasks, 7]; and
    the same for each histogram of `recent`, such as `recent.0.counted`.
    """
    tensors = dict(scores.encode()._asdict())
    for number, histogram in enumerate(recent):
        tensors |= {f"recent.{number}.{part}": values for part, values in histogram.encode()._asdict().items()}
    content = save(tensors)
    path = folder / RECORD / SCORES
    put(path, content)
    return SavedFile(RECORD, SCORES, len(content), xxh128(content).hexdigest())


def save_copies(run_dir: Path, checkpoint: Location, folder: str, metrics_bytes: int) -> list[SavedFile]:
    """Put the files of a run's record into a folder of a checkpoint, which counts `metrics_bytes` of metrics.

    Raise DiskError, also while lines that it counts wait for space on the disk of the run directory.
    """
    saved = []
    for name in (*COPIED_FILES, *([PORTIONS] if (run_dir / PORTIONS).exists() else [])):
        content = (run_dir / name).read_bytes() if (run_dir / name).exists() else b""
        if name in (METRICS, EVENTS, PORTIONS):
            content = content[: content.rfind(b"\n") + 1]  # a line may be written meanwhile
        if name == METRICS and len(content) < metrics_bytes:
            raise DiskFaultError(f"disk full or failing: cannot write {run_dir / name}; free space")
        put(checkpoint / folder / name, content)
        saved.append(SavedFile(folder, name, len(content), xxh128(content).hexdigest()))
    return saved


def copies_in(manifest: Manifest) -> list[SavedFile]:
    """Return the files of the run's record in a checkpoint; none if it is not complete."""
    copies = [file for file in manifest.files if kind_of(file) in COPIES]
    return copies if {file.name for file in copies} >= set(COPIED_FILES) else []


def load_state(folder: Location, manifest: Manifest, tasks: int) -> RecordState:
    """Return the state in a checkpoint, with scores equal to the bit.

    Raise CheckpointError if scores are damaged or not of so many tasks.
    """
    path, progress = folder / RECORD / SCORES, manifest.progress
    try:
        scores, recent = scores_in((verified_folder(folder, RECORD) / SCORES).read_bytes(), tasks)
    except (OSError, SafetensorError, TypeError, ValueError, KeyError, WireError) as error:
        raise CheckpointError(f"{path} cannot be read: {error}; use another checkpoint") from error
    tables = TableTotals(evicted=progress.evicted, hits=progress.hits, misses=progress.misses)
    counts = progress.look_ups, progress.unknown, tables
    return RecordState(scores, *counts, recent, progress.calibration, progress.decayed)


def scores_in(content: bytes, tasks: int) -> tuple[ScoreHistogram, list[ScoreHistogram]]:
    """Return the scores in a file of `save_scores`: all, and those of the last lines.

    Raise SafetensorError, TypeError, ValueError, KeyError or WireError for another content.
    """
    parts: dict[str, dict[str, Any]] = {}
    for key, values in load(content).items():
        name, _, part = key.rpartition(".")
        parts.setdefault(name, {})[part] = values
    names = "", *(f"recent.{number}" for number in range(len(parts) - 1))
    scores, *recent = (ScoreHistogram.decode(tasks, ScoreCounts(**parts[name]), IN_TRAINING) for name in names)
    return scores, recent
