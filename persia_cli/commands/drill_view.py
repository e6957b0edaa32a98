"""The output of drills: the disturbances as they happen, and the table of what they cost."""

import json
import shlex
import time
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from persia_cli.commands.progress_bar import ProgressBar
from persia_cli.commands.screen import err, key_values, labelled, out, pairs, propose, say
from persia_cli.commands.screen_tables import columns, print_rows
from persia_cli.disk import write_whole
from persia_cli.drill.plan import Disturbance
from persia_cli.drill.result import DrillResult, StrikeResult
from persia_cli.errors import count
from persia_cli.observe.recoveries import amount
from persia_cli.plan.job import JobPlan

EVERY_S = 10.0
"""Seconds between two lines of progress where there is no terminal."""


class Following:
    """Shows how far the job is, and each disturbance when it is over; a context manager."""

    def __init__(self, console: Console, steps: int) -> None:
        self._console, self._steps = console, steps
        self._bar = ProgressBar(console, "drill", stays=False)
        self._said_s = time.monotonic()

    def __enter__(self) -> "Following":
        self._bar.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.__exit__()

    def follow(self, step: int, what: str) -> None:
        """Show the last step and what is waited for."""
        done = max(step, 0)
        if self._console.is_terminal:
            self._bar.show(done, self._steps, [f"step {done:,}/{self._steps:,}", f"waiting for {what}"])
        elif time.monotonic() - self._said_s > EVERY_S:
            self._said_s = time.monotonic()
            say(self._console, key_values({"event": "progress", "step": done, "of": self._steps, "waiting_for": what}))

    def report(self, strike: StrikeResult) -> None:
        """Show a disturbance that is over."""
        how = f"not recovered: {strike.problem}" if strike.problem else f"recovered in {seconds(strike.recovered_s)}"
        words = f"{strike.disturbance.label} at step {strike.step:,}: {how}"
        labelled(self._bar.console, "drill", f"{words}; {strike.text}" if strike.text else words)


def drill_plan_lines(console: Console, plan: JobPlan, disturbances: Sequence[Disturbance]) -> None:
    """Print what is to happen."""
    mode, steps = plan.run.mode.kind, count(plan.job.steps, "step")
    labelled(console, "job", f"{plan.run.name}, {mode}, {steps}; {len(plan.replicas)} processes")
    for each in disturbances:
        when = "now" if each.step is None else f"at step {each.step:,}"
        lasts = f", for {each.for_s:g} s" if each.for_s else ""
        labelled(console, "planned", f"{each.label} {when}{lasts}")


def show_drill(result: DrillResult, json_file: Path | None) -> None:
    """Print the table of disturbances, the counts of the whole job, and what to do next."""
    repeated = any(each.repeated for each in result.strikes)
    table = columns("drill", "step", "noticed", "recovered", "standstill", *(["done again"] if repeated else []))
    for each in result.strikes:
        times = map(seconds, (each.noticed_s, each.recovered_s, each.standstill_s))
        again = ", ".join(amount(*pair) for pair in each.repeated.items())
        table.add_row(each.disturbance.label, f"{each.step:,}", *times, *([again] if repeated else []))
    print_rows(out(), table)
    figures = _figures(result)
    if out().is_terminal:
        say(out(), "")
        pairs(out(), figures)
    else:
        say(out(), key_values({key.replace(" ", "_").replace("-", ""): value for key, value in figures.items()}))
    for problem in result.problems:
        labelled(err(), "failed", problem)
    if not result.problems:
        labelled(err(), "recovered", 'as "When things fail" in the guide says')
    if json_file is not None:
        labelled(err(), "results", str(json_file))
    run_dir = shlex.quote(str(result.run_dir))
    if result.undisturbed is not None:
        propose(err(), f"persia runs compare {shlex.quote(str(result.undisturbed))} {run_dir}")
    else:
        propose(err(), f"persia report {run_dir}")


def _figures(result: DrillResult) -> dict[str, str]:
    """Return the counts of a job in words."""
    figures: dict[str, str] = {}
    if (counts := result.counts) is not None:
        figures |= {
            "updates applied": str(counts.applied),
            "applied twice": str(counts.twice),
            "updates lost": str(counts.lost),
            "repeats refused": str(counts.repeated),
        }
    figures["samples repeated"] = str(result.samples_repeated)
    for label, value in result.auc.items():
        figures["AUC" if len(result.auc) == 1 else f"AUC {label}"] = "-" if value is None else f"{value:.6f}"
    if result.auc_undisturbed:
        difference = result.auc_difference
        figures["AUC difference"] = "-" if difference is None else f"{difference:+.6f}"
    if result.same_model is not None:
        figures["model"] = "identical" if result.same_model else "differs"
    return figures


def write_json(path: Path, result: DrillResult) -> None:
    """Write the results to a file."""
    write_whole(path, json.dumps(result.as_object(), indent=2).encode() + b"\n")


def seconds(value: float | None) -> str:
    """Return seconds in words; `-` for none."""
    return "-" if value is None else f"{value:.2f} s"
