"""The choice of a search's points, which are not trained: their metrics come from a formula."""

import json
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

import pytest

from persia_cli.jobs.plan import facts_of
from persia_cli.observe.journal import METRICS
from persia_cli.observe.outcome import JobMetrics, metrics_in
from persia_cli.sweeps.folder import (
    UNFINISHED,
    PointOutcome,
    SearchRequest,
    SweepRequest,
    read_results,
    run_dir_of,
    write_results,
)
from persia_cli.sweeps.plan import SweepPlan, chosen_row, compare_settings, fallen, prepare, resumed, verdict
from persia_cli.sweeps.points import Point
from persia_cli.sweeps.search import Search

LR = "optimizer.dense.lr=tag(log,interval(1e-4,1e-1))"
EVALUATIONS = 4
DEFAULT_LR = 0.02
JOB = {"task": "train", "load": None, "train_rows": 1, "eval_rows": 1, "steps": 10 * EVALUATIONS, "eval_steps": 1}


def planned(folder: Path, *words: str, metric: str = "auc", **options: object) -> SweepPlan:
    """A new search in a folder."""
    search = SearchRequest(**{"sampler": "tpe", "trials": 12, "prune": False} | options)  # type: ignore[arg-type]
    words = ("conf=synthetic", "train.steps=40", "eval.every_steps=10", *words)
    request = SweepRequest(words, (), None, metric, str(Path.cwd()), search)
    plan = prepare(request, folder, facts_of)
    request.write(folder, [each.run for each in plan.grid])
    return plan


def quality(point: Point, evaluation: int) -> float:
    """The AUC of a point: best at a learning rate of 0.01, which is not that of the defaults.

    Other seeds change it a little, differently for each setting.
    """
    values = dict(point.swept)
    lr, seed = float(values.get("optimizer.dense.lr", DEFAULT_LR)), int(values.get("seed", 0))
    return 0.9 - abs(lr - 0.01) - 0.1 / evaluation - 1e-4 * (seed % 4) * (1 + lr)


def write(run_dir: Path, point: Point, evaluations: int = EVALUATIONS) -> None:
    """Write the record of a point's run."""
    run_dir.mkdir(parents=True, exist_ok=True)
    lines = [{"split": "train", "step": 10 * evaluations, "samples": 1, "samples_per_s": 1.0, "staleness_max": 1}]
    for number in range(1, evaluations + 1):
        auc = quality(point, number)
        lines += [{"split": "eval", "step": 10 * number, "auc": auc, "log_loss": 1 - auc, "calibration": 2 - auc}]
    (run_dir / METRICS).write_text("".join(json.dumps({"time": 1.0, **line}) + "\n" for line in lines))
    (run_dir / "job.json").write_text(json.dumps(JOB | {"run_dir": str(run_dir)}))


class Trained:
    """A search whose points are trained one after another."""

    def __init__(self, plan: SweepPlan) -> None:
        self.plan, self.outcomes = plan, plan.outcomes()
        self.search = Search(plan, self.outcomes)
        self.points = self.search.points()

    def start(self) -> PointOutcome | None:
        """Record the start of the next point, as the runner does."""
        point = next(self.points, None)
        if point is None:
            return None
        number = list(self.outcomes).index(point) if point in self.outcomes else len(self.outcomes)
        where = str(run_dir_of(self.plan.folder, number, point).relative_to(self.plan.folder))
        return self.record(PointOutcome(point, self.plan.seed_of(point), where, 0.0, None, UNFINISHED))

    def train(self, most: int | None = None) -> list[PointOutcome]:
        """Train so many points, or all, and return their outcomes."""
        return list(islice(self._train(), most))

    def _train(self) -> Iterator[PointOutcome]:
        while (started := self.start()) is not None:
            run_dir = self.plan.folder / started.run_dir
            for evaluations in range(1, EVALUATIONS + 1):
                write(run_dir, started.point, evaluations)
                if pruned := started.point in self.search.hopeless():
                    break
            metrics = metrics_in(run_dir, self.plan.metric)
            yield self.record(PointOutcome(started.point, started.seed, started.run_dir, 1.0, metrics, None, pruned))

    def record(self, outcome: PointOutcome) -> PointOutcome:
        self.outcomes[outcome.point] = outcome
        write_results(self.plan.folder, list(self.outcomes.values()))
        return outcome


def again(folder: Path, **options: int) -> Trained:
    return Trained(resumed(folder, None, None, facts_of, **options))


@pytest.mark.parametrize("is_failed", [False, True])
def test_an_interrupted_search_chooses_what_an_undisturbed_one_does(tmp_path: Path, is_failed: bool) -> None:
    whole = Trained(planned(tmp_path / "whole", LR, "model.dim=4,8")).train()
    assert len(whole) == 1 + 12
    assert whole[0].point.swept == (), "the defaults come first"
    first = Trained(planned(tmp_path / "parts", LR, "model.dim=4,8"))
    before = first.train(1 + 10)
    started = first.start()  # the eleventh is being trained when the process ends
    assert started is not None
    if is_failed:
        first.record(PointOutcome(started.point, started.seed, started.run_dir, 1.0, None, "it failed"))

    after = again(tmp_path / "parts").train()
    assert [each.point for each in [*before, *after]] == [each.point for each in whole]
    assert [each.point for each in read_results(tmp_path / "parts")] == [each.point for each in whole]
    assert len(again(tmp_path / "parts", trials=13).train()) == 1


def test_a_point_that_ended_while_nothing_followed_it_is_not_trained_again(tmp_path: Path) -> None:
    first = Trained(planned(tmp_path / "s", LR, trials=3))
    first.train(2)
    started = first.start()
    assert started is not None
    run_dir = tmp_path / "s" / started.run_dir
    write(run_dir, started.point)
    events = [{"time": 2.0, "event": "phase", "phase": "training"}, {"time": 5.5, "event": "phase", "phase": "done"}]
    (run_dir / "events.jsonl").write_text("".join(json.dumps(event) + "\n" for event in events))
    second = again(tmp_path / "s")
    outcome = second.outcomes[started.point]
    assert (outcome.state, outcome.seconds, outcome.metrics) == ("done", 3.5, metrics_in(run_dir, "auc"))
    [third] = second.train()
    assert third.point not in first.outcomes


def test_an_interrupted_trial_does_not_compete_with_its_repetition(tmp_path: Path) -> None:
    first = Trained(planned(tmp_path / "s", LR, trials=2, prune=True))
    first.train(1)
    started = first.start()
    assert started is not None
    write(tmp_path / "s" / started.run_dir, started.point, 3)
    metrics = tmp_path / "s" / started.run_dir / METRICS
    metrics.write_text(metrics.read_text().replace('"auc": 0.', '"auc": 0.99'))
    assert first.search.hopeless() == []

    repeated = again(tmp_path / "s").train(1)[0]
    assert (repeated.point, repeated.state) == (started.point, "done")


def test_equal_points_are_trained_once(tmp_path: Path) -> None:
    """Also where there are fewer settings than trials."""
    trained = Trained(planned(tmp_path / "s", "model.dim=4,8", trials=6, sampler="random")).train()
    dims = [dict(each.point.swept).get("model.dim", "the default") for each in trained]
    assert sorted(dims, reverse=True) in (["the default", "8"], ["the default", "4"], ["the default", "8", "4"])


def test_trials_that_are_worse_end_early_but_never_after_their_last_step(tmp_path: Path) -> None:
    search = Trained(planned(tmp_path / "s", LR, trials=9, prune=True))
    search.train()
    pruned = [outcome for outcome in read_results(tmp_path / "s") if outcome.pruned]
    assert len(pruned) > 2
    assert {outcome.metrics.steps for outcome in pruned if outcome.metrics} == {30}, "three evaluations, of four"
    rows = compare_settings(search.plan, list(search.outcomes.values()))
    assert len(rows) == 1 + 9 - len(pruned)  # a trial that has not trained to its end is not compared


@pytest.mark.parametrize("metric", ["auc", "log_loss", "calibration"])
def test_the_best_trials_are_repeated_with_other_seeds_which_alone_count(tmp_path: Path, metric: str) -> None:
    search = Trained(planned(tmp_path / "s", LR, "seed=7", metric=metric, trials=5, best=2, seeds=3))
    trained = search.train()
    again = [each for each in trained if each.point.names_seed]
    assert [each.seed for each in again] == ["8", "9", "10"] * 3
    assert all(each.point.arguments.count(f"seed={each.seed}") == 1 for each in again)
    assert all("seed=7" not in each.point.arguments for each in again)
    assert [each.point.setting for each in again[:3]] == [()] * 3, "the defaults too"
    rates = [float(dict(each.point.swept)["optimizer.dense.lr"]) for each in trained if each.point.setting]
    best = sorted(set(rates), key=lambda lr: abs(lr - 0.01))[:2]
    assert {float(dict(each.point.swept)["optimizer.dense.lr"]) for each in again[3:]} == set(best)

    rows = compare_settings(search.plan, list(search.outcomes.values()))
    assert [row.finished for row in rows[:4]] == [3, 3, 3, 1]
    assert {row.baseline for row in rows[:3] if row.setting} == {()}
    assert rows[0].difference is not None
    assert rows[0].difference.count == 3


def outcomes(plan: SweepPlan, values: dict[float | None, list[float]]) -> list[PointOutcome]:
    """Outcomes with these AUCs by learning rate (None: the defaults): of the trial, then of other seeds."""
    assert plan.space is not None
    found = []
    for lr, aucs in values.items():
        point = plan.space.defaults if lr is None else plan.space.point({"optimizer.dense.lr": str(lr)})
        for seed, auc in enumerate(aucs):
            repeated = Point((*point.arguments, f"seed={seed}"), (*point.swept, ("seed", str(seed)))) if seed else point
            figures = JobMetrics(1.0, {"auc": auc, "log_loss": 0.5}, 10, 40, 1)
            found.append(PointOutcome(repeated, str(seed), "points/x", 1.0, figures, None))
    return found


def test_the_best_by_the_mean_is_compared_with_the_defaults(tmp_path: Path) -> None:
    plan = planned(tmp_path / "s", LR, trials=3, best=2, seeds=3)
    lucky, good = [0.8100, 0.7990, 0.7991, 0.7989], [0.8080, 0.8070, 0.8065, 0.8072]
    done = outcomes(plan, {None: [0.8, 0.7980, 0.7971, 0.7985], 0.001: lucky, 0.01: good})
    rows = compare_settings(plan, done)
    assert [dict(row.setting).get("optimizer.dense.lr") for row in rows] == ["0.01", "0.001", None]
    assert chosen_row(plan, rows) == rows[0]
    told = verdict(plan, rows)
    assert told is not None
    assert told.startswith("optimizer.dense.lr=0.01: +0.0090 ± 0.0002 auc over the defaults")
    assert fallen(plan, rows, done)[1] == ("optimizer.dense.lr=0.001 fell from 0.8100 to 0.7990 in the mean of 3 seeds")

    done = outcomes(plan, {None: [0.8, 0.7980, 0.7971, 0.7985], 0.001: [0.81, 0.8030, 0.7965, 0.7981]})
    rows = compare_settings(plan, done)
    assert rows[0].setting, "it has the better mean, within the noise"
    assert chosen_row(plan, rows).setting == ()
    told = verdict(plan, rows)
    assert told is not None
    assert "no better than the defaults" in told


def test_a_search_without_keys_has_the_usual_ones(tmp_path: Path) -> None:
    plan = planned(tmp_path / "s", "model.dropout=0.1")
    assert plan.space is not None
    keys = [axis.key for axis in plan.space.swept]
    assert {"optimizer.embedding.lr", "model.dim", "model.norm", "model.hidden"} == set(keys)
    search = Trained(plan)
    search.train(1)
    second = search.start()
    assert second is not None
    assert second.point.setting, "the sampler goes on from the defaults"
