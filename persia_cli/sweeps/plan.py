"""The plan of a sweep: every point is checked before the first one starts, and finished points are compared."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from persia_cli.config.expected import any_of
from persia_cli.config.explain import did_you_mean, nearest
from persia_cli.config.schema import Dataset, Run
from persia_cli.data.read.facts import DatasetFacts
from persia_cli.engines.job import timed
from persia_cli.engines.readiness import require_ready
from persia_cli.errors import ConfigError, UserError, count
from persia_cli.metric import AIMS, aim_of, goodness, headlines
from persia_cli.observe.history import ENDS
from persia_cli.observe.journal import EVENTS, read_journal
from persia_cli.observe.outcome import JobMetrics, metrics_in
from persia_cli.plan.evaluations import metric_aims
from persia_cli.plan.job import JobPlan, plan_job
from persia_cli.plan.length import evaluation_interval
from persia_cli.sweeps.comparison import Row, compare
from persia_cli.sweeps.folder import (
    PointOutcome,
    SearchRequest,
    SweepRequest,
    counted,
    digest,
    read_results,
)
from persia_cli.sweeps.grid import GridRun, Space, compose_grid, compose_space
from persia_cli.sweeps.points import (
    SEED,
    Point,
    Setting,
    baselines,
    default_baseline,
    name_setting,
    settings_of,
)

FindFacts = Callable[[Dataset], DatasetFacts]
"""Examines a data set; raises DataError with every problem."""


@dataclass(frozen=True)
class SweepPlan:
    """All decisions that are made before the first point starts."""

    request: SweepRequest
    folder: Path
    grid: Sequence[GridRun]
    """All points; of a search some, which together have each choice and the ends of each span."""
    first: JobPlan
    """The first point's job, for the settings that all points have in common."""
    baseline: str | None
    against: dict[Setting, Setting]
    """The setting that each setting is compared with; empty without a baseline."""
    metric: str
    """The metric by which settings are compared."""
    new: bool
    numbered: bool = False
    """True if the folder's name gets a number when another sweep has it."""
    space: Space | None = None
    """The settings that a search chooses from."""

    @property
    def total(self) -> int:
        """The number of points, if a search trains no two that are equal."""
        return len(self.grid) if self.request.search is None else self.request.search.total

    @property
    def metrics(self) -> list[str]:
        """The metrics of each setting to show; the first is `metric`."""
        return list(dict.fromkeys([self.metric, *headlines(self.first.run.links)]))

    def seed_of(self, point: Point) -> str:
        """Return the seed of a point, as written."""
        unswept = next((each.run.seed for each in self.grid if each.point == point), self.grid[0].run.seed)
        return dict(point.swept).get(SEED, str(unswept))

    def command(self, point: Point, run_dir: Path) -> list[str]:
        """Return the command line that trains a point, as a user would write it."""
        folders = [part for folder in self.request.conf_dirs for part in ("--conf-dir", folder)]
        return ["persia", "train", *point.arguments, *folders, "--run-dir", str(run_dir)]

    def outcomes(self) -> dict[Point, PointOutcome]:
        """Return the recorded outcomes by point; a job that ended after its sweep, which was killed, has ended well.

        Their metrics are read anew, since `metric` decides which evaluation counts.
        """
        outcomes = {}
        for each in read_results(self.folder):
            run_dir, seconds = self.folder / each.run_dir, each.seconds if each.error is None else None
            if each.state == "unfinished":
                seconds = _seconds_until_done(read_journal(run_dir / EVENTS))
            if seconds is not None:
                each = replace(each, seconds=seconds, error=None, metrics=metrics_in(run_dir, self.metric))
            outcomes[each.point] = each
        return outcomes


def _seconds_until_done(events: Sequence[Mapping[str, Any]]) -> float | None:
    """Return the time from the first event of a job to its regular end; None if it has not ended so."""
    ends = [event for event in events if event.get("phase") in ENDS]
    has_ended = bool(ends) and ends[-1]["phase"] == "done"
    return round(ends[-1]["time"] - events[0]["time"], 1) if has_ended else None


def prepare(request: SweepRequest, folder: Path | None, facts_of: FindFacts) -> SweepPlan:
    """Check every point of a new sweep; raises ConfigError or UserError naming the point."""
    grid, first, space, settled = _checked(request, facts_of)
    if folder is not None and folder.exists():
        raise UserError(f"{folder} exists already; name another folder, or continue with --resume {folder}")
    chosen = folder or timed(Path("sweeps"), f"{grid[0].run.name}-")
    baseline, against = _baselines(grid, request.baseline, request.search)
    metric = choose_metric(grid, settled, request.metric)
    return SweepPlan(request, chosen, grid, first, baseline, against, metric, True, folder is None, space)


def resumed(
    folder: Path, baseline: str | None, metric: str | None, facts_of: FindFacts, trials: int | None = None
) -> SweepPlan:
    """Check a sweep that was begun before, of a search with so many trials; raises UserError if its points changed."""
    request, digests = SweepRequest.read(folder)
    if request.search is not None and metric is not None:
        raise UserError("--metric cannot change in a search, whose trials were chosen by it; start a new sweep")
    if trials is not None:
        if request.search is None:
            raise UserError(f"--trials is for a search, and {folder} has every combination of its values")
        request = replace(request, search=replace(request.search, trials=trials))
    if request.working_dir != str(Path.cwd()):
        raise UserError(
            f"this sweep began in {request.working_dir}, and its arguments may name files there; resume it there"
        )
    grid, first, space, settled = _checked(request, facts_of)
    if [digest(each.run) for each in grid] != digests:
        raise UserError(f"the configurations that {folder} began with have changed since; start a new sweep")
    name, against = _baselines(grid, baseline or request.baseline, request.search)
    chosen = choose_metric(grid, settled, metric or request.metric)
    return SweepPlan(request, folder, grid, first, name, against, chosen, new=False, space=space)


def choose_metric(grid: Sequence[GridRun], settled: Sequence[Run], requested: str | None) -> str:
    """Return the metric to compare settings by: the requested one, or the first run's own, or AUC, or RMSE.

    A run's own default may be its loss, whose scale the settings can change, so that it compares none of them.
    Raises ConfigError if it is not a metric of every point's evaluation.
    """
    first = grid[0].run
    asks = first.checkpoint.best_by or first.train.early_stop
    is_loss = settled[0].judging_metric == "loss" and not asks
    metric = requested or (headlines(first.links)[0] if is_loss else settled[0].judging_metric)
    for each, run in zip(grid, settled, strict=True):
        keys = metric_aims(run)
        means = [name for name in AIMS if any(key == name or key.startswith(f"{name}_") for key in keys)]
        there = [*dict.fromkeys([*keys, *means])]
        if metric not in there:
            hint = did_you_mean(nearest(metric, there))
            raise ConfigError(
                f"--metric {metric}: an evaluation of the point {each.point.label} has no such metric{hint}; "
                f"there are {any_of(there, 'and')}"
            )
    return metric


def _checked(request: SweepRequest, facts_of: FindFacts) -> tuple[list[GridRun], JobPlan, Space | None, list[Run]]:
    """Compose and plan every point, or those that stand for a search; each data set is examined once.

    The last of the results are the settled runs.
    """
    folders = [Path(folder) for folder in request.conf_dirs]
    space, grid = (
        (None, compose_grid(request.arguments, folders))
        if request.search is None
        else compose_space(request.arguments, folders)
    )
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
    if request.search is not None and request.search.prune:
        for each, plan in zip(grid, plans, strict=True):
            _require_evaluations(each.point, plan)
    return grid, plans[0], space, [plan.run for plan in plans]


def _require_evaluations(point: Point, plan: JobPlan) -> None:
    """Raise ConfigError if a job has too few evaluations before its last step to end early by one."""
    every = evaluation_interval(plan.run, plan.job.train_rows)
    if not plan.job.eval_steps or every is None or 3 * every >= plan.job.steps:
        raise ConfigError(
            f"--prune compares evaluations from the third one on, and there are no three before the end of "
            f"{plan.job.steps:,} steps; lower eval.every_steps (point {point.label})"
        )


def _baselines(
    grid: Sequence[GridRun], requested: str | None, search: SearchRequest | None
) -> tuple[str | None, dict[Setting, Setting]]:
    if search is not None:
        return name_setting(()), {}
    settings = settings_of([each.point for each in grid])
    baseline = requested or default_baseline(settings)
    return baseline, baselines(settings, baseline) if baseline else {}


def unfinished(plan: SweepPlan, outcomes: Mapping[Point, PointOutcome]) -> list[Point]:
    """Return the points of a grid that are to be trained, in its order."""
    return [each.point for each in plan.grid if each.point not in outcomes or outcomes[each.point].error]


def compare_settings(plan: SweepPlan, outcomes: Sequence[PointOutcome]) -> list[Row]:
    """Compare the settings by their finished points; those of a search are sorted, the repeated ones first."""
    if plan.space is None:
        return _rows(plan, settings_of([each.point for each in plan.grid]), outcomes, plan.against)
    outcomes = counted(outcomes)
    settings = settings_of([each.point for each in outcomes])
    again = settings_of([each.point for each in outcomes if each.point.names_seed])

    def order(row: Row) -> tuple[bool, float]:
        return row.setting not in again, -quality_of(row) if row.main_metric else math.inf

    defaults = plan.space.defaults.setting
    against = dict.fromkeys(again, defaults) if defaults in again else {}
    return sorted(_rows(plan, settings, outcomes, against), key=order)


def _rows(
    plan: SweepPlan, settings: Sequence[Setting], outcomes: Sequence[PointOutcome], against: Mapping[Setting, Setting]
) -> list[Row]:
    metrics: dict[Setting, dict[str, JobMetrics]] = {setting: {} for setting in settings}
    failed = dict.fromkeys(metrics, 0)
    for each in outcomes:
        failed[each.point.setting] += each.state == "failed"
        if each.metrics:
            metrics[each.point.setting][each.repetition] = each.metrics
    return compare(metrics, failed, against, plan.metrics)


def repeats(plan: SweepPlan, outcomes: Sequence[PointOutcome]) -> list[Point]:
    """Return the points that repeat the defaults of a search, and its best trials, with other seeds."""
    search, first = plan.request.search, plan.grid[0].run.seed + 1
    assert search is not None
    assert plan.space is not None
    trials = [each for each in outcomes if each.state == "done" and not each.point.names_seed]
    rows = [row for row in compare_settings(plan, trials) if row.main_metric and row.setting]
    by_setting = {each.point.setting: each.point for each in trials}
    chosen = [plan.space.defaults, *(by_setting[row.setting] for row in rows[: search.best])]
    return [
        Point((*point.arguments, f"{SEED}={seed}"), (*point.swept, (SEED, str(seed))))
        for point in (point.without(SEED) for point in chosen)
        for seed in range(first, first + search.seeds)
    ]


def chosen_row(plan: SweepPlan, rows: Sequence[Row]) -> Row:
    """Return the setting that a search recommends: the best by its mean, or the defaults if it does not beat them."""
    defaults = next((row for row in rows if not row.setting and row.main_metric), None)
    best = rows[0]
    if defaults is None or best.difference is None or best.difference.is_not_zero is None:
        return best
    return best if best.difference.is_not_zero and quality_of(best) > quality_of(defaults) else defaults


def verdict(plan: SweepPlan, rows: Sequence[Row]) -> str | None:
    """Return a sentence on the best setting of a search against its defaults; None if they have no common seeds."""
    best = next((row for row in rows if row.difference), None)
    if best is None or best.difference is None or best.difference.error is None:
        return None
    gain = f"{best.difference.mean:+.4f} ± {best.difference.error:.4f} {plan.metric}"
    of = f"standard error of {best.difference.count} pairs of equal seeds"
    if chosen_row(plan, rows).setting:
        return f"{name_setting(best.setting)}: {gain} over the defaults ({of})"
    return f"no better than the defaults: the best, {name_setting(best.setting)}, has {gain} ({of}); keep the defaults"


def fallen(plan: SweepPlan, rows: Sequence[Row], outcomes: Sequence[PointOutcome]) -> list[str]:
    """Return a sentence for each repeated setting whose mean is worse than the trial that chose it."""
    trials = {each.point.setting: each.metrics for each in outcomes if not each.point.names_seed and each.metrics}
    sentences = []
    for row in rows:
        metrics = trials.get(row.setting) if row.baseline is not None else None
        trial = metrics.quality.get(plan.metric) if metrics else None
        if trial is not None and row.main_metric and goodness(aim_of(plan.metric), trial) > quality_of(row):
            of = f"in the mean of {count(row.finished, 'seed')}"
            sentences.append(f"{name_setting(row.setting)} fell from {trial:.4f} to {row.main_metric.mean:.4f} {of}")
    return sentences


def quality_of(row: Row) -> float:
    """Return the quality of a setting; higher is better."""
    assert row.main_metric is not None
    return goodness(aim_of(next(iter(row.quality))), row.main_metric.mean)
