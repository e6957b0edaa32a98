"""`persia eval`."""

from typing import Annotated

import typer

from persia_cli.commands.options import Model, Overrides, Step, examples

EXAMPLES = examples(
    "persia eval runs/criteo-20261121-081500                              # the run's own evaluation again",
    "persia eval runs/criteo-20261121-081500 cluster.embedding_servers=3  # on three servers",
    "persia eval runs/criteo-20261121-081500 --data day_23                # on other files",
    "persia eval runs/criteo-20261121-081500 --step 3000                  # the model of that step",
)


def evaluate(
    run: Model,
    words: Overrides = None,
    data: Annotated[
        list[str] | None,
        typer.Option(
            "--data",
            metavar="PATH",
            help="Evaluate on all samples of these files instead of the run's own. May be given several times.",
            show_default=False,
        ),
    ] = None,
    step: Step = None,
) -> None:
    """Evaluate a saved model, on any number of servers."""
    from persia_cli.commands.job import carry_out, claimed, other_data, plan_saved
    from persia_cli.observe.saved_run import find_model
    from persia_cli.storage.places import place_of

    model = find_model(place_of(run), step)
    plan = plan_saved(model, "evaluate", [*(words or []), *(other_data(data, "eval") if data else [])])
    carry_out(claimed(plan), [f"conf={model.config}"])
