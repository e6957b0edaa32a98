"""Refusals of a network that is built and tried before a job."""

from pathlib import Path
from typing import Any

import pytest

from persia_cli.rehearsal.questions import refusal
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
    ("name", "ranks", "changes", "sentence"),
    [
        ("Goood", 1, {}, "has no such class; did you mean Good"),
        ("Good", 1, {"depth": 3}, "got an unexpected keyword argument 'depth'"),
        ("Good", 1, {"text": "class Good(:"}, "net.py cannot be imported: SyntaxError"),
        ("Wide", 1, {}, "must return logits [samples, tasks] = [2, 1], not [2, 7]"),
        ("Normal", 2, {}, "layer norm (BatchNorm1d) normalises each rank's samples separately"),
        ("Normal", 2, {"mode": "async"}, "with mode.kind=async"),
        ("Idle", 2, {}, "do not depend on these parameters of the model: spare.weight, spare.bias"),
        ("Empty", 1, {}, "no trainable parameter"),
    ],
)
def test_others_are_refused_in_a_sentence(
    tmp_path: Path, name: str, ranks: int, changes: dict[str, Any], sentence: str
) -> None:
    assert sentence in str(refused(tmp_path, name, ranks, **changes))
