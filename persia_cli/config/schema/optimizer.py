"""Optimizers of the embedding rows (run by the embedding servers) and of the dense network (run by torch)."""

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import Field, NonNegativeInt, PositiveInt, field_validator

from persia_cli.config.schema.node import Node

Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
NotTiny = Annotated[float, Field(ge=1e-30, allow_inf_nan=False)]
"""What keeps a denominator from 0, in float32 too."""
NonNegative = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Decay = Annotated[float, Field(ge=0, lt=1)]


class ConstantSchedule(Node):
    """The learning rate stays as it is."""

    kind: Literal["constant"]
    """`constant`"""
    warmup_steps: NonNegativeInt = 0
    """Steps over which the learning rate first rises linearly to its full value."""


class StepSchedule(Node):
    """The learning rate falls in steps."""

    kind: Literal["step"]
    """`step`"""
    warmup_steps: NonNegativeInt = 0
    """Steps over which the learning rate first rises linearly to its full value."""
    every_steps: PositiveInt
    """Steps of training between two falls, counted from the end of the warm-up."""
    factor: Annotated[float, Field(gt=0, le=1)]
    """What the learning rate is multiplied by at each fall."""


class CosineSchedule(Node):
    """The learning rate falls along half a cosine."""

    kind: Literal["cosine"]
    """`cosine`"""
    warmup_steps: NonNegativeInt = 0
    """Steps over which the learning rate first rises linearly to its full value."""
    over_steps: PositiveInt
    """Steps of training that the fall takes, counted from the end of the warm-up."""
    floor: Annotated[float, Field(ge=0, le=1)] = 0.0
    """Share of the learning rate that is left at the end and stays."""


Schedule = Annotated[ConstantSchedule | StepSchedule | CosineSchedule, Field(discriminator="kind")]
CONSTANT = ConstantSchedule(kind="constant")


class Sgd(Node):
    """Stochastic gradient descent."""

    kind: Literal["sgd"]
    """`sgd`"""
    lr: Positive
    """Learning rate."""
    schedule: Schedule = CONSTANT
    """How the learning rate changes with the steps."""
    weight_decay: NonNegative = 0.0
    """Share of the weights added to their gradient; of embedding rows, to those of the batch."""


class Adagrad(Node):
    """Adagrad as torch defines it for sparse gradients."""

    kind: Literal["adagrad"]
    """`adagrad`"""
    lr: Positive
    """Learning rate."""
    schedule: Schedule = CONSTANT
    """How the learning rate changes with the steps."""
    initial_accumulator_value: NonNegative = 0.0
    """Start value of the sum of squared gradients."""
    eps: NotTiny = 1e-10
    """Added to the denominator."""


class RowwiseAdagrad(Node):
    """Adagrad with one sum for a whole row, the mean of its squared gradients, as FBGEMM defines it."""

    kind: Literal["rowwise_adagrad"]
    """`rowwise_adagrad`"""
    lr: Positive
    """Learning rate."""
    schedule: Schedule = CONSTANT
    """How the learning rate changes with the steps."""
    initial_accumulator_value: NonNegative = 0.0
    """Start value of a row's sum of mean squared gradients."""
    eps: NotTiny = 1e-8
    """Added to the denominator."""
    weight_decay: NonNegative = 0.0
    """Share of the weights added to their gradient, of the rows of the batch."""


class Adam(Node):
    """Adam; on embedding rows its lazy form, `torch.optim.SparseAdam`."""

    kind: Literal["adam"]
    """`adam`"""
    lr: Positive
    """Learning rate."""
    schedule: Schedule = CONSTANT
    """How the learning rate changes with the steps."""
    beta1: Decay = 0.9
    """Decay of the running mean of gradients."""
    beta2: Decay = 0.999
    """Decay of the running mean of squared gradients."""
    eps: NotTiny = 1e-8
    """Added to the denominator."""


class Ftrl(Node):
    """Follow the regularised leader, per coordinate (McMahan et al., "Ad Click Prediction", 2013)."""

    kind: Literal["ftrl"]
    """`ftrl`"""
    lr: Positive
    """Learning rate: alpha of the paper."""
    schedule: Schedule = CONSTANT
    """How the learning rate changes with the steps."""
    beta: NotTiny = 1.0
    """Added to the root of the sum of squared gradients."""
    l1: NonNegative = 0.0
    """Strength of the L1 penalty: weights it outweighs are exactly 0."""
    l2: NonNegative = 0.0
    """Strength of the L2 penalty."""
    initial_accumulator_value: NonNegative = 0.0
    """Start value of the sum of squared gradients."""


class DenseSgd(Sgd):
    """Stochastic gradient descent of the dense weights."""

    clip_norm: Positive | None = None
    """The gradient of all dense weights together is scaled down to this Euclidean norm."""


class DenseAdagrad(Adagrad):
    """Adagrad of the dense weights."""

    weight_decay: NonNegative = 0.0
    """Share of the weights added to their gradient."""
    clip_norm: Positive | None = None
    """The gradient of all dense weights together is scaled down to this Euclidean norm."""


class DenseAdam(Adam):
    """Adam of the dense weights."""

    weight_decay: NonNegative = 0.0
    """Share of the weights added to their gradient; `adamw` keeps it out of the running means."""
    clip_norm: Positive | None = None
    """The gradient of all dense weights together is scaled down to this Euclidean norm."""


class AdamW(Node):
    """Adam with weight decay apart from the gradient (Loshchilov and Hutter, 2019)."""

    kind: Literal["adamw"]
    """`adamw`"""
    lr: Positive
    """Learning rate."""
    schedule: Schedule = CONSTANT
    """How the learning rate changes with the steps."""
    beta1: Decay = 0.9
    """Decay of the running mean of gradients."""
    beta2: Decay = 0.999
    """Decay of the running mean of squared gradients."""
    eps: NotTiny = 1e-8
    """Added to the denominator."""
    weight_decay: NonNegative = 0.01
    """Each step takes this share of the weights, times the learning rate, from them."""
    clip_norm: Positive | None = None
    """The gradient of all dense weights together is scaled down to this Euclidean norm."""


DenseOptimizer = Annotated[DenseSgd | DenseAdagrad | DenseAdam | AdamW, Field(discriminator="kind")]
Optimizer = Annotated[Sgd | Adagrad | RowwiseAdagrad | Adam | Ftrl, Field(discriminator="kind")]

_ROWS_ALONE = ("rowwise_adagrad", "ftrl")


class OptimizerPair(Node):
    """One optimizer for the rows, one for the dense network."""

    embedding: Optimizer
    """Applied by the embedding servers to each row; a table may have its own."""
    dense: DenseOptimizer
    """Applied by the NN workers to the dense weights."""

    @field_validator("dense", mode="before")
    @classmethod
    def _torch_has_it(cls, value: Any) -> Any:
        kind = value.get("kind") if isinstance(value, Mapping) else None
        if kind in _ROWS_ALONE:
            raise ValueError(
                f"optimizer.dense.kind={kind}: {kind} is for embedding rows alone; the dense network takes sgd, "
                "adagrad, adam or adamw"
            )
        return value
