"""Run a sweep: check all points, train them, compare them, draw the picture."""

import json
import shlex
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import typer

from persia_cli.commands.describe import warn_of_stand_in
from persia_cli.commands.facts import facts_of
from persia_cli.commands.job import INTERRUPTED, timed
from persia_cli.commands.screen import count, err, labelled, out, paragraph, propose, say
from persia_cli.commands.sweep_view import Shown, as_object, legend, show_table, showing, spread
from persia_cli.config.expected import any_of
from persia_cli.config.explain import did_you_mean, nearest
from persia_cli.config.grid import GridRun, compose_grid
from persia_cli.config.schema import HybridMode, Run
from persia_cli.config.schema.metric import AIMS, aim_of, goodness, metrics_of
from persia_cli.data.facts import DatasetFacts
from persia_cli.errors import ConfigError, PersiaError, UserError
from persia_cli.launch.readiness import require_ready
from persia_cli.launch.sweep import Sweep, Task
from persia_cli.launch.sweep_folder import (
    FRONTIER,
    RESULTS,
    SETTINGS,
    SETTINGS_TABLE,
    TABLE,
    PointOutcome,
    SweepRequest,
    claimed,
    digest,
    point_object,
    read_results,
    run_dir_of,
    write_results,
    write_settings,
)
from persia_cli.observe.comparison import Row, compare
from persia_cli.observe.frontier import Spot, draw
from persia_cli.observe.outcome import figures_in
from persia_cli.plan.columns import has_query_ids, label_names
from persia_cli.plan.grid import SEED, Setting, baselines, default_baseline, name_setting, settings_of, short_name
from persia_cli.plan.job import JobPlan, plan_job


@dataclass(frozen=True)
class SweepPlan:
    """All that is decided before the first point starts."""

    ask: SweepRequest
    folder: Path
    grid: Sequence[GridRun]
    first: JobPlan
    """The first point's job, for the settings that all points have in common."""
    baseline: str | None
    against: dict[Setting, Setting]
    """The setting that each setting is compared with; empty without a baseline."""
    metric: str
    """The figure that settings are compared by."""
    before: Sequence[PointOutcome]
    """Points that an earlier run of the sweep has finished."""
    new: bool
    numbered: bool = False
    """True if the folder's name gets a number when another sweep has it."""


def prepare(ask: SweepRequest, folder: Path | None) -> SweepPlan:
    """Check every point of a new sweep; raises ConfigError or UserError naming the point."""
    grid, first = _checked(ask)
    if folder is not None and folder.exists():
        raise UserError(f"{folder} exists already; name another folder, or continue with --resume {folder}")
    chosen = folder or timed(Path("sweeps"), f"{grid[0].run.name}-")
    baseline, against = _baselines(grid, ask.baseline)
    metric = choose_metric(grid, ask.metric)
    return SweepPlan(ask, chosen, grid, first, baseline, against, metric, [], new=True, numbered=folder is None)


def resumed(folder: Path, baseline: str | None, metric: str | None) -> SweepPlan:
    """Check a sweep that was begun before; raises UserError if its points have changed."""
    ask, digests = SweepRequest.read(folder)
    if ask.working_dir != str(Path.cwd()):
        raise UserError(f"this sweep began in {ask.working_dir}, and its words may name files there; resume it there")
    grid, first = _checked(ask)
    if [digest(each.run) for each in grid] != digests:
        raise UserError(f"the configurations that {folder} began with have changed since; start a new sweep")
    name, against = _baselines(grid, baseline or ask.baseline)
    points = {each.point.words for each in grid}
    chosen = choose_metric(grid, metric or ask.metric)
    done = [
        replace(each, figures=figures_in(folder / each.run_dir, chosen))  # the metric decides which evaluation counts
        for each in read_results(folder)
        if each.error is None and each.point.words in points
    ]
    return SweepPlan(ask, folder, grid, first, name, against, chosen, done, new=False)


def choose_metric(grid: Sequence[GridRun], asked: str | None) -> str:
    """Return the figure to compare settings by: the one asked for, or the first run's own, or AUC.

    Raises ConfigError if it is not a figure of every point's evaluation.
    """
    first = grid[0].run
    early = first.train.stop_early.metric if first.train.stop_early else None
    metric = asked or early or first.checkpoint.best_by or "auc"
    for each in grid:
        keys = metrics_of(label_names(each.run), has_query_ids(each.run))
        there = [*dict.fromkeys([*keys, *(figure for figure in AIMS if figure != "gauc" or has_query_ids(each.run))])]
        if metric not in there:
            hint = did_you_mean(nearest(metric, there))
            raise ConfigError(
                f"--metric {metric}: an evaluation of the point {each.point.label} has no such figure{hint}; "
                f"there are {any_of(there, 'and')}"
            )
    return metric


def list_points(plan: SweepPlan) -> None:
    """Print the settings of each point."""
    for task in _tasks(plan):
        say(out(), shlex.join(task.command))
    labelled(err(), "points", _points(plan))


def carry_out(plan: SweepPlan, jobs: int, limit_s: float, as_json: bool) -> None:
    """Train the points and print the results; exit with code 1 if a point failed."""
    if plan.new:
        folder = plan.ask.write(plan.folder, [each.run for each in plan.grid], plan.numbered)
        plan = replace(plan, folder=folder)
    labelled(err(), "sweep", f"{_points(plan)} in {plan.folder}")
    warn_of_stand_in(err(), plan.first, plan.grid[0].point.words)
    outcomes = list(plan.before)
    sweep = Sweep(plan.folder, _tasks(plan), plan.metric, jobs, limit_s)
    shown = Shown(len(plan.grid), len(outcomes), plan.metric)
    order = {each.point: number for number, each in enumerate(plan.grid)}
    try:
        with claimed(plan.folder), showing(err(), shown, sweep) as (report, follow):

            def on_end(outcome: PointOutcome) -> None:
                outcomes.append(outcome)
                outcomes.sort(key=lambda each: order[each.point])
                write_results(plan.folder, outcomes)
                report(outcome)

            sweep.run(on_end, follow)
    except KeyboardInterrupt:
        say(err(), "interrupted; everything is stopped, and finished points are kept")
        propose(err(), f"persia sweep --resume {shlex.quote(str(plan.folder))}")
        raise typer.Exit(INTERRUPTED) from None
    _show(plan, outcomes, as_json)


def _show(plan: SweepPlan, outcomes: Sequence[PointOutcome], as_json: bool) -> None:
    rows = _rows(plan, outcomes)
    write_settings(plan.folder, [as_object(row) for row in rows], [as_object(row, flat=True) for row in rows])
    picture = _picture(plan, rows)
    failed = [outcome for outcome in outcomes if outcome.error]
    if as_json:
        say(out(), json.dumps(_as_object(plan, rows, outcomes, picture)))
    else:
        show_table(out(), rows)
        paragraph(err(), legend(plan.metric, plan.baseline), style="dim")
    for outcome in failed:
        labelled(err(), "failed", f"{outcome.point.label}: {outcome.error}")
    labelled(err(), "results", f"{plan.folder / SETTINGS_TABLE}, {SETTINGS}, {TABLE}, {RESULTS}")
    if picture:
        labelled(err(), "picture", str(picture))
    folder = shlex.quote(str(plan.folder))
    if failed:
        propose(err(), f"persia sweep --resume {folder}")
        raise typer.Exit(PersiaError.exit_code)
    best = max((row for row in rows if row.main_metric), key=_goodness, default=rows[0])
    if best.main_metric and len(rows) > 1:
        labelled(err(), "best", f"{name_setting(best.setting)}: {plan.metric} {spread(best.main_metric, '.5f')}")
    one = next(each for each in outcomes if each.point.setting == best.setting)
    config = shlex.quote(str(plan.folder / one.run_dir / "config.yaml"))
    propose(err(), f"persia train conf={config} checkpoint.at_end=true")


def _as_object(
    plan: SweepPlan, rows: Sequence[Row], outcomes: Sequence[PointOutcome], picture: Path | None
) -> dict[str, Any]:
    return {
        "folder": str(plan.folder),
        "stand_in": plan.first.facts.stand_in,
        "baseline": plan.baseline,
        "metric": plan.metric,
        "settings": [as_object(row) for row in rows],
        "points": [point_object(each) for each in outcomes],
        "picture": str(picture) if picture else None,
    }


def _checked(ask: SweepRequest) -> tuple[list[GridRun], JobPlan]:
    """Compose and plan every point; each data set is examined once."""
    grid = compose_grid(ask.words, [Path(folder) for folder in ask.conf_dirs])
    facts: dict[str, DatasetFacts] = {}
    plans = []
    for each in grid:
        try:
            plans.append(_planned(each.run, facts))
        except UserError as error:
            raise type(error)(f"{error} (point {each.point.label})") from error
    require_ready(plans)
    return grid, plans[0]


def _planned(run: Run, facts: dict[str, DatasetFacts]) -> JobPlan:
    name = run.dataset.model_dump_json()
    if name not in facts:
        facts[name] = facts_of(run.dataset)
    return plan_job(run, facts[name], "train", Path("unused"))


def _baselines(grid: Sequence[GridRun], asked: str | None) -> tuple[str | None, dict[Setting, Setting]]:
    settings = settings_of([each.point for each in grid])
    baseline = asked or default_baseline(settings)
    return baseline, baselines(settings, baseline) if baseline else {}


def _seed(each: GridRun) -> str:
    return dict(each.point.swept).get(SEED, str(each.run.seed))


def _tasks(plan: SweepPlan) -> list[Task]:
    done = {outcome.point.words for outcome in plan.before}
    return [
        Task(
            each.point, _seed(each), run_dir_of(plan.folder, number, each.point), plan.ask.conf_dirs,
            each.run.cluster.stop_timeout_s,
        )
        for number, each in enumerate(plan.grid)
        if each.point.words not in done
    ]  # fmt: skip


def _points(plan: SweepPlan) -> str:
    """Return the number of points in words, and of those finished."""
    settings = settings_of([each.point for each in plan.grid])
    text = f"{count(len(plan.grid), 'point')}, {count(len(settings), 'setting')}"
    return text + (f", {len(plan.before)} finished before" if plan.before else "")


def _rows(plan: SweepPlan, outcomes: Sequence[PointOutcome]) -> list[Row]:
    """Compare the settings by their finished points."""
    settings = settings_of([each.point for each in plan.grid])
    figures = {
        setting: {each.seed: each.figures for each in outcomes if each.point.setting == setting and each.figures}
        for setting in settings
    }
    failed = {setting: sum(bool(e.error) for e in outcomes if e.point.setting == setting) for setting in settings}
    metrics = list(dict.fromkeys([plan.metric, "auc", "log_loss"]))
    return compare(figures, failed, plan.against, metrics)


def _goodness(row: Row) -> float:
    """Return the quality of a setting; higher is better."""
    assert row.main_metric is not None
    return goodness(aim_of(next(iter(row.quality))), row.main_metric.mean)


def _picture(plan: SweepPlan, rows: Sequence[Row]) -> Path | None:
    """Draw the picture; without matplotlib, or with nothing to draw, print a note instead."""
    runs = {each.point.setting: each.run for each in plan.grid}
    spots = []
    for row in rows:
        mode = runs[row.setting].mode
        staleness = mode.staleness if isinstance(mode, HybridMode) else None
        if row.samples_per_s and row.main_metric:
            label = short_name(row.setting) or mode.kind
            spots.append(Spot(label, mode.kind, staleness, row.samples_per_s, row.main_metric, row.difference))
    if not spots:
        labelled(err(), "note", f"no picture: no setting has both a speed and {plan.metric}")
        return None
    path = plan.folder / FRONTIER
    made_up = "MADE-UP DATA, " if plan.first.facts.stand_in else ""
    try:
        draw(
            path,
            spots,
            f"{plan.first.run.name}: {made_up}{count(plan.first.job.steps, 'step')}",
            plan.baseline,
            plan.metric,
        )
    except UserError as error:
        labelled(err(), "note", str(error))
        return None
    return path
