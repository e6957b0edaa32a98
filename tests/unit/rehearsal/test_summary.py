"""The layers of a network are those of the rank that trains it."""

import pytest

from persia_cli.config.compose import compose_run
from persia_cli.rehearsal.questions import layers, summary
from persia_cli.training.dense_trainer import DenseTrainer
from persia_cli.training.distributed import World


@pytest.mark.parametrize(
    "words",
    [
        ["conf=criteo", "model=dlrm"],
        ["conf=criteo", "model=xdeepfm"],
        ["conf=taobao"],
    ],
    ids=lambda words: words[-1],
)
def test_all_weights_are_in_some_layer(words: list[str]) -> None:
    run = compose_run(words)
    found = layers(run)
    assert sum(layer["parameters"] for layer in found) == DenseTrainer(run, World(), trains=False).parameters
    assert len({layer["layer"] for layer in found}) == len(found)


def test_layers_with_their_sizes() -> None:
    found = layers(compose_run(["conf=adult_income", "model.hidden=[16,8]"]))
    assert [(layer["kind"], layer["output"], layer["parameters"]) for layer in found] == [
        ("Linear", [16], (12 * 8 + 5) * 16 + 16),
        ("Linear", [8], 16 * 8 + 8),
        ("Linear", [1], 8 + 1),
    ]


def test_a_misfit_is_a_sentence() -> None:
    told = summary(compose_run(["conf=adult_income", "model=dlrm", "dataset.dense=[]"]))
    assert isinstance(told, str)
    assert told.startswith("model.kind=dlrm has a part for dense")
