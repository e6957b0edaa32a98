"""Plans of jobs: a training, the rest of one, and work with a saved model."""

from collections.abc import Sequence
from dataclasses import replace
from fnmatch import fnmatchcase
from pathlib import Path

from pyarrow.fs import LocalFileSystem

from persia_cli.config.compose import compose_run
from persia_cli.config.overrides import quoted
from persia_cli.config.schema import Dataset, ParquetDataset, Run
from persia_cli.data.read.facts import DatasetFacts, inspect
from persia_cli.data.read.files import is_there, locate
from persia_cli.engines.job import BEGINNING, anchored, timed, was_started
from persia_cli.engines.readiness import require_ready
from persia_cli.engines.resumed import has_failed_to_begin, is_at_work, newest_sound, start_over
from persia_cli.errors import DataError, OrderlyEndError, UserError
from persia_cli.jobs.reporter import SILENT, Reporter
from persia_cli.jobs.run_dirs import choose_run_dir
from persia_cli.observe.journal import PORTIONS
from persia_cli.observe.remote_records import fetch_record, is_to_be_fetched
from persia_cli.observe.saved_run import SavedModel, find_model, has_checkpoint, locate_model, newest_of_run
from persia_cli.plan.capacity import require_capacity
from persia_cli.plan.checks import split_line
from persia_cli.plan.embedding import embedding_layout
from persia_cli.plan.job import JobPlan, Task, plan_job
from persia_cli.plan.saved_model import (
    FinishedError,
    require_same_training,
    require_same_widths,
    require_saved_model,
    require_steps_left,
)
from persia_cli.plan.settled import settled, settled_as
from persia_cli.storage.locations import Location, address_of, location_of
from persia_cli.storage.remote import without_secret
from persia_cli.store.checkpoints.claim import require_writer
from persia_cli.store.checkpoints.manifest import checkpoints_of, read_manifest
from persia_cli.store.checkpoints.retention import best_checkpoint

RESUME = "resume="
"""Begin of the argument of a training that names the run to continue."""
AUTO = "auto"
"""Its value for the run in the run directory, if that has begun."""
FOLDERS: dict[Task, str] = {"evaluate": "evals", "predict": "predictions"}
"""The folder in a run directory for each task with its model."""
DOING: dict[Task, str] = {"evaluate": "evaluating", "predict": "predicting"}


def facts_of(dataset: Dataset, reporter: Reporter = SILENT) -> DatasetFacts:
    """Return the facts about a data set; raises DataError with every problem, one line each."""
    if isinstance(dataset, ParquetDataset):
        announce(reporter, *dataset.paths, *(path for history in dataset.histories.values() for path in history.paths))
    with reporter.converting() as progress:
        facts = inspect(dataset, progress)
    if facts.left_out:
        reporter.labelled("left out", facts.left_out)
    for warning in facts.warnings:
        reporter.labelled("warning", warning)
    return facts


def announce(reporter: Reporter, *paths: str) -> None:
    """Report paths on other machines before they are read."""
    for path in paths:
        if "://" in path:
            reporter.labelled("looking", f"at {without_secret(path)}")


def settled_run(overrides: Sequence[str], folders: Sequence[Path], reporter: Reporter = SILENT) -> Run:
    """Compose a run that is not trained, with values in place of `auto`: by its data, if they can be read."""
    run = compose_run(overrides, folders)
    if (without_data := settled(run, None)) is run:
        return run
    try:
        return settled(run, facts_of(run.dataset, reporter))
    except DataError:
        reporter.labelled("note", "the data cannot be read; auto has the values for more than a million training rows")
        return without_data


def split_resume(arguments: Sequence[str]) -> tuple[list[str], str | None]:
    """Return the arguments without `resume=VALUE`, and its value; raises UserError if it is given twice."""
    values = [argument.removeprefix(RESUME) for argument in arguments if argument.startswith(RESUME)]
    if len(values) > 1:
        raise UserError("resume= is given twice; give it once")
    if "" in values:
        raise UserError("resume= needs a value: a run directory, one of its checkpoints, or auto")
    return [argument for argument in arguments if not argument.startswith(RESUME)], values[0] if values else None


def plan_training(run: Run, run_dir: Path, source: str | None, reporter: Reporter = SILENT) -> JobPlan:
    """Plan a new training; with a `source` as in `resume=`, the rest of one, or one anew that has saved nothing yet."""
    plan = plan_from(source, run, run_dir, reporter) if source else None
    if plan is None and source and was_started(run_dir):
        begin_again(run_dir, reporter)
    return plan or plan_job(run, facts_of(run.dataset, reporter), "train", run_dir)


def begin_again(run_dir: Path, reporter: Reporter = SILENT) -> None:
    """Move away what a run left that has saved nothing."""
    reporter.say(f"the run in {run_dir} has no complete checkpoint, so it begins again")
    start_over(run_dir, (*BEGINNING, PORTIONS))


def plan_from(source: str, run: Run, run_dir: Path | None, reporter: Reporter = SILENT) -> JobPlan | None:
    """Return the plan of a run that goes on; None if `source` is `auto` and there is no run or no checkpoint yet."""
    if source == AUTO:
        if run_dir is None:
            raise UserError("resume=auto goes on with the run in --run-dir if there is one; give --run-dir")
        return _plan_if_begun(run, run_dir, reporter)
    location = location_of(source)
    if isinstance(location, Path) and not location.is_dir():
        raise UserError(
            f"resume={source}: there is no such folder; give a run directory, one of its checkpoints, or auto"
        )
    _, owner = locate_model(location, newest=True)
    is_own = run_dir is not None and owner is not None and owner.resolve() == run_dir.resolve()
    chosen = run_dir if is_own and run_dir is not None else choose_run_dir(run.name, run_dir)
    return plan_resumed(location, run, chosen, reporter)


def _plan_if_begun(run: Run, run_dir: Path, reporter: Reporter) -> JobPlan | None:
    """Plan the rest of the training in a run directory; None if it has no complete checkpoint yet.

    A folder without a record gets the copy in the newest checkpoint, if there is one: another machine began the run.
    A damaged checkpoint is set aside, as after a death: no user may be there.
    Raises OrderlyEndError if the training is finished, and what `plan_resumed` does.
    """
    path = run.checkpoint.path
    if path and is_to_be_fetched(run_dir, checkpoints_of(run_dir, path)):
        fetch_record(path, run_dir, reporter.say)
    if not has_checkpoint(run_dir, run):
        return None
    if not is_at_work(run_dir):
        newest_sound(checkpoints_of(run_dir, path), has_failed_to_begin(run_dir), reporter.say)
    try:
        return plan_resumed(run_dir, run, run_dir, reporter)
    except FinishedError as finished:
        raise OrderlyEndError(str(finished), 0) from None


def plan_resumed(source: Location, run: Run, run_dir: Path, reporter: Reporter = SILENT) -> JobPlan:
    """Plan the rest of a training whose checkpoint is in `source`, a run directory (the newest) or a checkpoint.

    Raises UserError for settings or data that differ from those of the checkpoint, and if no step is left.
    """
    checkpoints = checkpoints_of(run_dir, anchored(run).checkpoint.path)
    if run.checkpoint.path is not None:
        require_writer(checkpoints, run_dir)
    best_checkpoint(checkpoints)  # a damaged note is refused before anything changes
    model = find_model(source, newest=True)
    if run_dir.absolute() == model.run_dir.absolute():
        newest = newest_of_run(run_dir)
        if address_of(newest) != address_of(model.checkpoint):
            other = f"to go on from {model.checkpoint}, choose another --run-dir"
            raise UserError(f"{run_dir} has a newer checkpoint, {newest}; {other}")
    facts = facts_of(run.dataset, reporter)
    run = settled_as(run, model.run)
    # A run records its data set completely: absolute paths, and what was left open settled by the files.
    meant = run if facts.settled is None else run.model_copy(update={"dataset": facts.settled})
    require_same_training(model.run, anchored(meant))
    manifest = read_manifest(model.checkpoint)
    require_capacity(manifest.tables, embedding_layout(run), run.cluster.embedding_servers)
    plan = plan_job(run, facts, "train", run_dir, model.checkpoint, manifest)
    require_steps_left(plan, manifest)
    return replace(plan, resumes=model.run_dir)


def plan_saved(
    model: SavedModel,
    task: Task,
    overrides: Sequence[str],
    without: Sequence[str] = (),
    test: bool = False,
    reporter: Reporter = SILENT,
) -> JobPlan:
    """Plan a job by the run's configuration and the settings that change it; `without` are settings that remove keys.

    With `test` the samples that the split sets aside for a test take the place of the evaluation's.

    Raises UserError for settings that change the model or leave too little memory, and for those that the machine does
    not support.
    """
    run = compose_run([f"conf={model.config}", *overrides, *without])
    if test:
        run = _on_test(run)
    require_saved_model(model.run, run, DOING[task], tuple(setting.partition("=")[0] for setting in without))
    servers = run.cluster.embedding_servers
    require_capacity(read_manifest(model.checkpoint).tables, embedding_layout(run), servers)
    facts = facts_of(run.dataset, reporter)
    if facts.settled is not None:
        require_same_widths(model.run, facts.settled)
    plan = plan_job(run, facts, task, timed(model.run_dir / FOLDERS[task]), model.checkpoint)
    if test:
        plan = replace(plan, job=replace(plan.job, scored_part="test"))
    require_ready([plan])
    return plan


def _on_test(run: Run) -> Run:
    """Return the run with its test samples as evaluation samples; raises UserError if there are none."""
    split = run.dataset.split.of_test() if isinstance(run.dataset, ParquetDataset) else None
    if split is None:
        raise UserError(
            "dataset.split sets no samples aside for a test, and they must not be trained on: give it some and train "
            f"again{split_line(run, 'test')}"
        )
    return run.model_copy(update={"dataset": run.dataset.model_copy(update={"split": split})})


def other_data(paths: Sequence[str], split: str) -> list[str]:
    """Return the settings that replace the training's files by others, with one kind of split for all of them."""
    return [
        f"dataset.path=[{','.join(map(quoted, paths))}]",
        "dataset.generator=null",
        "dataset.recipe=null",  # It makes the training data, not these files.
        "dataset.follow=null",
        f"dataset.split={{kind: {split}}}",
    ]


def require_output(output: Path, data: str, overwrite: bool) -> None:
    """Raise UserError if there is no data, or if the file must not be written at its place."""
    resolved, source = output.resolve(), locate(data)
    if source.uri is None and not source.is_pattern and not is_there(source):
        raise UserError(f"{data} does not exist; name a file or a folder")
    if output.is_dir():
        raise UserError(f"{output} is a folder; name a file")
    local = isinstance(source.filesystem, LocalFileSystem)
    pattern = source.path if source.is_pattern else str(Path(source.path).resolve())
    if local and any(
        fnmatchcase(str(path), pattern) if source.is_pattern else str(path) == pattern
        for path in (resolved, *resolved.parents)
    ):
        raise UserError(f"{output} is among the data, and would be read as samples next time; choose another place")
    if not resolved.parent.is_dir():
        raise UserError(f"{output}: there is no folder {resolved.parent}; create it first")
    if output.exists() and not overwrite:
        raise UserError(f"{output} exists already; choose another name, or replace it with --overwrite")
