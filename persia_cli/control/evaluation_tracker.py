"""The decisions that evaluations make during training: the best step so far, and when to stop."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from persia_cli.config.schema import Run
from persia_cli.config.schema.metric import Aim, goodness


@dataclass(slots=True)
class Best:
    """The best evaluation so far by one metric, and the number of evaluations after it."""

    metric: str
    aim: Aim
    min_delta: float = 0.0
    step: int | None = None
    value: float | None = None
    since: int = 0
    """Number of evaluations since the best; a figure that is not defined is never better."""

    def note(self, step: int, value: float | None) -> bool:
        """Add the figure of an evaluation; returns True if it is the best so far by more than `min_delta`."""
        if self._is_better(value):
            self.step, self.value, self.since = step, value, 0
            return True
        self.since += 1
        return False

    def _is_better(self, value: float | None) -> bool:
        if value is None or not math.isfinite(value):
            return False
        return self.value is None or goodness(self.aim, value) - goodness(self.aim, self.value) > self.min_delta


class EvaluationTracker:
    """The tracker of evaluations during training; without metrics it decides nothing."""

    def __init__(self, stop: Best | None = None, patience: int = 1, keep: Best | None = None) -> None:
        """Track `stop`, which ends training after `patience` evaluations, and `keep`, which selects checkpoints.

        Figures are those of a line of metrics, by key.
        """
        self._stop, self._patience, self._keep = stop, patience, keep
        self.improved = False
        """True if the last evaluation is the best so far and its weights are to be kept."""
        self.over = False
        """True if training is to end."""

    @property
    def best(self) -> Best | None:
        """The best evaluation so far: by the metric that selects checkpoints, else by the one that ends training."""
        return self._keep or self._stop

    def note(self, step: int, figures: Mapping[str, float | None]) -> bool:
        """Add the figures of the evaluation at a step; returns True if `best` is now of this step."""
        risen = self._stop is not None and self._stop.note(step, figures[self._stop.metric])
        self.over = self._stop is not None and self._stop.since >= self._patience
        self.improved = self._keep is not None and self._keep.note(step, figures[self._keep.metric])
        return self.improved if self._keep else risen

    @property
    def tracked(self) -> list[Best]:
        """The best evaluations by each metric, for `restore`."""
        return [best for best in (self._stop, self._keep) if best is not None]

    def restore(self, tracked: Sequence[tuple[str, int | None, float | None, int]]) -> None:
        """Go on from what `tracked` of another tracker was: metric, step, value and since of each, in its order.

        Where both decisions go by one metric they still differ, by `min_delta`. Other metrics are passed over.
        """
        for best, order in ((self._stop, tracked), (self._keep, tracked[::-1])):
            for metric, step, value, since in order:
                if best is not None and best.metric == metric:
                    best.step, best.value, best.since = step, value, since
                    break

    def kept_at(self, step: int) -> Best | None:
        """Return the best evaluation if it is of this step and its weights should be saved."""
        return self._keep if self._keep and self._keep.step == step else None

    @property
    def reason(self) -> str:
        """Reason why training ends, as the end of a sentence."""
        assert self._stop is not None
        stop, delta = self._stop, f" by more than {self._stop.min_delta:g}" if self._stop.min_delta else ""
        times = f"{stop.since} evaluation{'s' if stop.since > 1 else ''}"
        if stop.value is None:
            return f"{stop.metric} was not defined in {times}"
        return f"{stop.metric} has not got better{delta} than the {stop.value:.6g} of step {stop.step} in {times}"


def tracker_of(run: Run, aims: Mapping[str, Aim]) -> EvaluationTracker:
    """Return the tracker of a run's evaluations; `aims` are those of all its metrics.

    A run that stops early keeps its best weights too, by the same figure unless it names another: those of the step at
    which it ends are `patience` evaluations past the best.
    """
    early = run.train.stop_early
    metric = run.checkpoint.best_by or (early.metric if early else None)
    stop = Best(early.metric, aims[early.metric], early.min_delta) if early else None
    return EvaluationTracker(stop, early.patience if early else 1, Best(metric, aims[metric]) if metric else None)
