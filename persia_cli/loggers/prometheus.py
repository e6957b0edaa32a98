"""The latest metrics for Prometheus, at `/metrics` of a port of the loopback interface."""

import re
from collections.abc import Mapping
from typing import Any

from persia_cli.loggers.logger import Facts, Logger
from persia_cli.metric import FIGURES, keys_of
from persia_cli.observe.journal_keys import METRIC_KEYS

HOST = "127.0.0.1"
"""Prometheus has no keys, and nothing of a job listens beyond its machine without keys."""
WINDOW = "window_"
"""Prefix of metrics of the last lines of training."""


class Prometheus(Logger):
    """A gauge for each metric, such as `persia_auc{split="eval",label="click"}`.

    Names of the data, which may be any text, are values of Prometheus's labels, never parts of its names.
    """

    def start(self, facts: Facts, config: Mapping[str, Any]) -> str:
        """Listen, until the job ends."""
        from prometheus_client import CollectorRegistry, Gauge, start_http_server

        self._registry, self._gauge = CollectorRegistry(), Gauge
        self._gauges: dict[str, Any] = {}
        metrics = dict.fromkeys(metric for figures in FIGURES.values() for metric in figures)
        self._of_labels = {
            f"{prefix}{key}": (f"{prefix}{metric}", label)
            for metric in metrics
            for key, label in zip(keys_of(metric, facts.labels), facts.labels, strict=True)
            for prefix in ("", WINDOW)
        }
        self._server, _ = start_http_server(config["metrics_port"], HOST, self._registry)
        run = Gauge("persia_run", "the names of the run", ["project", "run"], registry=self._registry)
        run.labels(facts.project, facts.name).set(1)
        return f"http://{HOST}:{config['metrics_port']}/metrics"

    def line(self, split: str, step: int, time_s: float, metrics: Mapping[str, float]) -> None:
        """Replace the values of a split by those of its newest line."""
        for key, value in {"step": step, "time": time_s, **metrics}.items():
            name, label = self._of_labels.get(key, (key, None))
            where = {"split": split} if label is None else {"split": split, "label": label}
            if name not in self._gauges:
                text = METRIC_KEYS[name].meaning if name in METRIC_KEYS else name
                plain = "persia_" + re.sub(r"\W", "_", name, flags=re.ASCII)
                self._gauges[name] = self._gauge(plain, text, list(where), registry=self._registry)
            self._gauges[name].labels(**where).set(value)

    def end(self, status: str, summary: Mapping[str, float]) -> None:
        """Listen no longer."""
        self._server.shutdown()
        self._server.server_close()
