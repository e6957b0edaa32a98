"""A search for the best settings: an Optuna study chooses the points of a sweep one after another."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from time import time
from typing import TYPE_CHECKING, Any

import yaml

from persia_cli.errors import UserError
from persia_cli.metric import aim_of
from persia_cli.observe.history import read_history
from persia_cli.observe.journal import METRICS, Tail
from persia_cli.observe.outcome import metrics_in, quality_in
from persia_cli.plan.job import JOB, Job
from persia_cli.sweeps.folder import PointOutcome, run_dir_of
from persia_cli.sweeps.plan import SweepPlan, repeats
from persia_cli.sweeps.points import Axis, Point, value_of
from persia_cli.sweeps.processes import Task

if TYPE_CHECKING:
    from optuna import Trial
    from optuna.distributions import BaseDistribution
    from optuna.samplers import BaseSampler
    from optuna.trial import FrozenTrial

STUDY = "study.db"
"""File of the study in a sweep's folder."""
HALVING = 3
"""Of the trials that reach evaluation 3, 9 and so on, one in so many goes on."""
RUNGS = frozenset(HALVING**power for power in range(1, 32))
"""The evaluations after which a trial may end early; fewer than three show little."""
DEFAULTS = "defaults"
"""Attribute of the trial of the study that is the unchanged configuration."""


@dataclass
class _Followed:
    """A point that is trained, with its trials, of which the first has its evaluations."""

    trials: list["Trial"]
    run_dir: Path
    tail: Tail
    evaluations: int = 0
    hopeless: bool = False
    """True if it is to end before it has trained all its steps."""


class Search:
    """The trials of a search, each with a point to train; equal points are trained once."""

    def __init__(self, plan: SweepPlan) -> None:
        """Create the study or load it; trials that an earlier process left are recorded, or repeated."""
        import optuna
        from sqlalchemy.exc import DatabaseError

        assert plan.ask.search is not None
        assert plan.space is not None
        self._plan, self._ask, self._space = plan, plan.ask.search, plan.space
        self._run = plan.grid[0].run
        self._aim = aim_of(plan.metric)
        self._distributions = {axis.key: _distribution(axis) for axis in plan.space.swept}
        optuna.logging.set_verbosity(optuna.logging.ERROR)
        path = plan.folder / STUDY
        try:
            self._study = optuna.create_study(
                storage=f"sqlite:///{path.absolute()}",
                study_name="sweep",
                direction="maximize" if self._aim == "high" else "minimize",
                load_if_exists=True,
            )
        except DatabaseError as error:
            raise UserError(
                f"{path} cannot be used ({error.orig}); if it is damaged, remove it: --resume takes finished points "
                "from their own record"
            ) from error
        self._ended = {outcome.point: outcome for outcome in plan.before}
        self._running: dict[Point, _Followed] = {}
        self._begun = len(list((plan.folder / "points").glob("*/")))
        self._failed = 0
        self._defaults = plan.space.defaults
        self._usual = self._params_of_defaults()
        self._settle()
        self._add_defaults()
        self._again, self._failed = self._failed_before(), 0

    @property
    def ended(self) -> list[PointOutcome]:
        """The points that have ended well."""
        return list(self._ended.values())

    def tasks(self) -> Iterator[Task | None]:
        """Yield the defaults, the points of the trials, then the best ones and the defaults with other seeds.

        None means to wait for the running ones.
        """
        if self._defaults not in self._ended:
            yield self._task(self._defaults, str(self._run.seed))
        while self._started() < self._ask.trials:
            if (task := self._next()) is not None:
                yield task
        while self._running:
            yield None
        for point in repeats(self._plan, self.ended):
            if point not in self._ended:
                yield self._task(point, dict(point.swept)["seed"])

    def hopeless(self) -> list[Path]:
        """Report the new evaluations of the trials; returns the run directories of those that are to end early."""
        return [each.run_dir for each in self._running.values() if self._report(each)]

    def end(self, outcome: PointOutcome) -> None:
        """Record the end of a point in the study; the caller has written the outcome."""
        if not outcome.error:
            self._ended[outcome.point] = outcome
            self._add_defaults()
        followed = self._running.pop(outcome.point, None)
        if followed is not None:
            self._report(followed)
            for trial in followed.trials:
                self._tell(trial.number, outcome)

    def _started(self) -> int:
        """Return the number of trials that run or have ended; of failed ones, those since this process began."""
        trials = self._trials("RUNNING", "COMPLETE", "PRUNED")
        return self._failed + sum(DEFAULTS not in trial.user_attrs for trial in trials)

    def _trials(self, *states: str) -> list["FrozenTrial"]:
        return [trial for trial in self._study.get_trials(deepcopy=False) if trial.state.name in states]

    def _next(self) -> Task | None:
        """Begin a trial; returns None if its point is being trained, or was."""
        from optuna.trial import TrialState

        sampler = self._sampler()
        if self._again:
            self._study.enqueue_trial(self._again.pop(0))
        self._study.sampler = sampler
        trial = self._study.ask(self._distributions)
        point = self._point(trial.params)
        if point in self._ended:
            self._tell(trial.number, self._ended[point])
        elif point == self._defaults:  # it is being trained: the study learns of it at its end
            self._study.tell(trial.number, state=TrialState.FAIL)
        elif point in self._running:
            self._running[point].trials.append(trial)
        else:
            task = self._task(point, str(self._run.seed))
            trial.set_user_attr("run_dir", str(task.run_dir.relative_to(self._plan.folder)))
            self._running[point] = _Followed([trial], task.run_dir, Tail(task.run_dir / METRICS))
            return task
        return None

    def _sampler(self) -> "BaseSampler":
        """Return a sampler that depends on the seed and the number of trials alone, so that a resumed one is equal."""
        from optuna.samplers import RandomSampler, TPESampler

        seed = (self._run.seed * 1_000_003 + self._started()) % 2**32
        return TPESampler(seed=seed) if self._ask.sampler == "tpe" else RandomSampler(seed=seed)

    def _params_of_defaults(self) -> dict[str, Any] | None:
        """Return the values of the searched keys in the settled configuration; None if a key cannot have its value."""
        found = {}
        for axis in self._space.swept:
            value: Any = self._plan.first.run.model_dump(mode="json")
            for part in axis.key.split("."):
                value = value.get(part) if isinstance(value, dict) else None
            if axis.span is not None:
                is_inside = isinstance(value, int | float) and axis.span.low <= value <= axis.span.high
                found[axis.key] = value if is_inside else None
            else:
                texts = [value_of(word) for word in axis.arguments]
                found[axis.key] = next((text for text in texts if yaml.safe_load(text) == value), None)
        return None if None in found.values() else found

    def _add_defaults(self) -> None:
        """Add the result of the defaults to the study, once, so that the sampler begins from it."""
        from optuna.trial import create_trial

        outcome = self._ended.get(self._defaults)
        value = outcome.figures.quality.get(self._plan.metric) if outcome and outcome.figures else None
        is_there = any(DEFAULTS in trial.user_attrs for trial in self._trials("COMPLETE"))
        if outcome is None or value is None or self._usual is None or is_there:
            return
        lines = Tail(self._plan.folder / outcome.run_dir / METRICS).new()
        values = [found for line in lines if (found := self._value_in(line)) is not None]
        self._study.add_trial(
            create_trial(
                params=self._usual,
                distributions=self._distributions,
                value=self._objective(value),
                intermediate_values={number: self._objective(each) for number, each in enumerate(values, 1)},
                user_attrs={DEFAULTS: True},
            )
        )

    def _value_in(self, line: dict[str, Any]) -> float | None:
        """Return the metric of a line, if that is of an evaluation during training."""
        return quality_in(line).get(self._plan.metric) if line["split"] == "eval" else None

    def _point(self, params: dict[str, Any]) -> Point:
        if params == self._usual:
            return self._defaults
        spans = {axis.key: axis.span for axis in self._space.swept}
        return self._space.point({key: span.text(params[key]) if span else params[key] for key, span in spans.items()})

    def _task(self, point: Point, seed: str) -> Task:
        run_dir = run_dir_of(self._plan.folder, self._begun, point)
        self._begun += 1
        return Task(point, seed, run_dir, self._plan.ask.conf_dirs, self._run.cluster.stop_timeout_s)

    def _report(self, followed: _Followed) -> bool:
        """Report the new evaluations of a point; returns True if it is to end before it has trained all its steps."""
        for line in followed.tail.new():
            value = self._value_in(line)
            if value is not None and not followed.hopeless:
                followed.evaluations += 1
                objective, steps = self._objective(value), Job.from_json((followed.run_dir / JOB).read_bytes()).steps
                followed.trials[0].report(objective, followed.evaluations)
                followed.hopeless = line["step"] < steps and self._is_worse(followed.evaluations, objective)
        return followed.hopeless

    def _is_worse(self, evaluation: int, value: float) -> bool:
        """Return True if a value is not in the best third of those that trials have had at an evaluation of RUNGS.

        Trials that failed do not count: an interrupted one is repeated, and would compete with itself.
        """
        if not self._ask.prune or evaluation not in RUNGS:
            return False
        trials = self._trials("RUNNING", "COMPLETE", "PRUNED")
        there = [trial.intermediate_values[evaluation] for trial in trials if evaluation in trial.intermediate_values]
        kept = sorted(there, reverse=self._aim == "high")[: max(1, len(there) // HALVING)]
        return value not in kept

    def _objective(self, value: float) -> float:
        """Return the number that the study compares; of a metric that is best at 1, its distance to that."""
        return abs(value - 1.0) if self._aim == "one" else value

    def _tell(self, number: int, outcome: PointOutcome) -> None:
        from optuna.trial import TrialState

        value = outcome.figures.quality.get(self._plan.metric) if outcome.figures else None
        if outcome.pruned:
            self._study.tell(number, state=TrialState.PRUNED)
        elif value is None:
            self._failed += 1
            self._study.tell(number, state=TrialState.FAIL)
        else:
            self._study.tell(number, self._objective(value))

    def _settle(self) -> None:
        """Record the end of the trials that an earlier process began: as its folder has it, else as a failure."""
        for trial in self._trials("RUNNING"):
            outcome = self._outcome(trial) if trial.params.keys() == self._distributions.keys() else None
            if outcome is not None:
                self._ended[outcome.point] = outcome
            self._tell(trial.number, outcome or PointOutcome(Point((), ()), "", "", 0.0, None, "interrupted"))

    def _outcome(self, trial: "FrozenTrial") -> PointOutcome | None:
        """Return the outcome of a trial that no process follows; None if its job did not complete."""
        point, where = self._point(trial.params), trial.user_attrs.get("run_dir", "")
        run_dir = self._plan.folder / where
        if point in self._ended or not (run_dir / JOB).exists():
            return self._ended.get(point)
        history = read_history(run_dir)
        if history.outcome(time()).state != "done":
            return None
        seconds = round((history.end_s or 0.0) - (history.begin_s or 0.0), 1)
        return PointOutcome(point, str(self._run.seed), where, seconds, metrics_in(run_dir, self._plan.metric), None)

    def _failed_before(self) -> list[dict[str, Any]]:
        """Return the values of the trials that failed or were interrupted, which are repeated."""
        again: list[dict[str, Any]] = []
        for trial in self._trials("FAIL"):
            is_whole = trial.params.keys() == self._distributions.keys() and trial.params not in again
            if is_whole and self._point(trial.params) not in self._ended:
                again.append(trial.params)
        return again


def _distribution(axis: Axis) -> "BaseDistribution":
    from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

    span = axis.span
    if span is None:
        return CategoricalDistribution([value_of(word) for word in axis.arguments])
    if span.is_whole:
        return IntDistribution(int(span.low), int(span.high), log=span.log, step=int(span.step or 1))
    return FloatDistribution(span.low, span.high, log=span.log, step=span.step)
