"""Jobs of `persia train` and `persia resume` on other machines: submitted, and shown to their end."""

from contextlib import suppress
from pathlib import Path

from persia_cli.commands.describe import model_words, training_words
from persia_cli.commands.followed import follow_to_end, noting_signals, plan_of
from persia_cli.commands.job import choose_run_dir, leave_trace
from persia_cli.commands.run_at_uri import folder_of, new_folder
from persia_cli.commands.screen import err, labelled
from persia_cli.config.schema import ENGINES, Run
from persia_cli.disk import claim_folder
from persia_cli.engines.key_files import require_given_keys
from persia_cli.errors import UserError
from persia_cli.observe.history import CONFIG

AUTO = ["resume=auto"]


def render(run: Run, run_dir: Path | None) -> str:
    """Return what the engine of a run would submit, as it takes it; a job is called as its run directory is.

    Raises UserError if the run has no engine.
    """
    kind, name = run.cluster.kind, run_dir.absolute().name if run_dir else run.name
    match kind:
        case "hosts":
            from persia_cli.engines.hosts.rendered import rendered

            return rendered(run, name if run_dir else choose_run_dir(run.name, None).name)
        case "kubernetes":
            from persia_cli.engines.kubernetes.manifests import as_yaml

            # The same name each time: a job that is given to the cluster again goes on.
            return as_yaml(run, name)
        case "ray":
            from persia_cli.engines.ray.request import rendered as ray_request

            return ray_request(run)
        case "slurm":
            from persia_cli.engines.slurm.script import script

            return script(run, run_dir or Path("runs", run.name))
    raise UserError(
        f"--render prints what {', '.join(f'cluster={engine}' for engine in ENGINES)} submit, and cluster={kind} "
        "submits nothing; --dry-run shows its plan"
    )


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
    with new_folder(run.name) if run.cluster.kind == "hosts" else folder_of(uri, run.name) as folder:
        _submit_and_follow(run, folder, AUTO)


def _submit_and_follow(run: Run, run_dir: Path, words: list[str], trace: Path | None = None) -> None:
    require_given_keys(run.cluster)
    labelled(err(), "run", f"{run.name} in {run_dir}")
    labelled(err(), "model", model_words(run))
    labelled(err(), "training", training_words(run))
    with noting_signals() as came:
        _submit(run, run_dir, words)
        try:
            follow_to_end(run_dir, came, stops=run.cluster.kind != "slurm")
        finally:
            if trace and (run_dir / CONFIG).exists():
                _take_trace(run_dir, trace)


def _submit(run: Run, run_dir: Path, words: list[str]) -> None:
    match run.cluster.kind:
        case "hosts":
            from persia_cli.engines.hosts.submitted import submit

            submit(run, run_dir, words)
            note = f"the driver on {_first(run)} runs the job"
        case "ray":
            from persia_cli.engines.configuration import configuration, keys_of_job
            from persia_cli.engines.driver_process import start_driver
            from persia_cli.engines.handed_over import text_of
            from persia_cli.engines.ray.cluster import require_reachable

            require_reachable(run)
            start_driver(run_dir, words, text_of(keys_of_job(), configuration(run)))
            note = "another process runs the job"
        case "slurm":
            from persia_cli.engines.slurm.queued import queue

            note = f"job {queue(run, run_dir)} of Slurm"
        case kind:
            raise UserError(f"cluster={kind}: persia submits nothing there; --render prints what other programs submit")
    labelled(err(), run.cluster.kind, f"{note}; persia attach {run_dir} shows it, persia stop {run_dir} ends it")


def _first(run: Run) -> str:
    from persia_cli.engines.hosts.placement import first_of

    return first_of(run).ssh


def _take_trace(run_dir: Path, trace: Path) -> None:
    """Join the recordings of the roles into one file, and remove them."""
    from persia_cli.errors import PersiaError
    from persia_cli.observe.recordings import remove_recordings

    with suppress(PersiaError):  # the job has not begun
        plan = plan_of(run_dir)
        leave_trace(err(), run_dir, plan.job, plan.replicas, trace)
        remove_recordings(run_dir)
