"""`persia predict`."""

from pathlib import Path
from typing import Annotated

import typer

from persia_cli.commands.options import Overrides, Step, examples

EXAMPLES = examples(
    "persia predict runs/shop-20261121-081500 today/ -o scores.parquet                 # probabilities, in order",
    "persia predict runs/shop-20261121-081500 today/ -o scores.csv --keep order        # beside a column of the data",
    "persia predict runs/shop-20261121-081500 s3://shop/today -o scores.parquet cluster.nn_workers=4",
)

FEATURES_ALONE = (
    "dataset.weight=null",
    "dataset.group_by=null",
    "checkpoint.best_by=null",
    "train.stop_early=null",
)
"""Settings without what only training and evaluation want to know of samples."""


def predict(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="Run directory of a training run.", show_default=False)],
    data: Annotated[
        str,
        typer.Argument(
            metavar="DATA",
            help="Parquet files to score: a file, a folder, or a URI. They need no labels.",
            show_default=False,
        ),
    ],
    output: Annotated[
        Path,
        typer.Option(
            "--output", "-o", metavar="FILE", help="Where the scores go: a .parquet or .csv file.", show_default=False
        ),
    ],
    words: Overrides = None,
    keep: Annotated[
        list[str] | None,
        typer.Option(
            "--keep",
            metavar="COLUMN",
            help="A column of the data, of any type, to hand on beside the scores. May be given several times.",
            show_default=False,
        ),
    ] = None,
    step: Step = None,
    logits: Annotated[bool, typer.Option("--logits", help="Write logits beside the probabilities.")] = False,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace the file if there is one.")] = False,
) -> None:
    """Score samples by a saved model.

    Writes a column LABEL_probability for each label, a row for each row of the data and in their order (of a folder:
    file by file, by name). Ids that the model has no row for count as zeros, and nothing of the model changes.
    """
    from dataclasses import replace

    from persia_cli.commands.job import carry_out, new_folder
    from persia_cli.commands.screen import err, labelled
    from persia_cli.config.compose import compose_run
    from persia_cli.config.record import read_run
    from persia_cli.config.schema import ParquetDataset
    from persia_cli.config.words import quoted
    from persia_cli.data.facts import inspect
    from persia_cli.data.scores_file import open_scores
    from persia_cli.errors import UserError
    from persia_cli.plan.job import plan_job
    from persia_cli.store.manifest import read_manifest
    from persia_cli.store.retention import choose_checkpoint

    config = run / "config.yaml"
    if not config.is_file():
        raise UserError(f"{run} holds no run: there is no {config}")
    if not isinstance(read_run(config).dataset, ParquetDataset):
        raise UserError(f"{run} was trained on made-up samples, so no file has its columns; train on files to predict")
    _check_output(output, data, overwrite)
    own = [f"dataset.path={quoted(data)}", "dataset.if_missing=error", "dataset.split={kind: predict}"]
    scored = compose_run([f"conf={config}", *(words or []), *own, *FEATURES_ALONE])
    checkpoint = choose_checkpoint(run, step)
    read_manifest(checkpoint)  # is refused before anything starts
    plan = plan_job(scored, inspect(scored.dataset), "predict", new_folder(run / "predictions"), checkpoint)
    job = replace(plan.job, output=str(output.absolute()), keep=tuple(keep or ()), logits=logits)
    assert isinstance(scored.dataset, ParquetDataset)
    file = open_scores(scored.dataset, output, job.keep, logits)  # and so are columns that cannot be read or written
    if job.eval_rows:
        file.discard()
        carry_out(replace(plan, job=job), [f"conf={config}"])
    else:
        file.publish()
        labelled(err(), "done", f"{data} has no rows, and so has {output}")


def _check_output(output: Path, data: str, overwrite: bool) -> None:
    """Raise UserError if the file must not be written where it should be."""
    from fnmatch import fnmatchcase

    from pyarrow.fs import LocalFileSystem

    from persia_cli.data.files import locate
    from persia_cli.errors import UserError

    place, source = output.resolve(), locate(data)
    if output.is_dir():
        raise UserError(f"{output} is a folder; name a file")
    local = isinstance(source.filesystem, LocalFileSystem)
    pattern = source.path if source.is_pattern else str(Path(source.path).resolve())
    if local and any(
        fnmatchcase(str(each), pattern) if source.is_pattern else str(each) == pattern
        for each in (place, *place.parents)
    ):
        raise UserError(f"{output} is among the data, and would be read as samples next time; choose another place")
    if not place.parent.is_dir():
        raise UserError(f"{output}: there is no folder {place.parent}; make it first")
    if output.exists() and not overwrite:
        raise UserError(f"{output} is there already; choose another name, or replace it with --overwrite")
