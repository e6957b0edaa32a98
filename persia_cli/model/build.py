"""The construction of a network by its kind, the name of its module, from a seed."""

from collections.abc import Callable
from importlib import import_module

import torch
from torch import nn

from persia_cli.config.schema import Model
from persia_cli.config.schema.perceptrons import Perceptrons
from persia_cli.model.initial import initialize
from persia_cli.model.inputs import drop_embeddings
from persia_cli.model.item_frequency import count_items
from persia_cli.model.output_bias import begin_output
from persia_cli.model.requirements import require_fit
from persia_cli.model.shape import InputShape
from persia_cli.model.uncertainty import learn_uncertainty


def build_model(model: Model, shape: InputShape, seed: int) -> nn.Module:
    """Build the network of `model.kind`, whose forward(ModelBatch) returns logits float32 [n, tasks]; see `outputs`.

    Initial weights are drawn from `seed` alone; the caller's random state is unchanged.
    Raises ConfigError if the model does not fit the features.
    """
    require_fit(model, shape)
    build: Callable[[Model, InputShape], nn.Module] = import_module(f"{__package__}.{model.kind}").build
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        network = build(model, shape)
        if isinstance(model, Perceptrons):
            initialize(network, model.init)
    begin_output(network, model)
    if model.embedding_dropout:
        drop_embeddings(network, model.embedding_dropout)
    if shape.uncertainty:
        learn_uncertainty(network, shape.tasks)
    if shape.item_buckets:
        count_items(network, shape.item_buckets, shape.item_rate)
    return network
