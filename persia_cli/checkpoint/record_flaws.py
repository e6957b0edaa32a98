"""The flaws of a checkpoint's position: its step, samples and figures must fit each other and the run's record."""

import json
from collections.abc import Iterator

from safetensors import SafetensorError
from safetensors.numpy import load

from persia_cli.config.schema import Run
from persia_cli.control.position import StepGrid
from persia_cli.errors import WireError, one_line
from persia_cli.observe.journal import METRICS
from persia_cli.observe.record_state import RECORD, SCORES
from persia_cli.observe.scores import MOST_IN_TRAINING, ScoreHistogram
from persia_cli.plan.columns import label_names
from persia_cli.storage.places import Place, size_of
from persia_cli.store.checkpoints.manifest import MANIFEST, Manifest, kind_of
from persia_cli.wire.job_messages import ScoreCounts


def position_flaws(folder: Place, manifest: Manifest, run: Run | None) -> Iterator[str]:
    """Yield a sentence for each contradiction within the manifest; `run` is its configuration, None if unreadable."""
    path, progress = folder / MANIFEST, manifest.progress
    if run is not None and run.seed != manifest.seed:
        yield f"{path}: the seed is {manifest.seed}, and {run.seed} in its configuration"
    if run is not None and progress.train_rows:
        grid = StepGrid(progress.train_rows, run.train.batch_size, 1)
        if grid.samples_before(manifest.step) != manifest.samples:
            yield (
                f"{path}: {manifest.samples:,} samples were trained, and {manifest.step:,} steps of "
                f"{run.train.batch_size:,} have {grid.samples_before(manifest.step):,}"
            )
    if progress.unknown > progress.look_ups:
        yield f"{path}: of {progress.look_ups:,} look-ups {progress.unknown:,} found no row"
    for figure in progress.tracked:
        if figure.step is not None and figure.step > manifest.step:
            yield f"{path}: the best {figure.metric} is of step {figure.step:,}, after that of the checkpoint"
        if (figure.step is None) != (figure.value is None):
            yield f"{path}: the best {figure.metric} has only one of step and value"
    if run is not None:
        yield from _score_flaws(folder, manifest, len(label_names(run)))


def metrics_flaws(folder: Place, manifest: Manifest, record: Place) -> Iterator[str]:
    """Yield a sentence for each contradiction between the checkpoint and the file of metrics in the folder `record`."""
    path, size = record / METRICS, manifest.progress.metrics_bytes
    found = size_of(path) or 0
    if found < size:
        yield f"{path} has {found:,} bytes, and had {size:,} when {folder.name} was saved"
        return
    if not size:
        return
    lines = path.read_bytes()[:size].splitlines(keepends=True)
    if not lines[-1].endswith(b"\n"):
        yield f"{path}: no line ends at byte {size:,}, where one did when {folder.name} was saved"
        return
    try:
        last = json.loads(lines[-1])
        step, samples = int(last["step"]), int(last["samples"])
    except (ValueError, KeyError, TypeError):
        yield f"{path}: the line that ends at byte {size:,}, the last before {folder.name}, cannot be read"
        return
    if step > manifest.step:
        yield f"{path}: the last line before {folder.name} is of step {step:,}, which comes after it"
    elif step == manifest.step and samples != manifest.samples:
        yield f"{path}: the line of step {step:,} has {samples:,} samples, and {folder.name} has {manifest.samples:,}"


def _score_flaws(folder: Place, manifest: Manifest, tasks: int) -> Iterator[str]:
    paths = [folder / file.folder / file.name for file in manifest.files if kind_of(file) == RECORD]
    path = next((path for path in paths if path.name == SCORES), None)
    if path is None:
        yield f"{folder / RECORD / SCORES} is not in the checkpoint, which needs it"
        return
    try:
        ScoreHistogram.restored(tasks, MOST_IN_TRAINING, ScoreCounts(**load(path.read_bytes())))
    except OSError as error:
        yield f"{path} cannot be read: {error.strerror or error}"
    except (SafetensorError, TypeError, ValueError, AttributeError, WireError) as error:
        yield f"{path} is damaged: {one_line(error)}"
