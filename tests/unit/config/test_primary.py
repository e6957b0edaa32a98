"""Slips in a user's own configuration that composing alone would pass over."""

from pathlib import Path

import pytest

from persia_cli.config.compose import compose_run
from persia_cli.config.schema import ParquetDataset
from persia_cli.errors import ConfigError


def written(folder: Path, text: str, name: str = "ok.yaml") -> str:
    (folder / name).write_text(text)
    return f"conf={folder / name}"


@pytest.mark.parametrize(
    ("defaults", "sentence"),
    [
        ("[_self_, base]", "base comes after _self_ in its defaults and would override the rest of the file; write "
         "defaults: [base, _self_]"),
        ("[base, _self_, synthetic]", "synthetic comes after _self_ .* write defaults: [base, synthetic, _self_]"),
        ("[base, _self_, {train: small}]", "train: small comes after _self_ .* would override train of this file"),
    ],
)  # fmt: skip
def test_defaults_that_would_override_the_file_are_refused(tmp_path: Path, defaults: str, sentence: str) -> None:
    with pytest.raises(ConfigError, match=f"ok.yaml: {sentence}".replace("[", r"\[")):
        compose_run([written(tmp_path, f"defaults: {defaults}\nseed: 77\ntrain: {{batch_size: 5}}\n")])


def test_a_file_called_base_is_named_where_it_hides_the_one_of_persia(tmp_path: Path) -> None:
    word = written(tmp_path, "defaults: [base, _self_]\nseed: 77\n")
    written(tmp_path, "defaults: [base, _self_]\n", "base.yaml")
    with pytest.raises(ConfigError, match=r"base\.yaml hides persia's own base\.yaml: rename it"):
        compose_run([word])


def test_without_a_name_it_has_that_of_its_file(tmp_path: Path) -> None:
    assert compose_run([written(tmp_path, "defaults: [base, _self_]\n", "shop.yaml")]).name == "shop"
    assert compose_run([written(tmp_path, "defaults: [base, _self_]\n", "my shop!.yaml")]).name == "my-shop-"
    named = written(tmp_path, "defaults: [base, _self_]\nname: mine\n")
    assert compose_run([named]).name == "mine"
    assert compose_run([named, "name=other"]).name == "other"
    assert compose_run([written(tmp_path, "defaults: [base, _self_]\n", "shop.yaml"), "name=other"]).name == "other"
    assert compose_run([]).name == "base"


def test_own_data_replaces_that_of_base(tmp_path: Path) -> None:
    own = "dataset: {path: x.csv, labels: [y], sparse: [u], split: {kind: time, column: t, eval_from: 2026-01-01}}\n"
    run = compose_run([written(tmp_path, f"defaults: [base, _self_]\n{own}")])
    assert isinstance(run.dataset, ParquetDataset)
    assert (run.dataset.labels, run.dataset.dense, run.dataset.split.kind) == (("y",), (), "time")


def test_hydra_is_no_key(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"ok\.yaml: 'hydra' is not a key of persia; remove it"):
        compose_run([written(tmp_path, "defaults: [base, _self_]\nhydra: {run: {dir: x}}\n")])


def test_lists_where_keys_belong_are_reported_by_their_keys(tmp_path: Path) -> None:
    text = "defaults: [base, _self_]\ntrain: [a]\nembedding: {tables: [x]}\ncheckpoint: 7\n"
    with pytest.raises(ConfigError) as raised:
        compose_run([written(tmp_path, text)])
    lines = sorted(str(raised.value).splitlines())
    assert [line.partition(": expected ")[0] for line in lines] == [
        f"{tmp_path / 'ok.yaml'}: {key}" for key in ("checkpoint=7", 'embedding.tables=["x"]', 'train=["a"]')
    ]


@pytest.mark.parametrize(
    ("option", "own", "wrong"),
    [("labels: [y]", "labels: {name: y}", "shop"), ("labels: {name: y}", "labels: [y]", "dataset/mine")],
)
def test_lists_and_keys_differ_where_another_file_has_the_kind(
    option: str, own: str, wrong: str, tmp_path: Path
) -> None:
    (tmp_path / "dataset").mkdir()
    written(tmp_path / "dataset", f"kind: parquet\n{option}\n", "mine.yaml")
    file = written(tmp_path, f"defaults: [base, {{override dataset: mine}}, _self_]\ndataset: {{{own}}}\n", "shop.yaml")
    with pytest.raises(ConfigError) as error:
        compose_run([file])
    assert str(error.value).startswith(f'{tmp_path / wrong}.yaml: dataset.labels={{"name": "y"}}: expected a list')


def test_a_path_may_begin_with_the_home_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    written(tmp_path, "defaults: [base, _self_]\nseed: 9\n", "x.yaml")
    assert compose_run(["conf=~/x.yaml"]).seed == 9
    assert compose_run(["conf=x"], [Path("~")]).seed == 9
