"""The trials of a search with a study on disk, whose points are not trained: their metrics come from a formula."""

import json
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

import optuna
import pytest

from persia_cli.commands.facts import facts_of
from persia_cli.config.record import to_yaml
from persia_cli.errors import UserError
from persia_cli.observe.journal import METRICS
from persia_cli.observe.outcome import metrics_in
from persia_cli.sweeps.folder import PointOutcome, SearchRequest, SweepRequest, read_results, write_results
from persia_cli.sweeps.plan import SweepPlan, compare_settings, prepare, resumed
from persia_cli.sweeps.processes import Task
from persia_cli.sweeps.search import STUDY, Search

LR = "optimizer.dense.lr=tag(log,interval(1e-4,1e-1))"
EVALUATIONS = 2


def planned(folder: Path, *words: str, metric: str = "auc", **asked: object) -> SweepPlan:
    """A new search in a folder."""
    search = SearchRequest(**{"sampler": "tpe", "trials": 12, "prune": False} | asked)  # type: ignore[arg-type]
    words = ("conf=synthetic", "train.steps=40", "eval.every_steps=10", *words)
    ask = SweepRequest(words, (), None, metric, str(Path.cwd()), search)
    plan = prepare(ask, folder, facts_of)
    ask.write(folder, [each.run for each in plan.grid])
    return plan


def quality(task: Task, evaluation: int) -> float:
    """The AUC of a task: best at a learning rate of 0.01, and a little better for other seeds."""
    values = dict(task.point.swept)
    lr = float(values.get("optimizer.dense.lr", 0.01))
    return 0.9 - abs(lr - 0.01) - 0.1 / evaluation + 1e-4 * int(values.get("seed", 0))


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
    assert len(whole) == 12
    first = Trained(planned(tmp_path / "parts", LR, "model.dim=4,8"))
    tasks = first.search.tasks()
    before = first.train(islice(tasks, 10))
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
    assert len(second.outcomes) == 2
    [third] = second.all()
    assert third.point not in (before.point, other.point)
    assert states(tmp_path / "s") == ["COMPLETE"] * 3
    assert [each.point for each in read_results(tmp_path / "s")] == [before.point, other.point, third.point]


def test_an_interrupted_trial_does_not_compete_with_its_repetition(tmp_path: Path) -> None:
    first = Trained(planned(tmp_path / "s", LR, trials=2, prune=True))
    task = next(first.search.tasks())
    assert task is not None
    write(task, 1)
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
    assert len(again.outcomes) == len(trained) == 3


def test_equal_points_are_trained_once_and_every_trial_is_told(tmp_path: Path) -> None:
    trained = Trained(planned(tmp_path / "s", "model.dim=4,8", trials=6, sampler="random")).all()
    assert len({task.point for task in trained}) == len(trained) <= 2
    assert states(tmp_path / "s") == ["COMPLETE"] * 6


def test_trials_that_are_worse_end_early_but_never_after_their_last_step(tmp_path: Path) -> None:
    search = Trained(planned(tmp_path / "s", LR, trials=9, prune=True))
    search.all()
    pruned = [outcome for outcome in read_results(tmp_path / "s") if outcome.pruned]
    assert states(tmp_path / "s").count("PRUNED") == len(pruned) > 2
    steps = [outcome.figures.steps for outcome in pruned if outcome.figures]
    assert max(steps) == 10
    rows = compare_settings(search.plan, search.outcomes)
    assert len(rows) == 9 - len(pruned)  # a trial that has not trained to its end is not compared


@pytest.mark.parametrize("metric", ["auc", "log_loss", "calibration"])
def test_the_best_trials_are_repeated_with_other_seeds_which_alone_count(tmp_path: Path, metric: str) -> None:
    search = Trained(planned(tmp_path / "s", LR, "seed=7", metric=metric, trials=5, best=2, seeds=3))
    tasks = search.all()
    again = [task for task in tasks if task.point.names_seed]
    assert [task.seed for task in again] == ["8", "9", "10"] * 2
    assert all(task.point.arguments.count(f"seed={task.seed}") == 1 for task in again)
    assert all("seed=7" not in task.point.arguments for task in again)
    rates = sorted(
        (float(dict(task.point.swept)["optimizer.dense.lr"]) for task in tasks), key=lambda lr: abs(lr - 0.01)
    )
    assert {float(dict(task.point.swept)["optimizer.dense.lr"]) for task in again} == {rates[0], rates[4]}

    first, second, third, *_ = compare_settings(search.plan, search.outcomes)
    assert (first.finished, second.finished, third.finished) == (3, 3, 1)
    assert first.main_metric is not None
    assert first.main_metric.error == pytest.approx(1e-4 / 3**0.5)
    assert (second.baseline, third.baseline) == (first.setting, None)
    assert second.difference is not None
