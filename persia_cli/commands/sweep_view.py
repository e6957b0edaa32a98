"""The output of a sweep: points as they finish, the table of settings, the legend."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from time import monotonic
from typing import Any

from rich.console import Console
from rich.text import Text

from persia_cli.commands.progress_bar import ProgressBar
from persia_cli.commands.screen import LABEL_WIDTH, clock, key_values, labelled, paragraph, say
from persia_cli.commands.screen_tables import columns, print_whole
from persia_cli.observe.history import QUALITY
from persia_cli.observe.journal import METRICS, Tail
from persia_cli.sweeps.comparison import Mean, Row
from persia_cli.sweeps.folder import PointOutcome
from persia_cli.sweeps.points import Axis, name_setting, value_of
from persia_cli.sweeps.processes import Sweep


class Shown:
    """The number of finished points, and the remaining time."""

    def __init__(self, total: int, done: int, metrics: Sequence[str] = ("auc", "log_loss")) -> None:
        self.total, self.done, self.metrics = total, done, metrics
        self._begun = monotonic()
        self._at_start = done

    def left_s(self) -> float | None:
        """Seconds for the remaining points at the rate of the finished ones; None before the first."""
        finished = self.done - self._at_start
        return (monotonic() - self._begun) / finished * (self.total - self.done) if finished else None


@contextmanager
def showing(
    console: Console, shown: Shown, sweep: Sweep
) -> Iterator[tuple[Callable[[PointOutcome], None], Callable[[], None]]]:
    """Show points as they finish; yield a function for a finished point, and one to call in between."""
    if not console.is_terminal:

        def report(outcome: PointOutcome) -> None:
            shown.done += 1
            say(console, key_values(_fields(outcome, shown)))

        yield report, lambda: None
        return
    with ProgressBar(console, "sweep") as bar:
        bar.show(shown.done, shown.total, ["starting"])
        tails: dict[Path, tuple[Tail, list[dict[str, Any]]]] = {}

        def end(outcome: PointOutcome) -> None:
            shown.done += 1
            _show_point(bar.console, outcome, shown.metrics)

        def follow() -> None:
            left = shown.left_s()
            running = [f"{each.point.label}{_step(each.run_dir, tails)}" for each in sweep.running]
            figures = [f"{shown.done}/{shown.total} points", f"{clock(None if left is None else round(left))} left"]
            bar.show(shown.done, shown.total, [*figures, *running])

        yield end, follow


def _step(run_dir: Path, tails: dict[Path, tuple[Tail, list[dict[str, Any]]]]) -> str:
    """Return the step of a running point, from its last line of metrics."""
    tail, last = tails.setdefault(run_dir, (Tail(run_dir / METRICS), []))
    last[:] = [*last, *tail.new()][-1:]
    return f" at step {last[0]['step']:,}" if last else ""


def _fields(outcome: PointOutcome, shown: Shown) -> dict[str, Any]:
    left = shown.left_s()
    fields = {"event": "point", "number": shown.done, "of": shown.total, **dict(outcome.point.swept)}
    fields |= {"state": outcome.state, "seconds": outcome.seconds}
    if outcome.figures:
        figures = asdict(outcome.figures)
        quality = figures.pop("quality")
        fields |= {key: round(v, 6) if isinstance(v, float) else v for key, v in (figures | quality).items()}
    if outcome.error:
        fields["error"] = outcome.error
    return fields | {"run_dir": outcome.run_dir, "eta_s": None if left is None else round(left)}


def _show_point(console: Console, outcome: PointOutcome, metrics: Sequence[str]) -> None:
    figures = outcome.figures
    if figures is None:
        paragraph(
            console, f"{outcome.point.label}: {outcome.error}", f"{'failed':<{LABEL_WIDTH}}", head_style="bold red"
        )
        return
    quality = [f"{named(each)} {_plain(figures.quality.get(each), '.5f')}" for each in metrics]
    speed = f"{_plain(figures.samples_per_s, ',.0f')} samples/s"
    words = f"{outcome.point.label}  {'  '.join(quality)}  {speed}  {clock(round(outcome.seconds))}"
    labelled(console, outcome.state, words)


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
    """Print a row per setting: a table on a terminal, else a `key=value` line each with every digit."""
    if not console.is_terminal:
        for row in rows:
            say(console, key_values(as_object(row, flat=True)))
        return
    paired = any(row.difference for row in rows)
    metrics = [named(metric) for metric in rows[0].quality]
    names = ["seeds", "samples/s", *metrics, "at step", "steps", "staleness"]
    table = columns("setting", *names, *([f"{metrics[0]} to baseline", "differs"] if paired else []))
    for row in rows:
        cells = [
            str(row.finished),
            spread(row.samples_per_s, ",.0f"),
            *(spread(each, ".5f") for each in row.quality.values()),
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
    print_whole(console, table)


def as_object(row: Row, flat: bool = False) -> dict[str, Any]:
    """Return a row for `--json`; with `flat`, for a plain line, every number has a key."""
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


def named(metric: str) -> str:
    """Return the name of a metric in a table."""
    figure = next((figure for figure in QUALITY if metric == figure or metric.startswith(f"{figure}_")), None)
    return metric if figure is None else QUALITY[figure] + metric.removeprefix(figure).replace("_", " ", 1)


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
