"""The evaluation that counts for a run."""

from pathlib import Path

import pytest

from persia_cli.observe.history import RunHistory
from tests.support.runs import make_run

AUCS = {10: 0.6, 20: 0.8, 30: 0.7}


@pytest.mark.parametrize(("chosen", "counts"), [(None, 20), (10, 10), (30, 30)])
def test_the_reliability_diagram_is_that_of_the_evaluation_that_counts(chosen: int | None, counts: int) -> None:
    lines = [{"split": "eval", "step": step, "auc": auc, "log_loss": 1 - auc} for step, auc in AUCS.items()]
    events = [{"event": "reliability", "step": step, "labels": {}} for step in AUCS]
    events += [{"event": "best", "step": chosen}] if chosen else []
    history = RunHistory(Path("run"), make_run(), [], lines, events, [])
    assert history.judged is not None
    assert history.reliability is not None
    assert (history.judged["step"], history.reliability["step"]) == (counts, counts)


def test_the_reliability_diagram_is_that_of_the_corrections_that_the_saved_model_has() -> None:
    line = {"split": "eval", "step": 10, "auc": 0.7, "log_loss": 0.5}
    corrections = {"labels": [], "metrics": {}, "reliability": {"click": "corrected"}}
    events = [
        {"event": "reliability", "step": 10, "labels": {"click": "unchanged", "buy": "unchanged"}},
        {"event": "calibrated", "step": 10, **corrections},
    ]
    history = RunHistory(Path("run"), make_run(), [], [line], events, [])
    assert history.reliability is not None
    assert history.reliability["labels"] == {"click": "corrected", "buy": "unchanged"}
