"""Jobs of `persia train` and `persia resume` on other machines: submitted, and shown to their end."""

from contextlib import suppress
from pathlib import Path

from persia_cli.commands.describe import model_words, training_words
from persia_cli.commands.followed import follow_to_end, noting_signals, plan_of
from persia_cli.commands.job import choose_run_dir, leave_trace
from persia_cli.commands.run_at_uri import folder_of, new_folder
from persia_cli.commands.screen import err, labelled
from persia_cli.config.schema import Run
from persia_cli.disk import claim_folder
from persia_cli.engines.engine import engine_of
from persia_cli.engines.key_files import require_given_keys
from persia_cli.observe.history import CONFIG

AUTO = ["resume=auto"]


def train_elsewhere(run: Run, run_dir: Path | None, words: list[str], trace: Path | None = None) -> None:
    """Train on the machines of a run's cluster, show the progress and print the results.

    `run_dir` is a free folder of this machine; by default a new one. `words` are those of `persia drive`. The roles'
    recordings become the file `trace`.
    """
    place = choose_run_dir(run.name, run_dir) if not words or run_dir is None else run_dir
    if run_dir is None:
        place = claim_folder(place)
    try:
        _submit_and_follow(run, place, words, trace)
    finally:
        with suppress(OSError):  # empty only if the job was refused before it began
            place.rmdir()


def resume_elsewhere(run: Run, run_dir: Path) -> None:
    """Go on with the training of a run on the machines of its cluster, as `train_elsewhere`."""
    _submit_and_follow(run, run_dir, AUTO)


def resume_at_uri(run: Run, uri: str) -> None:
    """Go on with the run at a URI on the machines of its cluster; the driver fetches the record."""
    # The first host has the run directory of the run; a command there needs another one.
    with folder_of(uri, run.name) if engine_of(run.cluster).record_is_here else new_folder(run.name) as folder:
        _submit_and_follow(run, folder, AUTO)


def _submit_and_follow(run: Run, run_dir: Path, words: list[str], trace: Path | None = None) -> None:
    engine = engine_of(run.cluster)
    require_given_keys(run.cluster)
    labelled(err(), "run", f"{run.name} in {run_dir}")
    labelled(err(), "model", model_words(run))
    labelled(err(), "training", training_words(run))
    with noting_signals() as came:
        note = engine.submit(run, run_dir, words)
        labelled(err(), run.cluster.name, f"{note}; persia attach {run_dir} shows it, persia stop {run_dir} ends it")
        try:
            follow_to_end(run_dir, came, stops=engine.ends_with_command)
        finally:
            if trace and (run_dir / CONFIG).exists():
                _take_trace(run_dir, trace)


def _take_trace(run_dir: Path, trace: Path) -> None:
    """Join the recordings of the roles into one file, and remove them."""
    from persia_cli.errors import PersiaError
    from persia_cli.observe.recordings import remove_recordings

    with suppress(PersiaError):  # the job has not begun
        plan = plan_of(run_dir)
        leave_trace(err(), run_dir, plan.job, plan.replicas, trace)
        remove_recordings(run_dir)
