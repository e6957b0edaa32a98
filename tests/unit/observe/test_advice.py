"""The end of a training names the one setting that would help, by its curves."""

from typing import Any

import pytest

from persia_cli.config.schema import Run
from persia_cli.observe.advice import advice
from tests.support.runs import make_run


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


@pytest.mark.parametrize(
    ("losses", "aucs", "train", "told"),
    [
        (FALLING[:3], RISING, {}, "auc was still improving at the last evaluation: train longer, by persia"),
        (FALLING[:3], RISING, {"steps": 300}, "persia resume RUN train.steps=600"),
        (FALLING[:4], OVERFIT, {}, "keep the best model, by checkpoint.best_by=auc"),
        (FALLING[:4], OVERFIT, {"best_by": "auc"}, "more dropout may help, such as model.dropout=0.2"),
        ([0.5, 0.4, 0.9, 2.0], [0.70, 0.71, 0.66, 0.52], {}, "may help, such as optimizer.dense.lr=0.03"),
        ([0.50, 0.49, 0.48, 0.48, 0.47], [0.70, 0.66, 0.71, 0.67, 0.72], {}, "auc goes up and down"),
    ],
)
def test_clear_curves(losses: list[float], aucs: list[float], train: dict[str, Any], told: str) -> None:
    said = advice(made(**train), 100 * len(losses), curves(losses, aucs))
    assert told in said


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
    assert advice(made(), steps, curves(losses, aucs)) is None


def test_rows_that_were_lost_come_first() -> None:
    run = made()
    cold = make_run(embedding={"cold": {"path": "/disk", "size": 2**30}})
    run = run.model_copy(update={"embedding": cold.embedding})
    lines = [{**line, "cold_dropped": line["step"]} for line in curves(FALLING[:3], RISING)]
    told = advice(run, 300, lines)
    assert told is not None
    assert told.startswith("300 rows were lost")
    assert told.endswith(f"embedding.cold.size={2**31}")
    assert advice(run, 300, [{**line, "cold_dropped": 0} for line in lines]) == advice(made(), 300, lines)
