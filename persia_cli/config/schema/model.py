"""The dense networks' settings, by kind; plain values only, the networks are in `persia_cli.model`."""

from typing import Annotated, Any, Literal

from pydantic import Field

from persia_cli.config.schema.base import Width, Widths
from persia_cli.config.schema.factorization import Factorizing
from persia_cli.config.schema.interactions import Interacting
from persia_cli.config.schema.perceptrons import Network
from persia_cli.config.schema.sequences import Reading
from persia_cli.config.schema.tasks import MultiTask


class Branches(Network):
    """A linear layer with batch normalisation for dense features, one for embeddings, then linear layers on both."""

    kind: Literal["branches"]
    """`branches`: the network of the original Persia's census example."""
    dense: Width
    """Width of the branch of dense features."""
    sparse: Width
    """Width of the branch of embeddings."""
    hidden: Widths
    """Width of each linear layer on both (the last one, the logits, is added)."""


class CustomModel(Network):
    """A user's own `torch.nn.Module`."""

    kind: Literal["custom"]
    """`custom`: a class in a Python file."""
    file: str
    """Path of the Python file."""
    name: str
    """Name of the class in that file; it is called as `Class(shape, **args)`."""
    args: dict[str, Any] = Field(default_factory=dict)
    """Keyword arguments of the class."""


Model = Annotated[Interacting | Factorizing | Reading | MultiTask | Branches | CustomModel, Field(discriminator="kind")]
