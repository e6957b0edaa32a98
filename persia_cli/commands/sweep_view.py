"""How a sweep is shown: points as they finish, the table of settings, the picture."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from time import monotonic
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn
from rich.table import Column
from rich.text import Text

from persia_cli.commands.progress import clock
from persia_cli.commands.screen import columns, key_values, print_whole, say
from persia_cli.launch.sweep import Sweep
from persia_cli.launch.sweep_folder import Outcome
from persia_cli.observe.comparison import Mean, Row
from persia_cli.observe.journal import METRICS, Tail
from persia_cli.plan.grid import name_setting


class Shown:
    """Counts the points and says how long the rest will take."""

    def __init__(self, total: int, done: int) -> None:
        self.total, self.done = total, done
        self._begun = monotonic()
        self._at_start = done

    def left_s(self) -> float | None:
        """Seconds that the other points will take at the rate of those finished; None before the first."""
        finished = self.done - self._at_start
        return (monotonic() - self._begun) / finished * (self.total - self.done) if finished else None


@contextmanager
def showing(
    console: Console, shown: Shown, sweep: Sweep
) -> Iterator[tuple[Callable[[Outcome], None], Callable[[], None]]]:
    """Show points as they finish; yields what to tell of a finished one, and what to call in between."""
    if not console.is_terminal:

        def tell(outcome: Outcome) -> None:
            shown.done += 1
            say(console, key_values(_fields(outcome, shown)))

        yield tell, lambda: None
        return
    with _bar(console) as progress:
        task = progress.add_task("sweep", total=shown.total, completed=shown.done, figures="starting")
        tails: dict[Path, tuple[Tail, list[dict[str, Any]]]] = {}

        def end(outcome: Outcome) -> None:
            shown.done += 1
            progress.update(task, completed=shown.done)
            say(progress.console, _line(outcome))

        def follow() -> None:
            left = shown.left_s()
            running = [f"{each.point.label}{_step(each.run_dir, tails)}" for each in sweep.running]
            figures = [f"{shown.done}/{shown.total} points", f"{clock(None if left is None else round(left))} left"]
            progress.update(task, figures="  ".join([*figures, *running]))

        yield end, follow


def _bar(console: Console) -> Progress:
    return Progress(
        TextColumn("[bold]{task.description}"),
        BarColumn(bar_width=20),
        TextColumn("{task.fields[figures]}", table_column=Column(no_wrap=True, overflow="ellipsis")),
        console=console,
    )


def _step(run_dir: Path, tails: dict[Path, tuple[Tail, list[dict[str, Any]]]]) -> str:
    """Return where a running point is, from its last line of metrics."""
    tail, last = tails.setdefault(run_dir, (Tail(run_dir / METRICS), []))
    last[:] = [*last, *tail.new()][-1:]
    return f" at step {last[0]['step']:,}" if last else ""


def _fields(outcome: Outcome, shown: Shown) -> dict[str, Any]:
    left = shown.left_s()
    told = {"event": "point", "number": shown.done, "of": shown.total, **dict(outcome.point.swept)}
    told |= {"state": "failed" if outcome.error else "done", "seconds": outcome.seconds}
    if outcome.figures:
        told |= {key: round(v, 6) if isinstance(v, float) else v for key, v in asdict(outcome.figures).items()}
    if outcome.error:
        told["error"] = outcome.error
    return told | {"run_dir": outcome.run_dir, "eta_s": None if left is None else round(left)}


def _line(outcome: Outcome) -> Text:
    figures = outcome.figures
    if figures is None:
        return Text.assemble(("failed    ", "bold red"), f"{outcome.point.label}: {outcome.error}")
    quality = [f"AUC {_plain(figures.auc, '.5f')}", f"log loss {_plain(figures.log_loss, '.5f')}"]
    speed = f"{_plain(figures.samples_per_s, ',.0f')} samples/s"
    return Text.assemble(
        ("done      ", "bold"), f"{outcome.point.label}  {'  '.join(quality)}  {speed}  {clock(round(outcome.seconds))}"
    )


def show_table(console: Console, rows: Sequence[Row]) -> None:
    """Print a row per setting: a table on a terminal, else a `key=value` line each with every digit."""
    if not console.is_terminal:
        for row in rows:
            say(console, key_values(as_object(row, flat=True)))
        return
    paired = any(row.difference for row in rows)
    names = ["seeds", "samples/s", "AUC", "log loss", "steps", "staleness"]
    table = columns("setting", *names, *(["AUC to baseline", "|mean| + 2 se"] if paired else []))
    for row in rows:
        cells = [
            str(row.finished),
            spread(row.samples_per_s, ",.0f"),
            spread(row.auc, ".5f"),
            spread(row.log_loss, ".5f"),
            _plain(row.steps, ","),
            "-" if row.staleness_share is None else f"{row.staleness_max} ({row.staleness_share:.2%})",
        ]
        if paired:
            difference = row.difference
            bound = "-" if difference is None else _plain(difference.bound, ".5f")
            gap = spread(difference.auc if difference else None, "+.5f")
            cells += ["baseline" if row.baseline is None else gap, bound]
        failed = Text.assemble("  ", (f"{row.failed} failed", "bold red")) if row.failed else ""
        table.add_row(Text.assemble(name_setting(row.setting), failed), *cells)
    print_whole(console, table)


def as_object(row: Row, flat: bool = False) -> dict[str, Any]:
    """Return a row for `--json`, or with a key for every figure for a plain line."""
    told: dict[str, Any] = dict(row.setting) if flat else {"setting": dict(row.setting)}
    told |= {"finished": row.finished, "failed": row.failed}
    for name, mean in {"samples_per_s": row.samples_per_s, "auc": row.auc, "log_loss": row.log_loss}.items():
        told |= _mean_object(name, mean, flat)
    told |= {"steps": row.steps, "staleness_max": row.staleness_max, "staleness_share": row.staleness_share}
    if row.baseline is not None:
        difference = row.difference
        told["baseline"] = name_setting(row.baseline) if flat else dict(row.baseline)
        told |= _mean_object("auc_difference", difference.auc if difference else None, flat)
        told["auc_difference_bound"] = difference and difference.bound
    return told


def _mean_object(name: str, mean: Mean | None, flat: bool) -> dict[str, Any]:
    if not flat:
        return {name: mean and {"mean": mean.mean, "standard_error": mean.error, "count": mean.count}}
    return {name: mean and mean.mean, f"{name}_se": mean and mean.error}


def legend(baseline: str | None) -> str:
    """Say in a line how the table is read."""
    text = "mean ± standard error over seeds; staleness: the most that was measured, and its share of the steps"
    return text + (f"; differences to {baseline}, same seed against same seed" if baseline else "")


def spread(mean: Mean | None, form: str) -> str:
    """Return `mean ± standard error`, the mean alone for one value, `-` for none."""
    if mean is None:
        return "-"
    error = "" if mean.error is None else f" ± {mean.error:{form.lstrip('+')}}"
    return f"{mean.mean:{form}}{error}"


def _plain(value: float | None, form: str) -> str:
    return "-" if value is None else f"{value:{form}}"
