"""The losses that the dense network is trained on: one per label."""

from typing import Annotated, Literal

from pydantic import Field

from persia_cli.config.schema.base import NUMBER, Node, NonNegative


class Bce(Node):
    """Binary cross-entropy of the logit."""

    kind: Literal["bce"]
    """`bce`"""
    weight: NonNegative = 1.0
    """Weight of this label's loss in the sum of all labels."""


class Focal(Node):
    """Binary cross-entropy with less weight on samples that are predicted well (Lin et al., 2017)."""

    kind: Literal["focal"]
    """`focal`"""
    weight: NonNegative = 1.0
    """Weight of this label's loss in the sum of all labels."""
    gamma: NonNegative = 2.0
    """Exponent of the weight (1 - p)^gamma, p being the probability given to a sample's label; 0 is plain `bce`."""
    alpha: Annotated[float, Field(gt=0, lt=1), NUMBER] | None = 0.25
    """Weight of positive samples; negative ones have 1 - alpha; null: all have weight 1."""


class Pairwise(Node):
    """Logistic loss of pairs of a positive and a negative sample of a rank's part of a batch (Burges et al., 2005)."""

    kind: Literal["pairwise"]
    """`pairwise`"""
    weight: NonNegative = 1.0
    """Weight of this label's loss in the sum of all labels."""


Loss = Annotated[Bce | Focal | Pairwise, Field(discriminator="kind")]
BCE = Bce(kind="bce")
