"""`persia predict`."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from persia_cli.commands.options import Model, Step, examples

if TYPE_CHECKING:
    from persia_cli.plan.job import JobPlan

EXAMPLES = examples(
    "persia predict runs/shop-20261121-081500 today/ -o scores.parquet                 # probabilities, in order",
    "persia predict runs/shop-20261121-081500 today/ -o scores.csv --keep order        # with a column of the data",
    "persia predict runs/shop-20261121-081500 s3://shop/today -o scores.parquet cluster.nn_workers=4",
)

FEATURES_ALONE = (
    "dataset.weight=null",
    "dataset.group_by=null",
    "checkpoint.best_by=null",
    "train.stop_early=null",
    "optimizer.dense.schedule={kind: constant}",
    "optimizer.embedding.schedule={kind: constant}",
)
"""Settings that remove what only training and evaluation need: parts of the data, and metrics that may need those."""


def predict(
    run: Model,
    data: Annotated[
        list[str],
        typer.Argument(
            metavar="DATA... [KEY=VALUE]...",
            help="The data to score: files, folders or URIs, scored in this order; they need no labels. Then settings "
            "that differ from the run's own, such as cluster.nn_workers=4.",
        ),
    ],
    output: Annotated[
        Path,
        typer.Option("--output", "-o", metavar="FILE", help="The file for the scores: .parquet or .csv."),
    ],
    keep: Annotated[
        list[str] | None,
        typer.Option(
            "--keep",
            metavar="COLUMN",
            help="A column of the data, of any type, to copy next to the scores. May be given several times.",
        ),
    ] = None,
    step: Step = None,
    logits: Annotated[bool, typer.Option("--logits", help="Write logits next to the probabilities.")] = False,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace the file if there is one.")] = False,
) -> None:
    """Score samples by a saved model.

    Writes a column LABEL_probability for each label, LABEL_prediction if it is a number, and a row for each row of
    the data, in the same order (of a folder: file by file, by name). Ids without a row in the model count as zeros;
    the model does not change.
    """
    from dataclasses import replace

    from persia_cli.commands.progress import SCREEN
    from persia_cli.config.schema import ParquetDataset
    from persia_cli.errors import UserError
    from persia_cli.jobs.plan import other_data, plan_saved, require_output
    from persia_cli.observe.saved_run import find_model
    from persia_cli.storage.locations import location_of

    paths, overrides = paths_and_overrides(data)
    model = find_model(location_of(run), step)
    if not isinstance(model.run.dataset, ParquetDataset):
        raise UserError(f"{run} was trained on generated samples, so no file has its columns; train on files first")
    for path in paths:
        require_output(output, path, overwrite)
    plan = plan_saved(model, "predict", [*overrides, *other_data(paths, "predict")], FEATURES_ALONE, reporter=SCREEN)
    job = replace(plan.job, output=str(output.absolute()), keep=tuple(keep or ()), logits=logits)
    _score(replace(plan, job=job), output)


def _score(plan: "JobPlan", output: Path) -> None:
    """Run the prediction, or write a file without rows if there is nothing to score."""
    from persia_cli.commands.job_view import carry_out
    from persia_cli.commands.screen import err, labelled
    from persia_cli.config.schema import ParquetDataset
    from persia_cli.data.read.scores_file import ScoresFile, claimed_scores
    from persia_cli.jobs.run_dirs import claimed

    job, dataset = plan.job, plan.run.dataset
    assert isinstance(dataset, ParquetDataset)
    with claimed_scores(output):
        # Columns that cannot be read or written are also refused before anything starts.
        file = ScoresFile(dataset, output, plan.run.links, job.keep, job.logits)
        if job.eval_rows:
            file.discard()
            carry_out(claimed(plan))
        else:
            file.publish()
            labelled(err(), "done", f"{dataset.place} has no rows, so {output} has none either")


def paths_and_overrides(given: list[str]) -> tuple[list[str], list[str]]:
    """Split the arguments after RUN into paths and settings; `day=2024-01-31` is a path if such a folder exists.

    Raises UserError if no path is given.
    """
    from persia_cli.errors import UserError

    def is_override(text: str) -> bool:
        key, equals, _ = text.partition("=")
        return text.startswith("~") or bool(equals and "/" not in key and not Path(text).exists())

    paths = [text for text in given if not is_override(text)]
    if not paths:
        raise UserError(f"'{given[0]}' is a setting; name the data to score first: persia predict RUN DATA -o FILE")
    return paths, [text for text in given if is_override(text)]
