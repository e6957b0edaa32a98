"""Plan a job of an existing model: evaluation and prediction."""

from collections.abc import Sequence

from persia_cli.commands.facts import facts_of
from persia_cli.config.compose import compose_run
from persia_cli.config.words import quoted
from persia_cli.launch.job import timed
from persia_cli.launch.readiness import require_ready
from persia_cli.observe.saved_run import SavedModel
from persia_cli.plan.embedding import embedding_layout
from persia_cli.plan.job import JobPlan, Task, plan_job
from persia_cli.plan.saved_model import require_room, require_saved_model
from persia_cli.store.manifest import read_manifest

FOLDERS: dict[Task, str] = {"evaluate": "evals", "predict": "predictions"}
"""The folder in a run directory for each task with its model."""
DOING: dict[Task, str] = {"evaluate": "evaluating", "predict": "predicting"}


def plan_saved(model: SavedModel, task: Task, words: Sequence[str], without: Sequence[str] = ()) -> JobPlan:
    """Plan a job by the run's configuration and the words that change it; `without` are words that remove keys.

    Raises UserError for settings that change the model or leave too little memory, and for those that the machine
    does not support.
    """
    run = compose_run([f"conf={model.config}", *words, *without])
    require_saved_model(model.run, run, DOING[task], tuple(word.partition("=")[0] for word in without))
    require_room(read_manifest(model.checkpoint).tables, embedding_layout(run))
    place = timed(model.run_dir / FOLDERS[task])
    plan = plan_job(run, facts_of(run.dataset), task, place, model.checkpoint)
    require_ready([plan])
    return plan


def other_data(paths: Sequence[str], split: str) -> list[str]:
    """Return the words that replace the training's files by others, with one kind of split for all of them."""
    return [
        f"dataset.path=[{','.join(map(quoted, paths))}]",
        "dataset.if_missing=error",
        "dataset.recipe=null",  # The recipe makes the training data, not these files.
        f"dataset.split={{kind: {split}}}",
    ]
