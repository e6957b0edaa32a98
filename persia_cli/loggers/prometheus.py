"""The latest metrics for Prometheus, at `/metrics` of a port of the loopback interface."""

import re
from collections.abc import Mapping
from typing import Any

from persia_cli.loggers.logger import Facts, Logger
from persia_cli.observe.journal_keys import METRIC_KEYS

HOST = "127.0.0.1"
"""Prometheus has no keys, and nothing of a job listens beyond its machine without keys."""


class Prometheus(Logger):
    """A gauge for each metric, such as `persia_auc{split="eval"}`."""

    def start(self, facts: Facts, config: Mapping[str, Any]) -> str:
        """Listen, until the job ends."""
        from prometheus_client import CollectorRegistry, Gauge, start_http_server

        self._registry, self._gauge = CollectorRegistry(), Gauge
        self._gauges: dict[str, Any] = {}
        self._server, _ = start_http_server(config["metrics_port"], HOST, self._registry)
        run = Gauge("persia_run", "the names of the run", ["project", "run"], registry=self._registry)
        run.labels(facts.project, facts.name).set(1)
        return f"http://{HOST}:{config['metrics_port']}/metrics"

    def line(self, split: str, step: int, time_s: float, metrics: Mapping[str, float]) -> None:
        """Replace the values of a split by those of its newest line."""
        for name, value in {"step": step, "time": time_s, **metrics}.items():
            key = "persia_" + re.sub(r"\W", "_", name, flags=re.ASCII)
            if key not in self._gauges:
                text = METRIC_KEYS[name].meaning if name in METRIC_KEYS else name
                self._gauges[key] = self._gauge(key, text, ["split"], registry=self._registry)
            self._gauges[key].labels(split).set(value)

    def end(self, status: str, summary: Mapping[str, float]) -> None:
        """Listen no longer."""
        self._server.shutdown()
        self._server.server_close()
