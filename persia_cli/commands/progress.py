"""Progress of a running job: one live line on a terminal, one `key=value` line per event elsewhere."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from heapq import merge
from pathlib import Path
from typing import Any, Protocol

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn
from rich.table import Column
from rich.text import Text

from persia_cli.commands.results import in_words, staleness_of, without_time
from persia_cli.commands.screen import LABEL_WIDTH, key_values, say
from persia_cli.observe.journal import EVENTS, METRICS, Tail
from persia_cli.observe.staleness import in_sparks, merged
from persia_cli.plan.job import Job

Line = dict[str, Any]

WIDE = 140
"""Columns of a terminal that has room for a bar beside all figures."""


FINDINGS = ("roles", "tables", "reliability", "scored")
"""Events that are for the record: what people want of them they are told at the end."""

RANKS_APART = 4
"""More ranks than these share one histogram of staleness in the live line."""


class View(Protocol):
    """Shows what happens."""

    def event(self, line: Line) -> None:
        """Show a line of `events.jsonl`."""

    def metrics(self, line: Line) -> None:
        """Show a line of `metrics.jsonl`."""


@contextmanager
def following(console: Console, run_dir: Path, job: Job, batch_size: int) -> Iterator[Callable[[], None]]:
    """Show a job's progress while the context lasts; the function it yields shows what is new."""
    tails = Tail(run_dir / EVENTS), Tail(run_dir / METRICS)

    def follow(view: View) -> None:
        for line in merge(*(tail.new() for tail in tails), key=lambda line: line["time"]):
            (view.event if "event" in line else view.metrics)(line)

    if console.is_terminal:
        with LiveView(console, job, batch_size) as live:
            yield lambda: follow(live)
    else:
        plain = PlainView(console, job, batch_size)
        yield lambda: follow(plain)


class PlainView:
    """One line per event, its keys stable."""

    def __init__(self, console: Console, job: Job, batch_size: int) -> None:
        self._console = console
        self._job = job
        self._batch_size = batch_size

    def event(self, line: Line) -> None:
        """Print the event, lists as counts; of compiling the first and last kernel, of what roles found nothing."""
        kind = line["event"]
        if kind in FINDINGS or (kind == "compiling" and line["done"] not in (1, line["total"])):
            return
        fields = {key: len(value) if isinstance(value, list) else value for key, value in without_time(line).items()}
        say(self._console, key_values(fields))

    def metrics(self, line: Line) -> None:
        """Print the figures to six digits (`metrics.jsonl` has them all), those of training with the seconds left."""
        eta = {"eta_s": eta_s(line, self._job, self._batch_size)} if line["split"] == "train" else {}
        figures = {key: float(f"{v:.6g}") if isinstance(v, float) else v for key, v in in_words(line).items()}
        say(self._console, key_values({"event": "metrics"} | figures | eta))


class LiveView:
    """A bar that moves, with the figures of training beside it; everything else scrolls by above it."""

    def __init__(self, console: Console, job: Job, batch_size: int) -> None:
        self._job = job
        self._batch_size = batch_size
        self._progress = Progress(
            TextColumn("[bold]{task.description}", table_column=Column(no_wrap=True, min_width=LABEL_WIDTH)),
            *([BarColumn(bar_width=20)] if console.width >= WIDE else []),
            TextColumn("{task.fields[figures]}", table_column=Column(no_wrap=True, overflow="ellipsis")),
            console=console,
        )
        self._task = self._progress.add_task("starting", total=None, figures="")

    def __enter__(self) -> "LiveView":
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()

    def event(self, line: Line) -> None:
        """Show the phase in the bar; print warnings, notes and what was saved above it."""
        kind = line["event"]
        if kind == "compiling":
            if line["done"] < line["total"]:
                self._show("compiling", line["done"], line["total"], f"{line['done']}/{line['total']} kernels")
            else:
                self._show("starting", 0, None, "all roles")
        elif kind == "ready":
            self._show("ready", 0, self._job.steps or None, "")
            if "parameters" in line:
                self._print("model", f"{line['parameters']:,} dense parameters")
        elif kind == "phase":
            self._progress.update(self._task, description=line["phase"])
        elif kind == "progress":
            figures = f"{line['rows']:,}/{line['of']:,} samples  {line['rows_per_s']:,.0f} samples/s"
            self._progress.update(
                self._task, completed=line["rows"], total=line["of"], figures=f"{figures}  {clock(line['eta_s'])} left"
            )
        elif kind == "saved":
            self._print("saved", f"{line['path']}")
        elif kind == "warning":
            self._print("warning", line["text"], "bold yellow")
        elif kind in ("note", "stopped_early"):
            self._print("note", line["text"])

    def metrics(self, line: Line) -> None:
        """Move the bar; print an evaluation above it."""
        if line["split"] == "eval":
            self._print("evaluated", f"step {line['step']}: {_quality(line)}")
            return
        left = eta_s(line, self._job, self._batch_size)
        parts = [
            f"step {line['step']:,}/{self._job.steps:,}",
            _quality(line),
            f"{line['samples_per_s']:,.0f} samples/s",
            f"{clock(left)} left",
            f"stale {line['staleness_mean']:.1f} (max {line['staleness_max']}) {_sparks(line)}",
            f"{line['samples']:,} samples",
            f"{line['rows']:,} rows",
        ]
        self._show("training", line["step"], self._job.steps, "  ".join(parts))

    def _show(self, phase: str, done: int, total: int | None, figures: str) -> None:
        self._progress.update(self._task, description=phase, completed=done, total=total, figures=figures)

    def _print(self, label: str, text: str, style: str = "bold") -> None:
        say(self._progress.console, Text.assemble((f"{label:<{LABEL_WIDTH}}", style), " ", text))


def eta_s(line: Line, job: Job, batch_size: int) -> int | None:
    """Return the seconds that training will take yet, from the rate of the last interval."""
    rate = line["samples_per_s"]
    return round((job.steps - line["step"]) * batch_size / rate) if rate else None


def _quality(line: Line) -> str:
    figures = {"loss": line["loss"]} | {k.replace("auc", "AUC"): v for k, v in line.items() if k.startswith("auc")}
    # A figure may be undefined: of samples without weight, or of one class alone.
    return "  ".join(f"{name} {'-' if value is None else f'{value:.4f}'}" for name, value in figures.items())


def _sparks(line: Line) -> str:
    """Return how often each staleness was, from 1 up: of every rank, or of many ranks together."""
    ranks = staleness_of(line)
    return "|".join(map(in_sparks, ranks if len(ranks) <= RANKS_APART else [merged(ranks)]))


def clock(seconds: int | None) -> str:
    """Return seconds as `m:ss` or `h:mm:ss`, `?` for None."""
    if seconds is None:
        return "?"
    minutes, seconds = divmod(seconds, 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{seconds:02}" if hours else f"{minutes}:{seconds:02}"
