"""`persia config explain`: what a key means, and the file or argument that sets it."""

import json
from pathlib import Path
from typing import Any

import pytest

from persia_cli.commands.config_view import explain_key
from persia_cli.config.compose import compose_run
from persia_cli.config.examples import as_argument, example_of
from persia_cli.config.expected import keys
from persia_cli.config.origin import layers_of, origin
from persia_cli.config.overrides import parse_overrides
from persia_cli.config.schema import Run
from persia_cli.errors import UserError
from persia_cli.shipped import shipped

SHOP = """\
defaults: [base, _self_]
dataset: ./data/shop.yaml
train:
  epochs: 2
"""
DATA = "kind: generated\ngenerator: {train_rows: 600, eval_rows: 200, dense: 2, cardinalities: [10]}\n"


@pytest.fixture
def shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.chdir(tmp_path)
    Path("data").mkdir()
    Path("shop.yaml").write_text(SHOP)
    Path("data/shop.yaml").write_text(DATA)
    return "conf=./shop.yaml"


def at(values: Any, key: str) -> Any:
    for name in key.split("."):
        values = values.get(name) if isinstance(values, dict) else None
    return values


@pytest.mark.parametrize(
    "words",
    [
        ["conf=criteo", "train.batch_size=4096", "cluster=embedded"],
        ["conf=avazu_x1", "model=fm", "optimizer=adam", "~embedding.clip_norm"],
        ["conf=./shop.yaml", "model={kind: ffnn, dim: 4, hidden: [8]}", "dataset=adult_income"],
    ],
)
def test_the_last_place_has_the_value_of_the_run(shop: str, words: list[str]) -> None:
    """Of every key with a plain value; a key that no place sets has its default."""
    run = compose_run(words)
    values = run.model_dump(mode="json")
    layers = layers_of(words)
    set_keys = set()
    for key, field in keys(Run, values):
        value, place = at(values, key), origin(key, layers)
        group = at(values, key.rpartition(".")[0]) if "." in key else values
        if isinstance(value, dict | list) or not isinstance(group, dict) or key == "embedding.memory":
            continue
        if place:
            assert (key, place.value) == (key, value)
            set_keys.add(key)
        else:
            assert (key, field.get_default(call_default_factory=True)) == (key, value)
    assert {"name", "seed", "model.dim", "train.epochs", "dataset.kind"} <= set_keys


@pytest.mark.parametrize(
    ("key", "words", "place"),
    [
        ("train.epochs", ["model=deepfm", "train.epochs=4"], "train.epochs=4"),
        ("train.epochs", ["model=deepfm"], "shop.yaml, line 4"),
        ("dataset.generator.dense", [], "data/shop.yaml, line 2"),
    ],
)
def test_the_last_place_is_named(shop: str, key: str, words: list[str], place: str) -> None:
    found = origin(key, layers_of([shop, *words]))
    assert found is not None
    assert found.place.removeprefix(f"{Path.cwd()}/") == place


def test_the_file_of_a_network_is_named() -> None:
    words = ["conf=criteo_x1", "model=fm"]
    layers = layers_of(words)
    network, whole = origin("optimizer.embedding.l2", layers), origin("train.batch_size", layers)
    assert network is not None
    assert network == (f"{shipped('conf') / 'leaderboards' / 'criteo_x1' / 'fm.yaml'}, line 3", 5e-6)
    assert whole is not None
    assert whole.place.startswith(f"{shipped('conf') / 'criteo_x1.yaml'}, line ")


def test_a_key_is_explained(shop: str, capsys: pytest.CaptureFixture[str]) -> None:
    explain_key("embedding.tables.C3.dim", ["conf=criteo", "embedding.tables.C3.dim=32"], [], as_json=True)
    found = json.loads(capsys.readouterr().out)
    assert (found["meaning"], found["default"], found["value"]) == ("Columns of a row.", "null", 32)
    assert found["set_by"] == {"place": "embedding.tables.C3.dim=32", "value": 32}
    explain_key("model.bottom", [shop], [], as_json=False)
    lines = dict(line.split(maxsplit=1) for line in capsys.readouterr().out.splitlines())
    assert "no such key" in lines["set"]
    explain_key("dataset.sparse[1].pooling", ["conf=criteo"], [], as_json=False)
    lines = dict(line.split(maxsplit=1) for line in capsys.readouterr().out.splitlines())
    assert (lines["value"], lines["type"]) == ("sum", "sum, mean, sqrtn or none")


def test_a_key_of_several_kinds_or_of_no_one_element_is_explained(capsys: pytest.CaptureFixture[str]) -> None:
    for key in ("cluster.kind", "train.losses.NAME.kind", "embedding.tables.NAME.optimizer.eps"):
        explain_key(key, ["conf=criteo"], [], as_json=True)
    kinds, losses, eps = map(json.loads, capsys.readouterr().out.splitlines())
    assert kinds["type"] == "embedded, local, hosts, kubernetes, ray or slurm"
    assert losses["type"].startswith("bce, focal")
    assert eps["default"] == "1e-10 or 1e-08"
    explain_key("dataset.raw[].steps[].divide", ["conf=criteo"], [], as_json=True)
    assert "value" not in json.loads(capsys.readouterr().out)


@pytest.mark.parametrize(
    ("wrong", "right"), [("train.bach_size", "train.batch_size"), ("capacity", "embedding.capacity")]
)
def test_an_unknown_key_is_answered_with_the_nearest(wrong: str, right: str) -> None:
    with pytest.raises(UserError) as refused:
        explain_key(wrong, [], [], as_json=False)
    assert f"did you mean {right}" in str(refused.value)


def test_every_example_can_be_typed() -> None:
    examples = {key: value for key, field in keys(Run, members=True) if (value := example_of(key, field)) is not None}
    settings = [f"{key}={as_argument(value)}" for key, value in examples.items() if "[]" not in key]
    assert len(settings) > 200
    assert parse_overrides(settings, [], {}).wrong == {}


@pytest.mark.parametrize(
    ("key", "may"),
    [
        *((key, True) for key in ("name", "train.log_every_steps", "train.accumulate", "dataset.fill", "eval")),
        *((key, True) for key in ("cluster.nn_workers", "checkpoint.keep", "embedding.cold.size", "loggers")),
        *((key, False) for key in ("seed", "train.batch_size", "train.losses.NAME.weight", "model.dim", "dataset")),
        *((key, False) for key in ("embedding.dtype", "embedding.tables.NAME.dim", "optimizer.dense.lr", "train")),
    ],
)
def test_it_explains_whether_a_resume_may_change_a_key(key: str, may: bool, capsys: pytest.CaptureFixture[str]) -> None:
    explain_key(key, [], [], as_json=True)
    assert json.loads(capsys.readouterr().out)["resume"] == f"a resume {'may' if may else 'cannot'} change it"
