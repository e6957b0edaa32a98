"""Retrieval metrics: of `persia eval --retrieval`, with each evaluation of a training, and after deaths."""

import json
import os
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from typer.testing import CliRunner, Result

from persia_cli.engines.job import result_of
from persia_cli.errors import UserError
from persia_cli.main import app
from persia_cli.metric import is_of_retrieval
from tests.conftest import poll_for
from tests.support.jobs import train
from tests.support.launched import Launched
from tests.system.test_recovery import events_of
from tests.unit.retrieval.test_ranking import by_loops

USERS, ITEMS = 14, 23
MODEL = ["model=two_tower", "model.user=[user, age]", "model.item=[item, tags]", "model.hidden=[8]", "model.width=5"]
TAGS = [[item % 3] if item % 4 else [] for item in range(ITEMS)]


def words(folder: Path, write: bool = True) -> list[str]:
    """Write samples of users and items, and return the arguments of a job on them."""
    draw = np.random.default_rng(5)
    for name, rows in (("train", 150), ("eval", 60)) if write else ():
        user, item = draw.integers(0, USERS, rows), draw.integers(0, ITEMS - (name == "eval"), rows)
        likes = (user + item) % 3 == 0
        table = {"user": user, "age": user % 4, "item": item, "tags": [TAGS[number] for number in item], "label": likes}
        pd.DataFrame(table).astype({"label": float}).to_parquet(folder / f"{name}.parquet")
    return [
        *("conf=base", "name=small", "dataset=parquet", f"dataset.path='{folder}'", "dataset.labels=[label]"),
        *("dataset.sparse=[user, age, item, {name: tags, pooling: mean}]", "dataset.dense=[]", "dataset.group_by=user"),
        *("dataset.split={kind: files, train: [train.parquet], eval: [eval.parquet]}", "cluster=embedded", "mode=sync"),
        *("train.batch_size=30", "train.epochs=3", "embedding.memory=16MiB", "optimizer=adagrad"),
        *("train.losses={label: {kind: in_batch_softmax}}", *MODEL),
    ]


def persia(*given: str | Path) -> Result:
    return CliRunner().invoke(app, list(map(str, given)))


def printed(text: str, by: str) -> list[str]:
    """Return the numbers of a row of the printed table."""
    return next(line.split()[1:] for line in text.splitlines() if line.startswith(f"{by} "))


@pytest.mark.parametrize("keep", [False, True])
def test_metrics_are_those_of_loops_over_predictions(keep: bool, tmp_path: Path) -> None:
    run = train([*words(tmp_path), "train.steps=15"], tmp_path / "run").run_dir
    ended = persia("eval", run, "--retrieval", "--at", 3, "--at", 8, *(["--keep-seen"] if keep else []))
    assert ended.exit_code == 0, ended.output
    (tmp_path / "all").mkdir()
    every = pd.DataFrame([(u, i) for u in range(USERS) for i in range(ITEMS)], columns=["user", "item"])
    every["age"], every["tags"] = every["user"] % 4, [TAGS[item] for item in every["item"]]
    every.to_parquet(tmp_path / "all" / "all.parquet")
    done = persia("predict", run, tmp_path / "all", "-o", tmp_path / "scores.parquet", "--logits")
    assert done.exit_code == 0, done.output
    scores = pd.read_parquet(tmp_path / "scores.parquet")["label_logit"].to_numpy().reshape(USERS, ITEMS)
    samples = {name: pd.read_parquet(tmp_path / f"{name}.parquet") for name in ("train", "eval")}
    relevant = {(u, i) for u, i, y in samples["eval"][["user", "item", "label"]].to_numpy().tolist() if y}
    seen = set() if keep else {tuple(pair) for pair in samples["train"][["user", "item"]].to_numpy().tolist()}
    both = {tuple(pair) for pair in samples["train"][["user", "item"]].to_numpy().tolist()} & relevant
    [kept] = (run / "evals").glob("*/retrieval.json")
    content = json.loads(kept.read_text())
    assert content["seen_share"] == pytest.approx(len(both) / len(relevant))
    assert both
    relevant -= seen
    found = content["model"]
    for k in (3, 8):
        expected = by_loops(scores, {(int(u), int(i)) for u, i in relevant}, seen, k)
        names = {"recall": f"recall@{k}", "ndcg": f"ndcg@{k}", "hr": f"hr@{k}", "mrr": "mrr"}
        assert {name: found[key] for name, key in names.items()} == pytest.approx(expected, rel=1e-5)
    assert (content["step"], content["keep_seen"]) == (15, keep)
    assert (kept.parent / "config.yaml").is_file()
    assert (content["items"], content["relevant"]) == (ITEMS, len(relevant))
    for by in ("model", "popularity"):
        assert printed(ended.output, by) == [f"{value:.6f}" for value in content[by].values()]


def test_test_samples_are_ranked_for_as_evaluation_samples_would_be(tmp_path: Path) -> None:
    given, draw = words(tmp_path), np.random.default_rng(9)
    every = pd.read_parquet(tmp_path / "eval.parquet")
    every.sample(40, random_state=draw).to_parquet(tmp_path / "test.parquet")
    [at] = [number for number, word in enumerate(given) if word.startswith("dataset.split=")]
    given[at] = given[at].replace("}", ", test: [test.parquet]}")
    run = train([*given, "train.steps=15"], tmp_path / "run").run_dir
    tested = persia("eval", run, "--retrieval", "--test", "--json")
    other = "dataset.split={kind: files, train: [train.parquet], eval: [test.parquet]}"
    evaluated = persia("eval", run, "--retrieval", "--json", other)
    assert tested.exit_code == evaluated.exit_code == 0, tested.output + evaluated.output
    assert json.loads(tested.stdout) == json.loads(evaluated.stdout)
    assert json.loads(tested.stdout) != json.loads(persia("eval", run, "--retrieval", "--json").stdout)


FILMS, LENGTH, NEXT = 60, 4, 7
"""Distance in this data from a film that a user has watched to the next; all films are equally popular."""


def sequences(folder: Path) -> list[str]:
    """Write samples of the film after some others; return the arguments of a job whose network must learn the order."""
    draw = np.random.default_rng(8)
    for name, rows in (("train", 1200), ("eval", 120)):
        film = draw.permutation(np.arange(rows) % FILMS)
        before = [[(each - NEXT * back) % FILMS for back in range(LENGTH, 0, -1)] for each in film.tolist()]
        pd.DataFrame({"film": film, "before": before, "label": 1.0}).to_parquet(folder / f"{name}.parquet")
    return [
        *("conf=base", "name=films", "dataset=parquet", f"dataset.path='{folder}'", "dataset.labels=[label]"),
        "dataset.sparse=[film, {name: before, table: film, pooling: none, max_length: 4}]",
        *("dataset.dense=[]", "dataset.split={kind: files, train: [train.parquet], eval: [eval.parquet]}"),
        *("cluster=embedded", "mode=sync", "train.batch_size=60", "train.epochs=8", "embedding.memory=16MiB"),
        *("model=sasrec", "model.attend={film: [before]}", "model.dim=16", "model.layers=1", "optimizer=adagrad"),
        "train.losses={label: {kind: in_batch_softmax}}",
    ]


@pytest.mark.parametrize("ranks", [1, pytest.param(2, marks=pytest.mark.slow)], ids=["one_rank", "two_ranks"])
def test_sasrec_learns_the_order_of_films_from_the_items_of_a_batch(ranks: int, tmp_path: Path) -> None:
    where = [] if ranks == 1 else ["cluster=local", f"cluster.nn_workers={ranks}"]
    result = train([*sequences(tmp_path), *where], tmp_path / "run")
    run, lines = result.run_dir, lines_of(result.run_dir)
    [*_, chosen] = [event for event in result.events if event["event"] == "best"]
    assert chosen["metric"] == "recall@10"
    assert chosen["value"] == max(line["recall@10"] for line in lines.values())
    assert not [event for event in result.events if event["event"] == "warning"], "positive samples alone are right"
    ended = persia("eval", run, "--retrieval", "--approximate")
    assert ended.exit_code == 0, ended.output
    [kept] = (run / "evals").glob("*/retrieval.json")
    content = json.loads(kept.read_text())
    assert (content["queries"], content["items"]) == (120, FILMS)
    assert content["popularity"]["recall@10"] == pytest.approx(10 / FILMS)
    assert content["model"]["recall@10"] > 0.8
    approximate = content["approximate"]
    assert approximate["search_recall"]["search_recall@10"] > 0.95
    assert approximate["metrics"]["recall@10"] > 0.8
    assert f"{approximate['metrics']['recall@10']:.6f}" in printed(ended.output, "approximate")
    [speeds] = [line for line in ended.output.splitlines() if line.startswith("approximate search: ")]
    assert f"exact_queries_per_s {approximate['exact_queries_per_s']:,.3f}" in speeds


@pytest.mark.parametrize("kind", ["sasrec", "ligr", "hstu"])
def test_next_films_are_learned_exported_predicted_and_recommended(kind: str, tmp_path: Path) -> None:
    given = [word for word in sequences(tmp_path) if not word.startswith(("model=", "train.losses"))]
    loss = "train.losses={label: {kind: sampled_softmax, negatives: 20}}"
    run = train([*given, f"model={kind}", "model.heads=2", loss], tmp_path / "run").run_dir
    lists = persia("eval", run, "--retrieval", "--json")
    assert json.loads(lists.stdout)["model"]["recall@10"] > 0.8
    # It compares the logits of the exported model with the network's, of each sample.
    exported = persia("export", run, "-o", tmp_path / "model", "--verify", tmp_path / "eval.parquet")
    assert exported.exit_code == 0, exported.output
    scores, users, found = (tmp_path / f"{name}.parquet" for name in ("scores", "users", "lists"))
    predicted = persia("predict", run, tmp_path / "eval.parquet", "-o", scores)
    assert predicted.exit_code == 0, predicted.output
    pd.DataFrame({"before": [[3, 10, 17, 24], []]}).to_parquet(users)
    recommended = persia("recommend", run, "--users", users, "-o", found, "--top", 5)
    assert recommended.exit_code == 0, recommended.output
    likely, unknown = pd.read_parquet(found)["scores"]
    assert pd.read_parquet(found)["items"][0][0] == 24 + NEXT
    assert (likely[0] > likely[-1], unknown.tolist()) == (True, [0.0] * 5), "nothing is known of an empty sequence"


def test_what_cannot_be_is_refused_in_a_sentence(tmp_path: Path) -> None:
    given = [word for word in words(tmp_path) if not word.startswith(("model", "train.losses"))]
    run = train([*given, "model=ffnn_small", "train.steps=2"], tmp_path / "run").run_dir
    for given, sentence in (
        (("--retrieval",), "model.kind=ffnn has none"),
        (("--at", 3), "--at belongs to --retrieval"),
        (("--approximate",), "--approximate belongs to --retrieval"),
    ):
        ended = persia("eval", run, *given)
        assert isinstance(ended.exception, UserError)
        assert sentence in str(ended.exception)


EVERY = ["eval.every_steps=5", "checkpoint.every_steps=5", "eval.retrieval=[8, 3]"]
PROCESSES = ["cluster=local", "cluster.nn_workers=2", "cluster.embedding_servers=2", "cluster.embedding_workers=2"]
BY_FIGURES = [
    "checkpoint.best_by=recall@3",
    "optimizer.dense.schedule={kind: reduce_on_plateau}",
]


slow = [pytest.mark.slow]


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
    given = [*words(tmp_path), *EVERY, "checkpoint.best_by=loss"]
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


LIMIT_S = 150.0
TRAIN_ROWS, EVAL_ROWS = 300_000, 100
"""Few are scored, in one step, and many are read before the items are ranked: it is then that a process dies."""


@pytest.fixture(scope="module")
def words_of_many(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """The arguments of a job of a few steps on many samples."""
    folder, draw = tmp_path_factory.mktemp("data"), np.random.default_rng(6)
    for name, rows in (("train", TRAIN_ROWS), ("eval", EVAL_ROWS)):
        user, item = draw.integers(0, 500, rows), draw.integers(0, 2000, rows)
        table = {"user": user, "age": user % 4, "item": item, "tags": item % 3, "label": (user + item) % 3 == 0}
        pd.DataFrame(table).astype({"label": float}).to_parquet(folder / f"{name}.parquet", row_group_size=50_000)
    return [
        *("conf=base", "name=small", "dataset=parquet", f"dataset.path='{folder}'", "dataset.labels=[label]"),
        *("dataset.sparse=[user, age, item, tags]", "dataset.dense=[]", "dataset.group_by=user", "mode=sync"),
        *("dataset.split={kind: files, train: [train.parquet], eval: [eval.parquet]}", "optimizer=adagrad", *MODEL),
        *("train.batch_size=128", "train.steps=4", "train.log_every_steps=1", "embedding.memory=16MiB"),
        "eval.retrieval=[10]",
    ]


@pytest.mark.slow
@pytest.mark.timeout(400)
@pytest.mark.parametrize("replica", ["embedding-worker-0", "embedding-server-0", "nn-worker-0"])
def test_metrics_are_those_of_an_undisturbed_evaluation(replica: str, words_of_many: list[str], tmp_path: Path) -> None:
    undisturbed = train([*words_of_many, "cluster=embedded"], tmp_path / "undisturbed")
    with Launched([*words_of_many, "cluster=local"], tmp_path / "run") as job:
        poll_for(
            lambda: "evaluating" in [event["phase"] for event in events_of(job, "phase")] or job.process.poll(),
            LIMIT_S,
            "the evaluation",
        )
        os.kill(job.pids()[replica], signal.SIGKILL)
        code, _ = job.end(within_s=LIMIT_S)
        assert code == 0, job.output[-3000:]
    result = result_of(tmp_path / "run")
    assert [event["replica"] for event in result.events if event["event"] == "recovered"] == [replica]
    found, expected = (
        [of_retrieval(line) for line in each.metrics if line["split"] == "eval"] for each in (result, undisturbed)
    )
    assert len(found) == 1
    assert found == expected
