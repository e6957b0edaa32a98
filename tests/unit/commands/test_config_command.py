"""`persia config` prints what can be read, piped and run again."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from persia_cli.config.compose import compose_run
from persia_cli.config.json_schema import file_schema


def test_what_is_shown_runs_again(persia) -> None:
    ended = persia("config", "show", "conf=criteo", "model=ffnn", "train.epochs=3")
    assert (ended.code, ended.err) == (0, "")
    Path("shown.yaml").write_text(ended.out)
    assert compose_run(["conf=./shown.yaml"]) == compose_run(["conf=criteo", "model=ffnn", "train.epochs=3"])
    assert persia("config", "show", "conf=./shown.yaml").out == ended.out


def test_mistakes_are_shown_too(persia) -> None:
    assert persia("config", "show", "model=dlmr").code == 2


def test_the_layers_of_a_network(persia) -> None:
    words = ("config", "model", "conf=adult_income", "model.hidden=[16]")
    ended = persia(*words)
    assert ended.code == 0, ended.err
    assert ended.out.splitlines() == [
        "layer=network.0 kind=Linear output=16 parameters=1632",
        "layer=network.2 kind=Linear output=1 parameters=17",
        "layer=all parameters=1649",
    ]
    assert "25.8 KiB in each NN worker: weights, gradients and the state of adam" in " ".join(ended.err.split())
    told = json.loads(persia(*words, "--json").out)
    assert told["bytes"] == 1649 * 4 * 4
    assert (told["model"], told["parameters"], told["layers"][0]["output"]) == ("ffnn", 1649, [16])
    refused = persia("config", "model", "conf=adult_income", "model=dlrm", "dataset.dense=[]")
    assert refused.code == 2
    assert refused.err.startswith("error: model.kind=dlrm has a part for dense")


def test_layers_are_looked_at_without_torch_in_this_process() -> None:
    program = (
        "import sys; sys.argv = ['persia', 'config', 'model', 'conf=adult_income']\n"
        "from persia_cli.main import main\n"
        "try: main()\nexcept SystemExit as end: assert not end.code and 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, timeout=100)


OPEN = ("dataset=parquet", *(f"model={name}" for name in ("custom", "din", "dien", "bst", "sasrec", "two_tower")))
"""Those that leave keys to be given."""


def test_the_list_names_arguments_that_can_be_typed(persia) -> None:
    ended = persia("config", "list")
    words = [line.split()[0] for line in ended.out.splitlines()]
    assert "conf=criteo" in words
    assert "dataset=tiny" in words
    for word in words:
        if word not in OPEN:
            compose_run([word], [Path("conf")])


def test_the_list_of_keys_explains_each(persia) -> None:
    lines = dict(line.split(maxsplit=1) for line in persia("config", "list", "train").out.splitlines())
    assert lines["train.batch_size"].endswith("(a whole number above 0; has to be given)")
    assert lines["train.threads"].endswith("; default 1)")
    assert set(lines) > {"train", "train.losses.NAME.kind", "train.stop_early.patience"}
    for group in yaml.safe_load(persia("config", "show").out):
        assert persia("config", "list", group).out.startswith(group)


@pytest.mark.parametrize(("prefix", "right"), [("trian", "train"), ("stop_early", "train.stop_early"), ("a.b.c", "")])
def test_an_unknown_prefix_is_answered_with_a_similar_one(persia, prefix: str, right: str) -> None:
    ended = persia("config", "list", prefix)
    assert (ended.code, ended.out) == (2, "")
    [line] = ended.err.splitlines()
    assert f"did you mean {right}?" in line if right else "did you mean" not in line


def test_the_schema_for_editors_is_json(persia) -> None:
    ended = persia("config", "schema")
    assert (ended.code, ended.err) == (0, "")
    assert json.loads(ended.out) == file_schema()


def test_a_reader_that_leaves_early_is_no_error(tmp_path: Path) -> None:
    command = f"{sys.executable} -m persia_cli config list dataset | head -n 1"
    ended = subprocess.run(["sh", "-c", command], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert (ended.stdout.count("\n"), ended.stderr) == (1, "")
