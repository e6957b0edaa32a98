"""The figures of a job, from its lines of metrics."""

from typing import Any

import pytest

from persia_cli.observe.outcome import Figures, figures_of


def training(step: int, samples: int, rate: float, staleness: int = 1, **quality: Any) -> dict[str, Any]:
    line = {"split": "train", "step": step, "samples": samples, "samples_per_s": rate, "staleness_max": staleness}
    return line | ({"auc": 0.5, "log_loss": 0.7} | quality)


def evaluation(**quality: Any) -> dict[str, Any]:
    return {"split": "eval", "step": 9, "samples": 9} | quality


def test_speed_leaves_the_first_interval_out() -> None:
    lines = [training(10, 1000, 50.0), training(20, 2000, 1000.0, 3), training(30, 3000, 500.0, 2)]
    assert figures_of([*lines, evaluation(auc=0.8, log_loss=0.4)]) == Figures(
        samples_per_s=pytest.approx(2000 / 3), auc=0.8, log_loss=0.4, steps=30, staleness_max=3
    )


def test_a_single_interval_counts() -> None:
    figures = figures_of([training(4, 100, 25.0, 3)])
    assert figures is not None
    assert (figures.samples_per_s, figures.staleness_share) == (25.0, 0.75)


def test_without_an_evaluation_the_progressive_figures_of_training_hold() -> None:
    figures = figures_of([training(1, 10, 5.0, auc=0.6), training(2, 20, 5.0, auc=0.7, log_loss=0.3)])
    assert figures is not None
    assert (figures.auc, figures.log_loss) == (0.7, 0.3)


def test_the_last_evaluation_counts_and_labels_are_averaged() -> None:
    early, last = evaluation(auc=0.1, log_loss=9.0), evaluation(auc_click=0.6, auc_buy=0.8, log_loss_click=0.5)
    figures = figures_of([early, training(1, 10, 5.0), last])
    assert figures is not None
    assert (figures.auc, figures.log_loss) == (pytest.approx(0.7), 0.5)


def test_figures_may_be_undefined() -> None:
    figures = figures_of([training(1, 10, 0.0), evaluation(auc=None, log_loss=0.2)])
    assert figures == Figures(samples_per_s=None, auc=None, log_loss=0.2, steps=1, staleness_max=1)
    assert figures_of([evaluation(auc=0.5)]) is None
