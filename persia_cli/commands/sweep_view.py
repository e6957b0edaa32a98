"""A sweep on the screen: its points are trained, shown as they finish, and compared in a table and on a page."""

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from time import monotonic, time
from typing import Any

import typer
from rich.console import Console
from rich.text import Text

from persia_cli.commands.progress import ProgressBar
from persia_cli.commands.screen import LABEL_WIDTH, clock, err, labelled, out, paragraph, propose, say, say_json
from persia_cli.commands.tables import columns, print_table
from persia_cli.dashboard.page_file import sweep_file
from persia_cli.disk import write_whole
from persia_cli.engines.driver_process import INTERRUPTED
from persia_cli.engines.output import keep_output
from persia_cli.errors import PersiaError, count
from persia_cli.observe.history import metric_name
from persia_cli.observe.journal import METRICS, Tail
from persia_cli.sweeps.comparison import Mean, Row
from persia_cli.sweeps.folder import (
    PAGE,
    RESULTS,
    SETTINGS,
    SETTINGS_TABLE,
    TABLE,
    PointOutcome,
    claimed,
    point_object,
    run_dir_of,
    write_settings,
)
from persia_cli.sweeps.plan import SweepPlan, chosen_row, compare_settings, fallen, quality_of, unfinished, verdict
from persia_cli.sweeps.points import Axis, Point, name_setting, settings_of, value_of
from persia_cli.sweeps.runner import Sweep

SHOWN = 10
"""Settings of a search in the table, the best ones; `settings.csv` has all."""


class _Progress:
    """Points shown as they finish, and below them a bar with the remaining time and the running points."""

    def __init__(self, bar: ProgressBar, plan: SweepPlan, sweep: Sweep) -> None:
        self._bar, self._plan, self._sweep = bar, plan, sweep
        self._started_s = monotonic()
        self._done = self._done_at_start = sum(each.error is None for each in sweep.outcomes.values())
        self._steps: dict[Path, tuple[Tail, str]] = {}
        bar.show(self._done, plan.total, ["starting"])

    def end(self, outcome: PointOutcome) -> None:
        """Show the result of a point."""
        self._done += 1
        console = self._bar.console
        _show_point(console, outcome, self._plan.metrics, "" if console.is_terminal else f"  {self._text()}")

    def follow(self) -> None:
        """Show the running points."""
        running = [f"{point.label}{self._step(run_dir)}" for point, run_dir in self._sweep.running]
        self._bar.show(self._done, self._plan.total, [self._text(), *running])

    def _text(self) -> str:
        """Return the finished points, and the time for the remaining ones at the rate of those."""
        finished, total = self._done - self._done_at_start, self._plan.total
        left_s = (monotonic() - self._started_s) / finished * (total - self._done) if finished else None
        return f"{self._done}/{total} points  {clock(None if left_s is None else round(left_s))} left"

    def _step(self, run_dir: Path) -> str:
        """Return the step of a running point, from its last line of metrics."""
        tail, text = self._steps.get(run_dir, (Tail(run_dir / METRICS), ""))
        for line in tail.new():
            text = f" at step {line['step']:,}"
        self._steps[run_dir] = tail, text
        return text


def _show_point(console: Console, outcome: PointOutcome, names: Sequence[str], rest: str) -> None:
    """Print the result of a finished point, and the `rest` of its line."""
    metrics = outcome.metrics
    if metrics is None:
        text = f"{outcome.point.label}: {outcome.error}{rest}"
        paragraph(console, text, f"{'failed':<{LABEL_WIDTH}}", head_style="bold red")
        return
    quality = [f"{metric_name(name)} {_plain(metrics.quality.get(name), '.5f')}" for name in names]
    speed = f"{_plain(metrics.samples_per_s, ',.0f')} samples/s"
    text = f"{outcome.point.label}  {'  '.join(quality)}  {speed}  {clock(round(outcome.seconds))}{rest}"
    labelled(console, outcome.state, text)


def described(axis: Axis) -> str:
    """Return the values of an axis of a search."""
    span = axis.span
    if span is None:
        return "one of " + ", ".join(map(value_of, axis.arguments))
    kind = "whole numbers from" if span.is_whole else "from"
    scale = ", on a logarithmic scale" if span.log else ""
    step = "" if span.step is None else f" by steps of {span.step:g}"
    return f"{kind} {span.low:g} to {span.high:g}{step}{scale}"


def show_table(console: Console, rows: Sequence[Row]) -> None:
    """Print a row per setting."""
    paired = any(row.difference for row in rows)
    metrics = [metric_name(metric) for metric in rows[0].quality]
    names = ["seeds", "samples/s", *metrics, "at step", "steps", "staleness"]
    table = columns("setting", *names, *([f"{metrics[0]} to baseline", "differs"] if paired else []))
    for row in rows:
        cells = [
            str(row.finished),
            spread(row.samples_per_s, ",.0f"),
            *(spread(mean, ".5f") for mean in row.quality.values()),
            _steps(row.judged_steps),
            _plain(row.steps, ","),
            "-" if row.staleness_fraction is None else f"{row.staleness_max} ({row.staleness_fraction:.2%})",
        ]
        if paired:
            believed = row.difference and row.difference.is_not_zero
            gap = "baseline" if row.baseline is None else spread(row.difference, "+.5f")
            cells += [gap, "-" if believed is None else "yes" if believed else "no"]
        failed = Text.assemble("  ", (f"{row.failed} failed", "bold red")) if row.failed else ""
        table.add_row(Text.assemble(name_setting(row.setting), failed), *cells)
    print_table(console, table)


def as_object(row: Row, flat: bool = False) -> dict[str, Any]:
    """Return a row for `--json`; with `flat`, for a row of a file, every number has a key."""
    fields: dict[str, Any] = dict(row.setting) if flat else {"setting": dict(row.setting)}
    fields |= {"finished": row.finished, "failed": row.failed}
    for name, mean in {"samples_per_s": row.samples_per_s, **row.quality}.items():
        fields |= _mean_object(name, mean, flat)
    fields["judged_steps"] = ";".join(map(str, row.judged_steps)) if flat else list(row.judged_steps)
    fields |= {"steps": row.steps, "staleness_max": row.staleness_max, "staleness_fraction": row.staleness_fraction}
    if row.baseline is not None:
        fields["baseline"] = name_setting(row.baseline) if flat else dict(row.baseline)
        fields |= _mean_object(f"{next(iter(row.quality))}_difference", row.difference, flat)
        fields["differs"] = row.difference and row.difference.is_not_zero
    return fields


def _mean_object(name: str, mean: Mean | None, flat: bool) -> dict[str, Any]:
    low, high = (
        (None, None) if mean is None or mean.margin is None else (mean.mean - mean.margin, mean.mean + mean.margin)
    )
    if flat:
        return {name: mean and mean.mean, f"{name}_se": mean and mean.error, f"{name}_low": low, f"{name}_high": high}
    if mean is None:
        return {name: None}
    return {name: {"mean": mean.mean, "standard_error": mean.error, "low": low, "high": high, "count": mean.count}}


def legend(metric: str, baseline: str | None) -> str:
    """Return an explanation of the table."""
    text = (
        "± is the 95 % confidence interval over seeds or folds, by Student's t; one has none. Each point counts with "
        f"the evaluation that it selected itself, else with its best by {metric} (at step). Staleness: the greatest "
        "that was measured, and its fraction of the steps"
    )
    if baseline is None:
        return text
    return f"{text}. Differences are to {baseline}, same seed against same seed; one differs if its interval excludes 0"


def _steps(steps: Sequence[int]) -> str:
    """Return one step, or the first and the last of several; `-` for none."""
    return "-" if not steps else "-".join(f"{step:,}" for step in sorted({steps[0], steps[-1]}))


def tuned(metric: str, mean: Mean) -> str:
    """Return a metric with its standard error, by which settings are chosen."""
    error = "" if mean.error is None else f", standard error {mean.error:.5f} of {mean.count} runs"
    return f"{metric} {spread(mean, '.5f')}{error}"


def spread(mean: Mean | None, form: str) -> str:
    """Return `mean ± half the confidence interval`, the mean alone for one value, `-` for none."""
    if mean is None:
        return "-"
    margin = "" if mean.margin is None else f" ± {mean.margin:{form.lstrip('+')}}"
    return f"{mean.mean:{form}}{margin}"


def _plain(value: float | None, form: str) -> str:
    return "-" if value is None else f"{value:{form}}"


def list_points(plan: SweepPlan) -> None:
    """Print the settings of each point, or the values that a search chooses from."""
    outcomes = plan.outcomes()
    if plan.space is None:
        points = unfinished(plan, outcomes)
        for number, each in enumerate(plan.grid):
            if each.point in points:
                say(out(), shlex.join(plan.command(each.point, run_dir_of(plan.folder, number, each.point))))
    else:
        for axis in plan.space.swept:
            say(out(), f"{axis.key}: {described(axis)}")
    labelled(err(), "points", _number_of_points(plan, outcomes))


def _number_of_points(plan: SweepPlan, outcomes: Mapping[Point, PointOutcome]) -> str:
    """Return as text the number of points, and of those finished."""
    settings, search = settings_of([planned.point for planned in plan.grid]), plan.request.search
    text = f"{count(len(plan.grid), 'point')}, {count(len(settings), 'setting')}"
    if search is not None:
        pruned = ", the worse ones ended early" if search.prune else ""
        again = f", then the best {search.best} and the defaults on {search.seeds} other seeds" if search.best else ""
        text = f"the defaults and {count(search.trials, 'trial')} by {search.sampler} for {plan.metric}{pruned}{again}"
    finished = sum(each.error is None for each in outcomes.values())
    return text + (f", {finished} finished before" if finished else "")


def carry_out(plan: SweepPlan, jobs: int, limit_s: float, as_json: bool) -> None:
    """Train the points and print the results; exit with code 1 if a point failed."""
    if plan.new:
        folder = plan.request.write(plan.folder, [each.run for each in plan.grid], plan.numbered)
        plan = replace(plan, folder=folder)
    try:
        with claimed(plan.folder):
            keep_output(plan.folder)
            sweep = Sweep(plan, jobs, limit_s)
            labelled(err(), "sweep", f"{_number_of_points(plan, sweep.outcomes)} in {plan.folder}")
            if plan.first.facts.stand_in:
                labelled(err(), "data", plan.first.facts.source)
            with ProgressBar(err(), "sweep") as bar:
                progress = _Progress(bar, plan, sweep)
                sweep.run(progress.end, progress.follow)
    except KeyboardInterrupt:
        say(err(), "interrupted; everything is stopped, and finished points are kept")
        propose(err(), f"persia sweep --resume {shlex.quote(str(plan.folder))}")
        raise typer.Exit(INTERRUPTED) from None
    _show(plan, list(sweep.outcomes.values()), as_json)


def _show(plan: SweepPlan, outcomes: Sequence[PointOutcome], as_json: bool) -> None:
    rows = compare_settings(plan, outcomes)
    write_settings(plan.folder, [as_object(row) for row in rows], [as_object(row, flat=True) for row in rows])
    shown = rows if plan.space is None else rows[:SHOWN]
    page = plan.folder / PAGE
    write_whole(page, sweep_file(plan.folder, _title(plan), plan.metric, time()))
    failed = [outcome for outcome in outcomes if outcome.error]
    if as_json:
        say_json(_as_object(plan, rows, outcomes))
    elif shown:
        show_table(out(), shown)
        paragraph(err(), legend(plan.metric, plan.baseline), style="dim")
    for outcome in failed:
        labelled(err(), "failed", f"{outcome.point.label}: {outcome.error}")
    labelled(err(), "results", f"{plan.folder / SETTINGS_TABLE}, {SETTINGS}, {TABLE}, {RESULTS}")
    labelled(err(), "page", str(page))
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
    one = next(outcome for outcome in outcomes if outcome.point.setting == best.setting)
    config = shlex.quote(str(plan.folder / one.run_dir / "config.yaml"))
    propose(err(), f"persia train conf={config} checkpoint.at_end=true")


def _as_object(plan: SweepPlan, rows: Sequence[Row], outcomes: Sequence[PointOutcome]) -> dict[str, Any]:
    return {
        "folder": str(plan.folder),
        "stand_in": plan.first.facts.stand_in,
        "baseline": plan.baseline,
        "metric": plan.metric,
        "search": plan.request.search and asdict(plan.request.search),
        "chosen": dict(chosen_row(plan, rows).setting) if plan.space and rows else None,
        "settings": [as_object(row) for row in rows],
        "points": [point_object(outcome) for outcome in outcomes],
        "page": str(plan.folder / PAGE),
    }


def _title(plan: SweepPlan) -> str:
    prefix = "MADE-UP DATA, " if plan.first.facts.stand_in else ""
    most = "up to " if plan.first.run.train.early_stop else ""
    return f"{plan.first.run.name}: {prefix}{most}{count(plan.first.job.steps, 'step')}"
