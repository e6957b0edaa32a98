"""`persia train`."""

from pathlib import Path
from typing import Annotated

import typer

from persia_cli.commands.options import ConfDir, Words, examples

EXAMPLES = examples(
    "persia train                                        # census data that ships with persia",
    "persia train conf=criteo model=ffnn train.epochs=2  # a configuration, an option, a key",
    "persia train conf=./mine.yaml mode=sync --dry-run   # show the plan and start nothing",
    "persia train conf=criteo --trace steps.json         # a timeline of 200 steps, for ui.perfetto.dev",
)


def train(
    words: Words = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show the plan and start nothing.")] = False,
    run_dir: Annotated[
        Path | None,
        typer.Option("--run-dir", metavar="DIR", help="Folder of the run.", show_default="runs/NAME-TIME"),
    ] = None,
    trace: Annotated[
        Path | None,
        typer.Option("--trace", metavar="FILE", help="Write a timeline of every role's work, for Perfetto."),
    ] = None,
    trace_steps: Annotated[
        str | None,
        typer.Option(
            "--trace-steps", metavar="FIRST:LAST", help="The steps to trace.", show_default="200 after the first 20"
        ),
    ] = None,
    conf_dir: ConfDir = None,
    parent: Annotated[int | None, typer.Option("--parent", hidden=True)] = None,
) -> None:
    """Train a model, evaluate it and save it."""
    if parent is not None:
        from persia_cli.launch.role import die_with

        die_with(parent)
    from persia_cli.commands.facts import facts_of
    from persia_cli.commands.job import carry_out, choose_run_dir, claimed, traced
    from persia_cli.config.compose import compose_run
    from persia_cli.errors import UserError
    from persia_cli.launch.readiness import require_ready
    from persia_cli.plan.job import plan_job

    words = words or []
    run = compose_run(words, conf_dir or [])
    plan = plan_job(run, facts_of(run.dataset), "train", choose_run_dir(run.name, run_dir))
    if parent is None:  # the points of a sweep are checked against the machine together
        require_ready([plan])
    if trace_steps and not trace:
        raise UserError("--trace-steps selects the steps that --trace FILE traces; give --trace too")
    if trace:
        plan = traced(plan, trace, trace_steps)
    again = [*words, *(word for folder in conf_dir or [] for word in ("--conf-dir", str(folder)))]
    if dry_run:
        from persia_cli.commands.describe import describe_plan, warn_of_stand_in
        from persia_cli.commands.screen import err, out

        describe_plan(out(), plan, again)
        warn_of_stand_in(err(), plan, again)
    else:
        carry_out(plan if run_dir else claimed(plan), again, trace)
