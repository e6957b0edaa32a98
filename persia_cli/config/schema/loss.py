"""The losses that the dense network is trained on: one per label."""

import math
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BeforeValidator, Field

from persia_cli.config.schema.base import NUMBER, Decay, Node, NonNegative, NotTiny, Positive
from persia_cli.metric import Link


class _Loss(Node):
    """Common settings of all losses."""

    LINK: ClassVar[Link] = "logistic"

    kind: str
    weight: NonNegative = 1.0
    """Weight of this label's loss in the sum of all labels."""


class Bce(_Loss):
    """Binary cross-entropy of the logit."""

    kind: Literal["bce"]
    """`bce`"""
    smoothing: Decay = 0.0
    """Label smoothing: a label y counts as (1 - smoothing) y + smoothing / 2 in the loss, and as itself elsewhere."""
    pos_weight: Positive = 1.0
    """Factor of the loss of positive samples, for labels that are rarely positive. Predictions are then too high by
    about this factor in the odds, and `train.calibrate` leaves them so; metrics do not use it."""

    @property
    def is_plain(self) -> bool:
        """True if it is the log loss itself."""
        return not self.smoothing and self.pos_weight == 1.0


class Focal(_Loss):
    """Binary cross-entropy with less weight on samples that are predicted well (Lin et al., 2017)."""

    kind: Literal["focal"]
    """`focal`"""
    gamma: Annotated[float, Field(ge=0, le=100), NUMBER] = 2.0
    """Exponent of the weight (1 - p)^gamma, p being the probability given to a sample's label; 0 is plain `bce`. With
    much more than 5 little is left of any gradient."""
    alpha: Annotated[float, Field(gt=0, lt=1), NUMBER] | None = 0.25
    """Weight of positive samples; negative ones have 1 - alpha; null: all have weight 1."""
    smoothing: Decay = 0.0
    """Label smoothing, as that of `bce`."""


class Pairwise(_Loss):
    """Logistic loss of all pairs of a positive and a negative sample of a batch (Burges et al., 2005)."""

    kind: Literal["pairwise"]
    """`pairwise`"""


class Bpr(_Loss):
    """Logistic loss of all pairs of a positive and a negative sample of one query, e.g. a user (Rendle et al., 2009).

    Queries are those of `dataset.group_by`.
    """

    kind: Literal["bpr"]
    """`bpr`: Bayesian personalised ranking."""


class InBatchSoftmax(_Loss):
    """Cross-entropy of a positive sample's item among the items of the batch, for networks of two sides (RecSys 2019).

    The network's temperature is that of the softmax.
    """

    kind: Literal["in_batch_softmax"]
    """`in_batch_softmax`"""
    correction: Literal["log_q", "none"] = "log_q"
    """`log_q` subtracts from each score the logarithm of how probably a batch has the item, so that frequent items,
    which are negatives more often, do not get lower scores; `none` does not."""
    correction_rate: Annotated[float, Field(gt=0, le=1), NUMBER] = 0.01
    """Weight of the newest observation in the estimate of an item's probability."""
    correction_buckets: Annotated[int, Field(gt=0, le=2**28), NUMBER] = 2**20
    """Number of items that the estimate distinguishes; others share one number."""


class SampledSoftmax(_Loss):
    """Cross-entropy of each next element of a sequence among sampled items, for networks of sequences.

    A sample's sequence and item are one history: each element is to predict the next, and the newest one the item.
    """

    kind: Literal["sampled_softmax"]
    """`sampled_softmax`"""
    negatives: Annotated[int, Field(gt=0, le=2**20), NUMBER] = 1024
    """Items that the positions of a rank's step share as candidates; with as many as the training rows have, all."""
    candidates: Literal["uniform", "batch"] = "uniform"
    """`uniform`: drawn from the items of the training rows; `batch`: at most so many of the items that the step's
    positions have next. Scores are corrected by the logarithm of each one's probability to be there."""
    positions: Literal["all", "last"] = "all"
    """Positions of a sequence that learn: `all`, or the newest one only (`last`)."""
    temperature: Positive = 1.0
    """Number that scores are divided by."""


class Mse(_Loss):
    """Squared error of the output, for labels that are numbers."""

    LINK: ClassVar[Link] = "identity"

    kind: Literal["mse"]
    """`mse`"""


class Huber(_Loss):
    """Half the squared error where it is small, and linear beyond, so that outliers count less (Huber, 1964)."""

    LINK: ClassVar[Link] = "identity"

    kind: Literal["huber"]
    """`huber`"""
    delta: NotTiny = 1.0
    """Absolute error from which the loss is linear."""


class Poisson(_Loss):
    """Negative log-likelihood of counts; the prediction is the exponential of the output."""

    LINK: ClassVar[Link] = "exp"

    kind: Literal["poisson"]
    """`poisson`"""


Loss = Annotated[
    Bce | Focal | Pairwise | Bpr | InBatchSoftmax | SampledSoftmax | Mse | Huber | Poisson, Field(discriminator="kind")
]
BCE = Bce(kind="bce")


def _as_bce(value: Any) -> Any:
    return {"kind": BCE.kind} | dict(value) if isinstance(value, Mapping) and "kind" not in value else value


LossOfLabel = Annotated[Loss, BeforeValidator(_as_bce)]
"""A loss in the configuration, `bce` if it names no kind."""


def task_weights(losses: Sequence[Loss]) -> tuple[float, ...]:
    """Return the weight of each task's loss divided by the sum of all; one of them is above 0."""
    # An exact sum is the same in every version of Python.
    total = math.fsum(loss.weight for loss in losses)
    return tuple(loss.weight / total for loss in losses)
