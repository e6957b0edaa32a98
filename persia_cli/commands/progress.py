"""Progress of a running job: one live line on a terminal, one `key=value` line per event elsewhere."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from heapq import merge
from pathlib import Path
from typing import Any, Protocol

from rich.console import Console

from persia_cli.commands.progress_bar import ProgressBar
from persia_cli.commands.results import in_words, staleness_of, without_time
from persia_cli.commands.screen import LABEL_WIDTH, clock, key_values, paragraph, say
from persia_cli.observe.journal import EVENTS, METRICS, Tail, understanding
from persia_cli.observe.recoveries import outcome_of
from persia_cli.observe.staleness import in_sparks, merged
from persia_cli.plan.job import Job

Line = dict[str, Any]

WIDE = 140
"""Width of a terminal that has room for a progress bar beside all figures."""

FINDINGS = ("roles", "tables", "reliability", "scored", "warm_start")
"""Events that are only recorded: what users need from them is shown before the job or in the results at its end."""

STALENESS = "steps from reading a row to its update: mean, most, bars for 1, 2, 3 …"
"""The meaning of `stale` in the live line."""

RANKS_APART = 4
"""Number of ranks above which they have one common histogram of staleness in the live line."""


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

    def follow(view: View) -> None:
        with understanding(run_dir):
            for line in merge(*(tail.new() for tail in tails), key=lambda line: line["time"]):
                (view.event if "event" in line else view.metrics)(line)

    if console.is_terminal:
        with LiveView(console, job, batch_size) as live:
            yield lambda: follow(live)
    else:
        plain = PlainView(console, job, batch_size)
        yield lambda: follow(plain)


class PlainView:
    """One line per event, with stable keys."""

    def __init__(self, console: Console, job: Job, batch_size: int) -> None:
        self._console = console
        self._job = job
        self._batch_size = batch_size

    def event(self, line: Line) -> None:
        """Print the event, with lists as counts; skip the middle of compiling, and roles' events without findings."""
        kind = line["event"]
        if kind in FINDINGS or (kind == "compiling" and line["done"] not in (0, line["total"])):
            return
        fields = {key: len(value) if isinstance(value, list) else value for key, value in without_time(line).items()}
        say(self._console, key_values(fields))

    def metrics(self, line: Line) -> None:
        """Print the figures to six digits (`metrics.jsonl` has all); those of training with the remaining seconds."""
        eta = {"eta_s": eta_s(line, self._job, self._batch_size)} if line["split"] == "train" else {}
        figures = {key: float(f"{v:.6g}") if isinstance(v, float) else v for key, v in in_words(line).items()}
        say(self._console, key_values({"event": "metrics"} | figures | eta))


class LiveView:
    """A progress bar with the figures of training beside it; all else scrolls by above it."""

    def __init__(self, console: Console, job: Job, batch_size: int) -> None:
        self._job = job
        self._batch_size = batch_size
        self._explained = False
        self._bar = ProgressBar(console, "starting", bar_from=WIDE)

    def __enter__(self) -> "LiveView":
        self._bar.__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        self._bar.__exit__(*error)

    def event(self, line: Line) -> None:
        """Show the phase in the progress bar; print warnings, notes and saved checkpoints above it."""
        kind = line["event"]
        if kind == "compiling":
            if line["done"] < line["total"]:
                self._show("compiling", line["done"], line["total"], [f"{line['done']}/{line['total']} kernels"])
            else:
                self._show("starting", 0, None, ["all roles"])
        elif kind == "ready":
            self._show("ready", 0, self._job.steps or None, [])
            if "parameters" in line:
                self._print("model", f"{line['parameters']:,} dense parameters")
        elif kind == "phase":
            self._bar.begin(line["phase"])
        elif kind == "progress":
            unit = "samples"
            if "doing" in line:
                self._bar.begin(line["doing"])
                unit = "rows"
            parts = [
                f"{line['rows']:,}/{line['of']:,} {unit}",
                f"{clock(line['eta_s'])} left",
                f"{line['rows_per_s']:,.0f} {unit}/s",
            ]
            self._bar.show(line["rows"], line["of"], parts)
        elif kind == "waiting":
            self._bar.show_figures([f"{line['doing']}, {line['seconds']} s", line["replica"]])
        elif kind == "saved":
            self._print("saved", f"{line['path']}")
        elif kind == "save_failed":
            self._print("not saved", f"step {line['step']:,}, training goes on: {line['text']}", "bold yellow")
        elif kind == "warning":
            self._print("warning", line["text"], "bold yellow")
        elif kind == "died":
            self._print("died", f"{line['replica']} {line['cause']}; it gets a new process", "bold yellow")
        elif kind == "recovered":
            self._print("recovered", f"{line['replica']} {outcome_of(line)}")
        elif kind in ("note", "stopped_early"):
            self._print("note", line["text"])

    def metrics(self, line: Line) -> None:
        """Move the progress bar; print an evaluation above it."""
        if line["split"] != "train":
            self._print("evaluated" if line["split"] == "eval" else "tested", f"step {line['step']}: {_quality(line)}")
            return
        if not self._explained:
            self._explained = True
            self._print("stale", STALENESS, "")
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
        self._show("training", line["step"], self._job.steps, parts)

    def _show(self, phase: str, done: int, total: int | None, parts: Sequence[str]) -> None:
        self._bar.begin(phase)
        self._bar.show(done, total, parts)

    def _print(self, label: str, text: str, style: str = "bold") -> None:
        paragraph(self._bar.console, text, f"{label:<{LABEL_WIDTH}}", head_style=style)


def eta_s(line: Line, job: Job, batch_size: int) -> int | None:
    """Return the remaining seconds of training, by the rate of the last interval."""
    rate = line["samples_per_s"]
    return round((job.steps - line["step"]) * batch_size / rate) if rate else None


def _quality(line: Line) -> str:
    figures = {"loss": line["loss"]}
    for key, word in (("auc", "AUC"), ("rmse", "RMSE")):
        figures |= {name.replace(key, word, 1): value for name, value in line.items() if name.startswith(key)}
    figures |= {name: value for name, value in line.items() if name.startswith(("recall@", "ndcg@"))}
    # A figure may be undefined: for samples without weight, or of one class only.
    return "  ".join(f"{name} {'-' if value is None else f'{value:.4f}'}" for name, value in figures.items())


def _sparks(line: Line) -> str:
    """Return the histogram of staleness, from 1 up, for each rank, or for many ranks together."""
    ranks = staleness_of(line)
    return "|".join(map(in_sparks, ranks if len(ranks) <= RANKS_APART else [merged(ranks)]))
