"""Progress: a bar at the bottom of a terminal, and the live line of a running job; elsewhere lines of text."""

import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from heapq import merge
from pathlib import Path, PurePath
from typing import Any, NamedTuple, Protocol

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn
from rich.table import Column

from persia_cli.commands.options import OUTPUT
from persia_cli.commands.screen import LABEL_WIDTH, clock, err, fitting, labelled, paragraph, say, size
from persia_cli.data.read.cache import cache_folder
from persia_cli.data.read.converted import Progress as ConversionProgress
from persia_cli.disk import is_full
from persia_cli.errors import count
from persia_cli.jobs.reporter import Reporter
from persia_cli.observe import staleness
from persia_cli.observe.history import outcome_of
from persia_cli.observe.journal import EVENTS, METRICS, Tail, understanding
from persia_cli.observe.journal_keys import OF_EVALUATIONS
from persia_cli.plan.job import Job

Line = Mapping[str, Any]

WIDE = 140
"""Width of a terminal that has space for a progress bar and all metrics."""

WARNING = "bold yellow"

FULL_EVERY_S = 60.0
"""Seconds between two warnings of a full disk, which its record cannot have."""
RANKS_APART = 4
"""Number of ranks above which they have one common histogram of staleness in the live line."""
BAR_WIDTH = 20
LINE_S = 10.0
"""Seconds between lines of progress where there is no terminal."""
ROOMY = 60
"""Width of a terminal that has space for a bar and two or three metrics."""


class ProgressBar:
    """A progress line on a terminal; nothing elsewhere."""

    def __init__(self, console: Console, phase: str, bar_from: int = ROOMY) -> None:
        """Begin in `phase`, with a bar on terminals of `bar_from` columns or more; erased at the end."""
        self._console = console
        self._has_bar = console.width >= bar_from
        self._progress = Progress(
            TextColumn("{task.description}", "bold", markup=False, table_column=_column(LABEL_WIDTH - 1)),
            *([BarColumn(bar_width=BAR_WIDTH)] if self._has_bar else []),
            TextColumn("{task.fields[parts]}", markup=False, table_column=_column(None)),
            console=console, disable=not console.is_terminal, transient=True,
        )  # fmt: skip
        self._task = self._progress.add_task(phase, total=None, parts="")

    def __enter__(self) -> "ProgressBar":
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()

    @property
    def console(self) -> Console:
        """The console for lines above it."""
        return self._progress.console

    @property
    def left_s(self) -> int | None:
        """Seconds left at the rate so far; None if unknown."""
        left = self._progress.tasks[0].time_remaining
        return None if left is None else round(left)

    @property
    def per_second(self) -> float | None:
        """Amount done per second; None if unknown."""
        return self._progress.tasks[0].speed

    def begin(self, phase: str) -> None:
        """Name the phase that begins."""
        self._progress.update(self._task, description=phase)

    def show(self, done: int, total: int | None, parts: Sequence[str]) -> None:
        """Move the bar, and show as many of these metrics, from the first, as fit."""
        self._progress.update(self._task, completed=done, total=total)
        self.show_parts(parts)

    def show_parts(self, parts: Sequence[str]) -> None:
        """Show as many of these metrics, from the first, as fit."""
        phase = max(LABEL_WIDTH, len(self._progress.tasks[0].description) + 1)
        room = self._console.width - phase - (BAR_WIDTH + 1 if self._has_bar else 0)
        self._progress.update(self._task, parts=fitting(parts, room))


@contextmanager
def counting(console: Console, phase: str, unit: str) -> Iterator[Callable[[int, int], None]]:
    """Yield a function that takes the amount done and the total, and shows them; without a terminal as lines."""
    with ProgressBar(console, phase) as bar:
        shown = time.monotonic()

        def show(done: int, total: int) -> None:
            nonlocal shown
            rate = [] if bar.per_second is None else [f"{bar.per_second:,.0f} {unit}/s"]
            parts = [f"{done:,}/{total:,} {unit}", f"{clock(bar.left_s if done < total else 0)} left", *rate]
            bar.show(done, total, parts)
            if not console.is_terminal and time.monotonic() - shown >= LINE_S:
                labelled(console, phase, "  ".join(parts))
                shown = time.monotonic()

        yield show


def bytes_done(bar: ProgressBar, done: int, total: int) -> list[str]:
    """Return the bytes done, the remaining time, and the speed, as texts."""
    rate = [] if bar.per_second is None else [f"{size(bar.per_second)}/s"]
    return [f"{size(done)}/{size(total)}", f"{clock(bar.left_s)} left", *rate]


def _column(least: int | None) -> Column:
    return Column(no_wrap=True, overflow="ellipsis", min_width=least)


class View(Protocol):
    """A display of events and metrics."""

    def event(self, line: Line) -> None:
        """Show a line of `events.jsonl`."""

    def metrics(self, line: Line) -> None:
        """Show a line of `metrics.jsonl`."""


@contextmanager
def following(console: Console, run_dir: Path, job: Job, batch_size: int) -> Iterator[Callable[[], None]]:
    """Show a job's progress while the context lasts; the function that it yields shows new lines."""
    tails = Tail(run_dir / EVENTS), Tail(run_dir / METRICS)
    warned_s = -FULL_EVERY_S

    def follow(view: View) -> None:
        nonlocal warned_s
        if time.monotonic() - warned_s > FULL_EVERY_S and is_full(run_dir):
            warned_s = time.monotonic()
            text = f"the disk of {run_dir} is full: the record waits in memory, and nothing is saved there; free space"
            view.event({"event": "warning", "time": time.time(), "text": text})
        with understanding(run_dir):
            for line in merge(*(tail.new() for tail in tails), key=lambda line: line["time"]):
                if _is_restored(line, job):
                    continue
                if "event" in line:
                    view.event(line)
                else:
                    view.metrics(line)

    if OUTPUT.as_json and not console.is_terminal:
        view = JsonView(console, job, batch_size)
        yield lambda: follow(view)
    else:
        with JobView(console, job, batch_size) as live:
            yield lambda: follow(live)


def _is_restored(line: Line, job: Job) -> bool:
    """Return True for a line up to the checkpoint that a job goes on from, which an earlier start has shown."""
    if line.get("event", "metrics") not in ("metrics", *OF_EVALUATIONS):
        return False
    is_due = job.evaluation_due and line.get("split") != "train"
    return bool(line["step"] < job.first_step or (line["step"] == job.first_step and not is_due and job.first_step))


class JsonView:
    """One JSON object per event or line of metrics, as the record has it."""

    def __init__(self, console: Console, job: Job, batch_size: int) -> None:
        self._console = console
        self._job = job
        self._batch_size = batch_size

    def event(self, line: Line) -> None:
        """Print the event."""
        self._print(line)

    def metrics(self, line: Line) -> None:
        """Print the metrics; those of training with the remaining seconds."""
        eta = {"eta_s": eta_s(line, self._job, self._batch_size)} if line["split"] == "train" else {}
        self._print({"event": "metrics", **line, **eta})

    def _print(self, line: Line) -> None:
        self._console.out(json.dumps(line), highlight=False)


class JobView:
    """A progress bar with the metrics of training next to it, and all else above it; without a terminal a line each."""

    def __init__(self, console: Console, job: Job, batch_size: int) -> None:
        self._job = job
        self._batch_size = batch_size
        self._bar = ProgressBar(console, "starting", bar_from=WIDE)

    def __enter__(self) -> "JobView":
        self._bar.__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        self._bar.__exit__(*error)

    def event(self, line: Line) -> None:
        """Show the phase in the progress bar; print warnings, notes and saved checkpoints above it."""
        kind = line["event"]
        if notice := notice_of(line):
            paragraph(self._bar.console, notice.text, f"{notice.label:<{LABEL_WIDTH}}", head_style=notice.style)
        if kind == "compiling":
            self._compile(line["done"], line["total"])
        elif kind == "ready":
            self._bar.begin("ready")
            self._bar.show(0, self._job.known_steps, [])
        elif kind == "phase":
            self._bar.begin(line["phase"])
        elif kind == "progress":
            self._show(line.get("doing"), progress_parts(line), line["rows"], line["of"])
        elif kind == "waiting":
            self._show(None, [f"{line['doing']}, {line['seconds']} s", line["replica"]], label="waiting")

    def metrics(self, line: Line) -> None:
        """Move the progress bar; print an evaluation above it."""
        if line["split"] != "train":
            labelled(self._bar.console, *evaluation_notice(line))
            return
        parts = live_parts(line, self._job, self._batch_size)
        shown = parts if self._bar.console.is_terminal else parts[:4]
        self._show("training", shown, line["step"], self._job.known_steps)

    def _compile(self, done: int, total: int) -> None:
        """Show how many kernels are compiled; without a terminal once, how many there are."""
        if not self._bar.console.is_terminal:
            if done == 0:
                labelled(self._bar.console, "compiling", f"{count(total, 'kernel')} for this processor")
        elif done < total:
            self._show("compiling", [f"{done}/{total} kernels"], done, total)
        else:
            self._bar.begin("starting")
            self._bar.show(0, None, ["all roles"])

    def _show(
        self, phase: str | None, parts: Sequence[str], done: int | None = None, total: int | None = None,
        label: str = "progress",
    ) -> None:  # fmt: skip
        """Show metrics in the bar, with its phase and its position if given; without a terminal as a line."""
        if not self._bar.console.is_terminal:
            if done != 0:
                labelled(self._bar.console, phase or label, "  ".join(parts))
            return
        if phase is not None:
            self._bar.begin(phase)
        if done is None:
            self._bar.show_parts(parts)
        else:
            self._bar.show(done, total, parts)


class Notice(NamedTuple):
    """A line for the user, which stays on the screen."""

    label: str
    text: str
    style: str = "bold"


def notice_of(line: Line) -> Notice | None:
    """Return the line that an event deserves; None for one that is only recorded, or shown as progress."""
    kind = line["event"]
    if kind == "ready" and "parameters" in line:
        return Notice("weights", f"{line['parameters']:,} in the dense network")
    if kind == "saved":
        return Notice("saved", line["path"].removeprefix(f"{Path.cwd()}/"))
    if kind == "save_failed":
        when = f"tried again in {line['retry_s']:g} s"
        return Notice("not saved", f"step {line['step']:,}, {when}: {line['text']}", WARNING)
    if kind == "warning":
        return Notice("warning", line["text"], WARNING)
    if kind == "bad_rows":
        return Notice(
            "left out", f"{count(line['rows'], 'row')} so far; the first of the last: {line['text']}", WARNING
        )
    if kind == "died":
        return Notice("died", f"{line['replica']} {line['cause']}; it gets a new process", WARNING)
    if kind == "recovered":
        return Notice("recovered", f"{line['replica']} {outcome_of(line)}")
    if kind in ("note", "stopped_early"):
        return Notice("note", line["text"])
    return None


def evaluation_notice(line: Line) -> tuple[str, str]:
    """Return label and text of an evaluation's metrics."""
    return "evaluated" if line["split"] == "eval" else "tested", f"step {line['step']:,}  {quality_text(line)}"


def progress_parts(line: Line) -> list[str]:
    """Return amount, remaining time and speed of an event of progress."""
    unit = "rows" if "doing" in line else "samples"
    done = f"{line['rows']:,}/{line['of']:,} {unit}"
    return [done, f"{clock(line['eta_s'])} left", f"{line['rows_per_s']:,.0f} {unit}/s"]


def training_parts(line: Line) -> list[str]:
    """Return step, quality, speed and remaining time of a line of training metrics with `eta_s`."""
    speed = f"{line['samples_per_s']:,.0f} samples/s"
    return [f"step {line['step']:,}", quality_text(line), speed, f"{clock(line.get('eta_s'))} left"]


def live_parts(line: Line, job: Job, batch_size: int) -> list[str]:
    """Return the metrics of a line of training and the remaining time, or how far it is behind its data, as texts."""
    is_known = job.known_steps is not None
    return [
        f"step {line['step']:,}/{job.steps:,}" if is_known else f"step {line['step']:,}",
        quality_text(line),
        f"{line['samples_per_s']:,.0f} samples/s",
        f"{clock(eta_s(line, job, batch_size))} left"
        if is_known
        else f"{clock(round(line.get('behind_s') or 0))} behind",
        f"staleness {line['staleness_mean']:.1f}, from 1 {_sparks(line)} to {line['staleness_max']}",
        f"{line['samples']:,} samples",
        f"{line['rows']:,} rows",
        *(["versions are held back"] if line.get("versions_held") else []),
    ]


def eta_s(line: Line, job: Job, batch_size: int) -> int | None:
    """Return the remaining seconds of training, by the rate of the last interval; None if its end is not known."""
    rate = line["samples_per_s"] if job.known_steps is not None else 0
    return round((job.steps - line["step"]) * batch_size / rate) if rate else None


def quality_text(line: Line) -> str:
    """Return loss, AUC, RMSE and retrieval metrics of a line as text."""
    metrics = {"loss": line["loss"]}
    for key, title in (("auc", "AUC"), ("rmse", "RMSE")):
        metrics |= {name.replace(key, title, 1): value for name, value in line.items() if name.startswith(key)}
    metrics |= {name: value for name, value in line.items() if name.startswith(("recall@", "ndcg@"))}
    # A metric may be undefined: for samples without weight, or of one class only.
    return "  ".join(f"{name} {'-' if value is None else f'{value:.4f}'}" for name, value in metrics.items())


def _sparks(line: Line) -> str:
    """Return the histogram of staleness, from 1 up, for each rank, or for many ranks together."""
    ranks = _staleness_of(line)
    return "|".join(map(staleness.in_sparks, ranks if len(ranks) <= RANKS_APART else [staleness.merged(ranks)]))


def _staleness_of(line: Line) -> list[staleness.Histogram]:
    """Return the histogram of each rank in a line of training metrics, whose JSON has the numbers as texts."""
    return [{int(value): steps for value, steps in rank.items()} for rank in line["staleness"]]


class ScreenReporter(Reporter):
    """Shows on stderr what a job reports."""

    def options(self) -> list[str]:
        """Return the options of `persia` on another machine whose output is shown here."""
        return ["--log-format", "json"] if OUTPUT.as_json else []

    def say(self, text: str) -> None:
        """Print a sentence."""
        say(err(), text)

    def labelled(self, label: str, text: str) -> None:
        """Print a sentence next to its label."""
        labelled(err(), label, text)

    @contextmanager
    def converting(self) -> Iterator[ConversionProgress]:
        """Yield a function that shows the conversion of text files: a bar over all of them, or a line for each."""
        announced: set[str] = set()
        with ProgressBar(err(), "reading") as bar:

            def show(path: str, done: int, total: int) -> None:
                if path not in announced and (not announced or not err().is_terminal):
                    files = "text files" if err().is_terminal else path
                    self.labelled("reading", f"{files} twice, to convert them to Parquet, once, in {cache_folder()}")
                announced.add(path)
                bar.show(done, total, [*bytes_done(bar, done, total), PurePath(path).name])

            yield show

    @contextmanager
    def following(self, run_dir: Path, job: Job, batch_size: int) -> Iterator[Callable[[], None]]:
        """Show a job's progress while the context lasts; the function that it yields shows new lines."""
        with following(err(), run_dir, job, batch_size) as follow:
            yield follow


SCREEN = ScreenReporter()
"""The reporter of this process."""
