"""`persia resume`."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from persia_cli.commands.options import Changes, examples

if TYPE_CHECKING:
    from persia_cli.config.schema import Run

EXAMPLES = examples(
    "persia resume runs/criteo-20261121-081500                              # go on from its newest checkpoint",
    "persia resume runs/criteo-20261121-081500 train.epochs=3               # and train longer",
    "persia resume runs/criteo-20261121-081500 cluster.embedding_servers=4  # on four servers",
)


def resume(
    run: Annotated[str, typer.Argument(metavar="RUN", help="A run directory, or the URI of one.")],
    overrides: Changes = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show the plan and start nothing.")] = False,
) -> None:
    """Go on with the training of a run from its newest checkpoint."""
    from persia_cli.commands.job_view import show_results
    from persia_cli.commands.progress import SCREEN
    from persia_cli.engines.signals import end_on_signals
    from persia_cli.jobs.run_dirs import fetched, run_elsewhere, uri_of
    from persia_cli.jobs.submit import resume_at_uri

    changes = overrides or []
    with end_on_signals(SCREEN.say):
        if (uri := uri_of(run)) is None:
            _resume(Path(run), changes, dry_run)
        elif (elsewhere := run_elsewhere(uri, changes)) is not None:
            _require_start(elsewhere, dry_run)
            show_results(*resume_at_uri(elsewhere, uri, SCREEN))
        else:
            with fetched(uri, SCREEN) as folder:
                _resume(folder, changes, dry_run)


def _resume(run_dir: Path, overrides: list[str], dry_run: bool) -> None:
    """Go on with the training in a run directory."""
    from persia_cli.commands.job_view import carry_out, score_test, show_results
    from persia_cli.commands.plan_view import describe_plan
    from persia_cli.commands.progress import SCREEN
    from persia_cli.commands.screen import out
    from persia_cli.jobs.submit import resume_elsewhere
    from persia_cli.jobs.training import driving, plan_rest
    from persia_cli.observe.history import CONFIG
    from persia_cli.plan.job import JobPlan

    plan = plan_rest(run_dir, overrides, SCREEN)
    arguments = [f"conf={run_dir / CONFIG}", *overrides]
    if not isinstance(plan, JobPlan):
        _require_start(plan, dry_run)
        show_results(*resume_elsewhere(plan, run_dir, SCREEN))
    elif dry_run:
        describe_plan(out(), plan, arguments)
    else:
        with driving(plan):
            carry_out(plan, arguments)
        score_test(plan)


def _require_start(run: "Run", dry_run: bool) -> None:
    from persia_cli.errors import UserError

    if dry_run:
        raise UserError(f"cluster={run.cluster.name} plans a resumed run where its record is: no --dry-run")
