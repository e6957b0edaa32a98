"""`persia config` prints what can be read, piped and run again."""

import subprocess
import sys
from pathlib import Path

import yaml

from persia_cli.config.compose import compose_run


def test_what_is_shown_runs_again(persia) -> None:
    ended = persia("config", "show", "conf=criteo", "model=ffnn", "train.epochs=3")
    assert (ended.code, ended.err) == (0, "")
    Path("shown.yaml").write_text(ended.out)
    assert compose_run(["conf=./shown.yaml"]) == compose_run(["conf=criteo", "model=ffnn", "train.epochs=3"])
    assert persia("config", "show", "conf=./shown.yaml").out == ended.out


def test_mistakes_are_shown_too(persia) -> None:
    assert persia("config", "show", "model=dlmr").code == 2


def test_the_list_names_words_that_can_be_typed(persia) -> None:
    ended = persia("config", "list")
    words = [line.split()[0] for line in ended.out.splitlines()]
    assert "conf=criteo" in words
    assert "dataset=tiny" in words
    for word in words:
        if word not in ("dataset=parquet", "model=custom", "model=din"):  # these leave keys to be given
            compose_run([word], [Path("conf")])


def test_the_list_of_keys_explains_each(persia) -> None:
    lines = dict(line.split(maxsplit=1) for line in persia("config", "list", "--keys").out.splitlines())
    assert lines["train.batch_size"] == "Samples of one step over all ranks. (a whole number above 0)"
    assert set(yaml.safe_load(persia("config", "show").out)) == {key for key in lines if "." not in key}


def test_a_reader_that_leaves_early_is_no_error(tmp_path: Path) -> None:
    command = f"{sys.executable} -m persia_cli config list --keys | head -n 1"
    ended = subprocess.run(["sh", "-c", command], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert (ended.stdout.count("\n"), ended.stderr) == (1, "")
