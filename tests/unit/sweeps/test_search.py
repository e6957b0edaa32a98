"""The trials of a search with a study on disk, whose points are not trained: their metrics come from a formula."""

import json
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

import optuna
import pytest

from persia_cli.config.record import to_yaml
from persia_cli.errors import UserError
from persia_cli.jobs.plan import facts_of
from persia_cli.observe.journal import METRICS
from persia_cli.observe.outcome import JobMetrics, metrics_in
from persia_cli.sweeps.folder import PointOutcome, SearchRequest, SweepRequest, read_results, write_results
from persia_cli.sweeps.plan import SweepPlan, chosen_row, compare_settings, fallen, prepare, resumed, verdict
from persia_cli.sweeps.points import Point
from persia_cli.sweeps.processes import Task
from persia_cli.sweeps.search import STUDY, Search

LR = "optimizer.dense.lr=tag(log,interval(1e-4,1e-1))"
EVALUATIONS = 4
DEFAULT_LR = 0.02


def planned(folder: Path, *words: str, metric: str = "auc", **asked: object) -> SweepPlan:
    """A new search in a folder."""
    search = SearchRequest(**{"sampler": "tpe", "trials": 12, "prune": False} | asked)  # type: ignore[arg-type]
    words = ("conf=synthetic", "train.steps=40", "eval.every_steps=10", *words)
    ask = SweepRequest(words, (), None, metric, str(Path.cwd()), search)
    plan = prepare(ask, folder, facts_of)
    ask.write(folder, [each.run for each in plan.grid])
    return plan


def quality(task: Task, evaluation: int) -> float:
    """The AUC of a task: best at a learning rate of 0.01, which is not that of the defaults.

    Other seeds change it a little, differently for each setting.
    """
    values = dict(task.point.swept)
    lr, seed = float(values.get("optimizer.dense.lr", DEFAULT_LR)), int(values.get("seed", 0))
    return 0.9 - abs(lr - 0.01) - 0.1 / evaluation - 1e-4 * (seed % 4) * (1 + lr)


def write(task: Task, evaluations: int = EVALUATIONS) -> None:
    """Write the record of a task."""
    task.run_dir.mkdir(parents=True, exist_ok=True)
    lines = [{"split": "train", "step": 10 * evaluations, "samples": 1, "samples_per_s": 1.0, "staleness_max": 1}]
    for number in range(1, evaluations + 1):
        auc = quality(task, number)
        lines += [{"split": "eval", "step": 10 * number, "auc": auc, "log_loss": 1 - auc, "calibration": 2 - auc}]
    (task.run_dir / METRICS).write_text("".join(json.dumps({"time": 1.0, **line}) + "\n" for line in lines))
    (task.run_dir / "job.json").write_text(json.dumps(JOB | {"run_dir": str(task.run_dir)}))


JOB = {"task": "train", "load": None, "train_rows": 1, "eval_rows": 1, "steps": 10 * EVALUATIONS, "eval_steps": 1}


class Trained:
    """A search whose points are trained one after another."""

    def __init__(self, plan: SweepPlan) -> None:
        self.plan, self.search = plan, Search(plan)
        self.outcomes = list(self.search.ended)

    def train(self, tasks: Iterator[Task | None]) -> list[Task]:
        done = []
        for task in tasks:
            assert task is not None
            done.append(task)
            for evaluations in range(1, EVALUATIONS + 1):
                write(task, evaluations)
                if pruned := task.run_dir in self.search.hopeless():
                    break
            self.record(task, pruned)
        return done

    def record(self, task: Task, pruned: bool = False) -> None:
        figures = metrics_in(task.run_dir, self.plan.metric)
        where = str(task.run_dir.relative_to(self.plan.folder))
        outcome = PointOutcome(task.point, task.seed, where, 1.0, figures, None, pruned)
        self.outcomes.append(outcome)
        write_results(self.plan.folder, self.outcomes)
        self.search.end(outcome)

    def all(self) -> list[Task]:
        return self.train(self.search.tasks())


def states(folder: Path) -> list[str]:
    study = optuna.load_study(study_name="sweep", storage=f"sqlite:///{folder / STUDY}")
    return [trial.state.name for trial in study.trials]


def test_an_interrupted_search_chooses_what_an_undisturbed_one_does(tmp_path: Path) -> None:
    whole = Trained(planned(tmp_path / "whole", LR, "model.dim=4,8")).all()
    assert len(whole) == 1 + 12
    assert whole[0].point.swept == (), "the defaults come first"
    first = Trained(planned(tmp_path / "parts", LR, "model.dim=4,8"))
    tasks = first.search.tasks()
    before = first.train(islice(tasks, 1 + 10))
    next(tasks)  # the eleventh is being trained when the process ends

    second = Trained(resumed(tmp_path / "parts", None, None, facts_of))
    after = second.all()
    assert [task.point for task in [*before, *after]] == [task.point for task in whole]
    assert states(tmp_path / "parts") == ["COMPLETE"] * 10 + ["FAIL"] + ["COMPLETE"] * 2
    more = Trained(resumed(tmp_path / "parts", None, None, facts_of, trials=13)).all()
    assert len(more) == 1


@pytest.mark.parametrize("is_recorded", [True, False])
def test_a_point_that_ended_while_nothing_followed_it_is_not_trained_again(tmp_path: Path, is_recorded: bool) -> None:
    first = Trained(planned(tmp_path / "s", LR, trials=3))
    tasks = first.search.tasks()
    first.train(islice(tasks, 1))
    [before], other = first.train(islice(tasks, 1)), next(tasks)
    assert other is not None
    write(other)
    if is_recorded:  # the process ended before the study had this outcome
        where = str(other.run_dir.relative_to(tmp_path / "s"))
        figures = metrics_in(other.run_dir, "auc")
        write_results(tmp_path / "s", [*first.outcomes, PointOutcome(other.point, "0", where, 1.0, figures, None)])
    else:
        (other.run_dir / "config.yaml").write_text(to_yaml(first.plan.grid[0].run))
        end = {"time": 2.0, "event": "phase", "phase": "done", "step": 40}
        (other.run_dir / "events.jsonl").write_text(json.dumps(end) + "\n")
    second = Trained(resumed(tmp_path / "s", None, None, facts_of))
    assert len(second.outcomes) == 3
    [third] = second.all()
    assert third.point not in (before.point, other.point)
    assert states(tmp_path / "s") == ["COMPLETE"] * 4
    assert [each.point for each in read_results(tmp_path / "s")][1:] == [before.point, other.point, third.point]


def test_an_interrupted_trial_does_not_compete_with_its_repetition(tmp_path: Path) -> None:
    first = Trained(planned(tmp_path / "s", LR, trials=2, prune=True))
    tasks = first.search.tasks()
    next(tasks)  # the defaults
    task = next(tasks)
    assert task is not None
    write(task, 3)
    better = (task.run_dir / METRICS).read_text().replace('"auc": 0.', '"auc": 0.99')
    (task.run_dir / METRICS).write_text(better)
    assert first.search.hopeless() == []
    (task.run_dir / "job.json").unlink()  # the process ends

    Trained(resumed(tmp_path / "s", None, None, facts_of)).all()
    assert states(tmp_path / "s")[:2] == ["FAIL", "COMPLETE"]


def test_a_damaged_study_is_named_and_may_be_removed(tmp_path: Path) -> None:
    trained = Trained(planned(tmp_path / "s", LR, trials=3)).all()
    (tmp_path / "s" / STUDY).write_text("damaged")
    with pytest.raises(UserError, match=STUDY):
        Search(resumed(tmp_path / "s", None, None, facts_of))
    (tmp_path / "s" / STUDY).unlink()
    again = Trained(resumed(tmp_path / "s", None, None, facts_of))
    assert again.all() == []
    assert len(again.outcomes) == len(trained) == 1 + 3


def test_equal_points_are_trained_once_and_every_trial_is_told(tmp_path: Path) -> None:
    trained = Trained(planned(tmp_path / "s", "model.dim=4,8", trials=6, sampler="random")).all()
    assert len({task.point for task in trained}) == len(trained) <= 1 + 2
    assert set(states(tmp_path / "s")) == {"COMPLETE"}
    assert len(states(tmp_path / "s")) >= 6


def test_trials_that_are_worse_end_early_but_never_after_their_last_step(tmp_path: Path) -> None:
    search = Trained(planned(tmp_path / "s", LR, trials=9, prune=True))
    search.all()
    pruned = [outcome for outcome in read_results(tmp_path / "s") if outcome.pruned]
    assert states(tmp_path / "s").count("PRUNED") == len(pruned) > 2
    steps = [outcome.figures.steps for outcome in pruned if outcome.figures]
    assert set(steps) == {30}, "three evaluations, of four"
    rows = compare_settings(search.plan, search.outcomes)
    assert len(rows) == 1 + 9 - len(pruned)  # a trial that has not trained to its end is not compared


@pytest.mark.parametrize("metric", ["auc", "log_loss", "calibration"])
def test_the_best_trials_are_repeated_with_other_seeds_which_alone_count(tmp_path: Path, metric: str) -> None:
    search = Trained(planned(tmp_path / "s", LR, "seed=7", metric=metric, trials=5, best=2, seeds=3))
    tasks = search.all()
    again = [task for task in tasks if task.point.names_seed]
    assert [task.seed for task in again] == ["8", "9", "10"] * 3
    assert all(task.point.arguments.count(f"seed={task.seed}") == 1 for task in again)
    assert all("seed=7" not in task.point.arguments for task in again)
    assert [task.point.setting for task in again[:3]] == [()] * 3, "the defaults too"
    rates = [float(dict(task.point.swept)["optimizer.dense.lr"]) for task in tasks if task.point.setting]
    best = sorted(set(rates), key=lambda lr: abs(lr - 0.01))[:2]
    assert {float(dict(task.point.swept)["optimizer.dense.lr"]) for task in again[3:]} == set(best)

    rows = compare_settings(search.plan, search.outcomes)
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
    study = Trained(plan)
    study.train(islice(study.search.tasks(), 1))
    [trial] = optuna.load_study(study_name="sweep", storage=f"sqlite:///{tmp_path / 's' / STUDY}").trials
    assert trial.params["model.norm"] == plan.first.run.model.norm, "the sampler begins from the defaults"
