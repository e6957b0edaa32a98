"""The end of a training names the one setting that would help, by its curves."""

from pathlib import Path
from typing import Any

import pytest

from persia_cli.config.compose import compose_run
from persia_cli.config.schema import Run
from persia_cli.observe.advice import DROPOUT, advice, giveaway
from tests.support.growing import following, put
from tests.support.runs import make_run

ROWS = 10_000


def made(best_by: str | None = None, **train: Any) -> Run:
    checkpoint = {"best_by": best_by}
    focal = {"click": {"kind": "focal"}}  # judged by AUC alone
    return make_run(
        train={"batch_size": 32, "epochs": 3, "losses": focal} | train, eval={"every_epochs": 1}, checkpoint=checkpoint
    )


def curves(losses: list[float], aucs: list[float]) -> list[dict[str, Any]]:
    """Lines of metrics with evaluations every 100 steps, and two of training between them, around each loss."""
    lines: list[dict[str, Any]] = []
    for number, (loss, auc) in enumerate(zip(losses, aucs, strict=True)):
        for half in (1, 2):
            step = 100 * number + 50 * half
            lines.append(
                {"split": "train", "step": step, "samples": 32 * step, "loss": loss * (1.1 if half == 1 else 0.9)}
            )
        lines.append({"split": "eval", "step": 100 * number + 100, "samples": 3200 * (number + 1), "auc": auc})
    return lines


FALLING = [0.6, 0.5, 0.4, 0.3, 0.2, 0.1]
RISING = [0.70, 0.72, 0.73]
OVERFIT = [0.70, 0.74, 0.73, 0.71]
LEVEL = curves(FALLING[:4], [0.740, 0.741, 0.741, 0.741])


@pytest.mark.parametrize(
    ("losses", "aucs", "train", "told"),
    [
        (FALLING[:3], RISING, {}, "auc was still improving at the last evaluation: train longer, by persia"),
        (FALLING[:3], RISING, {"steps": 300, "epochs": 2, "batch_size": 5000}, "RUN train.steps=600 train.epochs=3"),
        (FALLING[:3], RISING, {"steps": 300, "epochs": 3, "batch_size": 5000}, "RUN train.steps=600"),
        (FALLING[:4], OVERFIT, {}, "keep the best model, by checkpoint.best_by=auc"),
        ([0.5, 0.4, 0.9, 2.0], [0.70, 0.71, 0.66, 0.52], {}, "may help, such as optimizer.dense.lr=0.03"),
        ([0.50, 0.49, 0.48, 0.48, 0.47], [0.70, 0.66, 0.71, 0.67, 0.72], {}, "auc goes up and down"),
    ],
)
def test_clear_curves(losses: list[float], aucs: list[float], train: dict[str, Any], told: str) -> None:
    said = advice(made(**train), 100 * len(losses), 10**6, curves(losses, aucs))
    assert said is not None
    assert told in said
    assert "RUN" not in told or said.endswith(told)


@pytest.mark.parametrize(
    ("losses", "aucs", "steps"),
    [
        ([], [], 100),
        ([0.5], [0.7], 100),
        ([0.5, 0.4], [0.7, None], 200),
        ([0.50, 0.49, 0.485], [0.9279, 0.9293, 0.9279], 300),
        ([0.50, 0.49, 0.485], [0.9290, 0.9291, 0.92915], 300),
        ([0.5, 0.4, 0.3], [0.70, 0.72, 0.73], 2000),
        ([0.6, 0.5, 0.45, 0.44], [0.60, 0.66, 0.6599, 0.65995], 2000),
    ],
    ids=["no evaluation", "one", "undefined", "noise", "all learnt", "ended by a signal", "small swings"],
)
def test_nothing_clear(losses: list[float], aucs: list[Any], steps: int) -> None:
    assert advice(made(), steps, 10**6, curves(losses, aucs)) is None


def test_rows_that_were_lost_come_first() -> None:
    run = made()
    cold = make_run(embedding={"cold": {"path": "/disk", "size": 2**30}})
    run = run.model_copy(update={"embedding": cold.embedding})
    lines = [{**line, "cold_dropped": line["step"]} for line in curves(FALLING[:3], RISING)]
    told = advice(run, 300, ROWS, lines)
    assert told is not None
    assert told.startswith("300 rows were lost")
    assert told.endswith(f"embedding.cold.size={2**31}")
    none_lost = [{**line, "cold_dropped": 0} for line in lines]
    assert advice(run, 300, ROWS, none_lost) == advice(made(), 300, ROWS, curves(FALLING[:3], RISING))


def test_longer_training_of_a_metric_that_rises() -> None:
    stopped = made(best_by="auc", stop_early={"metric": "log_loss", "patience": 2})
    told = advice(stopped, 2000, 10**6, curves(FALLING[:3], RISING))
    assert told is not None
    assert "'train.stop_early={metric: auc, patience: 4}'" in told


def test_dropout_is_advised_where_it_has_gained() -> None:
    overfit, run = curves(FALLING[:4], OVERFIT), made(best_by="auc")
    assert advice(run, 400, 10**6, overfit) is None, "nothing is measured for so many rows"
    assert advice(run, 400, ROWS, LEVEL) is None
    normed = make_run(
        model={"kind": "ffnn", "dim": 8, "hidden": [4], "norm": "batch", "dropout": 0.2},
        **{key: getattr(run, key).model_dump() for key in ("train", "eval", "checkpoint")},
    )
    assert advice(normed, 400, ROWS, overfit) is None
    told = advice(run, 400, ROWS, overfit)
    assert told is not None
    assert all(text in told for text in DROPOUT)


def test_worse_probabilities_alone_are_no_reason() -> None:
    """The log loss doubles while AUC holds; calibration repairs that."""
    run = make_run(train={"batch_size": 32, "epochs": 3}, eval={"every_epochs": 1}, checkpoint={"best_by": "log_loss"})
    lines = [
        {**line, "log_loss": 0.3 + 0.1 * line["step"] / 100} if line["split"] == "eval" else line
        for line in curves(FALLING[:4], [0.740, 0.741, 0.741, 0.741])
    ]
    assert "dropout" not in (advice(run, 400, ROWS, lines) or "")


def test_nothing_gives_a_label_away_where_no_samples_are_set_aside(tmp_path: Path) -> None:
    put(tmp_path / "data", 0)
    run = compose_run(following(tmp_path / "data"))
    assert giveaway(run, {"auc": 1.0}) is None
