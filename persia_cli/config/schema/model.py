"""The dense network, by kind; plain values only, the networks live in `persia_cli.model`."""

from typing import Annotated, Any, Literal

from pydantic import Field, PositiveInt

from persia_cli.config.schema.node import Node


class Ffnn(Node):
    """Dense features and embeddings, concatenated and fed through fully connected layers."""

    kind: Literal["ffnn"]
    """`ffnn`: a plain multi-layer perceptron."""
    dim: PositiveInt
    """Columns of an embedding row."""
    hidden: tuple[PositiveInt, ...]
    """Width of each hidden layer."""


class Dlrm(Node):
    """Bottom network, pairwise dot products, top network (arXiv 1906.00091)."""

    kind: Literal["dlrm"]
    """`dlrm`: deep learning recommendation model."""
    dim: PositiveInt
    """Columns of an embedding row, and width of the bottom network's last layer."""
    bottom: tuple[PositiveInt, ...]
    """Width of each hidden layer of the bottom network (its last layer, of width `dim`, is added)."""
    top: tuple[PositiveInt, ...]
    """Width of each hidden layer of the top network (its last layer, the logits, is added)."""


class CustomModel(Node):
    """A user's own `torch.nn.Module`."""

    kind: Literal["custom"]
    """`custom`: a class in a Python file."""
    dim: PositiveInt
    """Columns of an embedding row."""
    file: str
    """Path of the Python file."""
    name: str
    """Name of the class in that file; called as `Class(shape, **args)`."""
    args: dict[str, Any] = Field(default_factory=dict)
    """Keyword arguments handed to the class."""


Model = Annotated[Ffnn | Dlrm | CustomModel, Field(discriminator="kind")]
