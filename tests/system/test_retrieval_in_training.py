"""Retrieval metrics with each evaluation: to the bit those of `persia eval --retrieval` of the same step's model."""

import json
from pathlib import Path
from typing import Any

import pytest

from persia_cli.config.schema.metric import is_of_retrieval
from tests.support.jobs import train
from tests.system.test_retrieval import persia, words

EVERY = ["eval.every_steps=5", "checkpoint.every_steps=5", "eval.retrieval=[8, 3]"]
PROCESSES = ["cluster=local", "cluster.nn_workers=2", "cluster.embedding_servers=2", "cluster.embedding_workers=2"]
BY_FIGURES = [
    "checkpoint.best_by=recall@3",
    "optimizer.dense.schedule={kind: reduce_on_plateau}",
]
slow = [pytest.mark.slow, pytest.mark.processes]


def of_retrieval(line: dict[str, Any]) -> dict[str, float]:
    return {key: value for key, value in line.items() if is_of_retrieval(key)}


def lines_of(run: Path, folder: str = ".") -> dict[int, dict[str, Any]]:
    """The evaluations of a run, or of a later evaluation, by step."""
    lines = [json.loads(line) for line in (run / folder / "metrics.jsonl").read_text().splitlines()]
    return {line["step"]: line for line in lines if line["split"] == "eval"}


def by_checkpoint(run: Path, step: int) -> dict[str, float]:
    """Return the metrics of `persia eval --retrieval` for a step, at the lengths that the run itself asks for."""
    before = set((run / "evals").glob("*"))
    ended = persia("eval", run, "--retrieval", "--step", step)
    assert ended.exit_code == 0, ended.output
    [folder] = set((run / "evals").glob("*")) - before
    content = json.loads((folder / "retrieval.json").read_text())
    assert content["step"] == step
    return content["model"]


@pytest.mark.parametrize(
    "changes",
    [
        pytest.param([], id="one_rank"),
        pytest.param(["model.norm=batch"], id="batch_norm", marks=pytest.mark.slow),
        pytest.param([*PROCESSES, "mode=hybrid"], id="two_ranks", marks=slow),
        pytest.param(["mode=async", "train.losses={}"], id="async", marks=pytest.mark.slow),
    ],
)
def test_they_have_the_bits_of_an_evaluation_of_the_checkpoint(changes: list[str], tmp_path: Path) -> None:
    run = train([*words(tmp_path), *EVERY, *changes], tmp_path / "run").run_dir
    found = {step: of_retrieval(line) for step, line in lines_of(run).items()}
    assert list(found) == [5, 10, 15]
    assert len({line["mrr"] for line in found.values()}) > 1, "training changes them"
    for step, figures in found.items():
        assert sorted(figures) == ["hr@3", "hr@8", "mrr", "ndcg@3", "ndcg@8", "recall@3", "recall@8"]
        assert figures == by_checkpoint(run, step)
    assert persia("eval", run, "--step", 10).exit_code == 0
    [later] = [lines_of(run, str(each.parent)) for each in (run / "evals").glob("*/metrics.jsonl")]
    assert of_retrieval(later[10]) == found[10], "a later evaluation has them too"


def test_training_and_its_rows_are_those_without_them(tmp_path: Path) -> None:
    given = [*words(tmp_path), *EVERY]
    without = train([*given, "eval.retrieval=null"], tmp_path / "without")
    asked = train(given, tmp_path / "asked")
    times = {"time", "samples_per_s"}
    plain = [{key: value for key, value in line.items() if key not in times} for line in without.metrics]
    assert [
        {key: value for key, value in line.items() if key not in times and not is_of_retrieval(key)}
        for line in asked.metrics
    ] == plain
    tables = [[each["tables"] for each in result.events if each["event"] == "tables"] for result in (without, asked)]
    assert tables[0] == tables[1], "nor do unknown ids of items count as scored"


@pytest.mark.slow
def test_a_resumed_run_goes_on_with_them(tmp_path: Path) -> None:
    given = [*words(tmp_path), *EVERY, *BY_FIGURES]
    straight = train(given, tmp_path / "straight")
    train([*given, "train.steps=10"], tmp_path / "run")
    assert persia("resume", tmp_path / "run", "train.steps=null").exit_code == 0
    expected = {step: of_retrieval(line) for step, line in lines_of(straight.run_dir).items()}
    assert {step: of_retrieval(line) for step, line in lines_of(tmp_path / "run").items()} == expected


def test_training_goes_by_them(tmp_path: Path) -> None:
    stop = "train.stop_early={metric: hr@3, patience: 2, min_delta: 1.0}"
    result = train([*words(tmp_path), *EVERY, *BY_FIGURES, "train.epochs=9", stop], tmp_path / "run")
    found = lines_of(result.run_dir)
    assert list(found) == [5, 10, 15]
    best = max(found, key=lambda step: found[step]["recall@3"])
    [*_, chosen] = [event for event in result.events if event["event"] == "best"]
    assert (chosen["metric"], chosen["step"], chosen["value"]) == ("recall@3", best, found[best]["recall@3"])
    notes = [event["text"] for event in result.events if event["event"] == "note"]
    assert any("optimizer.dense: the learning rate falls at step 10: hr@3" in note for note in notes)
    [*_, said] = [event["text"] for event in result.events if event["event"] == "stopped_early"]
    assert "hr@3 has not improved by more than 1 over" in said
