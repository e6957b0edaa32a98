"""The screen of `persia top`, on Textual: it reads a run directory again and again; keys run other commands."""

import asyncio
import time
from asyncio.subprocess import DEVNULL, PIPE, STDOUT
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from rich.text import Text
from textual import work
from textual.app import App, ComposeResult
from textual.containers import Horizontal
from textual.widgets import DataTable, Footer, Sparkline, Static

from persia_cli.commands.progress import live_parts, notice_of, quality_text
from persia_cli.commands.screen import clock, size
from persia_cli.config.record import JOB
from persia_cli.engines.driver_process import is_submitted
from persia_cli.engines.job import read_job
from persia_cli.engines.processes import python_module
from persia_cli.errors import PersiaError
from persia_cli.jobs.follow import job_of
from persia_cli.observe.history import RunHistory, metric_name, read_history
from persia_cli.observe.journal import GrowingJournals, understanding
from persia_cli.observe.live_state import WAITS_FOR, LiveState, ReplicaRates, bottleneck, rates_of, read_live_state
from persia_cli.observe.outcome import quality_in

EVERY_S = 2.0
FETCH_S = 5.0
"""Seconds between two copies of the record of a job that another machine runs."""
TWICE_S, SILENT_S = 5.0, 3.0
"""Seconds within which a key is pressed twice, and without a message until a replica is shown as silent."""
WINDOW, POINTS = 4, 120
"""Numbers of states over which rates are means, and of lines of metrics in a curve."""
REPLICA = ("process", "cores", "memory", "queue", "messages/s", "bytes/s", "waits", "does", "host, pid")
TABLE = ("table", "rows", "hit rate", "evicted", "refused", "memory")
CURVES = ("speed", "loss", "quality")
"""The ids of the curves: the speed and the loss of training, and the metric by which evaluations are compared."""


class Cell(NamedTuple):
    """The text in a table, and the value by which it is sorted: numbers descending, texts ascending."""

    text: str
    value: float | str | None

    @property
    def order(self) -> tuple[bool, float, str]:
        """The key by which cells of a column are sorted; unknown values are last."""
        is_text = isinstance(self.value, str)
        return self.value is None, 0.0 if is_text else -float(self.value or 0.0), self.text if is_text else ""


class SortedTable(DataTable[Text]):
    """A table whose rows are sorted by one column; the column's title is marked."""

    def __init__(self, id: str, *titles: str) -> None:
        super().__init__(id=id, cursor_type="row", zebra_stripes=True)
        self._titles, self._by = titles, 0
        self._shown: list[list[Cell]] = []

    def show(self, rows: Iterable[list[Cell]]) -> None:
        """Show these rows; the cursor and the scroll position stay."""
        self._shown = sorted(rows, key=lambda row: row[self._by].order)
        at, scroll = self.cursor_coordinate, self.scroll_offset
        self.clear(columns=True)
        self.add_columns(*(Text(f"{title} ▾" if n == self._by else title) for n, title in enumerate(self._titles)))
        for row in self._shown:
            self.add_row(*(Text(cell.text, justify="left" if isinstance(cell.value, str) else "right") for cell in row))
        self.move_cursor(row=at.row)
        self.scroll_to(*scroll, animate=False)

    def sort_by_next(self) -> None:
        """Sort the rows by the next column from now on."""
        self._by = (self._by + 1) % len(self._titles)
        self.show(self._shown)


class TopScreen(App[None]):
    """The state of one job: its replicas, metrics and tables, its bottleneck, and its last notice."""

    TITLE = "persia top"
    ENABLE_COMMAND_PALETTE = False
    CSS = """
    Static { height: auto; padding: 0 1; }
    #curves { height: 2; margin: 1 0; } #curves Static { width: auto; } #curves Sparkline { width: 1fr; height: 2; }
    #roles { height: auto; max-height: 50%; margin: 0 0 1 0; } #tables { height: 1fr; }
    #bottleneck { color: $warning; } #state { text-style: bold; }
    """
    BINDINGS = [  # noqa: RUF012 - as Textual declares it
        ("s", "sort", "Sort"),
        ("w", "save", "Save now"),
        ("x", "stop", "Save and stop"),
        ("q", "quit", "Quit"),
    ]

    def __init__(self, run_dir: Path) -> None:
        super().__init__()
        self._run_dir, self._journals = run_dir, GrowingJournals()
        self._states: deque[LiveState] = deque(maxlen=WINDOW)
        self._stop_s = 0.0

    def compose(self) -> ComposeResult:
        """Yield the parts of the screen from the top down."""
        yield from (Static(id=name) for name in ("state", "metrics"))
        curves = (part for name in CURVES for part in (Static(id=f"{name}-title"), Sparkline(id=name)))
        yield Horizontal(*curves, id="curves")
        yield from (SortedTable("roles", *REPLICA), SortedTable("tables", *TABLE))
        yield from (Static(id=name) for name in ("bottleneck", "notice"))
        yield Footer()

    def on_mount(self) -> None:
        """Begin to follow the run."""
        self.refresh_run()
        self.set_interval(EVERY_S, self.refresh_run)
        if is_submitted(self._run_dir):
            self.set_interval(FETCH_S, self._fetch)

    def refresh_run(self) -> None:
        """Read what is new in the run directory, and show it, or the reason why it cannot be read."""
        try:
            with understanding(self._run_dir):
                self._show(read_history(self._run_dir, self._journals.read))
        except (PersiaError, OSError) as error:
            self._say(state=f"{self._run_dir}   cannot be read", notice=str(error))

    def _show(self, history: RunHistory) -> None:
        outcome = history.outcome(time.time())
        runs = outcome.state == "running"
        if (state := read_live_state(self._run_dir, history.events)) and state not in self._states:
            self._states.append(state)
        phase = state.phase if state and runs else outcome.state
        took_s = round((history.end_s or 0.0) - (history.begin_s or history.end_s or 0.0))
        run, notices = history.run, (notice_of(line) for line in reversed(history.events))
        last = next((f"{notice.label}: {notice.text}" for notice in notices if notice), "")
        kinds = f"mode {run.mode.kind}   network {run.model.kind}   cluster {run.cluster.name}"
        self._say(
            state=f"{self._run_dir}   {phase}   {clock(took_s)}   {kinds}",
            metrics=self._metrics(history),
            notice=outcome.text if outcome.text and not runs else self._journals.damage or last,
        )
        metric, training, evaluations = run.judging_metric, history.training[-POINTS:], history.evaluations[-POINTS:]
        self._draw("speed", "samples/s", (line["samples_per_s"] for line in training))
        self._draw("loss", "training loss", (line["loss"] for line in training))
        quality = (quality_in(line).get(metric) for line in evaluations)
        self._draw("quality", f"evaluation {metric_name(metric)}", quality)
        if self._states:
            self._show_state(history, runs)

    def _show_state(self, history: RunHistory, runs: bool) -> None:
        now, first = self._states[-1], self._states[0] if runs and len(self._states) > 1 else None
        rates = rates_of(first, now, history.run.cluster.is_one_process)
        self.query_one("#roles", SortedTable).show(map(_replica, rates))
        self.query_one("#tables", SortedTable).show(_table(name, counters) for name, counters in now.tables.items())
        on_gpu = any("gpu_memory" in line for line in history.training[-1:])
        is_training = runs and now.phase == "training"
        self._say(bottleneck=bottleneck(history.run, rates, now, on_gpu) if is_training else "")

    def _draw(self, name: str, title: str, values: Iterable[float | None]) -> None:
        """Draw a curve of the values that are known, from the least to the greatest; its title has both."""
        known = [value for value in values if value is not None]
        ends = [f"{end:,.0f}" if end >= 100 else f"{end:.3f}" for end in sorted(known)[:: max(len(known) - 1, 1)]]
        self._say(**{f"{name}-title": f"{title}\n{' to '.join(ends)}"})
        self.query_one(f"#{name}", Sparkline).data = known

    def _metrics(self, history: RunHistory) -> str:
        """Return the progress, and a line of the last metrics of training and of the last evaluation each."""
        job, batch_size = read_job(self._run_dir / JOB), history.run.train.batch
        lines = []
        for line in history.training[-1:]:
            step, quality, speed, left, staleness, *sizes = live_parts(line, job, batch_size)
            lines += ["   ".join([step, left, speed, *sizes]), f"training    {quality}   {staleness}"]
        of_step = (f"evaluation  {quality_text(line)}   step {line['step']:,}" for line in history.evaluations[-1:])
        return "\n".join([*lines, *of_step])

    def _say(self, **texts: str) -> None:
        for name, text in texts.items():
            self.query_one(f"#{name}", Static).update(Text(text))

    def action_sort(self) -> None:
        """Sort the focused table, or that of the replicas, by its next column."""
        table = self.focused if isinstance(self.focused, SortedTable) else self.query_one("#roles", SortedTable)
        table.sort_by_next()

    def action_save(self) -> None:
        """Have the job save its model and go on."""
        self.notify("saving …")
        self._run("checkpoint", "now", str(self._run_dir))

    def action_stop(self) -> None:
        """Have the job save its model and end, if the key is pressed twice."""
        before, self._stop_s = self._stop_s, time.monotonic()
        if self._stop_s - before < TWICE_S:
            self._run("stop", str(self._run_dir))
        else:
            self.notify("press x again to save the model and end the job")

    @work
    async def _run(self, *arguments: str) -> None:
        """Run a command of persia, and show the last line of its output."""
        command = [*python_module("persia_cli"), *arguments]
        process = await asyncio.create_subprocess_exec(*command, stdin=DEVNULL, stdout=PIPE, stderr=STDOUT)
        output = (await process.communicate())[0].decode(errors="replace").splitlines()
        self.notify("".join(output[-1:]), markup=False)

    @work(thread=True, exclusive=True)
    def _fetch(self) -> None:
        with suppress(PersiaError):
            job_of(self._run_dir).fetch()


def _replica(rates: ReplicaRates) -> list[Cell]:
    """Return the cells of a replica's row."""
    waits = "" if rates.waits is None else f"{rates.waits:.0%} for {WAITS_FOR.get(rates.role, 'messages')}"
    doing = f"silent for {rates.silent_s:.0f} s" if rates.silent_s > SILENT_S else rates.doing
    return [
        Cell(rates.name, rates.name),
        _number(rates.cpu, "{:.2f}".format),
        _number(rates.rss, size),
        _number(rates.queue, "{:,}".format),
        _number(rates.messages, "{:,.0f}".format),
        _number(rates.nbytes, size),
        Cell(waits, rates.waits),
        Cell(doing, doing),
        Cell(rates.where, rates.where),
    ]


def _table(name: str, counters: Mapping[str, int]) -> list[Cell]:
    """Return the cells of a table's row."""
    hits, asked = counters.get("hits", 0), counters.get("hits", 0) + counters.get("misses", 0)
    hit_rate = _number(hits / asked if asked else None, "{:.2%}".format)
    rows, *others = (_number(counters.get(key), "{:,}".format) for key in ("rows", "evicted", "refused"))
    return [Cell(name, name), rows, hit_rate, *others, _number(counters.get("bytes"), size)]


def _number(value: float | None, text: Callable[[Any], str]) -> Cell:
    return Cell("" if value is None else text(value), value)
