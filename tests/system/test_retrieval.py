"""`persia eval --retrieval` against plain loops over the scores that `persia predict` gives for every user and item."""

import json
import re
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from typer.testing import CliRunner, Result

from persia_cli.errors import UserError
from persia_cli.main import app
from tests.support.jobs import train
from tests.unit.retrieval.test_ranking import by_loops

USERS, ITEMS = 14, 23
MODEL = ["model=two_tower", "model.user=[user, age]", "model.item=[item, tags]", "model.hidden=[8]", "model.width=5"]
TAGS = [[item % 3] if item % 4 else [] for item in range(ITEMS)]


def words(folder: Path) -> list[str]:
    """Write samples of users and items, and return the arguments of a job on them."""
    draw = np.random.default_rng(5)
    for name, rows in (("train", 150), ("eval", 60)):
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


def printed(text: str, by: str) -> dict[str, float]:
    line = next(line for line in text.splitlines() if f"by={by}" in line.replace("  ", ""))
    return {key: float(value) for key, value in re.findall(r"([a-z@0-9]+)[=:] ?([0-9.e-]+)", line)}


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
    for k in (3, 8):
        expected = by_loops(scores, {(int(u), int(i)) for u, i in relevant}, seen, k)
        found = printed(ended.output, "model")
        names = {"recall": f"recall@{k}", "ndcg": f"ndcg@{k}", "hr": f"hr@{k}", "mrr": "mrr"}
        assert {name: found[key] for name, key in names.items()} == pytest.approx(expected, rel=1e-5)
    assert printed(ended.output, "popularity")["items"] == ITEMS
    [kept] = (run / "evals").glob("*/retrieval.json")
    content = json.loads(kept.read_text())
    assert (content["step"], content["keep_seen"]) == (15, keep)
    assert (kept.parent / "config.yaml").is_file()
    sizes = {"queries": content["queries"], "items": ITEMS, "relevant": len(relevant)}
    for by in ("model", "popularity"):
        assert printed(ended.output, by) == sizes | content[by]


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


@pytest.mark.parametrize(
    "ranks", [1, pytest.param(2, marks=[pytest.mark.slow, pytest.mark.processes])], ids=["one_rank", "two_ranks"]
)
def test_sasrec_learns_the_order_of_films_from_the_items_of_a_batch(ranks: int, tmp_path: Path) -> None:
    where = [] if ranks == 1 else ["cluster=local", f"cluster.nn_workers={ranks}"]
    run = train([*sequences(tmp_path), *where], tmp_path / "run").run_dir
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
    assert printed(ended.output, "approximate")["recall@10"] == approximate["metrics"]["recall@10"]
    [speeds] = [line for line in ended.output.splitlines() if line.startswith("search=approximate ")]
    assert f"exact_queries_per_s={approximate['exact_queries_per_s']}" in speeds


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
