"""The metrics of a job, from its lines of metrics."""

from pathlib import Path
from typing import Any

import pytest

from persia_cli.observe.journal import EVENTS, METRICS, Journal
from persia_cli.observe.outcome import MIN_STEPS, JobMetrics, metrics_in, metrics_of, speed_of


def training(step: int, samples: int, rate: float, staleness: int = 1) -> dict[str, Any]:
    line = {"split": "train", "step": step, "samples": samples, "samples_per_s": rate, "staleness_max": staleness}
    return line | {"auc": 0.5, "log_loss": 0.7}


def evaluation(step: int = 9, **quality: Any) -> dict[str, Any]:
    return {"split": "eval", "step": step, "samples": step, "loss": 0.5} | quality


def judged(lines: list[dict[str, Any]], metric: str) -> JobMetrics:
    return metrics_of([training(90, 900, 5.0), *lines], metric)


def test_speed_leaves_the_first_interval_out() -> None:
    lines = [training(10, 1000, 50.0), training(40, 2000, 1000.0, 3), training(70, 3000, 500.0, 2)]
    figures = metrics_of([*lines, evaluation(auc=0.8, log_loss=0.4)], "auc")
    assert figures == JobMetrics(
        samples_per_s=pytest.approx(2000 / 3),
        quality={"loss": 0.5, "auc": 0.8, "log_loss": 0.4},
        judged_step=9,
        steps=70,
        staleness_max=3,
    )


def test_too_few_steps_give_no_speed() -> None:
    assert speed_of([]) is None
    assert speed_of([training(400, 100, 25.0, 3)]) is None
    short = [training(50, 6400, 19_559.0), training(60, 7680, 240_334.0)]
    assert speed_of(short) is None
    assert speed_of([short[0], training(50 + MIN_STEPS, 12_800, 20_000.0)]) == pytest.approx(20_000.0)


def test_the_best_evaluation_counts_by_the_metric_asked_for() -> None:
    lines = [
        evaluation(10, auc=0.7, log_loss=0.30, calibration=1.3),
        evaluation(20, auc=0.8, log_loss=0.31, calibration=0.7),
        evaluation(30, auc=0.75, log_loss=0.32, calibration=0.9),
    ]
    steps = {metric: judged(lines, metric).judged_step for metric in ("auc", "log_loss", "calibration")}
    assert steps == {"auc": 20, "log_loss": 10, "calibration": 30}
    assert judged(lines, "auc").quality["log_loss"] == 0.31


def test_the_evaluation_that_a_run_chose_precedes_the_best_one(tmp_path: Path) -> None:
    """A run that stops early by log loss is represented by the evaluation of least log loss, not by its last."""
    metrics, events = Journal(tmp_path / METRICS), Journal(tmp_path / EVENTS)
    metrics.write(**training(90, 900, 5.0))
    for step, log_loss, auc in ((10, 0.3050, 0.7), (20, 0.3006, 0.71), (30, 0.3180, 0.72)):
        metrics.write(**evaluation(step, log_loss=log_loss, auc=auc))
        if step < 30:
            events.write(event="best", metric="log_loss", step=step, value=log_loss)
    metrics.close()
    events.close()
    figures = metrics_in(tmp_path, "auc")
    assert (figures.judged_step, figures.quality["log_loss"], figures.quality["auc"]) == (20, 0.3006, 0.71)


def test_labels_are_averaged_and_each_may_be_what_counts() -> None:
    lines = [
        evaluation(1, auc_click=0.6, auc_buy=0.9, log_loss_click=0.5),
        evaluation(2, auc_click=0.7, auc_buy=0.7, log_loss_click=0.6),
    ]
    assert judged(lines, "auc").quality["auc"] == pytest.approx(0.75)
    assert judged(lines, "auc_click").judged_step == 2
    assert judged(lines, "auc_buy").judged_step == judged(lines, "log_loss_click").judged_step == 1


def test_metrics_may_be_undefined() -> None:
    figures = metrics_of([training(1, 10, 0.0), evaluation(auc=None, log_loss=0.2)], "auc")
    assert figures == JobMetrics(None, {"loss": 0.5, "auc": None, "log_loss": 0.2}, 9, 1, 1)
    assert judged([evaluation(1, auc=None), evaluation(2, auc=0.5), evaluation(3, auc=None)], "auc").judged_step == 2
    assert judged([evaluation(1, auc_a=None, auc_b=0.5)], "auc").quality["auc"] is None
    assert metrics_of([evaluation(auc=0.5)], "auc") is None
