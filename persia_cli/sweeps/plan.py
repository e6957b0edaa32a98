"""The plan of a sweep: every point is checked before the first one starts, and finished points are compared."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from persia_cli.config.expected import any_of
from persia_cli.config.explain import did_you_mean, nearest
from persia_cli.config.schema import Dataset, HybridMode
from persia_cli.config.schema.metric import AIMS, aim_of, goodness, headlines
from persia_cli.data.read.facts import DatasetFacts
from persia_cli.engines.job import timed
from persia_cli.engines.readiness import require_ready
from persia_cli.errors import ConfigError, UserError
from persia_cli.observe.outcome import metrics_in
from persia_cli.plan.columns import metric_aims
from persia_cli.plan.job import JobPlan, plan_job
from persia_cli.sweeps.comparison import Row, compare
from persia_cli.sweeps.folder import PointOutcome, SweepRequest, digest, read_results, run_dir_of
from persia_cli.sweeps.frontier import Spot
from persia_cli.sweeps.grid import GridRun, compose_grid
from persia_cli.sweeps.points import SEED, Setting, baselines, default_baseline, settings_of, short_name
from persia_cli.sweeps.processes import Task

FindFacts = Callable[[Dataset], DatasetFacts]
"""Examines a data set; raises DataError with every problem."""


@dataclass(frozen=True)
class SweepPlan:
    """All decisions that are made before the first point starts."""

    ask: SweepRequest
    folder: Path
    grid: Sequence[GridRun]
    first: JobPlan
    """The first point's job, for the settings that all points have in common."""
    baseline: str | None
    against: dict[Setting, Setting]
    """The setting that each setting is compared with; empty without a baseline."""
    metric: str
    """The metric by which settings are compared."""
    before: Sequence[PointOutcome]
    """Points that an earlier run of the sweep has finished."""
    new: bool
    numbered: bool = False
    """True if the folder's name gets a number when another sweep has it."""

    @property
    def metrics(self) -> list[str]:
        """The metrics of each setting to show; the first is `metric`."""
        return list(dict.fromkeys([self.metric, *headlines(self.first.run.links)]))


def prepare(ask: SweepRequest, folder: Path | None, facts_of: FindFacts) -> SweepPlan:
    """Check every point of a new sweep; raises ConfigError or UserError naming the point."""
    grid, first = _checked(ask, facts_of)
    if folder is not None and folder.exists():
        raise UserError(f"{folder} exists already; name another folder, or continue with --resume {folder}")
    chosen = folder or timed(Path("sweeps"), f"{grid[0].run.name}-")
    baseline, against = _baselines(grid, ask.baseline)
    metric = choose_metric(grid, ask.metric)
    return SweepPlan(ask, chosen, grid, first, baseline, against, metric, [], new=True, numbered=folder is None)


def resumed(folder: Path, baseline: str | None, metric: str | None, facts_of: FindFacts) -> SweepPlan:
    """Check a sweep that was begun before; raises UserError if its points have changed."""
    ask, digests = SweepRequest.read(folder)
    if ask.working_dir != str(Path.cwd()):
        raise UserError(
            f"this sweep began in {ask.working_dir}, and its arguments may name files there; resume it there"
        )
    grid, first = _checked(ask, facts_of)
    if [digest(each.run) for each in grid] != digests:
        raise UserError(f"the configurations that {folder} began with have changed since; start a new sweep")
    name, against = _baselines(grid, baseline or ask.baseline)
    points = {each.point.arguments for each in grid}
    chosen = choose_metric(grid, metric or ask.metric)
    done = [
        replace(each, figures=metrics_in(folder / each.run_dir, chosen))  # the metric decides which evaluation counts
        for each in read_results(folder)
        if each.error is None and each.point.arguments in points
    ]
    return SweepPlan(ask, folder, grid, first, name, against, chosen, done, new=False)


def choose_metric(grid: Sequence[GridRun], asked: str | None) -> str:
    """Return the metric to compare settings by: the requested one, or the first run's own, or AUC, or RMSE.

    Raises ConfigError if it is not a metric of every point's evaluation.
    """
    first = grid[0].run
    early = first.train.early_stop.metric if first.train.early_stop else None
    metric = asked or early or first.checkpoint.best_by or headlines(first.links)[0]
    for each in grid:
        keys = metric_aims(each.run)
        figures = [figure for figure in AIMS if any(key == figure or key.startswith(f"{figure}_") for key in keys)]
        there = [*dict.fromkeys([*keys, *figures])]
        if metric not in there:
            hint = did_you_mean(nearest(metric, there))
            raise ConfigError(
                f"--metric {metric}: an evaluation of the point {each.point.label} has no such metric{hint}; "
                f"there are {any_of(there, 'and')}"
            )
    return metric


def _checked(ask: SweepRequest, facts_of: FindFacts) -> tuple[list[GridRun], JobPlan]:
    """Compose and plan every point; each data set is examined once."""
    grid = compose_grid(ask.words, [Path(folder) for folder in ask.conf_dirs])
    facts: dict[str, DatasetFacts] = {}
    plans = []
    for each in grid:
        try:
            name = each.run.dataset.model_dump_json()
            if name not in facts:
                facts[name] = facts_of(each.run.dataset)
            plans.append(plan_job(each.run, facts[name], "train", Path("unused")))
        except UserError as error:
            raise type(error)(f"{error} (point {each.point.label})") from error
    require_ready(plans)
    return grid, plans[0]


def _baselines(grid: Sequence[GridRun], asked: str | None) -> tuple[str | None, dict[Setting, Setting]]:
    settings = settings_of([each.point for each in grid])
    baseline = asked or default_baseline(settings)
    return baseline, baselines(settings, baseline) if baseline else {}


def tasks_of(plan: SweepPlan) -> list[Task]:
    """Return the points that have not finished."""
    done = {outcome.point.arguments for outcome in plan.before}
    return [
        Task(
            point=each.point,
            seed=dict(each.point.swept).get(SEED, str(each.run.seed)),
            run_dir=run_dir_of(plan.folder, number, each.point),
            conf_dirs=plan.ask.conf_dirs,
            stop_timeout_s=each.run.cluster.stop_timeout_s,
        )
        for number, each in enumerate(plan.grid)
        if each.point.arguments not in done
    ]


def compare_settings(plan: SweepPlan, outcomes: Sequence[PointOutcome]) -> list[Row]:
    """Compare the settings by their finished points."""
    settings = settings_of([each.point for each in plan.grid])
    figures = {
        setting: {each.seed: each.figures for each in outcomes if each.point.setting == setting and each.figures}
        for setting in settings
    }
    failed = {setting: sum(bool(e.error) for e in outcomes if e.point.setting == setting) for setting in settings}
    return compare(figures, failed, plan.against, plan.metrics)


def quality_of(row: Row) -> float:
    """Return the quality of a setting; higher is better."""
    assert row.main_metric is not None
    return goodness(aim_of(next(iter(row.quality))), row.main_metric.mean)


def spots(plan: SweepPlan, rows: Sequence[Row]) -> list[Spot]:
    """Return the settings that have both a speed and the plan's metric, for the picture."""
    runs = {each.point.setting: each.run for each in plan.grid}
    found = []
    for row in rows:
        mode = runs[row.setting].mode
        staleness = mode.staleness if isinstance(mode, HybridMode) else None
        if row.samples_per_s and row.main_metric:
            label = short_name(row.setting) or mode.kind
            found.append(Spot(label, mode.kind, staleness, row.samples_per_s, row.main_metric, row.difference))
    return found
