"""What the dense network is trained to do well: one loss per label."""

from typing import Annotated, Literal

from pydantic import Field

from persia_cli.config.schema.node import Node

NonNegative = Annotated[float, Field(ge=0, allow_inf_nan=False)]


class Bce(Node):
    """Binary cross-entropy of the logit."""

    kind: Literal["bce"]
    """`bce`"""
    weight: NonNegative = 1.0
    """How much this label counts against the others."""


class Focal(Node):
    """Binary cross-entropy that turns from samples it has right to those it has wrong (Lin et al., 2017)."""

    kind: Literal["focal"]
    """`focal`"""
    weight: NonNegative = 1.0
    """How much this label counts against the others."""
    gamma: NonNegative = 2.0
    """How strongly: a sample predicted with probability p of what it is counts (1 - p)^gamma; 0 is plain `bce`."""
    alpha: Annotated[float, Field(gt=0, lt=1)] | None = 0.25
    """Weight of positive samples, those of negative ones being 1 - alpha; null weighs both 1."""


class Pairwise(Node):
    """Logistic loss of pairs of a positive and a negative sample in a rank's share (Burges et al., 2005)."""

    kind: Literal["pairwise"]
    """`pairwise`"""
    weight: NonNegative = 1.0
    """How much this label counts against the others."""


Loss = Annotated[Bce | Focal | Pairwise, Field(discriminator="kind")]
BCE = Bce(kind="bce")
