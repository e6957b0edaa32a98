"""The shape of a dense network's input, the columns of a sample; imported without torch."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class FeatureShape:
    """One sparse feature as the network's input: a vector of `dim`, or up to `max_length` of them (pooling `none`)."""

    name: str
    dim: int
    pooling: str
    max_length: int | None = None
    table: int | None = None
    """Number of the table it reads, if known; features that read one table share its rows."""


@dataclass(frozen=True, slots=True)
class InputShape:
    """Columns of a sample: `dense` numbers, sparse features in the order of the data set, and the number of logits."""

    dense: int
    features: tuple[FeatureShape, ...]
    tasks: int
    uncertainty: bool = False
    """True if the network also learns the uncertainty of each task."""
    item_buckets: int = 0
    """Number of buckets for counting items, for a loss that corrects for their frequency; 0 without one."""
    item_rate: float = 0.0
    """Weight of the newest observation in the estimate of an item."""
    times_of: tuple[str, ...] = ()
    """Sequences with times: for each of their elements, dense inputs have the time to the next one, or to the sample
    after the newest; then zeros."""

    @property
    def pooled(self) -> tuple[FeatureShape, ...]:
        """Features that arrive as one vector per sample."""
        return tuple(feature for feature in self.features if feature.pooling != "none")

    @property
    def sequences(self) -> tuple[FeatureShape, ...]:
        """Features that arrive as a padded sequence and its mask."""
        return tuple(feature for feature in self.features if feature.pooling == "none")
