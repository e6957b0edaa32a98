"""`networks`: settings for each kind of network, below files that begin with them and command-line arguments."""

from pathlib import Path

import pytest

from persia_cli.config.compose import compose_run
from persia_cli.config.schema import Dlrm, Ffnn, FinalMlp, Run
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
    assert (run.optimizer.embedding.l2, run.train.batch_size) == (0.25, 256)


def test_a_network_that_it_does_not_name_has_the_rest_of_the_file(tuned: str) -> None:
    run = compose_run([tuned, "model=finalmlp"])
    assert isinstance(run.model, FinalMlp)
    assert (run.model.dim, run.optimizer.embedding.l2, run.model.dropout) == (9, 0.5, 0.0)


def test_words_come_first(tuned: str) -> None:
    words = ["model.dropout=0.3", "train.batch_size=2", "model.hidden=[4]", "model.dim=6"]
    assert of(compose_run([tuned, *words])) == ((4,), 0.3, 6, 2)
    assert of(compose_run([*words, "model=ffnn", tuned])) == ((4,), 0.3, 6, 2)
    assert of(compose_run([tuned, "train={batch_size: 3}", "~model.dropout"])) == ((7, 5), 0.0, 8, 3)
    replaced = compose_run([tuned, "model={kind: dlrm, dim: 4, bottom: [2], top: [2]}"])
    assert (replaced.model.dim, replaced.optimizer.embedding.l2, replaced.train.batch_size) == (4, 0.25, 256)


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
