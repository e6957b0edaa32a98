"""The report of a run: an HTML page of figures, pictures, tables and configuration, or one picture."""

import time
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from pathlib import Path

from persia_cli import __version__
from persia_cli.config.schema.metric import is_of_retrieval
from persia_cli.observe.drawing import INK, SMALL, empty_figure, plain, save_png, to_svg
from persia_cli.observe.history import CONFIG, QUALITY, Line, RunHistory, RunOutcome, key_figures
from persia_cli.observe.panels import Panel, panels_of
from persia_cli.observe.recoveries import outcome_of, recoveries_in

STYLE = """
:root { --ink: #262626; --soft: #6a6a6a; --line: #e2e2e2; --back: #f6f7f8; }
* { box-sizing: border-box; }
body { margin: 0; background: var(--back); color: var(--ink); font: 15px/1.5 system-ui, sans-serif; }
main { max-width: 1240px; margin: 0 auto; padding: 28px 24px 48px; }
h1 { font-size: 26px; margin: 0 12px 0 0; display: inline-block; }
h2 { font-size: 17px; margin: 34px 0 10px; }
h3 { font-size: 14px; margin: 0 0 4px; font-weight: 600; }
p.soft, .soft { color: var(--soft); margin: 4px 0; }
.state { padding: 2px 11px; border-radius: 11px; color: white; font-size: 13px; vertical-align: 5px; }
.done { background: #2a7d5f; } .running { background: #1f6f8b; }
.failed, .dead { background: #b3261e; } .stopped, .silent { background: #9a6b16; }
.error { border-left: 4px solid #b3261e; background: #fdecea; padding: 8px 14px; white-space: pre-wrap; }
.tiles, .panels { display: grid; gap: 14px; }
.tiles { grid-template-columns: repeat(auto-fill, minmax(132px, 1fr)); margin-top: 18px; }
.panels { grid-template-columns: repeat(auto-fit, minmax(min(520px, 100%), 1fr)); }
.tile, .panel { background: white; border: 1px solid var(--line); border-radius: 8px; padding: 12px 14px; }
.tile .soft { font-size: 13px; }
.tile b { display: block; font-size: 21px; font-weight: 600; font-variant-numeric: tabular-nums; }
.panel svg { width: 100%; height: auto; display: block; }
.scroll { overflow-x: auto; background: white; border: 1px solid var(--line); border-radius: 8px; }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; }
th, td { padding: 5px 14px; text-align: right; white-space: nowrap; border-bottom: 1px solid var(--line); }
th { font-weight: 600; color: var(--soft); } tr:last-child td { border-bottom: 0; }
th:first-child, td:first-child { text-align: left; }
dl { display: grid; grid-template-columns: max-content 1fr; gap: 3px 18px; margin: 0; }
dt { color: var(--soft); } dd { margin: 0; overflow-wrap: anywhere; }
pre { overflow-x: auto; background: white; border: 1px solid var(--line); border-radius: 8px; padding: 14px; }
"""
"""The style sheet of pages."""

PANEL_INCHES = (6.2, 3.5)
"""Width and height of a panel on a page."""
COUNTERS = ("rows", "hits", "misses", "evicted", "refused", "not_admitted", "gradients_refused")
"""Counters of a table that the page shows."""
COLUMNS, WIDTH, HEIGHT = 2, 6.4, 3.5
"""Panels side by side in a picture, and the inches of each."""
FIGURES_A_LINE = 6

Rows = list[list[str]]


def document(title: str, body: str) -> str:
    """Return a complete page with this body."""
    head = f'<meta charset="utf-8"><meta name="viewport" content="width=device-width"><title>{escape(title)}</title>'
    style = f"<style>{STYLE}</style>"
    return f"""<!doctype html>
<html lang="en">
<head>{head}{style}</head>
<body><main>
{body}
</main></body>
</html>
"""


def table(rows: Sequence[Sequence[str]]) -> str:
    """Return a table of texts; the first row is its head, and the first column names the rows."""
    head, *body = rows
    return f'<div class="scroll"><table>{_row("th", head)}{"".join(_row("td", row) for row in body)}</table></div>'


def pairs(words: Mapping[str, str]) -> str:
    """Return a list of names with their descriptions."""
    return "<dl>" + "".join(f"<dt>{escape(k)}</dt><dd>{escape(v)}</dd>" for k, v in words.items()) + "</dl>"


def tiles(figures: Mapping[str, str]) -> str:
    """Return figures in large type, each with its name above."""
    tile = '<div class="tile"><span class="soft">{}</span><b>{}</b></div>'
    return f'<div class="tiles">{"".join(tile.format(escape(k), escape(v)) for k, v in figures.items())}</div>'


def _row(cell: str, texts: Sequence[str]) -> str:
    return "<tr>" + "".join(f"<{cell}>{escape(text)}</{cell}>" for text in texts) + "</tr>"


def report_page(history: RunHistory, summary: Mapping[str, str], now: float) -> str:
    """Return the page as HTML; `summary` describes the run's settings, `now` is in seconds since 1970.

    Raises UserError if matplotlib is not installed.
    """
    outcome = history.outcome(now)
    config = (history.run_dir / CONFIG).read_text(encoding="utf-8")
    parts = [
        f'<h1>{escape(history.run.name)}</h1><span class="state {outcome.state}">{outcome.state}</span>',
        f'<p class="soft">{escape(_when(history))}</p>',
        _said(outcome),
        tiles(key_figures(history)),
        "<h2>Training</h2>",
        '<div class="panels">' + "".join(_panel(history, panel) for panel in panels_of(history)) + "</div>",
        *_section("Evaluations", _evaluations(history)),
        *_section("Retrieval", _retrieval(history)),
        *_section("Tables", _tables(history)),
        *_section("Processes", _processes(history)),
        *_section("Recoveries", _recoveries(history)),
        *_notes(history),
        "<h2>Configuration</h2>",
        pairs({**summary, "run directory": str(history.run_dir.absolute())}),
        f"<details><summary>{CONFIG}</summary><pre>{escape(config)}</pre></details>",
        f'<p class="soft">Made by persia {__version__} at {_clock(now)} from the record in the run directory.</p>',
    ]
    return document(history.run.name, "\n".join(part for part in parts if part))


def _when(history: RunHistory) -> str:
    """Return a sentence with the start and duration of the run."""
    if history.begin_s is None or history.end_s is None:
        return "Training has not begun."
    seconds = round(history.end_s - history.begin_s)
    hours, minutes = divmod(seconds // 60, 60)
    return f"Began {_clock(history.begin_s)}, recorded for {hours}:{minutes:02}:{seconds % 60:02}."


def _clock(seconds: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(seconds))


def _said(outcome: RunOutcome) -> str:
    kind = "error" if outcome.state == "failed" else "soft"
    return f'<p class="{kind}">{escape(outcome.text)}</p>' if outcome.text else ""


def _panel(history: RunHistory, panel: Panel) -> str:
    inside = f'<p class="soft">{escape(panel.missing)}</p>'
    if panel.has(history):
        figure = empty_figure(*PANEL_INCHES)
        panel.draw(history, figure.add_subplot())
        inside = to_svg(figure)
    return f'<div class="panel"><h3>{escape(panel.title)}</h3>{inside}</div>'


def _section(title: str, rows: Sequence[Sequence[str]]) -> Iterable[str]:
    return [f"<h2>{title}</h2>", table(rows)] if len(rows) > 1 else []


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
        if history.figure(line, key, label) is not None
    }
    there = [key for key in QUALITY if key in known]
    rows = [["", "step", "samples", *(QUALITY[key] for key in there), "ids without a row"]]
    for name, line in lines:
        for label in history.labels:
            what = f"{label}, {name or 'in training'}" if several else name or "in training"
            values = [history.figure(line, key, label) for key in there]
            figures = ["-" if value is None else f"{value:.6f}" for value in values]
            unknown = line.get("unknown")
            figures.append("-" if unknown is None else f"{unknown:.2%}")
            rows.append([what, f"{line['step']:,}", f"{line['eval_samples']:,}", *figures])
    return rows


def _retrieval(history: RunHistory) -> Rows:
    """Return a row for each evaluation that ranked all items."""
    lines = [(name, line) for name, line in _evaluated(history) if any(map(is_of_retrieval, line))]
    keys = list(dict.fromkeys(key for _, line in lines for key in line if is_of_retrieval(key)))
    rows = [["", "step", *keys]]
    for name, line in lines:
        figures = [f"{line[key]:.6f}" if key in line else "" for key in keys]
        rows.append([name or "in training", f"{line['step']:,}", *figures])
    return rows


def _tables(history: RunHistory) -> Rows:
    event = history.last_event("tables") or {"tables": {}}
    counted = [[name, *(f"{table.get(c, 0):,}" for c in COUNTERS)] for name, table in event["tables"].items()]
    return [["table", *(counter.replace("_", " ") for counter in COUNTERS)], *counted]


def _processes(history: RunHistory) -> Rows:
    event = history.last_event("roles") or {"roles": []}
    used = [(f"{role['role']}-{role['index']}", role["cpu_s"], role["rss"]) for role in event["roles"]]
    if used and history.run.cluster.kind == "embedded":
        # The roles are threads of one process, and each has reported the figures of the whole process.
        used = [("all roles", max(cpu_s for _, cpu_s, _ in used), max(rss for *_, rss in used))]
    shown = [[name, f"{cpu_s:,.1f}", f"{rss / 2**20:,.0f}"] for name, cpu_s, rss in used]
    head = ["process", "CPU seconds", "MiB at the end"]
    pinned = [role.get("cpus", "all") for role in event["roles"]]
    if any("cpus" in role for role in event["roles"]):
        head, shown = [*head, "processors"], [[*row, cpus] for row, cpus in zip(shown, pinned, strict=True)]
    return [head, *shown]


def _recoveries(history: RunHistory) -> Rows:
    found = [
        [event["replica"], _clock(event["time"]), event["cause"], outcome_of(event)]
        for event in recoveries_in(history.events)
    ]
    return [["died", "recovered at", "cause", "recovered"], *found]


def _notes(history: RunHistory) -> Iterable[str]:
    """Yield the warnings and notes of the run, if it has any."""
    texts = [event["text"] for event in history.events if event["event"] in ("warning", "note", "stopped_early")]
    return ["<h2>Notes</h2>", *(f"<p>{escape(text)}</p>" for text in texts)] if texts else []


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
    words = [f"{name} {value}" for name, value in key_figures(history).items()]
    lines = [": ".join(word for word in (history.run.name, outcome.state, *outcome.text.splitlines()[:1]) if word)]
    lines += ["   ".join(words[first : first + FIGURES_A_LINE]) for first in range(0, len(words), FIGURES_A_LINE)]
    return plain("\n".join(lines))
