"""A run directory with a generated record, for tests of reports and of ends of runs."""

import math
from pathlib import Path
from typing import Any

import numpy as np

from persia_cli.config.record import write_run
from persia_cli.observe.journal import EVENTS, METRICS, Journal
from persia_cli.observe.scores import ScoreHistogram, reliability
from persia_cli.plan.job import plan_job
from tests.support.runs import make_facts, make_run

LABELS = ("click",)
EVERY = 50
"""Steps of a log interval, of 64 samples each."""

RATE = 20_000.0


def made_up_run(run_dir: Path, lines: int, labels: tuple[str, ...] = LABELS, **ended: Any) -> Path:
    """Write a run of so many log intervals; `ended` is the last event's phase, and its other keys.

    Without it the run is still running.
    """
    run_dir.mkdir(parents=True)
    run = make_run(dataset={"labels": labels}, mode={"kind": "hybrid"}, train={"batch_size": 64})
    write_run(run, run_dir / "config.yaml")
    (run_dir / "job.json").write_bytes(plan_job(run, make_facts(run, 64_000, 5000), "train", run_dir).job.to_json())
    events, metrics = Journal(run_dir / EVENTS), Journal(run_dir / METRICS)
    draw = np.random.default_rng(0)
    if lines:
        events.write(event="phase", phase="training", step=0)
    for number in range(1, lines + 1):
        metrics.write(**_training(number, labels, draw))
        if number % 10 == 0:
            metrics.write(**_evaluation(number, labels))
            events.write(event="reliability", step=number * EVERY, labels={name: _diagram(draw) for name in labels})
    events.write(event="warning", text="table a is full & <refuses> new ids")
    if ended:
        events.write(event="phase", **ended)
        tables = {"a": {"rows": 4000, "hits": 90_000, "misses": 7000, "evicted": 120}}
        events.write(event="roles", roles=[{"role": "nn-worker", "index": 0, "cpu_s": 12.5, "rss": 2**28}])
        events.write(event="tables", tables=tables)
    events.close()
    metrics.close()
    return run_dir


def _figures(number: int, labels: tuple[str, ...], offset: float) -> dict[str, float]:
    suffixes = [""] if len(labels) == 1 else [f"_{label}" for label in labels]
    learned = 1.0 - math.exp(-number / 8)
    return {
        key + suffix: value
        for task, suffix in enumerate(suffixes)
        for key, value in {
            "auc": 0.5 + (0.27 - 0.03 * task + offset) * learned,
            "log_loss": 0.69 - 0.22 * learned,
            "ne": 1.0 - 0.2 * learned,
            "calibration": 1.0 + 0.1 / number,
        }.items()
    }


def _training(number: int, labels: tuple[str, ...], draw: np.random.Generator) -> dict[str, Any]:
    loss = 0.69 - 0.22 * (1.0 - math.exp(-number / 8)) + draw.normal() * 0.01
    line = _place(number, "train") | {"loss": loss} | _figures(number, labels, 0.0)
    line |= {f"window_{name}": value for name, value in _figures(number, labels, 0.0).items()}
    line |= {"staleness_mean": 2.5, "staleness_max": 3, "staleness": [{"1": 2, "2": 8, "3": 40}]}
    moment = {"samples_per_s": RATE * (1.0 + 0.05 * draw.normal()), "gpu_memory": min(number, 12) * 2**28}
    return line | moment | _store(number)


def _evaluation(number: int, labels: tuple[str, ...]) -> dict[str, Any]:
    line = _place(number, "eval") | {"loss": 0.5 - 0.001 * number} | _figures(number, labels, 0.01)
    return line | {"eval_samples": 5000, "unknown": 0.0625, "samples_per_s": RATE} | _store(number)


def _place(number: int, split: str) -> dict[str, Any]:
    return {"step": number * EVERY, "samples": number * EVERY * 64, "split": split}


def _store(number: int) -> dict[str, Any]:
    rows = min(4000, 130 * number)
    return {"rows": rows, "hit_rate": 1.0 - 0.6 / number**0.5, "evicted": 90 * max(0, number - 35)}


def _diagram(draw: np.random.Generator) -> dict[str, list[float]]:
    logits = draw.normal(-2.0, 1.5, (20_000, 1))
    labels = draw.random((20_000, 1)) < 1.0 / (1.0 + np.exp(-1.15 * logits))
    scores = ScoreHistogram(1)
    scores.add(logits, labels)
    return reliability(scores)
