"""What networks ask of the features of a data set; where these do not fit, one sentence says so."""

import difflib
from collections.abc import Sequence

from persia_cli.errors import ConfigError
from persia_cli.model.inputs import FeatureShape, InputShape

POOLED, SEQUENCE = "sum, mean or sqrtn", "none (and a max_length)"
"""What a feature's pooling is to be, in words."""


def refuse_sequences(kind: str, shape: InputShape) -> None:
    """Raise ConfigError if a feature is not pooled, for networks that take single vectors only."""
    names = ", ".join(feature.name for feature in shape.sequences)
    if names:
        raise ConfigError(
            f"model.kind={kind} takes one vector per feature, but pooling is none for {names}; "
            "set its pooling to sum, mean or sqrtn, or use model.kind=din, or a model.kind=custom, that reads sequences"
        )


def require_sparse(kind: str, shape: InputShape) -> None:
    """Raise ConfigError if there is no pooled feature, for networks that are about embeddings."""
    if not shape.pooled:
        raise ConfigError(
            f"model.kind={kind} works on embeddings, but the data set has no sparse features; use model.kind=ffnn"
        )


def require_dim(kind: str, shape: InputShape, dim: int) -> None:
    """Raise ConfigError if a feature's rows are not of `dim` columns, for networks that multiply vectors."""
    other = [f"{feature.name} ({feature.dim})" for feature in shape.features if feature.dim != dim]
    if other:
        raise ConfigError(
            f"model.kind={kind} needs rows of model.dim={dim} for every feature, not so: {', '.join(other)}; "
            "give their tables the same dim or use model.kind=ffnn"
        )


def require_both(kind: str, shape: InputShape) -> None:
    """Raise ConfigError without dense or without sparse features, for networks that have a part for each."""
    if not shape.dense or not shape.features:
        missing = "sparse" if shape.dense else "dense"
        raise ConfigError(
            f"model.kind={kind} has a part for dense and one for sparse features, but the data set has no {missing} "
            "ones; use model.kind=ffnn"
        )


def require_first_order(kind: str, shape: InputShape, vector: int) -> None:
    """Raise ConfigError if rows have no room for a first-order weight of each task and `vector` columns beside them."""
    least = shape.tasks + vector
    narrow = [f"{feature.name} ({feature.dim})" for feature in shape.pooled if feature.dim < least]
    if narrow:
        raise ConfigError(
            f"model.kind={kind} keeps a weight for each label in the first columns of a row, so rows need at least "
            f"{least} of them, not so: {', '.join(narrow)}; raise model.dim or the dim of these tables"
        )


def features_named(
    names: Sequence[str], features: Sequence[FeatureShape], key: str, pooling: str
) -> tuple[FeatureShape, ...]:
    """Return the `features` of these names, which have such a `pooling`; raises ConfigError for another at `key`."""
    known = {feature.name: feature for feature in features}
    for name in names:
        if name not in known:
            near = difflib.get_close_matches(name, known, n=1)
            hint = f"did you mean {near[0]}?" if near else f"there are {', '.join(known) or 'none'}"
            raise ConfigError(f"{key}={name}: needs a sparse feature with pooling {pooling}, which this is not; {hint}")
    return tuple(known[name] for name in names)
