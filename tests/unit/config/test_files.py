"""Parts of a configuration in files: a data set by its path, and `networks`, settings for each kind of network."""

from collections.abc import Callable
from pathlib import Path

import pytest

from persia_cli.config.compose import compose_run
from persia_cli.config.schema import Dlrm, Ffnn, FinalMlp, GeneratedDataset, ParquetDataset, Run
from persia_cli.errors import ConfigError

TUNED = """
defaults: [base, override model: ffnn, override optimizer: adam, _self_]
model: {dim: 9}
optimizer: {embedding: {l2: 0.5}}
networks:
  ffnn: {model: {hidden: [7, 5], dropout: 0.1, dim: 8}, train: {batch_size: 64}}
  dlrm: {model: {top: [3]}, optimizer: {embedding: {l2: 0.25}}}
"""


@pytest.fixture
def tuned(tmp_path: Path) -> str:
    (tmp_path / "tuned.yaml").write_text(TUNED)
    return f"conf={tmp_path / 'tuned.yaml'}"


def of(run: Run) -> tuple[object, ...]:
    assert isinstance(run.model, Ffnn)
    return run.model.hidden, run.model.dropout, run.model.dim, run.train.batch_size


def test_the_chosen_network_has_its_own(tuned: str) -> None:
    assert of(compose_run([tuned])) == ((7, 5), 0.1, 8, 64)
    run = compose_run([tuned, "model=dlrm"])
    assert isinstance(run.model, Dlrm)
    assert (run.model.top, run.model.bottom, run.model.dim) == ((3,), (512, 256, 64), 9)
    assert (run.optimizer.embedding.l2, run.train.batch_size) == (0.25, "auto")


def test_a_network_that_it_does_not_name_has_the_rest_of_the_file(tuned: str) -> None:
    run = compose_run([tuned, "model=finalmlp"])
    assert isinstance(run.model, FinalMlp)
    assert (run.model.dim, run.optimizer.embedding.l2, run.model.dropout) == (9, 0.5, "auto")


def test_words_come_first(tuned: str) -> None:
    words = ["model.dropout=0.3", "train.batch_size=2", "model.hidden=[4]", "model.dim=6"]
    assert of(compose_run([tuned, *words])) == ((4,), 0.3, 6, 2)
    assert of(compose_run([*words, "model=ffnn", tuned])) == ((4,), 0.3, 6, 2)
    assert of(compose_run([tuned, "train={batch_size: 3}", "~model.dropout"])) == ((7, 5), "auto", 8, 3)
    replaced = compose_run([tuned, "model={kind: dlrm, dim: 4, bottom: [2], top: [2]}"])
    assert (replaced.model.dim, replaced.optimizer.embedding.l2, replaced.train.batch_size) == (4, 0.25, "auto")


def test_a_file_that_begins_with_it_comes_before_it(tuned: str, tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text("defaults: [tuned, _self_]\nmodel: {dropout: 0.4}\ntrain: {batch_size: 8}\n")
    assert of(compose_run([f"conf={tmp_path / 'mine.yaml'}"])) == ((7, 5), 0.4, 8, 8)
    assert of(compose_run([f"conf={tmp_path / 'mine.yaml'}", "model.dropout=0"])) == ((7, 5), 0.0, 8, 8)


@pytest.mark.parametrize(
    ("table", "sentence"),
    [
        ("[ffnn]", r"networks: expected settings by kind of network, such as {deepfm: "),
        ("{deepmf: {model: {dim: 8}}}", r"networks\.deepmf: no such kind of network; did you mean deepfm\?"),
        ("{ffnn: 8}", r"networks\.ffnn: expected keys of a configuration with values, such as "),
        ("{dlrm: {dim: 8}}", r"networks\.dlrm: expected keys of a configuration with values, such as "),
        ("{ffnn: {model: 8}}", r"networks\.ffnn: expected keys of a configuration with values, such as "),
        ("{ffnn: {model: {dimm: 8}}}", r"model\.dimm"),
        ("{ffnn: {model: {dim: -8}}}", r"model\.dim=-8: expected a whole number above 0"),
    ],
)
def test_slips_are_reported(table: str, sentence: str, tmp_path: Path) -> None:
    (tmp_path / "wrong.yaml").write_text(f"defaults: [base, _self_]\nnetworks: {table}\n")
    with pytest.raises(ConfigError, match=sentence):
        compose_run([f"conf={tmp_path / 'wrong.yaml'}"])


def test_a_record_of_a_run_has_the_settings_and_not_the_table(tuned: str) -> None:
    record = compose_run([tuned]).model_dump()
    assert record["model"]["dim"] == 8
    assert "networks" not in record


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
