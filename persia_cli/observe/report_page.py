"""The report of a run: an HTML page of metrics, pictures, tables and configuration, or one picture."""

import time
from collections.abc import Mapping
from pathlib import Path

from jinja2 import Environment

from persia_cli.disk import read_regular
from persia_cli.metric import is_of_retrieval
from persia_cli.observe.drawing import INK, SMALL, empty_figure, plain, save_png, to_svg
from persia_cli.observe.exchange import bytes_per_sample, lookups
from persia_cli.observe.history import CONFIG, QUALITY, Line, RunHistory, key_metrics
from persia_cli.observe.panels import Panel, panels_of
from persia_cli.observe.recoveries import outcome_of, recoveries_in
from persia_cli.store.table_counters import OF_COLD
from persia_cli.version import __version__

TEMPLATE = Path(__file__).with_name("report.html.j2")

PANEL_INCHES = (6.2, 3.5)
"""Width and height of a panel on a page."""
COUNTERS = ("rows", "hits", "misses", "evicted", "refused", "not_admitted", "gradients_refused")
"""Counters of a table that the page shows."""
COLUMNS, WIDTH, HEIGHT = 2, 6.4, 3.5
"""Number of panels in a row of a picture, and the inches of each."""
METRICS_PER_LINE = 6

Rows = list[list[str]]


def report_page(history: RunHistory, summary: Mapping[str, str], now: float) -> str:
    """Return the page as HTML; `summary` describes the run's settings, `now` is in seconds since 1970.

    Raises UserError if matplotlib is not installed.
    """
    page = Environment(autoescape=True, trim_blocks=True).from_string(TEMPLATE.read_text(encoding="utf-8"))
    return page.render(
        name=history.run.name,
        outcome=history.outcome(now),
        began=_began(history),
        tiles=key_metrics(history),
        panels=[(panel.title, panel.missing, _svg(history, panel)) for panel in panels_of(history)],
        sections=sections(history),
        notes=notes(history),
        summary={**summary, "run directory": str(history.run_dir.absolute())},
        config=read_regular(history.run_dir / CONFIG).decode(),
        version=__version__,
        made=_clock(now),
    )


def sections(history: RunHistory) -> dict[str, Rows]:
    """Return the tables of a run by title, each with its head as first row; one without other rows is not shown."""
    return {
        "Evaluations": _evaluations(history),
        "Retrieval": _retrieval(history),
        "Tables": _tables(history),
        "Ids without a row": _unknown(history),
        "Bytes between roles": _exchanged(history),
        "Processes": _processes(history),
        "Recoveries": _recoveries(history),
    }


def notes(history: RunHistory) -> list[str]:
    """Return the messages and warnings of a run."""
    return [event["text"] for event in history.events if event["event"] in ("warning", "note", "stopped_early")]


def _began(history: RunHistory) -> str:
    """Return a sentence with the start and duration of the run."""
    if history.begin_s is None or history.end_s is None:
        return "Training has not begun."
    seconds = round(history.end_s - history.begin_s)
    hours, minutes = divmod(seconds // 60, 60)
    return f"Began {_clock(history.begin_s)}, recorded for {hours}:{minutes:02}:{seconds % 60:02}."


def _clock(seconds: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(seconds))


def _svg(history: RunHistory, panel: Panel) -> str:
    """Return the picture of a panel; empty if the run has nothing to show in it."""
    if not panel.has(history):
        return ""
    figure = empty_figure(*PANEL_INCHES)
    panel.draw(history, figure.add_subplot())
    return to_svg(figure)


def _evaluated(history: RunHistory) -> list[tuple[str, Line]]:
    """Return the lines of evaluations, those of later `persia eval` last and with their names."""
    return [("", line) for line in history.evaluations] + [
        (f"{'test' if line['split'] == 'test' else 'persia eval'}, {name}", line) for name, line in history.later
    ]


def _evaluations(history: RunHistory) -> Rows:
    """Return a row for each evaluation and label."""
    lines = _evaluated(history)
    several = len(history.labels) > 1
    known = {
        key
        for key in QUALITY
        for _, line in lines
        for label in history.labels
        if history.metric(line, key, label) is not None
    }
    there = [key for key in QUALITY if key in known]
    rows = [["", "step", "samples", *(QUALITY[key] for key in there), "ids without a row"]]
    for name, line in lines:
        for label in history.labels:
            what = f"{label}, {name or 'in training'}" if several else name or "in training"
            values = [history.metric(line, key, label) for key in there]
            metrics = ["-" if value is None else f"{value:.6f}" for value in values]
            unknown = line.get("unknown")
            metrics.append("-" if unknown is None else f"{unknown:.2%}")
            rows.append([what, f"{line['step']:,}", f"{line['eval_samples']:,}", *metrics])
    return rows


def _retrieval(history: RunHistory) -> Rows:
    """Return a row for each evaluation that ranked all items."""
    lines = [(name, line) for name, line in _evaluated(history) if any(map(is_of_retrieval, line))]
    keys = list(dict.fromkeys(key for _, line in lines for key in line if is_of_retrieval(key)))
    rows = [["", "step", *keys]]
    for name, line in lines:
        metrics = [f"{line[key]:.6f}" if key in line else "" for key in keys]
        rows.append([name or "in training", f"{line['step']:,}", *metrics])
    return rows


def _tables(history: RunHistory) -> Rows:
    event = history.last_event("tables") or {"tables": {}}
    counters = (*COUNTERS, *(OF_COLD if history.run.embedding.cold is not None else ()))
    counted = [[name, *(f"{table.get(c, 0):,}" for c in counters)] for name, table in event["tables"].items()]
    return [["table", *(counter.replace("_", " ") for counter in counters)], *counted]


def _processes(history: RunHistory) -> Rows:
    event = history.last_event("roles") or {"roles": []}
    used = [(f"{role['role']}-{role['index']}", role["cpu_s"], role["rss"]) for role in event["roles"]]
    if used and history.run.cluster.is_one_process:
        # The roles are threads of one process, and each has reported the usage of the whole process.
        used = [("all roles", max(cpu_s for _, cpu_s, _ in used), max(rss for *_, rss in used))]
    shown = [[name, f"{cpu_s:,.1f}", f"{rss / 2**20:,.0f}"] for name, cpu_s, rss in used]
    head = ["process", "CPU seconds", "MiB at the end"]
    pinned = [role.get("cpus", "all") for role in event["roles"]]
    if any("cpus" in role for role in event["roles"]):
        head, shown = [*head, "processors"], [[*row, cpus] for row, cpus in zip(shown, pinned, strict=True)]
    return [head, *shown]


def _unknown(history: RunHistory) -> Rows:
    """Return a row for each feature some of whose evaluated ids had no row."""
    found = [each for each in lookups(history.events) if each.known < each.total]
    rows = [[each.name, f"{each.total:,}", f"{1 - each.known / each.total:.2%}"] for each in found]
    return [["feature", "look-ups in evaluations", "without a row"], *rows]


def _exchanged(history: RunHistory) -> Rows:
    found = bytes_per_sample(history.events, history.lines, history.run.train.batch)
    rows = [[each.link, f"{each.total:,.0f}", f"{each.shared:.0%}"] for each in found]
    return [["roles", "bytes per sample", "in shared memory"], *rows]


def _recoveries(history: RunHistory) -> Rows:
    found = [
        [event["replica"], _clock(event["time"]), event["cause"], outcome_of(event)]
        for event in recoveries_in(history.events)
    ]
    return [["died", "recovered at", "cause", "recovered"], *found]


def report_picture(history: RunHistory, path: Path, now: float) -> None:
    """Write the picture as PNG; `now` is in seconds since 1970. Raises UserError if matplotlib is not installed."""
    panels = [panel for panel in panels_of(history) if panel.has(history)]
    rows = max(-(-len(panels) // COLUMNS), 1)
    figure = empty_figure(COLUMNS * WIDTH, rows * HEIGHT + 1.0)
    cells = figure.add_gridspec(rows, COLUMNS)
    for number, panel in enumerate(panels):
        axes = figure.add_subplot(cells[divmod(number, COLUMNS)])
        panel.draw(history, axes)
        axes.set_title(panel.title, **SMALL)
    figure.suptitle(_heading(history, now), x=0.01, ha="left", fontsize=11, color=INK)
    save_png(figure, path)


def _heading(history: RunHistory, now: float) -> str:
    outcome = history.outcome(now)
    words = [f"{name} {value}" for name, value in key_metrics(history).items()]
    lines = [": ".join(word for word in (history.run.name, outcome.state, *outcome.text.splitlines()[:1]) if word)]
    lines += ["   ".join(words[first : first + METRICS_PER_LINE]) for first in range(0, len(words), METRICS_PER_LINE)]
    return plain("\n".join(lines))
