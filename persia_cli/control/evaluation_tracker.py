"""The decisions that evaluations make during training: the best step so far, and when to stop."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from persia_cli.metric import Aim, goodness, value_of

Part = Literal["dense", "embedding"]
"""The two parts of the model with a learning rate: dense weights and rows."""

Decision = Part | Literal["best", "stop"]
"""A decision by an evaluation: the learning rate of a part, the best checkpoint, or the end of training."""


@dataclass(slots=True)
class Best:
    """The best evaluation so far by one metric, and the number of evaluations after it."""

    metric: str
    aim: Aim
    min_delta: float = 0.0
    step: int | None = None
    value: float | None = None
    since: int = 0
    """Number of evaluations since the best; an undefined metric is never better."""

    def add(self, step: int, value: float | None) -> bool:
        """Add the metric of an evaluation; return True if it is the best so far by more than `min_delta`."""
        if self._is_better(value):
            self.step, self.value, self.since = step, value, 0
            return True
        self.since += 1
        return False

    def _is_better(self, value: float | None) -> bool:
        if value is None or not math.isfinite(value):
            return False
        return self.value is None or goodness(self.aim, value) - goodness(self.aim, self.value) > self.min_delta


@dataclass(slots=True)
class Plateau:
    """The reductions of the learning rate of dense weights or of rows when evaluations do not improve."""

    of: Part
    best: Best
    factor: float
    floor: float
    """Fraction of the learning rate below which it does not fall."""
    reductions: int = 0
    """Number of reductions of the learning rate so far."""
    reduced: bool = False
    """True if the last evaluation has reduced it."""

    def add(self, step: int, metrics: Mapping[str, float | None]) -> None:
        """Add the metrics of an evaluation; one without improvement reduces the rate."""
        risen = self.best.add(step, value_of(metrics, self.best.metric))
        # 0.1 squared is a little above 0.01 in floating point.
        self.reduced = not risen and self.factor**self.reductions > self.floor * (1.0 + 1e-9)
        self.reductions += self.reduced

    def restore(self, metric: str, step: int | None, value: float | None, since: int, reductions: int) -> None:
        """Continue another plateau; if that one tracked another metric, only its reductions count."""
        self.reductions = reductions
        if metric == self.best.metric:
            self.best.step, self.best.value, self.best.since = step, value, since


class EvaluationTracker:
    """The tracker of evaluations during training; without metrics it decides nothing."""

    def __init__(
        self,
        stop: Best | None = None,
        patience: int = 1,
        keep: Best | None = None,
        plateaus: Sequence[Plateau] = (),
    ) -> None:
        """Track `stop`, which ends training after `patience` evaluations, and `keep`, which selects checkpoints.

        `plateaus` reduce learning rates. Metrics are those of a line of the record, by key.
        """
        self.plateaus = tuple(plateaus)
        self.stop, self._patience, self._keep = stop, patience, keep
        self.improved = False
        """True if the last evaluation is the best so far and its weights must be saved."""
        self.over = False
        """True if training is to end."""

    @property
    def best(self) -> Best | None:
        """The best evaluation so far: by the metric that selects checkpoints, else by the one that ends training."""
        return self._keep or self.stop

    def add(self, step: int, metrics: Mapping[str, float | None]) -> bool:
        """Add the metrics of the evaluation at a step; return True if `best` is now of this step."""
        risen = self.stop is not None and self.stop.add(step, value_of(metrics, self.stop.metric))
        self.over = self.stop is not None and self.stop.since >= self._patience
        self.improved = self._keep is not None and self._keep.add(step, value_of(metrics, self._keep.metric))
        for plateau in self.plateaus:
            plateau.add(step, metrics)
        return self.improved if self._keep else risen

    def undecided(self, metrics: Mapping[str, float | None]) -> list[tuple[str, Decision]]:
        """Return each metric that an evaluation lacks with a decision by it; such an evaluation is never better."""
        decisions: list[tuple[Best | None, Decision]] = [(self._keep, "best"), (self.stop, "stop")]
        decisions += [(plateau.best, plateau.of) for plateau in self.plateaus]
        values = [(best.metric, value_of(metrics, best.metric), decision) for best, decision in decisions if best]
        return [(metric, decision) for metric, value, decision in values if value is None or not math.isfinite(value)]

    @property
    def reductions(self) -> tuple[int, int]:
        """The number of reductions of the learning rates of dense weights and of rows."""
        reductions = {plateau.of: plateau.reductions for plateau in self.plateaus}
        return reductions.get("dense", 0), reductions.get("embedding", 0)

    @property
    def tracked(self) -> list[Best]:
        """The best evaluations by each metric, for `restore`."""
        return [best for best in (self.stop, self._keep) if best is not None]

    def restore(self, tracked: Sequence[tuple[str, int | None, float | None, int]]) -> None:
        """Continue another tracker from its `tracked`: metric, step, value and since of each, in its order.

        Two decisions by one metric still differ, by `min_delta`. Other metrics are ignored.
        """
        for best, order in ((self.stop, tracked), (self._keep, tracked[::-1])):
            for metric, step, value, since in order:
                if best is not None and best.metric == metric:
                    best.step, best.value, best.since = step, value, since
                    break

    def seed(self, evaluations: Iterable[Mapping[str, Any]]) -> None:
        """Find the best of earlier evaluations, lines of the record, that no earlier start has compared."""
        if self._keep is not None and self._keep.value is None:
            for line in evaluations:
                self._keep.add(line["step"], value_of(line, self._keep.metric))

    @property
    def kept(self) -> Best | None:
        """The best evaluation so far, if its checkpoint is to be the best."""
        return self._keep if self._keep and self._keep.step is not None else None

    def best_at(self, step: int) -> Best | None:
        """Return the best evaluation if it is of this step and its weights should be saved."""
        return self._keep if self._keep and self._keep.step == step else None

    @property
    def saves_next(self) -> bool:
        """True if the next evaluation is the first one, whose weights are saved as the best so far."""
        return self._keep is not None and self._keep.value is None
