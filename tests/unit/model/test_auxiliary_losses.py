"""Networks with auxiliary losses: their output in training and evaluation, and refused ones."""

from dataclasses import replace

import pytest
import torch

from persia_cli.config.compose import compose_run
from persia_cli.errors import ConfigError
from persia_cli.model.build import build_model
from persia_cli.model.outputs import checked_output
from persia_cli.model.uncertainty import log_variances_of
from tests.unit.model.batches import batch_of
from tests.unit.model.kinds import AUXILIARY, name, shape_for

every = pytest.mark.parametrize("model", AUXILIARY, ids=name)
WEIGHTS = {"dien": "auxiliary_weight", "finalnet": "teaching"}


def without(model):
    """The same network without its auxiliary loss."""
    return model.model_copy(update={WEIGHTS[model.kind]: 0.0})


@every
def test_logits_weights_and_evaluation_are_those_without_it(model):
    wanted = shape_for(model, tasks=2)
    network, plain = (build_model(each, wanted, seed=0) for each in (model, without(model)))
    batch = batch_of(wanted, [[0, 1]], size=9)
    assert network.state_dict().keys() == plain.state_dict().keys()
    logits, losses = network(batch)
    assert torch.equal(logits, plain(batch))
    assert losses.shape == (9, 1 if model.kind == "dien" else 2)
    assert (losses >= 0).all()
    assert losses.any()
    assert torch.equal(network.eval()(batch), plain.eval()(batch))


@every
@pytest.mark.parametrize("size", [0, 1])
def test_of_no_sample_and_of_one_it_has_gradients_of_every_weight(model, size):
    wanted = shape_for(model)
    network = build_model(model, wanted, seed=0)
    logits, losses = network(batch_of(wanted, [[0, 1]], size=size))
    assert losses.shape == (size, 1)
    (logits.sum() + losses.sum()).backward()
    assert all(parameter.grad is not None and parameter.grad.isfinite().all() for parameter in network.parameters())


@every
def test_it_passes_dropout_of_embeddings_and_the_uncertainty_of_tasks(model):
    wanted = replace(shape_for(model, tasks=2), uncertainty=True)
    network = build_model(model.model_copy(update={"embedding_dropout": 0.5}), wanted, seed=0)
    logits, losses = network(batch_of(wanted, [[0, 1]], size=9))
    (logits.sum() + losses.sum()).backward()
    assert log_variances_of(network).grad.tolist() == [0.0, 0.0]


def test_only_probabilities_are_taught():
    words = ["conf=adult_income", "model=finalnet", "model.teaching=0.5"]
    compose_run([*words, "train.losses={label: {kind: focal}}"])
    with pytest.raises(
        ConfigError, match=r"teaching=0.5 needs labels with probabilities, and .*label.kind=mse predicts a number"
    ):
        compose_run([*words, "train.losses={label: {kind: mse}}"])


@pytest.mark.parametrize(
    ("output", "sentence"),
    [
        (torch.zeros(5), r"the model must return logits \[samples, tasks\] = \[5, 2\], not \[5\]"),
        ((torch.zeros(5, 2), torch.zeros(5)), r"auxiliary losses .* here \[5, 2\] or \[5, 1\], not \[5\]"),
        ((torch.zeros(5, 2), torch.zeros(())), r"auxiliary losses .* not \[\]"),
        ((torch.zeros(5, 2), 0.5), r"auxiliary losses .* not float"),
        ((torch.zeros(5, 2),), r"must return logits .* not tuple"),
    ],
)
def test_outputs_of_other_shapes_are_refused(output, sentence):
    with pytest.raises(ConfigError, match=sentence):
        checked_output(output, (5, 2), "the model")
