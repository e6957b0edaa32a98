"""`persia sweep`."""

import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from persia_cli.commands.options import AsJson, ConfDir, Overrides, examples

if TYPE_CHECKING:
    from persia_cli.sweeps.folder import SearchRequest

EXAMPLES = examples(
    "persia sweep mode=sync,hybrid mode.staleness=3,8 'seed=range(0,5)'  # sync once, hybrid at two bounds",
    "persia sweep conf=criteo mode.staleness=1,2,4,16,64 seed=1,2,3      # the frontier of accuracy and speed",
    "persia sweep model.hidden=[16,8],[64] seed=1,2 --jobs 2             # brackets and quotes keep commas together",
    "persia sweep --search tpe 'optimizer.dense.lr=tag(log,interval(1e-4,1e-1))' model.dim=8,16 --repeat 3x5",
    "persia sweep dataset=movielens_1m --folds                           # k-fold cross-validation",
    "persia sweep --resume sweeps/criteo-20261121-081500                 # continue where it stopped",
    "persia sweep --resume sweeps/criteo-20261121-081500 --metric pr_auc  # compare the finished points by PR-AUC",
)
DAY_S = 86_400.0
TRIALS = 20
LEAST, SEEDS = 3, 3
"""The best so many trials, at least, are repeated, and the number of seeds by default: one trial is best by luck."""


def sweep(
    overrides: Overrides = None,
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
            show_default="that by which the runs choose their evaluation",
        ),
    ] = None,
    search: Annotated[
        Literal["tpe", "random"] | None,
        typer.Option(
            "--search",
            help="Choose trials from the values and from intervals, by Optuna or at random.",
            show_default="every combination",
        ),
    ] = None,
    trials: Annotated[
        int | None,
        typer.Option("--trials", min=1, metavar="N", help="Trials of a search.", show_default=f"{TRIALS}"),
    ] = None,
    prune: Annotated[
        bool, typer.Option("--prune", help="End trials early whose evaluations during training are worse than others.")
    ] = False,
    repeat: Annotated[
        str | None,
        typer.Option(
            "--repeat",
            metavar="KxN",
            help="Train the best K trials and the defaults again, on N other seeds each, and choose by the mean.",
            show_default="3x3",
        ),
    ] = None,
    folds: Annotated[
        bool, typer.Option("--folds", help="Evaluate on each fold of dataset.split in turn, and average.")
    ] = False,
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
    """Train every combination of values, or search for the best, and compare the results.

    Any key or config group takes several values: KEY=A,B,C or KEY=range(1,4). With --search, numbers may also come
    from KEY=interval(A,B) and KEY=tag(log,interval(A,B)). Models are not saved unless checkpoint.at_end=true is among
    the settings.
    """
    from functools import partial

    from persia_cli.commands.progress import SCREEN
    from persia_cli.commands.sweep_view import carry_out, list_points
    from persia_cli.errors import UserError
    from persia_cli.jobs.plan import facts_of
    from persia_cli.sweeps.folder import SweepRequest
    from persia_cli.sweeps.grid import every_fold
    from persia_cli.sweeps.plan import prepare, resumed

    facts = partial(facts_of, reporter=SCREEN)
    if resume is None:
        folders = tuple(str(path.absolute()) for path in conf_dir or ())
        chosen = _search(search, trials, prune, repeat, baseline, folds)
        overrides = list(every_fold(overrides or [], conf_dir or [])) if folds else overrides
        request = SweepRequest(tuple(overrides or ()), folders, baseline, metric, str(Path.cwd()), chosen)
        plan = prepare(request, folder, facts)
    else:
        if overrides or folder is not None or search or prune or repeat or folds:
            raise UserError("--resume takes settings and folder from the sweep itself; leave them out")
        plan = resumed(resume, baseline, metric, facts, trials)
    if dry_run:
        list_points(plan)
    else:
        carry_out(plan, jobs, limit_s, as_json)


def _search(
    sampler: Literal["tpe", "random"] | None,
    trials: int | None,
    prune: bool,
    repeat: str | None,
    baseline: str | None,
    folds: bool,
) -> "SearchRequest | None":
    """Return the search that the options request; raises UserError for options that do not go together."""
    from persia_cli.errors import UserError, count
    from persia_cli.sweeps.folder import SearchRequest

    of_search = {"--trials": trials, "--prune": prune, "--repeat": repeat}
    if sampler is None:
        if given := [option for option, value in of_search.items() if value]:
            raise UserError(f"{given[0]} is for a search; add --search tpe")
        return None
    if baseline or folds:
        raise UserError(
            f"{'--baseline' if baseline else '--folds'} is for every combination of values, not for --search"
        )
    trials = trials or TRIALS
    least = min(LEAST, trials)
    match = re.fullmatch("([1-9][0-9]*)x([1-9][0-9]*)", repeat or f"{least}x{SEEDS}")
    if match is None or not least <= int(match[1]) <= trials or int(match[2]) < 2:
        raise UserError(
            f"--repeat {repeat}: expected at least the best {least} of {count(trials, 'trial')} by at least 2 seeds, "
            "such as 3x5"
        )
    return SearchRequest(sampler, trials, prune, int(match[1]), int(match[2]))
