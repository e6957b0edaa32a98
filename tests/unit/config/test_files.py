"""Parts of a configuration in files: a data set by its path, and the settings of each network of a leaderboard."""

from collections.abc import Callable
from pathlib import Path

import pytest

from persia_cli.config.compose import compose_run
from persia_cli.config.schema import Ffnn, GeneratedDataset, ParquetDataset, Run


def of(run: Run) -> tuple[str, int, float]:
    return run.model.kind, run.model.dim, run.optimizer.embedding.l2


def test_a_leaderboard_has_settings_of_each_network(tmp_path: Path) -> None:
    assert of(compose_run(["conf=criteo_x1"])) == ("deepfm", 11, 1e-5)
    assert of(compose_run(["conf=criteo_x1", "model=fm"])) == ("fm", 11, 5e-6)
    assert of(compose_run(["conf=criteo_x1", "model=fm", "model.dim=4", "optimizer.embedding.l2=0"])) == ("fm", 4, 0.0)
    assert of(compose_run(["conf=criteo_x1", "model=lr"])) == ("lr", 1, 1e-5)  # not on the leaderboard
    own = tmp_path / "own.yaml"
    own.write_text("defaults: [criteo_x1, override model: ffnn, _self_]\nmodel: {hidden: [8]}\nseed: 5\n")
    run = compose_run([f"conf={own}", "model.dropout=0.5"])
    assert isinstance(run.model, Ffnn)
    assert (run.model.dim, run.model.hidden, run.model.dropout, run.seed) == (10, (8,), 0.5, 5)


SHOP = """\
kind: parquet
path: .
labels: [bought]
dense: [price]
sparse: [user, {name: last_items, table: item, pooling: mean}]
split: {kind: every, n: 10}
"""


@pytest.fixture
def shop(tmp_path: Path) -> Path:
    """A dataset.yaml in a separate folder."""
    (tmp_path / "shop").mkdir()
    file = tmp_path / "shop" / "dataset.yaml"
    file.write_text(SHOP)
    return file


def parquet(run: Run) -> ParquetDataset:
    assert isinstance(run.dataset, ParquetDataset)
    return run.dataset


def test_the_path_inside_is_relative_to_the_file(shop: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = compose_run([f"dataset={shop}", "model=dlrm"])
    assert (run.model.kind, parquet(run).path) == ("dlrm", str(shop.parent))
    assert [feature.table for feature in parquet(run).sparse] == [None, "item"]
    monkeypatch.chdir(shop.parent.parent)
    assert parquet(compose_run(["dataset=shop/dataset.yaml"])).path == "shop"
    for path in ("/data/x", "s3://bucket/x", "builtin:adult_income"):
        shop.write_text(SHOP.replace("path: .", f"path: {path}"))
        assert parquet(compose_run([f"dataset={shop}"])).path == path


@pytest.mark.parametrize("path", ["clicks.csv.gz", "clicks", "[clicks.csv, more.csv]", "s3://bucket/clicks/"])
def test_a_run_of_described_data_has_the_name_of_the_data(path: str, shop: Path, user_conf: Path) -> None:
    shop.write_text(SHOP.replace("path: .", f"path: {path}"))
    assert compose_run([f"dataset={shop}"]).name == "clicks"
    assert compose_run([f"dataset={shop}", "name=other"]).name == "other"
    (user_conf / "mine.yaml").write_text("defaults: [base, _self_]\n")
    assert compose_run(["conf=mine", f"dataset={shop}"], [user_conf]).name == "mine"
    shop.write_text(SHOP)  # data in the folder of the file
    assert compose_run([f"dataset={shop}"]).name == "shop"


def test_keys_override_the_file(shop: Path) -> None:
    words = ["dataset.shuffle=false", "dataset.labels=[a,b]", "dataset.split={kind: every, n: 3}"]
    for order in ([f"dataset={shop}", *words], [*words, f"dataset={shop}"]):
        dataset = parquet(compose_run(order))
        assert (dataset.shuffle, dataset.labels, dataset.split.n) == (False, ("a", "b"), 3)  # type: ignore[union-attr]
        assert dataset.dense == ("price",)


def test_a_configuration_may_name_a_file(shop: Path, user_conf: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(shop.parent.parent)
    (user_conf / "mine.yaml").write_text("defaults: [base, _self_]\nname: mine\ndataset: shop/dataset.yaml\n")
    run = compose_run(["conf=mine", "dataset.dense=[]"], [user_conf])
    assert (run.name, parquet(run).labels, parquet(run).dense) == ("mine", ("bought",), ())
    assert isinstance(compose_run(["conf=mine", "dataset=tiny"], [user_conf]).dataset, GeneratedDataset)
    assert parquet(compose_run(["conf=mine", "dataset=criteo", "dataset.path=x"], [user_conf])).path == "x"


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        (SHOP.replace("labels", "lables"), 'dataset.lables=["bought"]: no such key; did you mean dataset.labels'),
        (SHOP.replace("kind: parquet\n", ""), "dataset.kind: needs a value (parquet or generated)"),
        (SHOP.replace("n: 10", "n: 1"), "dataset.split.n=1: expected a whole number of at least 2"),
        (SHOP.replace("[bought]", "???"), "the label is not chosen; write labels: "),
        (SHOP + "dense: [7]\n", "dataset.dense[0]=7: expected text or keys (name, "),
        (SHOP.replace("pooling", "poling"), "did you mean dataset.sparse[1].pooling (sum, mean, sqrtn or none)?"),
        ("defaults: [base, _self_]\n", "this file is a configuration; use it as conf="),
        ("- a\n", "expected the keys of a data set"),
        ("a: [", "cannot be read, while parsing"),
    ],
)
def test_mistakes_name_the_file(text: str, sentence: str, shop: Path, mistakes: Callable[..., list[str]]) -> None:
    shop.write_text(text)
    told = mistakes(f"dataset={shop}")
    assert all(str(shop) in line for line in told)
    assert any(sentence in line for line in told), told


def test_a_data_set_is_no_configuration(shop: Path, mistakes: Callable[..., list[str]]) -> None:
    [told] = mistakes(f"conf={shop}")
    assert told.endswith(f"use it as dataset={shop}")


def test_a_member_of_a_list_is_not_to_be_given_on_the_command_line(
    shop: Path, mistakes: Callable[..., list[str]]
) -> None:
    shop.write_text(SHOP + "dense: [{transform: log1p}]\n")
    assert mistakes(f"dataset={shop}") == [f"{shop}: dataset.dense[0].name: needs a value (text)"]


def test_files_that_are_not_there(tmp_path: Path, shop: Path, mistakes: Callable[..., list[str]]) -> None:
    assert mistakes(f"dataset={tmp_path}/gone.yaml") == [f"dataset={tmp_path}/gone.yaml: there is no such file"]
    [told] = mistakes(f"dataset={shop.parent}")
    assert told.endswith(f"this is a folder; name the file, {shop}")
