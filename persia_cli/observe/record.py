"""The record of a run: merges what the ranks report into `metrics.jsonl` and watches the roles' figures."""

import time
from pathlib import Path
from typing import Any

import numpy as np

from persia_cli.config.schema import Run
from persia_cli.control.position import StepGrid
from persia_cli.observe.journal import METRICS, Journal
from persia_cli.observe.scores import ScoreHistogram
from persia_cli.plan.columns import label_names

Array = np.ndarray[Any, Any]


class RunRecord:
    """The only writer of a run's metrics.

    A report of rank r is one log interval's figures; a line is written when all ranks have reported the interval,
    merged in the order of ranks so that the same run gives the same figures.
    """

    def __init__(self, run_dir: Path, events: Journal, run: Run, grid: StepGrid, step: int, samples: int) -> None:
        """Begin the record of a model that has been trained for `step` steps of `samples` samples in all."""
        self._metrics = Journal(run_dir / METRICS)
        self._events = events
        self._grid = grid
        self._ranks = run.cluster.nn_workers
        self._labels = label_names(run)
        self._reports: dict[tuple[str, int], dict[int, tuple[dict[str, Any], list[Array]]]] = {}
        self._progressive = ScoreHistogram(len(self._labels))
        self._figures: dict[str, dict[str, Any]] = {}
        self._warned: set[str] = set()
        self._since = time.monotonic()
        self._step, self._samples = step, samples

    def begin_phase(self) -> None:
        """Start the clock of samples per second anew."""
        self._since = time.monotonic()

    def note(self, name: str, figures: dict[str, Any]) -> None:
        """Take a replica's latest figures, and warn once of each thing the user should know."""
        self._figures[name] = figures
        for table, counters in figures.get("tables", {}).items():
            if counters["refused"]:
                self._warn(f"table {table} is full and refuses new ids; raise embedding.memory or embedding.capacity")
            if counters.get("gradients_refused"):
                self._warn(f"table {table} was sent gradients that are not finite; those rows were not updated")
        for count, value in figures.get("counts", {}).items():
            if value and count != "steps_sent":
                self._warn(f"{name} reports {count.replace('_', ' ')}: {value} so far")

    def _warn(self, text: str) -> None:
        key = text.split(":")[0]
        if key not in self._warned:
            self._warned.add(key)
            self._events.write(event="warning", text=text)

    @property
    def rows(self) -> int:
        """Rows of all tables on all servers, as last heard."""
        tables = [counters for figures in self._figures.values() for counters in figures.get("tables", {}).values()]
        return sum(counters["rows"] for counters in tables)

    def add_report(self, rank: int, body: dict[str, Any], arrays: list[Array]) -> None:
        """Take one rank's figures of an interval; write the line if they are the last."""
        key = (body["split"], body["last"])
        reports = self._reports.setdefault(key, {})
        reports[rank] = (body, [array.copy() for array in arrays])
        if len(reports) == self._ranks:
            del self._reports[key]
            self._write_line([reports[r] for r in range(self._ranks)])

    def _write_line(self, reports: list[tuple[dict[str, Any], list[Array]]]) -> None:
        bodies = [body for body, _ in reports]
        first = bodies[0]
        training = first["split"] == "train"
        scores = ScoreHistogram(len(self._labels))
        for _, arrays in reports:
            scores.merge(ScoreHistogram.decode(len(self._labels), *arrays))
        samples = sum(body["samples"] for body in bodies)
        now = time.monotonic()
        rate = samples / max(now - self._since, 1e-9)
        self._since = now
        if training:
            self._step = first["last"]
            self._samples = self._grid.samples_before(self._step)
        losses = [loss for task in range(len(self._labels)) if (loss := scores.log_loss(task)) is not None]
        line: dict[str, Any] = {
            "step": self._step,
            "samples": self._samples,
            "split": first["split"],
            "loss": sum(losses) / len(losses) if losses else None,
        }
        if training:
            self._progressive.merge(scores)
            line |= self._quality(self._progressive)
            steps = sum(body["steps"] for body in bodies)
            line["staleness_mean"] = sum(body["staleness_sum"] for body in bodies) / max(steps, 1)
            line["staleness_max"] = max(body["staleness_max"] for body in bodies)
        else:
            line |= self._quality(scores) | {"eval_samples": samples}
        line |= {"samples_per_s": round(rate, 1), "rows": self.rows}
        self._metrics.write(**line)

    def _quality(self, scores: ScoreHistogram) -> dict[str, Any]:
        figures: dict[str, Any] = {}
        for task, label in enumerate(self._labels):
            suffix = f"_{label}" if len(self._labels) > 1 else ""
            figures[f"auc{suffix}"] = scores.auc(task)
            figures[f"log_loss{suffix}"] = scores.log_loss(task)
            figures[f"ne{suffix}"] = scores.normalized_entropy(task)
            figures[f"calibration{suffix}"] = scores.calibration(task)
        return figures

    def write_roles(self, cpu_s: float, rss: int) -> None:
        """Write what every replica used: CPU seconds and resident bytes."""
        own = {"role": "coordinator", "index": 0, "cpu_s": round(cpu_s, 3), "rss": rss}
        roles = [own]
        for name, figures in sorted(self._figures.items()):
            role, _, index = name.rpartition("-")
            roles.append(
                {"role": role, "index": int(index), "cpu_s": round(figures["cpu_s"], 3), "rss": figures["rss"]}
            )
        self._events.write(event="roles", roles=roles)
        tables: dict[str, dict[str, int]] = {}
        for figures in self._figures.values():
            for table, counters in figures.get("tables", {}).items():
                total = tables.setdefault(table, {})
                for counter, value in counters.items():
                    total[counter] = total.get(counter, 0) + value
        self._events.write(event="tables", tables=tables)

    def close(self) -> None:
        """Close the metrics file."""
        self._metrics.close()
