"""`persia eval`."""

from pathlib import Path
from typing import Annotated

import typer

from persia_cli.commands.options import Overrides, Step, examples

EXAMPLES = examples(
    "persia eval runs/criteo-20261121-081500                              # the run's own evaluation again",
    "persia eval runs/criteo-20261121-081500 cluster.embedding_servers=3  # on three servers",
    "persia eval runs/criteo-20261121-081500 --data day_23                # on other files",
    "persia eval runs/criteo-20261121-081500 --step 3000                  # the model as it was then",
)


def evaluate(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="Run directory of a training run.", show_default=False)],
    words: Overrides = None,
    data: Annotated[
        str | None,
        typer.Option("--data", metavar="PATH", help="Evaluate on all samples of these files instead of the run's own."),
    ] = None,
    step: Step = None,
) -> None:
    """Evaluate a saved model, on any number of servers."""
    from persia_cli.commands.job import carry_out, new_folder
    from persia_cli.config.compose import compose_run
    from persia_cli.config.words import quoted
    from persia_cli.data.facts import inspect
    from persia_cli.errors import UserError
    from persia_cli.plan.job import plan_job
    from persia_cli.store.manifest import read_manifest
    from persia_cli.store.retention import choose_checkpoint

    config = run / "config.yaml"
    if not config.is_file():
        raise UserError(f"{run} holds no run: there is no {config}")
    own = [f"dataset.path={quoted(data)}", "dataset.if_missing=error", "dataset.split={kind: eval}"] if data else []
    evaluated = compose_run([f"conf={config}", *(words or []), *own])
    checkpoint = choose_checkpoint(run, step)
    read_manifest(checkpoint)  # is refused before anything starts
    plan = plan_job(evaluated, inspect(evaluated.dataset), "evaluate", new_folder(run / "evals"), checkpoint)
    carry_out(plan, [f"conf={config}"])
