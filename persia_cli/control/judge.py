"""What evaluations decide while training goes on: which step is the best so far, and whether to stop."""

import math
from collections.abc import Mapping
from dataclasses import dataclass

from persia_cli.config.schema import Run
from persia_cli.config.schema.metric import Aim


@dataclass(slots=True)
class Best:
    """The best evaluation so far by one metric, and how many came after it."""

    metric: str
    aim: Aim
    min_delta: float = 0.0
    step: int | None = None
    value: float | None = None
    since: int = 0
    """Evaluations since the best; a figure that is not defined is no better than any."""

    def note(self, step: int, value: float | None) -> bool:
        """Take the figure of an evaluation; True if it is the best so far, by more than `min_delta`."""
        if self._is_better(value):
            self.step, self.value, self.since = step, value, 0
            return True
        self.since += 1
        return False

    def _is_better(self, value: float | None) -> bool:
        if value is None or not math.isfinite(value):
            return False
        return self.value is None or _goodness(self.aim, value) - _goodness(self.aim, self.value) > self.min_delta


def _goodness(aim: Aim, value: float) -> float:
    return {"high": value, "low": -value, "one": -abs(value - 1.0)}[aim]


class Judge:
    """Hears of every evaluation during training; without metrics to go by it decides nothing."""

    def __init__(self, stop: Best | None = None, patience: int = 1, keep: Best | None = None) -> None:
        """`stop` is what training ends by, after `patience` evaluations; `keep` what the best checkpoint is chosen by.

        Figures are those of a line of metrics, by key.
        """
        self._stop, self._patience, self._keep = stop, patience, keep
        self.improved = False
        """Whether the last evaluation is the best so far and its weights are to be kept."""
        self.over = False
        """Whether training is to end."""

    @property
    def best(self) -> Best | None:
        """The best evaluation so far: by what checkpoints are kept by, else by what training ends by."""
        return self._keep or self._stop

    def note(self, step: int, figures: Mapping[str, float | None]) -> bool:
        """Take the figures of the evaluation at a step; True if `best` is now of this step."""
        risen = self._stop is not None and self._stop.note(step, figures[self._stop.metric])
        self.over = self._stop is not None and self._stop.since >= self._patience
        self.improved = self._keep is not None and self._keep.note(step, figures[self._keep.metric])
        return self.improved if self._keep else risen

    def kept_at(self, step: int) -> Best | None:
        """Return the best evaluation if it is of this step and its weights are to be kept."""
        return self._keep if self._keep and self._keep.step == step else None

    @property
    def reason(self) -> str:
        """Why training ends, as a sentence without its beginning."""
        assert self._stop is not None
        stop, delta = self._stop, f" by more than {self._stop.min_delta:g}" if self._stop.min_delta else ""
        times = f"{stop.since} evaluation{'s' if stop.since > 1 else ''}"
        if stop.value is None:
            return f"{stop.metric} was not defined in {times}"
        return f"{stop.metric} has not got better{delta} than the {stop.value:.6g} of step {stop.step} in {times}"


def judge_of(run: Run, aims: Mapping[str, Aim]) -> Judge:
    """Return who judges the evaluations of a run's training; `aims` are those of all its metrics."""
    early, metric = run.train.stop_early, run.checkpoint.best_by
    stop = Best(early.metric, aims[early.metric], early.min_delta) if early else None
    return Judge(stop, early.patience if early else 1, Best(metric, aims[metric]) if metric else None)
