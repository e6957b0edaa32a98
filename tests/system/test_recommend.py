"""`persia recommend` against the logits of all pairs, and against the metrics of `persia eval --retrieval`."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from typer.testing import Result

import persia_cli as api
from persia_cli.engines.job import JobResult
from persia_cli.errors import UserError
from tests.support.jobs import train
from tests.system.test_retrieval import ITEMS, TAGS, USERS, persia, sequences, words

TOP = 8


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> JobResult:
    """A two-tower network of users and of items with texts as ids."""
    folder = tmp_path_factory.mktemp("recommend")
    given = words(folder)
    for name in ("train", "eval"):
        table = pd.read_parquet(folder / f"{name}.parquet")
        table.assign(item=[f"i{item}" for item in table["item"]]).to_parquet(folder / f"{name}.parquet")
    return train([*given, "train.steps=15", "dataset.shuffle=false"], folder / "run")


def recommend(run: Path, users: pd.DataFrame, *given: str | int) -> tuple[pd.DataFrame, Result]:
    """Return the lists of some users, and what the command printed."""
    users.to_parquet(run.parent / "users.parquet")
    output = run.parent / "lists.parquet"
    words = ["--users", run.parent / "users.parquet", "-o", output, "--overwrite", "--top", TOP, *map(str, given)]
    ended = persia("recommend", run, *words)
    assert ended.exit_code == 0, ended.output
    return pd.read_parquet(output), ended


def all_pairs(run: Path, users: pd.DataFrame) -> pd.DataFrame:
    """Return the logit of each pair of a user and an item, by `persia predict`."""
    folder = run.parent / "pairs"
    folder.mkdir(exist_ok=True)
    items = pd.DataFrame({"item": [f"i{item}" for item in range(ITEMS)], "tags": TAGS})
    users.merge(items, how="cross").to_parquet(folder / "pairs.parquet")
    given = ["-o", run.parent / "scores.parquet", "--logits", "--overwrite", "--keep", "user", "--keep", "item"]
    ended = persia("predict", run, folder, *given)
    assert ended.exit_code == 0, ended.output
    return pd.read_parquet(run.parent / "scores.parquet")


def kept(run: Path) -> dict[str, Any]:
    """Return the retrieval metrics of the run's newest evaluation."""
    [newest] = sorted((run / "evals").glob("*/retrieval.json"))[-1:]
    content: dict[str, Any] = json.loads(newest.read_text())
    return content


@pytest.mark.parametrize("search", [pytest.param("exact", marks=pytest.mark.smoke), "approximate"])
def test_lists_have_the_best_items_that_the_user_has_not_seen(run: JobResult, search: str) -> None:
    """A new user gets a list too, by its known features."""
    # Users in any order, and a new one.
    users = pd.DataFrame({"user": [*reversed(range(USERS)), 99]}).assign(age=lambda table: table["user"] % 4)
    lists, _ = recommend(run.run_dir, users, *(["--approximate"] if search == "approximate" else []))
    assert lists.columns.tolist() == ["user", "items", "scores"]
    assert lists["user"].tolist() == users["user"].tolist()
    pairs = all_pairs(run.run_dir, users)
    trained = pd.read_parquet(run.run_dir.parent / "train.parquet")
    for user, items, scores in lists.itertuples(index=False):
        own = pairs[(pairs["user"] == user) & ~pairs["item"].isin(trained.loc[trained["user"] == user, "item"])]
        best = own.sort_values("label_logit", ascending=False)[:TOP]
        assert items.tolist() == best["item"].tolist()
        assert scores == pytest.approx(best["label_logit"].to_numpy(), abs=1e-4)


@pytest.mark.smoke
@pytest.mark.parametrize("keep", [[], ["--keep-seen"]], ids=["new", "all"])
def test_recall_of_lists_is_that_of_the_evaluation(run: JobResult, keep: list[str]) -> None:
    """Also where the evaluation has pairs of the training, which are not listed, so that they cannot be found."""
    users = pd.DataFrame({"user": range(USERS)}).assign(age=lambda table: table["user"] % 4)
    lists, _ = recommend(run.run_dir, users, *keep, "--keep", "age", "--keep", "user")
    assert lists.columns.tolist() == ["age", "user", "items", "scores"]
    ended = persia("eval", run.run_dir, "--retrieval", *keep, "--at", 3, "--at", TOP)
    assert ended.exit_code == 0, ended.output
    assert 0 < kept(run.run_dir)["seen_share"] < 1
    evaluated = pd.read_parquet(run.run_dir.parent / "eval.parquet")
    trained = pd.read_parquet(run.run_dir.parent / "train.parquet")
    if not keep:
        evaluated = evaluated[
            ~evaluated.set_index(["user", "item"]).index.isin(trained.set_index(["user", "item"]).index)
        ]
    for k in (3, TOP):
        expected = kept(run.run_dir)["model"][f"recall@{k}"]
        assert recall(lists, evaluated, k) == pytest.approx(expected, rel=1e-12)


def test_python_returns_the_same_lists(run: JobResult) -> None:
    users = pd.DataFrame({"user": range(USERS)}).assign(age=lambda table: table["user"] % 4)
    lists, _ = recommend(run.run_dir, users, "--keep", "age")
    found = api.recommend(run.run_dir, users, top=TOP, keep=["age"])
    pd.testing.assert_frame_equal(found.to_pandas(), lists)


def recall(lists: pd.DataFrame, evaluated: pd.DataFrame, k: int) -> float:
    """Return the mean fraction of a user's positive items that are among the first k of its list."""
    relevant = evaluated[evaluated["label"] > 0].groupby("user")["item"].agg(set)
    own = {user: set(items[:k]) for user, items in zip(lists["user"], lists["items"], strict=True)}
    return float(np.mean([len(own[user] & items) / len(items) for user, items in relevant.items()]))


def test_sasrec_lists_what_follows_a_sequence_and_is_not_in_it(tmp_path: Path) -> None:
    run = train([*sequences(tmp_path), "train.epochs=2"], tmp_path / "run").run_dir
    users = pd.DataFrame({"before": [[3, 10, 17, 24], [5], [], [10**6, 24]]})
    lists, ended = recommend(run, users)
    assert [list(each) for each in lists["before"]] == users["before"].tolist()
    assert lists["items"].map(len).tolist() == [TOP] * 4
    assert not any(set(items) & set(own) for items, own in zip(lists["items"], users["before"], strict=True))
    assert lists["scores"][2].tolist() == [0.0] * TOP, "nothing is known of an empty sequence"
    assert "without dataset.group_by" in ended.output
    whole, _ = recommend(run, users, "--keep-seen", "--top", 1000)
    assert whole["items"].map(set).tolist() == [set(range(60))] * 4


@pytest.mark.smoke
def test_what_cannot_be_is_refused_in_a_sentence(run: JobResult, tmp_path: Path) -> None:
    users, lists = tmp_path / "users.csv", tmp_path / "lists.parquet"
    users.write_text("user,age\n1,1\n")
    (tmp_path / "plain.csv").write_text("user\n1\n")
    for given, sentence in (
        (("--users", users, "-o", tmp_path / "lists.csv"), "end the name in .parquet"),
        (("--users", tmp_path / "none", "-o", lists), "does not exist"),
        (("--users", tmp_path / "plain.csv", "-o", lists), "there is no column age"),
        (("--users", users, "-o", lists, "--item", "tags"), "one value per row; there is item"),
        (("--users", users, "-o", lists, "--keep", "items"), "the lists have a column of that name"),
        (("--users", users, "-o", lists, "--keep", "name"), "there is no column name to keep"),
    ):
        ended = persia("recommend", run.run_dir, *given)
        assert isinstance(ended.exception, UserError), ended.output
        assert sentence in str(ended.exception)
        assert not lists.exists()
    assert persia("recommend", run.run_dir, "--users", users, "-o", lists).exit_code == 0
    assert len(pd.read_parquet(lists)) == 1
    users.write_text("user,age\n")
    assert persia("recommend", run.run_dir, "--users", users, "-o", lists, "--overwrite").exit_code == 0
    assert len(pd.read_parquet(lists)) == 0


@pytest.mark.slow
def test_real_ratings(real_data: Path, tmp_path: Path) -> None:
    """No film that a person has rated in training is in the list, so its recall is that of the evaluation too."""
    ratings = pd.read_parquet(real_data / "ml-1m" / "ratings.parquet")[:200_000]
    table = pd.DataFrame({"user": ratings["user_id"], "item": ratings["movie_id"].map("film {}".format)})
    table["label"] = (ratings["rating"] >= 4).astype(float)
    is_evaluated = np.arange(len(table)) % 5 == 4
    table[~is_evaluated].to_parquet(tmp_path / "train.parquet")
    table[is_evaluated].to_parquet(tmp_path / "eval.parquet")
    given = [
        *("conf=base", "dataset=parquet", f"dataset.path='{tmp_path}'", "dataset.labels=[label]", "dataset.dense=[]"),
        *("dataset.sparse=[user, item]", "dataset.group_by=user", "cluster=embedded", "embedding.memory=64MiB"),
        "dataset.split={kind: files, train: [train.parquet], eval: [eval.parquet]}",
        *(
            "model=two_tower",
            "model.user=[user]",
            "model.item=[item]",
            "train.losses={label: {kind: in_batch_softmax}}",
        ),
        *("train.batch_size=512", "train.epochs=1", "optimizer=adagrad"),
    ]
    run = train(given, tmp_path / "run").run_dir
    users = table[["user"]].drop_duplicates()
    lists, _ = recommend(run, users, "--top", 100)
    near, _ = recommend(run, users, "--top", 100, "--approximate")
    assert persia("eval", run, "--retrieval", "--at", 10, "--at", 100).exit_code == 0
    for k in (10, 100):
        assert recall(lists, table[is_evaluated], k) == pytest.approx(kept(run)["model"][f"recall@{k}"], rel=1e-9)
    seen = table[~is_evaluated].groupby("user")["item"].agg(set)
    assert not any(set(items) & seen[user] for user, items in zip(lists["user"], lists["items"], strict=True))
    common = [len({*a} & {*b}) for a, b in zip(lists["items"], near["items"], strict=True)]
    assert np.mean(common) > 95
