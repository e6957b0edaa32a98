"""Command lines that other programs understand: what to write here instead."""

from pathlib import Path

import pytest

from persia_cli.commands.predict import paths_and_words
from persia_cli.errors import UserError


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("train", "-m"), "several values are tried by `persia sweep`"),
        (("train", "--cfg", "job"), "`persia config show`"),
        (("train", "--config", "x.yaml"), "conf=NAME or conf=PATH.yaml"),
        (("train", "--batch-size=5"), "train.batch_size=VALUE"),
        (("train", "--output-dir", "x"), "--run-dir DIR"),
        (("train", "--wombat"), "--wombat: persia train has no such option; `persia train --help`"),
        (("train", "--run-di", "x"), "did you mean --run-dir?"),
        (("trian",), "no such command 'trian'"),
        (("train", "--run-dir="), "--run-dir is empty"),
        (("eval", ""), "an argument is empty"),
        (("eval",), "missing argument 'RUN|CHECKPOINT'; `persia eval --help`"),
    ],
)
def test_it_is_one_sentence_with_what_to_write(persia, words: tuple[str, ...], sentence: str) -> None:
    ended = persia(*words)
    assert (ended.code, ended.out) == (2, "")
    assert ended.err.startswith("error: ")
    assert len(ended.err.splitlines()) == 1
    assert sentence in ended.err


def test_without_arguments_there_is_help(persia) -> None:
    ended = persia()
    assert ended.code == 2
    assert "Usage: " in ended.err + ended.out


def test_paths_and_settings_are_distinguished(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "day=3").mkdir()
    given = ["a.parquet", "data/day=2/x", "day=3", "s3://b/k=v", "cluster.nn_workers=2", "~dataset.fill", "day=4"]
    assert paths_and_words(given) == (given[:4], given[4:])
    with pytest.raises(UserError, match="name the data to score first"):
        paths_and_words(["day=4"])
