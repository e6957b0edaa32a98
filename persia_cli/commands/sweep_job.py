"""Run a planned sweep with its progress on the screen: train the points, compare their settings, draw the picture."""

import shlex
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import typer

from persia_cli.commands.endings import INTERRUPTED
from persia_cli.commands.screen import err, labelled, out, paragraph, propose, say, say_json
from persia_cli.commands.sweep_view import Shown, as_object, described, legend, show_table, showing, tuned
from persia_cli.engines.output import keep_output
from persia_cli.errors import PersiaError, UserError, count
from persia_cli.sweeps.comparison import Row
from persia_cli.sweeps.folder import (
    FRONTIER,
    RESULTS,
    SETTINGS,
    SETTINGS_TABLE,
    TABLE,
    PointOutcome,
    claimed,
    point_object,
    write_results,
    write_settings,
)
from persia_cli.sweeps.frontier import draw
from persia_cli.sweeps.plan import SweepPlan, chosen_row, compare_settings, fallen, quality_of, spots, tasks_of, verdict
from persia_cli.sweeps.points import name_setting, settings_of
from persia_cli.sweeps.processes import Sweep
from persia_cli.sweeps.search import Search

SHOWN = 10
"""Settings of a search in the table and the picture, the best ones; `settings.csv` has all."""


def list_points(plan: SweepPlan) -> None:
    """Print the settings of each point, or the values that a search chooses from."""
    if plan.space is None:
        for task in tasks_of(plan):
            say(out(), shlex.join(task.command))
    else:
        for axis in plan.space.swept:
            say(out(), f"{axis.key}: {described(axis)}")
    labelled(err(), "points", _number_of_points(plan))


def _number_of_points(plan: SweepPlan) -> str:
    """Return as text the number of points, and of those finished."""
    settings, search = settings_of([each.point for each in plan.grid]), plan.ask.search
    text = f"{count(len(plan.grid), 'point')}, {count(len(settings), 'setting')}"
    if search is not None:
        pruned = ", the worse ones ended early" if search.prune else ""
        again = f", then the best {search.best} and the defaults on {search.seeds} other seeds" if search.best else ""
        text = f"the defaults and {count(search.trials, 'trial')} by {search.sampler} for {plan.metric}{pruned}{again}"
    return text + (f", {len(plan.before)} finished before" if plan.before else "")


def carry_out(plan: SweepPlan, jobs: int, limit_s: float, as_json: bool) -> None:
    """Train the points and print the results; exit with code 1 if a point failed."""
    if plan.new:
        folder = plan.ask.write(plan.folder, [each.run for each in plan.grid], plan.numbered)
        plan = replace(plan, folder=folder)
    labelled(err(), "sweep", f"{_number_of_points(plan)} in {plan.folder}")
    if plan.first.facts.stand_in:
        labelled(err(), "data", plan.first.facts.source)
    order = {} if plan.space else {each.point: number for number, each in enumerate(plan.grid)}
    outcomes: list[PointOutcome] = []
    try:
        with claimed(plan.folder), ExitStack() as stack:
            keep_output(plan.folder)
            search = Search(plan) if plan.space else None
            outcomes += search.ended if search else plan.before
            sweep = Sweep(plan.folder, search.tasks() if search else iter(tasks_of(plan)), plan.metric, jobs, limit_s)
            shown = Shown(plan.total, len(outcomes), plan.metrics)
            report, show = stack.enter_context(showing(err(), shown, sweep))

            def on_end(outcome: PointOutcome) -> None:
                outcomes.append(outcome)
                outcomes.sort(key=lambda each: order.get(each.point, 0))
                write_results(plan.folder, outcomes)
                report(outcome)
                if search:
                    search.end(outcome)

            def follow() -> None:
                for run_dir in search.hopeless() if search else ():
                    sweep.prune(run_dir)
                show()

            sweep.run(on_end, follow)
    except KeyboardInterrupt:
        say(err(), "interrupted; everything is stopped, and finished points are kept")
        propose(err(), f"persia sweep --resume {shlex.quote(str(plan.folder))}")
        raise typer.Exit(INTERRUPTED) from None
    _show(plan, outcomes, as_json)


def _show(plan: SweepPlan, outcomes: Sequence[PointOutcome], as_json: bool) -> None:
    rows = compare_settings(plan, outcomes)
    write_settings(plan.folder, [as_object(row) for row in rows], [as_object(row, flat=True) for row in rows])
    shown = rows if plan.space is None else rows[:SHOWN]
    picture = _picture(plan, shown, outcomes)
    failed = [outcome for outcome in outcomes if outcome.error]
    if as_json:
        say_json(_as_object(plan, rows, outcomes, picture))
    elif shown:
        show_table(out(), shown)
        paragraph(err(), legend(plan.metric, plan.baseline), style="dim")
    for outcome in failed:
        labelled(err(), "failed", f"{outcome.point.label}: {outcome.error}")
    labelled(err(), "results", f"{plan.folder / SETTINGS_TABLE}, {SETTINGS}, {TABLE}, {RESULTS}")
    if picture:
        labelled(err(), "picture", str(picture))
    folder = shlex.quote(str(plan.folder))
    if failed if plan.space is None else not rows or rows[0].main_metric is None:
        if plan.space:
            labelled(err(), "failed", "no trial reached its end, so there is no best one")
        propose(err(), f"persia sweep --resume {folder}")
        raise typer.Exit(PersiaError.exit_code)
    judged = [row for row in rows if row.main_metric]
    best = chosen_row(plan, rows) if plan.space else max(judged, key=quality_of, default=rows[0])
    if plan.space:
        for text in fallen(plan, rows, outcomes):
            labelled(err(), "repeat", text)
        if sentence := verdict(plan, rows):
            labelled(err(), "gain", sentence)
    if best.main_metric and (len(rows) > 1 or best.main_metric.error is not None):
        label = "best" if plan.space or len(rows) > 1 else "mean"
        labelled(err(), label, f"{name_setting(best.setting)}: {tuned(plan.metric, best.main_metric)}")
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
        "search": plan.ask.search and asdict(plan.ask.search),
        "chosen": dict(chosen_row(plan, rows).setting) if plan.space and rows else None,
        "settings": [as_object(row) for row in rows],
        "points": [point_object(each) for each in outcomes],
        "picture": str(picture) if picture else None,
    }


def _picture(plan: SweepPlan, rows: Sequence[Row], outcomes: Sequence[PointOutcome]) -> Path | None:
    """Draw the picture; without matplotlib, or with nothing to draw, print a note instead."""
    found = spots(plan, rows, outcomes)
    if not found:
        labelled(err(), "note", f"no picture: no setting has both a speed and {plan.metric}")
        return None
    path = plan.folder / FRONTIER
    made_up = "MADE-UP DATA, " if plan.first.facts.stand_in else ""
    try:
        most = "up to " if plan.first.run.train.early_stop else ""
        title = f"{plan.first.run.name}: {made_up}{most}{count(plan.first.job.steps, 'step')}"
        draw(path, found, title, plan.baseline, plan.metric)
    except UserError as error:
        labelled(err(), "note", str(error))
        return None
    return path
