"""A search for the best settings: Optuna chooses the points of a sweep one after another.

Each choice is a function of the seed and the record of the points, from which the study is made anew in milliseconds.
So nothing else is stored, and a resumed search chooses what an undisturbed one does.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import yaml

from persia_cli.metric import aim_of
from persia_cli.observe.journal import METRICS, Tail
from persia_cli.observe.outcome import quality_in
from persia_cli.plan.job import JOB, Job
from persia_cli.sweeps.folder import PointOutcome
from persia_cli.sweeps.plan import SweepPlan, repeats
from persia_cli.sweeps.points import Axis, Point, value_of

if TYPE_CHECKING:
    from optuna.distributions import BaseDistribution
    from optuna.trial import FrozenTrial

HALVING = 3
"""Of the trials that reach evaluation 3, 9 and so on, one in so many goes on."""
RUNGS = frozenset(HALVING**power for power in range(1, 32))
"""The evaluations after which a trial may end early; fewer than three show little."""
ATTEMPTS = 100
"""After so many known points in a row there are no others to choose."""


@dataclass
class _Evaluations:
    """The evaluations of a run so far."""

    tail: Tail
    steps: list[int] = field(default_factory=list)
    objectives: list[float] = field(default_factory=list)
    judged: int = 0
    """The number of those by which it was decided whether the run goes on."""


class Search:
    """The points of a search: the defaults, trials, and the best of them with other seeds."""

    def __init__(self, plan: SweepPlan, outcomes: Mapping[Point, PointOutcome]) -> None:
        """Prepare to choose; `outcomes` has each point from its start, also while this search goes on."""
        import optuna

        assert plan.request.search is not None
        assert plan.space is not None
        self._plan, self._request, self._space, self._outcomes = plan, plan.request.search, plan.space, outcomes
        self._aim = aim_of(plan.metric)
        self._distributions = {axis.key: _distribution(axis) for axis in plan.space.swept}
        optuna.logging.set_verbosity(optuna.logging.ERROR)
        self._defaults = plan.space.defaults
        self._default_values = self._values_of_defaults()
        self._evaluations: dict[str, _Evaluations] = {}

    def points(self) -> Iterator[Point | None]:
        """Yield the points to train, each of which must then be in the outcomes; None means to wait for an end.

        First come points that an earlier process has not finished.
        """
        yield from [each.point for each in self._trials if each.error]
        if self._defaults not in self._outcomes:
            yield self._defaults
        while len(self._trials) <= self._request.trials and (point := self._draw()) is not None:
            yield point
        while any(each.state == "unfinished" for each in self._trials):
            yield None
        for point in repeats(self._plan, list(self._outcomes.values())):
            if point not in self._outcomes or self._outcomes[point].error:
                yield point

    def hopeless(self) -> list[Point]:
        """Return the points that are to end before they have trained all their steps, by their new evaluations."""
        if not self._request.prune:
            return []
        running = [each for each in self._trials if each.state == "unfinished" and each.point != self._defaults]
        return [each.point for each in running if self._is_hopeless(each)]

    @property
    def _trials(self) -> list[PointOutcome]:
        """The defaults and the trials, without those that are repeated with other seeds."""
        return [each for each in self._outcomes.values() if not each.point.names_seed]

    def _draw(self) -> Point | None:
        """Return another point; None if there seems to be none."""
        import optuna
        from optuna.samplers import RandomSampler, TPESampler

        number = len(self._trials) - 1
        study = optuna.create_study(direction="maximize" if self._aim == "high" else "minimize")
        study.add_trials([trial for each in self._trials if (trial := self._trial(each)) is not None])
        for attempt in range(ATTEMPTS):
            seed = (self._plan.grid[0].run.seed * 1_000_003 + number + attempt * 7_919) % 2**32
            study.sampler = TPESampler(seed=seed) if self._request.sampler == "tpe" else RandomSampler(seed=seed)
            point = self._point(study.ask(self._distributions).params)
            if point not in self._outcomes:
                return point
        return None

    def _trial(self, outcome: PointOutcome) -> "FrozenTrial | None":
        """Return the trial of a point; None if it has not ended well, or its values are not among those searched."""
        from optuna.trial import TrialState, create_trial

        spans = {axis.key: axis.span for axis in self._space.swept}
        values: dict[str, Any] | None = {
            key: span.number(text) if (span := spans[key]) else text for key, text in outcome.point.swept
        }
        if outcome.point == self._defaults:
            values = self._default_values
        quality = outcome.metrics.quality.get(self._plan.metric) if outcome.metrics else None
        if values is None or outcome.error or (quality is None and not outcome.pruned):
            return None
        return create_trial(
            params=values,
            distributions={key: self._distributions[key] for key in values},
            state=TrialState.PRUNED if outcome.pruned else TrialState.COMPLETE,
            value=None if outcome.pruned or quality is None else self._objective(quality),
            intermediate_values=dict(enumerate(self._read(outcome).objectives, 1)) if outcome.pruned else None,
        )

    def _values_of_defaults(self) -> dict[str, Any] | None:
        """Return the values of the searched keys in the settled configuration; None if a key cannot have its value."""
        values = {}
        for axis in self._space.swept:
            value: Any = self._plan.first.run.model_dump(mode="json")
            for part in axis.key.split("."):
                value = value.get(part) if isinstance(value, dict) else None
            if axis.span is not None:
                is_within = isinstance(value, int | float) and axis.span.low <= value <= axis.span.high
                values[axis.key] = value if is_within else None
            else:
                texts = [value_of(word) for word in axis.arguments]
                values[axis.key] = next((text for text in texts if yaml.safe_load(text) == value), None)
        return None if None in values.values() else values

    def _point(self, values: dict[str, Any]) -> Point:
        if values == self._default_values:
            return self._defaults
        spans = {axis.key: axis.span for axis in self._space.swept}
        return self._space.point({key: span.text(values[key]) if span else values[key] for key, span in spans.items()})

    def _read(self, outcome: PointOutcome) -> _Evaluations:
        """Return the evaluations of a point so far."""
        path = self._plan.folder / outcome.run_dir / METRICS
        evaluations = self._evaluations.setdefault(outcome.run_dir, _Evaluations(Tail(path)))
        for line in evaluations.tail.new():
            value = quality_in(line).get(self._plan.metric) if line["split"] == "eval" else None
            if value is not None:
                evaluations.steps.append(line["step"])
                evaluations.objectives.append(self._objective(value))
        return evaluations

    def _is_hopeless(self, outcome: PointOutcome) -> bool:
        """Return True if a new evaluation of RUNGS, before the last step, is not in the best third of those so far."""
        evaluations = self._read(outcome)
        before, evaluations.judged = evaluations.judged, len(evaluations.steps)
        for rung in sorted(RUNGS.intersection(range(before + 1, evaluations.judged + 1))):
            others = [each for trial in self._trials for each in self._read(trial).objectives[rung - 1 : rung]]
            kept = sorted(others, reverse=self._aim == "high")[: max(1, len(others) // HALVING)]
            job = Job.from_json((self._plan.folder / outcome.run_dir / JOB).read_bytes())
            if evaluations.steps[rung - 1] < job.steps and evaluations.objectives[rung - 1] not in kept:
                return True
        return False

    def _objective(self, value: float) -> float:
        """Return the number that trials are compared by; of a metric that is best at 1, its distance to that."""
        return abs(value - 1.0) if self._aim == "one" else value


def _distribution(axis: Axis) -> "BaseDistribution":
    from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

    span = axis.span
    if span is None:
        return CategoricalDistribution([value_of(word) for word in axis.arguments])
    if span.is_whole:
        return IntDistribution(int(span.low), int(span.high), log=span.log, step=int(span.step or 1))
    return FloatDistribution(span.low, span.high, log=span.log, step=span.step)
