"""Carry out a sweep: check all points, train them, compare them, draw the picture."""

import json
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import typer

from persia_cli.commands.describe import warn_of_stand_in
from persia_cli.commands.job import INTERRUPTED, new_folder
from persia_cli.commands.screen import count, err, labelled, out, say
from persia_cli.commands.sweep_view import Shown, as_object, legend, show_table, showing
from persia_cli.config.grid import GridRun, compose_grid
from persia_cli.config.schema import HybridMode, Run
from persia_cli.data.facts import DatasetFacts, inspect
from persia_cli.errors import PersiaError, UserError
from persia_cli.launch.sweep import Sweep, Task
from persia_cli.launch.sweep_folder import (
    FRONTIER,
    RESULTS,
    TABLE,
    Ask,
    Outcome,
    claimed,
    digest,
    point_object,
    read_results,
    run_dir_of,
    write_results,
)
from persia_cli.observe.comparison import Row, compare
from persia_cli.observe.frontier import Spot, draw
from persia_cli.plan.grid import SEED, Setting, baselines, default_baseline, settings_of, short_name
from persia_cli.plan.job import JobPlan, plan_job


@dataclass(frozen=True)
class SweepPlan:
    """Everything that is settled before the first point starts."""

    ask: Ask
    folder: Path
    grid: Sequence[GridRun]
    first: JobPlan
    """The first point's job, for what all of them have in common."""
    baseline: str | None
    against: dict[Setting, Setting]
    """What each setting is set against; empty without a baseline."""
    before: Sequence[Outcome]
    """Points that an earlier go has finished."""
    new: bool


def prepare(ask: Ask, folder: Path | None) -> SweepPlan:
    """Check every point of a new sweep; raises ConfigError or UserError naming the point."""
    grid, first = _checked(ask)
    if folder is not None and folder.exists():
        raise UserError(f"{folder} exists already; name a folder that does not, or go on with --resume {folder}")
    chosen = folder or new_folder(Path("sweeps"), f"{grid[0].run.name}-")
    baseline, against = _baselines(grid, ask.baseline)
    return SweepPlan(ask, chosen, grid, first, baseline, against, [], new=True)


def resumed(folder: Path, baseline: str | None) -> SweepPlan:
    """Check a sweep that was begun before; raises UserError if it is not the same any more."""
    ask, digests = Ask.read(folder)
    if ask.working_dir != str(Path.cwd()):
        raise UserError(f"this sweep began in {ask.working_dir}, and its words may name files there; resume it there")
    grid, first = _checked(ask)
    if [digest(each.run) for each in grid] != digests:
        raise UserError(f"the configurations that {folder} began with have changed since; start a new sweep")
    name, against = _baselines(grid, baseline or ask.baseline)
    points = {each.point.words for each in grid}
    done = [each for each in read_results(folder) if each.error is None and each.point.words in points]
    return SweepPlan(ask, folder, grid, first, name, against, done, new=False)


def list_points(plan: SweepPlan) -> None:
    """Print what each point would be started with."""
    for task in _tasks(plan):
        say(out(), shlex.join(task.command))
    labelled(err(), "points", _points(plan))


def carry_out(plan: SweepPlan, jobs: int, limit_s: float, as_json: bool) -> None:
    """Train the points, print what they came to; ends with exit code 1 if a point failed."""
    labelled(err(), "sweep", f"{_points(plan)} in {plan.folder}")
    warn_of_stand_in(err(), plan.first, plan.grid[0].point.words)
    if plan.new:
        plan.ask.write(plan.folder, [each.run for each in plan.grid])
    outcomes = list(plan.before)
    sweep = Sweep(plan.folder, _tasks(plan), jobs, limit_s)
    shown = Shown(len(plan.grid), len(outcomes))
    order = {each.point: number for number, each in enumerate(plan.grid)}
    try:
        with claimed(plan.folder), showing(err(), shown, sweep) as (tell, follow):

            def on_end(outcome: Outcome) -> None:
                outcomes.append(outcome)
                outcomes.sort(key=lambda each: order[each.point])
                write_results(plan.folder, outcomes)
                tell(outcome)

            sweep.run(on_end, follow)
    except KeyboardInterrupt:
        say(err(), "interrupted; everything is stopped, and what is finished is kept")
        labelled(err(), "next", f"persia sweep --resume {shlex.quote(str(plan.folder))}")
        raise typer.Exit(INTERRUPTED) from None
    _show(plan, outcomes, as_json)


def _show(plan: SweepPlan, outcomes: Sequence[Outcome], as_json: bool) -> None:
    rows = _rows(plan, outcomes)
    picture = _picture(plan, rows)
    failed = [outcome for outcome in outcomes if outcome.error]
    if as_json:
        say(out(), json.dumps(_as_object(plan, rows, outcomes, picture)))
    else:
        show_table(out(), rows)
        say(err(), legend(plan.baseline), "dim")
    for outcome in failed:
        labelled(err(), "failed", f"{outcome.point.label}: {outcome.error}")
    labelled(err(), "results", f"{plan.folder / TABLE}, {plan.folder / RESULTS}")
    if picture:
        labelled(err(), "picture", str(picture))
    folder = shlex.quote(str(plan.folder))
    if failed:
        labelled(err(), "next", f"persia sweep --resume {folder}")
        raise typer.Exit(PersiaError.exit_code)
    best = max(rows, key=lambda row: row.auc.mean if row.auc else 0.0)
    one = next(each for each in outcomes if each.point.setting == best.setting)
    config = shlex.quote(str(plan.folder / one.run_dir / "config.yaml"))
    labelled(err(), "next", f"persia train conf={config} checkpoint.at_end=true")


def _as_object(
    plan: SweepPlan, rows: Sequence[Row], outcomes: Sequence[Outcome], picture: Path | None
) -> dict[str, Any]:
    return {
        "folder": str(plan.folder),
        "stand_in": plan.first.facts.stand_in,
        "baseline": plan.baseline,
        "settings": [as_object(row) for row in rows],
        "points": [point_object(each) for each in outcomes],
        "picture": str(picture) if picture else None,
    }


def _checked(ask: Ask) -> tuple[list[GridRun], JobPlan]:
    """Compose and plan every point; each data set is looked at once."""
    grid = compose_grid(ask.words, [Path(folder) for folder in ask.conf_dirs])
    facts: dict[str, DatasetFacts] = {}
    plans = []
    for each in grid:
        try:
            plans.append(_planned(each.run, facts))
        except UserError as error:
            raise type(error)(f"{error} (point {each.point.label})") from error
    return grid, plans[0]


def _planned(run: Run, facts: dict[str, DatasetFacts]) -> JobPlan:
    name = run.dataset.model_dump_json()
    if name not in facts:
        facts[name] = inspect(run.dataset)
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
    """Say how many points there are, and how many are finished."""
    settings = settings_of([each.point for each in plan.grid])
    text = f"{count(len(plan.grid), 'point')}, {count(len(settings), 'setting')}"
    return text + (f", {len(plan.before)} finished before" if plan.before else "")


def _rows(plan: SweepPlan, outcomes: Sequence[Outcome]) -> list[Row]:
    """Compare the settings by what is finished."""
    settings = settings_of([each.point for each in plan.grid])
    figures = {
        setting: {each.seed: each.figures for each in outcomes if each.point.setting == setting and each.figures}
        for setting in settings
    }
    failed = {setting: sum(bool(e.error) for e in outcomes if e.point.setting == setting) for setting in settings}
    return compare(figures, failed, plan.against)


def _picture(plan: SweepPlan, rows: Sequence[Row]) -> Path | None:
    """Draw the picture; without matplotlib, or with nothing to draw, say so."""
    runs = {each.point.setting: each.run for each in plan.grid}
    spots = []
    for row in rows:
        mode = runs[row.setting].mode
        staleness = mode.staleness if isinstance(mode, HybridMode) else None
        if row.samples_per_s and row.auc:
            label = short_name(row.setting) or mode.kind
            difference = row.difference.auc if row.difference else None
            spots.append(Spot(label, mode.kind, staleness, row.samples_per_s, row.auc, difference))
    if not spots:
        return None
    path = plan.folder / FRONTIER
    made_up = "MADE-UP DATA, " if plan.first.facts.stand_in else ""
    try:
        draw(path, spots, f"{plan.first.run.name}: {made_up}{count(plan.first.job.steps, 'step')}", plan.baseline)
    except UserError as error:
        labelled(err(), "note", str(error))
        return None
    return path
