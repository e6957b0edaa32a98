"""`persia sweep`."""

from pathlib import Path
from typing import Annotated

import typer

from persia_cli.commands.options import AsJson, ConfDir, Words, examples

EXAMPLES = examples(
    "persia sweep mode=sync,hybrid mode.staleness=3,8 'seed=range(0,5)'  # sync once, hybrid at two bounds",
    "persia sweep conf=criteo mode.staleness=1,2,4,16,64 seed=1,2,3      # the frontier of accuracy and speed",
    "persia sweep model.hidden=[16,8],[64] seed=1,2 --jobs 2             # brackets and quotes keep commas together",
    "persia sweep --resume sweeps/criteo-20261121-081500                 # continue where it stopped",
    "persia sweep --resume sweeps/criteo-20261121-081500 --metric pr_auc  # compare the finished points by PR-AUC",
)
DAY_S = 86_400.0


def sweep(
    words: Words = None,
    baseline: Annotated[
        str | None,
        typer.Option(
            "--baseline",
            metavar="KEY=VALUE",
            help="Setting that other points are compared with, seed by seed, such as mode=sync.",
            show_default="mode=sync if it is swept, else the least mode.staleness",
        ),
    ] = None,
    metric: Annotated[
        str | None,
        typer.Option(
            "--metric",
            metavar="METRIC",
            help="Metric to compare settings by: any metric of an evaluation, such as log_loss or auc_LABEL.",
            show_default="train.stop_early.metric or checkpoint.best_by, else auc",
        ),
    ] = None,
    jobs: Annotated[int, typer.Option("--jobs", min=1, help="Points that train at the same time.")] = 1,
    limit_s: Annotated[
        float, typer.Option("--limit-s", min=1.0, help="Seconds after which a point is stopped and has failed.")
    ] = DAY_S,
    folder: Annotated[
        Path | None,
        typer.Option("--folder", metavar="DIR", help="Folder of the sweep.", show_default="sweeps/NAME-TIME"),
    ] = None,
    resume: Annotated[
        Path | None,
        typer.Option("--resume", metavar="FOLDER", help="Continue a sweep; finished points are not trained again."),
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Check and list the points, but start none.")] = False,
    as_json: AsJson = False,
    conf_dir: ConfDir = None,
) -> None:
    """Train every combination of values and compare the results.

    Any key or config group takes several values: KEY=A,B,C or KEY=range(1,4). Models are not saved unless
    checkpoint.at_end=true is among the settings.
    """
    from persia_cli.commands.facts import facts_of
    from persia_cli.commands.sweep_job import carry_out, list_points
    from persia_cli.errors import UserError
    from persia_cli.sweeps.folder import SweepRequest
    from persia_cli.sweeps.plan import prepare, resumed

    if resume is None:
        folders = tuple(str(each.absolute()) for each in conf_dir or ())
        ask = SweepRequest(tuple(words or ()), folders, baseline, metric, str(Path.cwd()))
        plan = prepare(ask, folder, facts_of)
    else:
        if words or folder is not None:
            raise UserError("--resume takes settings and folder from the sweep itself; leave them out")
        plan = resumed(resume, baseline, metric, facts_of)
    if dry_run:
        list_points(plan)
    else:
        carry_out(plan, jobs, limit_s, as_json)
