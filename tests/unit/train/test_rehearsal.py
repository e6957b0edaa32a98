"""Refusals of a network that is built and tried before a job."""

from pathlib import Path
from typing import Any

import pytest

from persia_cli.train.rehearsal import refusal
from tests.support.runs import make_run

NETWORK = """\
from torch import nn, zeros

class Good(nn.Module):
    def __init__(self, shape, width=4):
        super().__init__()
        self.last = nn.Linear(shape.dense, shape.tasks)
    def forward(self, batch):
        return self.last(batch.dense)

class Wide(Good):
    def forward(self, batch):
        return zeros(batch.size, 7)

class Normal(Good):
    def __init__(self, shape):
        super().__init__(shape)
        self.norm = nn.BatchNorm1d(shape.dense)

class Idle(Good):
    def __init__(self, shape):
        super().__init__(shape)
        self.spare = nn.Linear(3, 3)

class Empty(nn.Module):
    def __init__(self, shape):
        super().__init__()
    def forward(self, batch):
        return zeros(batch.size, 1)
"""


def refused(folder: Path, name: str, ranks: int, text: str = NETWORK, mode: str = "sync", **args: Any) -> str | None:
    file = folder / "net.py"
    file.write_text(text)
    model = {"kind": "custom", "dim": 8, "file": str(file), "name": name, "args": args}
    cluster = {"kind": "local", "nn_workers": ranks}
    # Compiling is left out: it would take minutes.
    training = {"batch_size": 32, "compile": True}
    return refusal(make_run(model=model, cluster=cluster, mode={"kind": mode}, train=training))


@pytest.mark.parametrize(("name", "ranks"), [("Good", 1), ("Good", 2), ("Normal", 1), ("Idle", 1)])
def test_a_network_that_can_be_trained_is_taken(tmp_path: Path, name: str, ranks: int) -> None:
    assert refused(tmp_path, name, ranks) is None


@pytest.mark.parametrize(
    ("name", "ranks", "sentence"),
    [
        ("Goood", 1, "has no such class; did you mean Good"),
        ("Wide", 1, "must return logits [samples, tasks] = [2, 1], not [2, 7]"),
        ("Normal", 2, "normalises each rank's samples separately"),
        ("Idle", 2, "do not depend on these parameters of the model: spare.weight, spare.bias"),
        ("Empty", 1, "no trainable parameter"),
    ],
)
def test_others_are_refused_in_a_sentence(tmp_path: Path, name: str, ranks: int, sentence: str) -> None:
    assert sentence in str(refused(tmp_path, name, ranks))


def test_arguments_that_its_class_does_not_take_are_refused(tmp_path: Path) -> None:
    assert "got an unexpected keyword argument 'depth'" in str(refused(tmp_path, "Good", 1, depth=3))


def test_a_file_that_is_no_python_is_refused(tmp_path: Path) -> None:
    assert "net.py cannot be imported: SyntaxError" in str(refused(tmp_path, "Good", 1, text="class Good(:"))


def test_asynchronous_ranks_share_no_statistics(tmp_path: Path) -> None:
    assert "with mode.kind=async" in str(refused(tmp_path, "Normal", 2, mode="async"))
