"""The panels of a run's report; each draws one part of a run's history on its own axes."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from persia_cli.config.schema import SyncMode
from persia_cli.metric import FIGURES
from persia_cli.observe import staleness
from persia_cli.observe.drawing import COLOURS, INK, dress, plain, thousands
from persia_cli.observe.history import RunHistory

if TYPE_CHECKING:
    from matplotlib.axes import Axes

BLUE, RED = COLOURS[:2]
MAX_POINTS = 1200
"""Maximum number of points of a line; of a longer run only every n-th is drawn."""
WIDE_RANGE = 50.0
"""Ratio of the greatest to the least predicted probability from which a calibration plot has logarithmic axes."""
MINUTE_S = 60.0
TRAINING = "training, as it learns"
"""Name of the metrics of samples that were scored just before the model was trained with them."""

Line = Mapping[str, Any]


@dataclass(frozen=True)
class Panel:
    """A panel of the report; `draw` is only called if `has` returns True."""

    title: str
    has: Callable[[RunHistory], bool]
    draw: Callable[[RunHistory, "Axes"], None]
    missing: str
    """Text of the panel if there is nothing to draw."""
    metric: str | None = None
    """Metric of evaluations that it draws."""


def thinned(lines: Sequence[Line]) -> Sequence[Line]:
    """Return every n-th line and the last one, at most about MAX_POINTS."""
    every = -(-len(lines) // MAX_POINTS) or 1
    return [*lines[:-1][::every], *lines[-1:]]


def draw_loss(history: RunHistory, axes: "Axes") -> None:
    """Draw the loss of each log interval of training, and of each evaluation, by step."""
    lines = [line for line in thinned(history.training) if line["loss"] is not None]
    _draw_line(axes, *_by_step(lines, "loss"), color=BLUE, linewidth=1.2, label=TRAINING)
    tested = [line for line in history.evaluations if line["loss"] is not None]
    axes.plot(*_by_step(tested, "loss"), "o-", color=RED, markersize=5, linewidth=1.0, label="evaluation")
    _finish(axes, "step", "loss", legend=bool(tested))


def draw_auc(history: RunHistory, axes: "Axes") -> None:
    """Draw the AUC of training, over the last few lines of metrics, and of each evaluation, per label."""
    _draw_metric(history, axes, "auc", "AUC")


def draw_error(history: RunHistory, axes: "Axes") -> None:
    """Draw the root mean squared error of labels that are numbers, in the same way as `draw_auc`."""
    _draw_metric(history, axes, "rmse", "root mean squared error")


def draw_r2(history: RunHistory, axes: "Axes") -> None:
    """Draw the coefficient of determination of labels that are numbers, in the same way as `draw_auc`."""
    _draw_metric(history, axes, "r2", "R²")


def draw_ratio(history: RunHistory, axes: "Axes") -> None:
    """Draw predicted over observed positives, in the same way as `draw_auc`."""
    axes.axhline(1.0, color=INK, linewidth=0.8, linestyle="--")
    _draw_metric(history, axes, "calibration", "predicted over observed positives")


def draw_retrieval(history: RunHistory, axes: "Axes") -> None:
    """Draw the recall of each evaluation that ranked all items, per length of the list."""
    keys = dict.fromkeys(key for line in history.evaluations for key in line if key.startswith("recall@"))
    for key, colour in _coloured(list(keys)):
        lines = [line for line in history.evaluations if key in line]
        _draw_line(axes, *_by_step(lines, key), "o--", color=colour, linewidth=1.2, label=key)
    _finish(axes, "step", "recall", legend=True)


def draw_throughput(history: RunHistory, axes: "Axes") -> None:
    """Draw training samples per second over time."""
    begin = history.begin_s or history.training[0]["time"]
    lines = thinned(history.training)
    seconds = [line["time"] - begin for line in lines]
    unit, size = ("minutes", MINUTE_S) if seconds[-1] > 5 * MINUTE_S else ("seconds", 1.0)
    rates = [line["samples_per_s"] for line in lines]
    _draw_line(axes, [second / size for second in seconds], rates, color=BLUE, linewidth=1.2)
    _finish(axes, f"{unit} since training began", "samples/s")
    axes.set_ylim(0.0, 1.12 * max(rates) or 1.0)
    thousands(axes.yaxis)


def draw_staleness(history: RunHistory, axes: "Axes") -> None:
    """Draw the number of steps of all ranks by the staleness of their rows."""
    ranks = [rank for line in history.training for rank in line["staleness"]]
    total = staleness.merged([{int(value): steps for value, steps in rank.items()} for rank in ranks])
    shown = staleness.ranges(total)
    steps = sum(shown.values()) or 1
    names = _range_names(shown) if shown != total else [str(value) for value in shown]
    percentages = [100.0 * count / steps for count in shown.values()]
    bars = axes.bar(names, percentages, color=BLUE, width=0.7)
    axes.bar_label(bars, [f"{percentage:.3g} %" for percentage in percentages], fontsize=8, color=INK, padding=2)
    mode = history.run.mode
    bound = "sync: always the newest rows" if isinstance(mode, SyncMode) else f"bound {mode.staleness}"
    _finish(axes, f"staleness in steps ({bound}); mean {staleness.mean(total):.2f}", "% of steps")
    axes.set_ylim(0.0, 1.12 * max(percentages, default=1.0))
    axes.grid(visible=False, axis="x")


def draw_rows(history: RunHistory, axes: "Axes") -> None:
    """Draw the number of rows of all tables in memory, and the number on disks or evicted so far."""
    lines = thinned(history.lines)
    _draw_line(axes, *_by_step(lines, "rows"), color=BLUE, linewidth=1.4, label="rows in memory")
    others = ("cold_rows", "rows on disks") if _has_cold_tier(history) else ("evicted", "evicted so far")
    there = any(line[others[0]] for line in lines)
    if there:
        _draw_line(axes, *_by_step(lines, others[0]), color=RED, linewidth=1.2, label=others[1])
    _finish(axes, "step", "rows of all tables", legend=there)
    axes.set_ylim(bottom=0.0)
    thousands(axes.yaxis)


def draw_hit_rate(history: RunHistory, axes: "Axes") -> None:
    """Draw the fraction of the ids looked up so far that had a row."""
    lines = [line for line in thinned(history.lines) if line["hit_rate"] is not None]
    _draw_line(axes, *_by_step(lines, "hit_rate"), color=BLUE, linewidth=1.4)
    _finish(axes, "step", "ids that had a row, so far")
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:.0%}" if axes.get_ylim()[0] < 0.9 else f"{value:.1%}")


def draw_tiers(history: RunHistory, axes: "Axes") -> None:
    """Draw the fractions of the ids looked up in each interval whose row was in memory, on disks, or new."""
    lines = [line for line in thinned(history.training) if line["memory_hit_rate"] is not None]
    steps, memory = _by_step(lines, "memory_hit_rate")
    disks = [line["cold_hit_rate"] for line in lines]
    new = [max(0.0, 1.0 - each - other) for each, other in zip(memory, disks, strict=True)]
    for values, colour, label in ((memory, BLUE, "memory"), (disks, RED, "disks"), (new, INK, "new ids")):
        _draw_line(axes, steps, values, color=colour, linewidth=1.2, label=label)
    _finish(axes, "step", "ids by the place of their row", legend=True)
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:.0%}")


def draw_cold_wait(history: RunHistory, axes: "Axes") -> None:
    """Draw for how long each step waited for rows on disks."""
    _draw_line(axes, *_by_step(thinned(history.training), "cold_wait_ms"), color=RED, linewidth=1.2)
    _finish(axes, "step", "wait for disks, ms per step")
    axes.set_ylim(bottom=0.0)


def draw_reliability(history: RunHistory, axes: "Axes") -> None:
    """Draw the fraction of positives against predicted probability, for parts of the evaluation samples by score."""
    event = history.reliability
    assert event is not None
    diagrams: Mapping[str, Mapping[str, list[float]]] = event["labels"]
    seen = [p for d in diagrams.values() for p in (*d["predicted"], *d["observed"]) if p > 0.0]
    least, most = min(seen), max(seen)
    wide = most > WIDE_RANGE * least
    ends = [least / 1.5, min(1.0, most * 1.5)] if wide else [0.0, min(1.0, most * 1.08)]
    axes.plot(ends, ends, color=INK, linewidth=0.8, linestyle="--", label="perfect")
    for label, colour in _coloured(history.labels):
        if label not in diagrams:
            continue
        diagram = diagrams[label]
        points = zip(diagram["predicted"], diagram["observed"], diagram["weight"], strict=True)
        drawn = [(p, o, 2.0 * (o * (1.0 - o) / w) ** 0.5) for p, o, w in points if o > 0.0 or not wide]
        if drawn:
            predicted, observed, errors = zip(*drawn, strict=True)
            axes.errorbar(predicted, observed, yerr=errors, fmt="o-", markersize=4, linewidth=1.0, elinewidth=0.8,
                          color=colour, label=plain(label))  # fmt: skip
    _finish(axes, f"predicted probability (evaluation at step {event['step']:,})", "fraction of positives", legend=True)
    if wide:
        axes.set_xscale("log")
        axes.set_yscale("log")
    axes.set_xlim(*ends)
    axes.set_ylim(*ends)


def _trained(history: RunHistory) -> bool:
    return bool(history.training)


def _has_cold_tier(history: RunHistory) -> bool:
    return history.run.embedding.cold is not None


def _evaluated(history: RunHistory) -> bool:
    return bool(history.evaluations)


def _calibrated(history: RunHistory) -> bool:
    event = history.reliability
    return event is not None and any(o > 0.0 for diagram in event["labels"].values() for o in diagram["observed"])


COLD = "cold"
"""The name, among metrics, of those that only runs with rows on disks have."""
NOTHING_YET = "No log interval of training has ended yet."
PANELS = (
    Panel("Loss", _trained, draw_loss, NOTHING_YET),
    Panel("AUC", _trained, draw_auc, NOTHING_YET, "auc"),
    Panel("RMSE", _trained, draw_error, NOTHING_YET, "rmse"),
    Panel("R²", _trained, draw_r2, NOTHING_YET, "r2"),
    Panel("Retrieval", _evaluated, draw_retrieval, "The run has not been evaluated.", "recall"),
    Panel("Throughput", _trained, draw_throughput, NOTHING_YET),
    Panel("Staleness of rows", _trained, draw_staleness, NOTHING_YET),
    Panel("Table growth", _trained, draw_rows, NOTHING_YET),
    Panel("Hit rate", _trained, draw_hit_rate, NOTHING_YET),
    Panel("Memory and disks", _trained, draw_tiers, NOTHING_YET, COLD),
    Panel("Wait for disks", _trained, draw_cold_wait, NOTHING_YET, COLD),
    Panel("Calibration", _trained, draw_ratio, NOTHING_YET, "calibration"),
    Panel(
        "Reliability",
        _calibrated,
        draw_reliability,
        "The run has not been evaluated, or saw no positive label.",
        "auc",
    ),
)
"""All panels, in the order of the report."""


def panels_of(history: RunHistory) -> list[Panel]:
    """Return the panels of a run, without those of metrics that its evaluations do not have."""
    there = {metric for link in history.links.values() for metric in FIGURES[link]}
    there |= {"recall"} if history.run.eval.retrieval else set()
    there |= {COLD} if _has_cold_tier(history) else set()
    return [panel for panel in PANELS if panel.metric is None or panel.metric in there]


def _draw_metric(history: RunHistory, axes: "Axes", key: str, y: str) -> None:
    """Draw a metric of training and of evaluations, for each label."""
    alone = len(history.labels) == 1
    for label, colour in _coloured(history.labels):
        for lines, name_of, style, what in (
            (thinned(history.training), f"window_{key}", "-", TRAINING),
            (history.evaluations, key, "o--", "evaluation"),
        ):
            points = [(line["step"], history.metric(line, name_of, label)) for line in lines]
            drawn = [(step, value) for step, value in points if value is not None]
            if drawn:
                steps, values = zip(*drawn, strict=True)
                name = what if alone else plain(f"{label}, {what}")
                shade = RED if alone and lines is history.evaluations else colour
                _draw_line(axes, steps, values, style, color=shade, markersize=5, linewidth=1.2, label=name)
    _finish(axes, "step", y, legend=True)


def _draw_line(axes: "Axes", x: Sequence[Any], y: Sequence[Any], style: str = "-", **settings: Any) -> None:
    """Draw a line, or a dot for a single point."""
    axes.plot(x, y, style if len(x) > 1 else "o", **{"markersize": 5} | settings)


def _finish(axes: "Axes", x: str, y: str, legend: bool = False) -> None:
    """Finish the axes; with `legend`, add one if anything has a name."""
    dress(axes, x, y)
    if x == "step":
        thousands(axes.xaxis)
    if legend and axes.get_legend_handles_labels()[0]:
        axes.legend(frameon=False, fontsize=8.5, loc="best", labelcolor=INK)


def _by_step(lines: Sequence[Line], key: str) -> tuple[list[Any], list[Any]]:
    return [line["step"] for line in lines], [line[key] for line in lines]


def _coloured(labels: Sequence[str]) -> list[tuple[str, str]]:
    return [(label, COLOURS[number % len(COLOURS)]) for number, label in enumerate(labels)]


def _range_names(ranges: Mapping[int, int]) -> list[str]:
    """Return `1`, `2`, `3-4`, `5-8`, … for the upper ends of ranges that double."""
    return [str(end) if end <= 2 else f"{end // 2 + 1}-{end}" for end in ranges]
