"""Generated data sets."""

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from persia_cli.config.schema.node import Node
from persia_cli.config.schema.numbers import NUMBER, Amount, Count, NonNegative, Positive


class Generator(Node):
    """A generated data set with a planted model, so that AUC is meaningful."""

    train_rows: Count
    """Samples of the training split."""
    eval_rows: Amount
    """Samples of the evaluation split."""
    dense: Annotated[int, Field(ge=0, le=65536), NUMBER]
    """Dense features."""
    cardinalities: tuple[Count, ...]
    """Distinct ids of each sparse feature."""
    zipf: Positive = 1.05
    """Exponent of the ids' Zipf distribution."""
    signal: NonNegative = 1.0
    """Standard deviation of the planted model's logit; 0 makes labels pure noise."""
    label_rate: Annotated[float, Field(gt=0.0, lt=1.0), NUMBER] = 0.25
    """Approximate fraction of positive labels."""


class GeneratedDataset(Node):
    """Samples generated while training."""

    kind: Literal["generated"]
    """`generated`: no files."""
    generator: Generator
    """Shape of the samples."""
    shuffle: bool = False
    """Must be false: generated samples are in random order already."""

    @model_validator(mode="after")
    def _is_random_already(self) -> Self:
        if self.shuffle:
            raise ValueError("generated samples are in random order already; leave dataset.shuffle false")
        return self
