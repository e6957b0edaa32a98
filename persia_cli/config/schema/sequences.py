"""The settings of networks that read sequences; `persia_cli.model` has the networks."""

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from persia_cli.config.schema.base import Widths
from persia_cli.config.schema.perceptrons import Activation, Concatenated


class Din(Concatenated):
    """Attention of targets on sequences of behaviour (arXiv 1706.06978)."""

    kind: Literal["din"]
    """`din`: deep interest network."""
    attend: dict[str, tuple[str, ...]]
    """For each target, the sequences (pooling: none) of its table that it attends to, e.g. `{item: [last_items]}`."""
    attention: Widths
    """Width of each hidden layer of the network that weighs an element of a sequence."""
    attention_activation: Literal["relu", "gelu", "silu", "prelu", "sigmoid", "tanh"] = "prelu"
    """Function after each of these layers."""
    activation: Activation | Annotated[tuple[Activation, ...], Field(min_length=1)] = "prelu"
    """Function after each hidden layer: one for all, or a list with one for each. `prelu` and `dice` are learned."""
    hidden: Widths
    """Width of each hidden layer of the perceptron."""

    @model_validator(mode="after")
    def _something_is_attended_to(self) -> Self:
        if not self.attend or not all(self.attend.values()):
            raise ValueError("attend needs a target and its sequences, e.g. model.attend={item: [last_items]}")
        return self
