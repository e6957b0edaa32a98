"""Optimizers of the embedding rows (run by the embedding servers) and of the dense network (run by torch)."""

from typing import Annotated, Literal

from pydantic import Field, NonNegativeFloat, PositiveFloat

from persia_cli.config.schema.node import Node

Decay = Annotated[float, Field(ge=0.0, lt=1.0)]


class Sgd(Node):
    """Stochastic gradient descent."""

    kind: Literal["sgd"]
    """`sgd`"""
    lr: PositiveFloat
    """Learning rate."""


class Adagrad(Node):
    """Adagrad as torch defines it for sparse gradients."""

    kind: Literal["adagrad"]
    """`adagrad`"""
    lr: PositiveFloat
    """Learning rate."""
    initial_accumulator_value: NonNegativeFloat = 0.0
    """Start value of the sum of squared gradients."""
    eps: PositiveFloat = 1e-10
    """Added to the denominator."""


class Adam(Node):
    """Adam; on embedding rows its lazy form, `torch.optim.SparseAdam`."""

    kind: Literal["adam"]
    """`adam`"""
    lr: PositiveFloat
    """Learning rate."""
    beta1: Decay = 0.9
    """Decay of the running mean of gradients."""
    beta2: Decay = 0.999
    """Decay of the running mean of squared gradients."""
    eps: PositiveFloat = 1e-8
    """Added to the denominator."""


Optimizer = Annotated[Sgd | Adagrad | Adam, Field(discriminator="kind")]


class OptimizerPair(Node):
    """One optimizer for the rows, one for the dense network."""

    embedding: Optimizer
    """Applied by the embedding servers to each row; a table may have its own."""
    dense: Optimizer
    """Applied by the NN workers to the dense weights."""
