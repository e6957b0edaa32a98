"""`persia resume`, and the word `resume=` of `persia train`."""

from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from persia_cli.commands.options import Overrides, examples

if TYPE_CHECKING:
    from persia_cli.config.schema import Run
    from persia_cli.plan.job import JobPlan
    from persia_cli.storage.locations import Location

EXAMPLES = examples(
    "persia resume runs/criteo-20261121-081500                              # go on from its newest checkpoint",
    "persia resume runs/criteo-20261121-081500 train.epochs=3               # and train longer",
    "persia resume runs/criteo-20261121-081500 cluster.embedding_servers=4  # on four servers",
)
WORD = "resume="
AUTO = "auto"


def resume(
    run: Annotated[str, typer.Argument(metavar="RUN", help="A run directory, or the URI of one.", show_default=False)],
    words: Overrides = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show the plan and start nothing.")] = False,
) -> None:
    """Go on with the training of a run from its newest checkpoint."""
    from persia_cli.commands.run_at_uri import run_elsewhere, taken_up, uri_of
    from persia_cli.commands.screen import err, say
    from persia_cli.engines.signals import end_on_signals

    with end_on_signals(lambda text: say(err(), text)):
        if (uri := uri_of(run)) is None:
            _resume(Path(run), words or [], dry_run)
        elif (elsewhere := run_elsewhere(uri, words or [])) is not None:
            _require_start(elsewhere, dry_run)
            from persia_cli.commands.submit import resume_at_uri

            resume_at_uri(elsewhere, uri)
        else:
            with taken_up(uri) as folder:
                _resume(folder, words or [], dry_run)


def _resume(run: Path, words: list[str], dry_run: bool) -> None:
    """Go on with the training in a run directory."""
    from persia_cli.commands.job import carry_out, score_test
    from persia_cli.config.compose import compose_run
    from persia_cli.engines.driver_process import driving
    from persia_cli.engines.engine import engine_of
    from persia_cli.engines.key_files import require_given_keys
    from persia_cli.engines.readiness import require_network, require_ready
    from persia_cli.errors import UserError
    from persia_cli.observe.history import CONFIG

    if not (run / CONFIG).is_file():
        raise UserError(f"{run} is not a run directory: it has no {CONFIG}; give the folder that persia train named")
    again = [f"conf={run / CONFIG}", *words]
    composed = compose_run(again)
    is_spread = composed.cluster.is_spread
    if is_spread and not engine_of(composed.cluster).drives_here(is_point=False):
        from persia_cli.commands.submit import resume_elsewhere

        _require_start(composed, dry_run)
        resume_elsewhere(composed, run)
        return
    plan = plan_resumed(run, composed, run)
    if is_spread:
        require_given_keys(composed.cluster)
        require_network(plan)  # the rows are not in the memory of this machine
    else:
        require_ready([plan])
    if dry_run:
        from persia_cli.commands.describe import describe_plan
        from persia_cli.commands.screen import out

        describe_plan(out(), plan, again)
    else:
        with driving(plan.run_dir) if is_spread else nullcontext():
            carry_out(plan, again)
        score_test(plan)


def _require_start(run: "Run", dry_run: bool) -> None:
    from persia_cli.errors import UserError

    if dry_run:
        raise UserError(f"cluster={run.cluster.name} plans a resumed run where its record is: no --dry-run")


def split_word(words: list[str]) -> tuple[list[str], str | None]:
    """Return the arguments without `resume=VALUE`, and its value; raises UserError if it is given twice."""
    from persia_cli.errors import UserError

    values = [word.removeprefix(WORD) for word in words if word.startswith(WORD)]
    if len(values) > 1:
        raise UserError("resume= is given twice; give it once")
    if "" in values:
        raise UserError("resume= needs a value: a run directory, one of its checkpoints, or auto")
    return [word for word in words if not word.startswith(WORD)], values[0] if values else None


def plan_resumed(source: "Location", run: "Run", run_dir: Path) -> "JobPlan":
    """Plan the rest of a training whose checkpoint is in `source`, a run directory (the newest) or a checkpoint.

    Raises UserError for settings or data that differ from those of the checkpoint, and if no step is left.
    """
    from dataclasses import replace

    from persia_cli.commands.facts import facts_of
    from persia_cli.engines.job import anchored
    from persia_cli.errors import UserError
    from persia_cli.observe.saved_run import find_model, newest_of_run
    from persia_cli.plan.embedding import embedding_layout
    from persia_cli.plan.job import plan_job
    from persia_cli.plan.resumed import require_same_training, require_steps_left
    from persia_cli.plan.saved_model import require_space
    from persia_cli.plan.settled import settled_as
    from persia_cli.storage.locations import address_of
    from persia_cli.store.checkpoints.claim import require_own
    from persia_cli.store.checkpoints.manifest import checkpoints_of, read_manifest
    from persia_cli.store.checkpoints.retention import best_checkpoint

    checkpoints = checkpoints_of(run_dir, anchored(run).checkpoint.path)
    if run.checkpoint.path is not None:
        require_own(checkpoints, run_dir)
    best_checkpoint(checkpoints)  # a damaged note is refused before anything changes
    model = find_model(source, newest=True)
    if run_dir.absolute() == model.run_dir.absolute():
        newest = newest_of_run(run_dir)
        if address_of(newest) != address_of(model.checkpoint):
            other = f"to go on from {model.checkpoint}, choose another --run-dir"
            raise UserError(f"{run_dir} has a newer checkpoint, {newest}; {other}")
    facts = facts_of(run.dataset)
    run = settled_as(run, model.run)
    # A run records its data set completely: absolute paths, and what was left open settled by the files.
    meant = run if facts.settled is None else run.model_copy(update={"dataset": facts.settled})
    require_same_training(model.run, anchored(meant))
    manifest = read_manifest(model.checkpoint)
    require_space(manifest.tables, embedding_layout(run), run.cluster.embedding_servers)
    plan = plan_job(run, facts, "train", run_dir, model.checkpoint, manifest)
    require_steps_left(plan, manifest)
    return replace(plan, resumes=model.run_dir)


def plan_if_begun(run: "Run", run_dir: Path) -> "JobPlan | None":
    """Plan the rest of the training in a run directory; None if it has no complete checkpoint yet.

    A folder without a record gets the copy in the newest checkpoint, if there is one: another machine began the run.
    A damaged checkpoint is set aside, as after a death: no user may be there.
    Raises typer.Exit if the training is finished, and what `plan_resumed` does.
    """
    from persia_cli.commands.screen import err, say
    from persia_cli.engines.resumed import has_failed_to_begin, is_at_work, newest_sound
    from persia_cli.observe.remote_records import fetch_record, is_to_be_fetched
    from persia_cli.observe.saved_run import has_checkpoint
    from persia_cli.plan.resumed import FinishedError
    from persia_cli.store.checkpoints.manifest import checkpoints_of

    path = run.checkpoint.path
    if path and is_to_be_fetched(run_dir, checkpoints_of(run_dir, path)):
        fetch_record(path, run_dir, lambda text: say(err(), text))
    if not has_checkpoint(run_dir, run):
        return None
    if not is_at_work(run_dir):
        failed = has_failed_to_begin(run_dir)
        newest_sound(checkpoints_of(run_dir, path), failed, lambda text: say(err(), text))
    try:
        return plan_resumed(run_dir, run, run_dir)
    except FinishedError as finished:
        say(err(), str(finished))
        raise typer.Exit from None


def plan_training(run: "Run", run_dir: Path, source: str | None) -> "JobPlan":
    """Plan a new training; with a `source` as in `resume=`, the rest of one, or one anew that has saved nothing yet."""
    from persia_cli.commands.facts import facts_of
    from persia_cli.commands.screen import err, say
    from persia_cli.engines.job import BEGINNING, was_started
    from persia_cli.engines.resumed import start_over
    from persia_cli.plan.job import plan_job

    plan = plan_from(source, run, run_dir) if source else None
    if plan is None and source and was_started(run_dir):
        say(err(), f"the run in {run_dir} has no complete checkpoint, so it begins again")
        start_over(run_dir, BEGINNING)
    return plan or plan_job(run, facts_of(run.dataset), "train", run_dir)


def plan_from(source: str, run: "Run", run_dir: Path | None) -> "JobPlan | None":
    """Return the plan of a run that goes on; None if `source` is `auto` and there is no run or no checkpoint yet."""
    from persia_cli.commands.job import choose_run_dir
    from persia_cli.errors import UserError
    from persia_cli.observe.saved_run import locate_model
    from persia_cli.storage.locations import location_of

    if source == AUTO:
        if run_dir is None:
            raise UserError("resume=auto goes on with the run in --run-dir if there is one; give --run-dir")
        return plan_if_begun(run, run_dir)
    place = location_of(source)
    if isinstance(place, Path) and not place.is_dir():
        raise UserError(
            f"resume={source}: there is no such folder; give a run directory, one of its checkpoints, or auto"
        )
    _, owner = locate_model(place, newest=True)
    if run_dir is not None and owner is not None and owner.resolve() == run_dir.resolve():
        return plan_resumed(place, run, run_dir)  # the run itself, or one of its checkpoints
    return plan_resumed(place, run, choose_run_dir(run.name, run_dir))
