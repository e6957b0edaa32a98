"""Common settings of all networks, and those of networks with hidden layers."""

from typing import Annotated, ClassVar, Literal, Self

from pydantic import Field, model_validator

from persia_cli.config.schema.base import AUTO, NUMBER, Decay, Dim, Node
from persia_cli.errors import count

Activation = Literal["relu", "gelu", "silu", "prelu", "dice", "sigmoid", "tanh", "none"]
Norm = Literal["none", "batch", "layer"]
Init = Literal["torch", "xavier_uniform", "xavier_normal", "he_uniform", "he_normal"]
Output = Annotated[float, Field(ge=-1e30, le=1e30, allow_inf_nan=False), NUMBER]
"""An output of the network, for labels of any size that float32 has."""


class Network(Node):
    """Common settings of all networks; each kind's own settings come after it."""

    kind: str
    dim: Dim
    """Columns of an embedding row."""
    embedding_dropout: Decay = 0.0
    """Share of the numbers of embeddings that a training step sets to 0."""
    output_bias: Literal["init", "zero", "base_rate"] | Annotated[tuple[Output, ...], Field(min_length=1)] = "init"
    """Where the bias of the output begins: `init` as the network's other biases, `zero`, `base_rate` so that it
    predicts the mean of each label over the training rows, or a list of numbers, one for each label. The run's
    configuration keeps a base rate as such numbers."""


class Perceptrons(Network):
    """Common settings of networks with hidden layers: the style of these layers.

    A hidden layer is a linear one, then normalisation, activation and dropout.
    """

    LISTS: ClassVar[tuple[str, ...]] = ("hidden",)
    """Names of the settings that hold widths of hidden layers."""

    activation: Activation | Annotated[tuple[Activation, ...], Field(min_length=1)] = "relu"
    """Function after each hidden layer: one for all, or a list with one for each. `prelu` and `dice` are learned."""
    norm: Norm = "none"
    """Normalisation before it: over the `batch` (of all NN workers together), or over the columns of a `layer`."""
    dropout: AUTO | Decay | Annotated[tuple[Decay, ...], Field(min_length=1)] = "auto"
    """Share of a hidden layer's columns that a training step sets to 0: one for all, or a list with one for each.

    `auto`: 0.2 with less than a million training rows, else 0.
    """
    init: Init = "torch"
    """Initial weights of linear layers; all but `torch` begin with biases of 0."""
    bias: bool = True
    """False leaves out the biases of hidden layers, and of a linear layer that follows them in the same perceptron."""

    @model_validator(mode="after")
    def _lists_fit_the_layers(self) -> Self:
        for key in ("activation", "dropout"):
            value = getattr(self, key)
            widths = {name: len(getattr(self, name)) for name in self.LISTS} if isinstance(value, tuple) else {}
            for name, layers in widths.items():
                # A perceptron that is left out takes no values, unless it is the only one.
                if len(value) != layers and (layers or not any(widths.values())):
                    raise ValueError(
                        f"model.{key} has {count(len(value), 'value')}, and model.{name} has {layers}: give one for "
                        "each hidden layer, or a single one for all"
                    )
        return self

    @property
    def has_layers(self) -> bool:
        """True if a perceptron has hidden layers."""
        return any(getattr(self, name) for name in self.LISTS)

    @model_validator(mode="after")
    def _style_has_layers(self) -> Self:
        if self.has_layers:
            return self
        lists = " and ".join(f"model.{name}" for name in self.LISTS)
        for key in ("norm", "dropout"):
            if (value := getattr(self, key)) not in ("auto", "none", 0.0):
                raise ValueError(
                    f"model.{key}={value} is about hidden layers, and {lists} {'have' if ' ' in lists else 'has'} "
                    f"none; give layers, or leave model.{key} out"
                )
        return self


class Concatenated(Perceptrons):
    """Common settings of networks whose layers read all features side by side."""

    dense: Literal["append", "embed"] = "append"
    """`append`: layers read the values of dense features; `embed`: for each, a learned vector times its value."""
