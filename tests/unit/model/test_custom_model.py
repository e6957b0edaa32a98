"""A user's own network: loaded from a file, tried at once, mistakes explained."""

import pytest
import torch

from persia_cli.config.schema import CustomModel
from persia_cli.errors import ConfigError
from persia_cli.model.build import build_model
from persia_cli.model.shape import FeatureShape, InputShape
from tests.unit.model.batches import batch_of, shape

GOOD = """
import torch
from dataclasses import dataclass

@dataclass
class Settings:
    width: int

class Two(torch.nn.Module):
    def __init__(self, shape, width=4, norm=False):
        super().__init__()
        settings = Settings(width)
        inputs = shape.dense + sum(f.dim for f in shape.features)
        self.first = torch.nn.Linear(inputs, settings.width)
        self.norm = torch.nn.BatchNorm1d(settings.width) if norm else torch.nn.Identity()
        self.last = torch.nn.Linear(settings.width, shape.tasks)

    def forward(self, batch):
        means = [(v * m[:, :, None]).sum(1) for v, m in batch.sequences.values()]
        x = torch.cat([batch.dense, *batch.pooled.values(), *means], 1)
        return self.last(self.norm(self.first(x)).tanh())

class Flat(Two):
    def forward(self, batch):
        return super().forward(batch)[:, 0]

class Broken(Two):
    def forward(self, batch):
        return self.no_such_layer(batch.dense)

class Teaching(Two):
    def forward(self, batch):
        logits = super().forward(batch)
        return (logits, logits.square()) if self.training else logits

class Eager(Two):
    def forward(self, batch):
        logits = super().forward(batch)
        return logits, logits.square()

class Summed(Two):
    def forward(self, batch):
        logits = super().forward(batch)
        return (logits, logits.square().mean()) if self.training else logits

class Picky(torch.nn.Module):
    def __init__(self, shape):
        raise ValueError("I want more features")

class NotANetwork:
    pass
"""


@pytest.fixture
def configured(tmp_path):
    path = tmp_path / "my_model.py"
    path.write_text(GOOD)

    def make(name: str = "Two", file: str = str(path), **args) -> CustomModel:
        return CustomModel(kind="custom", dim=4, file=file, name=name, args=args)

    return make


def test_a_class_is_loaded_and_given_its_args(configured):
    wanted = shape(tasks=2)
    network = build_model(configured(width=11), wanted, seed=0)
    assert network.first.out_features == 11
    assert network(batch_of(wanted, [[0, 1]])).shape == (5, 2)
    again = build_model(configured(width=11), wanted, seed=0)
    assert torch.equal(network.first.weight, again.first.weight)


def test_it_may_return_auxiliary_losses_in_training(configured):
    network = build_model(configured("Teaching"), shape(tasks=2), seed=0)
    logits, losses = network(batch_of(shape(tasks=2), [[0, 1]]))
    assert torch.equal(losses, logits.square())


def test_sequences_and_pooled_features_reach_it(configured):
    features = (FeatureShape("clicks", 4, "none", 10), FeatureShape("user", 2, "sum"))
    assert build_model(configured(), InputShape(3, features, 1), seed=0).first.in_features == 9


def test_trying_it_leaves_its_running_statistics_alone(configured):
    network = build_model(configured(norm=True), shape(), seed=0)
    assert network.training
    assert not network.norm.running_mean.any()
    assert not network.norm.num_batches_tracked


@pytest.mark.parametrize(
    ("name", "args", "sentence"),
    [
        ("Twoo", {}, "has no such class; did you mean Two?"),
        ("Zzzzzz", {}, "; there are Two, Flat, Broken, Teaching, Eager, Summed, Picky"),
        ("NotANetwork", {}, "not a class derived from torch.nn.Module"),
        ("Two", {"depth": 3}, "called as Two(shape, **args): got an unexpected keyword argument 'depth'"),
        ("Two", {"width": "wide"}, "refuses its model.args: TypeError"),
        ("Picky", {}, "refuses its model.args: ValueError: I want more features"),
        ("Flat", {}, "must return logits [samples, tasks] = [2, 1], not [2]"),
        ("Eager", {}, "self.training"),
        ("Summed", {}, "[samples, tasks] or [samples, 1], here [2, 1]"),
        ("Broken", {}, "fails in forward for 2 samples: AttributeError"),
    ],
)
def test_mistakes_are_explained(configured, name, args, sentence):
    with pytest.raises(ConfigError) as caught:
        build_model(configured(name, **args), shape(), seed=0)
    assert sentence in str(caught.value)
    assert "my_model.py" in str(caught.value)


@pytest.mark.parametrize(
    ("file", "sentence"),
    [
        ("bad.py", "cannot be imported: ModuleNotFoundError"),
        ("model.txt", r"end in \.py"),
        ("gone.py", r"gone\.py: there is no such file"),
    ],
)
def test_a_file_that_cannot_be_imported_is_reported_with_its_error(configured, tmp_path, file, sentence):
    (tmp_path / "bad.py").write_text("import no_such_module_at_all")
    (tmp_path / "model.txt").touch()
    with pytest.raises(ConfigError, match=sentence):
        build_model(configured(file=str(tmp_path / file)), shape(), seed=0)
