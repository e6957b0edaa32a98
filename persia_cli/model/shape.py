"""The shape of a dense network's input: columns of a sample as the network sees them; imported without torch."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class FeatureShape:
    """One sparse feature as the network sees it: a vector of `dim`, or up to `max_length` of them (pooling `none`)."""

    name: str
    dim: int
    pooling: str
    max_length: int | None = None
    table: int | None = None
    """Number of the table it reads, if known; features that read one table share its rows."""


@dataclass(frozen=True, slots=True)
class InputShape:
    """Columns of a sample: `dense` numbers, sparse features in the order of the data set, `tasks` logits wanted."""

    dense: int
    features: tuple[FeatureShape, ...]
    tasks: int
    uncertainty: bool = False
    """True if the network learns how uncertain each task is, beside its logits."""
    item_buckets: int = 0
    """Numbers of items that the network counts, for a loss that corrects for how frequent they are; 0 if none does."""
    item_rate: float = 0.0
    """Weight of the newest observation in what it knows of an item."""

    @property
    def pooled(self) -> tuple[FeatureShape, ...]:
        """Features that arrive as one vector per sample."""
        return tuple(feature for feature in self.features if feature.pooling != "none")

    @property
    def sequences(self) -> tuple[FeatureShape, ...]:
        """Features that arrive as a padded sequence and its mask."""
        return tuple(feature for feature in self.features if feature.pooling == "none")
