"""`persia config` prints what can be read, piped and run again."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from persia_cli.config.compose import compose_run
from persia_cli.config.json_schema import file_schema


def test_what_is_shown_runs_again(persia) -> None:
    ended = persia("config", "show", "conf=criteo", "model=ffnn", "train.epochs=3")
    assert (ended.code, ended.err) == (0, "")
    Path("shown.yaml").write_text(ended.out)
    assert compose_run(["conf=./shown.yaml"]) == compose_run(["conf=criteo", "model=ffnn", "train.epochs=3"])
    assert persia("config", "show", "conf=./shown.yaml").out == ended.out


def test_the_list_names_arguments_that_can_be_typed(persia) -> None:
    ended = persia("config", "list")
    words = [line.split()[0] for line in ended.out.splitlines()]
    assert "conf=criteo" in words
    assert "dataset=tiny" in words
    for group in ("mode", "optimizer", "cluster"):
        compose_run([next(word for word in words if word.startswith(f"{group}="))], [Path("conf")])


def test_the_list_of_keys_explains_each(persia) -> None:
    lines = dict(line.split(maxsplit=1) for line in persia("config", "list", "train").out.splitlines())
    assert lines["train.batch_size"].endswith("(auto or a whole number above 0; default auto)")
    assert lines["train.threads"].endswith("; default 1)")
    assert set(lines) > {"train", "train.losses.NAME.kind", "train.stop_early.patience"}


def test_a_key_of_several_kinds_has_a_meaning_for_each(persia) -> None:
    [line] = persia("config", "list", "dataset.split.column").out.splitlines()
    meanings = [text.partition(":")[0] for text in line.split(maxsplit=1)[1].split(" | ")]
    assert meanings == ["column", "time", "hash"]


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


def test_the_layers_of_a_network_are_listed_without_torch_in_this_process() -> None:
    program = (
        "import sys; sys.argv = ['persia', 'config', 'model', 'conf=adult_income', 'model.hidden=[16]']\n"
        "from persia_cli.main import main\n"
        "try: main()\nexcept SystemExit as end: assert not end.code and 'torch' not in sys.modules"
    )
    ended = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True, timeout=100)
    assert list(map(str.split, ended.stdout.splitlines())) == [
        ["layer", "kind", "output", "parameters"],
        ["network.0", "Linear", "16", "1,632"],
        ["network.3", "Linear", "1", "17"],
        ["all", "1,649"],
    ]
    said = " ".join(ended.stderr.split())
    assert "25.8 KiB in each NN worker: weights, gradients and the state of adam" in said
    assert "more on a GPU for the steps in flight, estimated for batches of 128" in said
