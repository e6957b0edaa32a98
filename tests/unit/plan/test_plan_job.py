"""The job plan: steps, replicas, memory and command lines."""

import shlex
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from persia_cli.config.schema import Run
from persia_cli.control.evaluation_tracker import EvaluationTracker
from persia_cli.control.phases import Phase
from persia_cli.control.position import EVAL, TRAIN
from persia_cli.errors import ConfigError, DataError, WireError
from persia_cli.plan.job import ROLES, Job, JobPlan, Task, expected_replicas, job_batches, job_phases, plan_job
from tests.support.runs import make_facts, make_run

RUN_DIR = Path("runs/a")


def plan(
    run: Run, train_rows: int = 100, eval_rows: int = 20, task: Task = "train", load: Path | None = None
) -> JobPlan:
    return plan_job(run, make_facts(run, train_rows, eval_rows), task, RUN_DIR, load)


@given(st.integers(1, 10_000), st.integers(1, 500), st.integers(1, 5), st.none() | st.integers(1, 100))
def test_steps_are_as_many_as_it_takes(rows: int, batch_size: int, epochs: int, limit: int | None) -> None:
    training = {"batch_size": batch_size, "epochs": epochs, "steps": limit}
    steps = plan(make_run(train=training), train_rows=rows).job.steps
    passes = -(-rows // batch_size) * epochs
    assert steps == (passes if limit is None else min(passes, limit))


def test_evaluating_takes_no_training_steps() -> None:
    job = plan(make_run(), task="evaluate", load=Path("runs/b/checkpoints/step-4")).job
    assert (job.task, job.load, job.steps, job.eval_steps) == ("evaluate", "runs/b/checkpoints/step-4", 0, 1)
    assert list(job_phases(make_run(), job, EvaluationTracker()).phases) == [Phase("evaluating", 0, 1), Phase("done")]
    with pytest.raises(DataError, match=r"no evaluation samples; paste .*: split: {kind: hash,"):
        plan(make_run(), eval_rows=0, task="evaluate")


def test_predicting_is_neither_training_nor_evaluating() -> None:
    run = make_run(dataset={"split": {"kind": "predict"}})
    job = plan(run, train_rows=0, eval_rows=100, task="predict", load=Path("runs/b/checkpoints/step-4")).job
    assert (job.task, job.steps, job.eval_steps) == ("predict", 0, 4)
    assert list(job_phases(run, job, EvaluationTracker()).phases) == [Phase("predicting", 0, 4), Phase("done")]
    with pytest.raises(DataError, match=r"dataset.split.kind=predict"):
        plan(run, train_rows=0, eval_rows=100, task="evaluate")


@pytest.mark.parametrize("key", ["train.stop_early.metric", "checkpoint.best_by"])
def test_nothing_is_judged_without_evaluation_samples(key: str) -> None:
    group, name, *_ = key.split(".")
    value: Any = {"metric": "auc"} if name == "stop_early" else "auc"
    changes: dict[str, Any] = {"train": {"batch_size": 32}, "eval": {"every_steps": 5}}
    run = make_run(**changes | {group: changes.get(group, {}) | {name: value}})
    with pytest.raises(ConfigError, match=f"^{key}(.metric)? compares evaluations, and the data set has none"):
        plan(run, eval_rows=0)
    assert plan(run, eval_rows=1).job.eval_steps == 1


def test_a_job_survives_the_wire() -> None:
    for load in (None, Path("a b/ü")):
        job = replace(plan(make_run(), load=load).job, output="scores.csv", keep=("a", "b"), logits=True)
        assert Job.from_json(job.to_json()) == job


CLUSTER = {"kind": "local", "data_loaders": 2, "embedding_workers": 3, "embedding_servers": 2, "nn_workers": 4}


def test_every_replica_is_planned_once_in_the_order_of_start() -> None:
    planned = plan(make_run(cluster=CLUSTER))
    expected = expected_replicas(planned.run)
    assert expected == {"embedding-server": 2, "embedding-worker": 3, "data-loader": 2, "nn-worker": 4}
    names = [replica.name for replica in planned.replicas]
    assert names == ["coordinator-0"] + [f"{role}-{i}" for role, count in expected.items() for i in range(count)]
    assert tuple(dict.fromkeys(replica.role for replica in planned.replicas)) == ROLES


def test_there_is_a_command_for_every_replica() -> None:
    planned = plan(make_run(cluster=CLUSTER))
    lines = planned.commands("tcp://127.0.0.1:7000", ["conf=criteo"])
    assert lines[0] == (
        "persia launch-role coordinator --coordinator tcp://127.0.0.1:7000 --index 0 --run-dir runs/a conf=criteo"
    )
    assert lines[1:] == [
        f"persia launch-role {replica.role} --coordinator tcp://127.0.0.1:7000 --index {replica.index} "
        "--token-file runs/a/token"
        for replica in planned.replicas[1:]
    ]


def test_arguments_pass_through_a_shell_unchanged() -> None:
    words = ["conf=criteo", "model.hidden=[64, 32]", "name=it's", "optimizer.dense={kind: sgd, lr: 0.1}", "x=$HOME;*"]
    planned = plan_job(make_run(), make_facts(make_run(), 10, 0), "train", Path("my runs/a"))
    line = shlex.split(planned.commands("tcp://h:1", words)[0])
    assert line[line.index("--run-dir") + 1 :] == ["my runs/a", *words]


def test_batches_of_a_training_job() -> None:
    run = make_run(cluster={"kind": "local", "nn_workers": 2}, train={"batch_size": 32, "epochs": 1})
    batches = job_batches(run, plan(run, train_rows=100, eval_rows=20).job)
    assert [[batches.size(TRAIN, step, rank) for rank in (0, 1)] for step in range(4)] == [[16, 16]] * 3 + [[4, 0]]
    assert [batches.size(EVAL, 0, rank) for rank in (0, 1)] == [16, 4]
    with pytest.raises(WireError, match="no step 4"):
        batches.size(TRAIN, 4, 0)


def test_a_network_of_ones_own_is_looked_for_before_anything_starts(tmp_path: Path) -> None:
    model = {"kind": "custom", "dim": 4, "file": str(tmp_path / "net.py"), "name": "Net"}
    with pytest.raises(ConfigError, match=r"net\.py: "):
        plan(make_run(model=model))
    (tmp_path / "net.py").touch()
    assert plan(make_run(model=model)).run.model.kind == "custom"
