"""Checks that a data set has the features that a network needs; this module does not import torch."""

from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise

from persia_cli.config import schema
from persia_cli.config.schema.interactions import Gate
from persia_cli.config.schema.perceptrons import Perceptrons
from persia_cli.config.schema.sequences import Sequential
from persia_cli.errors import ConfigError, count, did_you_mean
from persia_cli.model.shape import FeatureShape, InputShape

Pair = tuple[FeatureShape, FeatureShape]
"""A target, which is one vector per sample, and a sequence that it attends to."""

POOLED, SEQUENCE = "sum, mean or sqrtn", "none (and a max_length)"
"""Description of the pooling that a feature needs, for messages."""
FIELDS = ("fm", "deepfm", "xdeepfm", "afm", "fibinet", "autoint", "masknet", "finalnet")
"""Kinds that compute with a vector of each sparse feature, all of one dim."""
FIRST_ORDER = ("wide_deep", "fm", "deepfm", "xdeepfm", "afm", "fibinet")
"""Kinds whose rows begin with a weight for each label."""


def require_fit(model: schema.Model, shape: InputShape) -> None:
    """Raise ConfigError if the network cannot be built on these features; a custom network is not checked here."""
    if model.output_bias != "init":
        _require_output_bias(model, shape)
    if shape.times_of and not isinstance(model, schema.Hstu | schema.CustomModel):
        raise ConfigError(
            f"dataset.dense has the times of {shape.times_of[0]}, which model.kind={model.kind} cannot read; take them "
            "out, or use model.kind=hstu"
        )
    match model:
        case schema.CustomModel():
            return
        case schema.Bst():
            require_heads(model.heads, attended_pairs(model.attend, shape))
        case schema.Din():
            attended_pairs(model.attend, shape)
        case schema.Dien():
            _require_next_items(model.auxiliary_weight, attended_pairs(model.attend, shape))
        case Sequential():
            require_heads(model.heads, [sequence_and_candidate(model, shape)])
        case _:
            for reason in _reasons_against(model, shape):
                raise ConfigError(f"model.kind={model.kind} {reason}")
    if isinstance(model, schema.FinalMlp):
        gate_contexts(model.gate, shape)
    if isinstance(model, schema.TwoTower):
        tower_features(model.user, model.item, shape)


def _reasons_against(model: schema.Model, shape: InputShape) -> Iterator[str]:
    """Yield the reasons, after the network's kind, for which one that reads no sequences cannot use these features."""
    dims = {f"{feature.name} ({feature.dim})": feature.dim for feature in shape.pooled}
    if shape.sequences:
        yield (
            "takes one vector per feature, but pooling is none for "
            f"{', '.join(feature.name for feature in shape.sequences)}; set its pooling to sum, mean or sqrtn, or use "
            "model.kind=din, or a model.kind=custom, that reads sequences"
        )
    if model.kind in ("dlrm", "branches") and not (shape.dense and shape.features):
        yield (
            "has a part for dense and one for sparse features, but the data set has no "
            f"{'sparse' if shape.dense else 'dense'} ones; use model.kind=ffnn"
        )
    if model.kind in ("lr", "wide_deep", *FIELDS) and not dims:
        yield "works on embeddings, but the data set has no sparse features; use model.kind=ffnn"
    if model.kind == "lr" and (others := [name for name, dim in dims.items() if dim != shape.tasks]):
        yield (
            f"needs rows of one column for each label, which is {shape.tasks}, but these have another dim: "
            f"{', '.join(others)}; set model.dim={shape.tasks}, and give no table another dim"
        )
    if model.kind in ("dlrm", *FIELDS) and (others := [name for name, dim in dims.items() if dim != model.dim]):
        yield (
            f"needs rows of model.dim={model.dim} for every feature, but these have another dim: {', '.join(others)}; "
            "give their tables the same dim or use model.kind=ffnn"
        )
    if model.kind in FIRST_ORDER:
        least = shape.tasks + (model.kind != "wide_deep")  # and a column of a vector
        if narrow := [name for name, dim in dims.items() if dim < least]:
            yield (
                "has a weight for each label in the first columns of a row, so rows need at least "
                f"{least} columns, but these have fewer: {', '.join(narrow)}; raise model.dim or the dim of these "
                "tables"
            )
    if model.kind in ("afm", "fibinet") and len(dims) + shape.dense < 2:
        yield "multiplies pairs of features, but the data set has only one; use model.kind=lr"


def _require_output_bias(model: schema.Model, shape: InputShape) -> None:
    """Raise ConfigError if the network has no bias of its output, or its initial values do not fit."""
    bias = model.output_bias
    if isinstance(model, schema.CustomModel | Sequential | schema.TwoTower):
        why = "is your own class, which sets its bias" if isinstance(model, schema.CustomModel) else "has no such bias"
        raise ConfigError(f"model.output_bias: model.kind={model.kind} {why}; leave it out")
    is_separate = model.kind in ("autoint", "dcn_v2", "gdcn", "finalmlp")  # `model.bias` is not about the last layer
    if isinstance(model, Perceptrons) and not (model.bias or is_separate):
        raise ConfigError("model.bias=false leaves out the bias that model.output_bias is about; give one of them")
    if not isinstance(bias, tuple):
        return
    if len(bias) != shape.tasks:
        raise ConfigError(
            f"model.output_bias has {count(len(bias), 'number')}, and the data set {count(shape.tasks, 'label')}; "
            "give one for each label"
        )
    if isinstance(model, schema.Esmm) and any(later >= earlier for earlier, later in pairwise(bias)):
        raise ConfigError(
            "model.output_bias: each label of model.kind=esmm takes the one before, but one of them is not rarer than "
            f"the one before: {list(bias)}; correct the order of dataset.labels, or leave model.output_bias out"
        )


def attended_pairs(attend: Mapping[str, Sequence[str]], shape: InputShape) -> list[Pair]:
    """Return each target with the sequences it attends to; raises ConfigError if they do not fit each other."""
    pairs: list[Pair] = []
    for name, names in attend.items():
        [target] = _features_named([name], shape.pooled, "model.attend", POOLED)
        pairs += [
            (target, sequence) for sequence in _features_named(names, shape.sequences, f"model.attend.{name}", SEQUENCE)
        ]
    for target, sequence in pairs:
        if (target.table, target.dim) != (sequence.table, sequence.dim):
            raise ConfigError(
                f"model.attend.{target.name}: {sequence.name} does not read the table of {target.name}, so that the "
                "same id would have two vectors; give both features the same table in dataset.sparse"
            )
    read = {sequence.name for _, sequence in pairs}
    left = [feature.name for feature in shape.sequences if feature.name not in read]
    if left:
        raise ConfigError(
            f"model.attend: no target attends to the sequence {left[0]}; name it below its target, "
            "or set its pooling to sum, mean or sqrtn"
        )
    return pairs


def gate_contexts(gate: Gate | None, shape: InputShape) -> list[tuple[FeatureShape, ...]]:
    """Return the context features of each stream's gate, none without a gate; raises ConfigError for wrong ones."""
    if gate is None:
        return []
    contexts = {"first": gate.first, "second": gate.second}
    return [_features_named(names, shape.pooled, f"model.gate.{stream}", POOLED) for stream, names in contexts.items()]


def sequence_and_candidate(model: Sequential, shape: InputShape) -> Pair:
    """Return the only candidate and its sequence; raises ConfigError for other features or several labels."""
    [pair] = attended_pairs(model.attend, shape)
    _require_one_label(model.kind, shape)
    others = [feature.name for feature in shape.features if feature not in pair]
    has_dense = shape.dense != (pair[1].max_length if shape.times_of else 0)
    if others or has_dense:
        raise ConfigError(
            f"model.kind={model.kind} reads a sequence and a candidate alone, but the data set also has "
            f"{', '.join(others) or 'dense features'}; take these out of dataset.sparse and dataset.dense, or use "
            "model.kind=bst"
        )
    return pair


def tower_features(
    user: Sequence[str], item: Sequence[str], shape: InputShape
) -> tuple[tuple[FeatureShape, ...], tuple[FeatureShape, ...]]:
    """Return the features of the user's tower and of the item's; raises ConfigError if one is in none or in both."""
    _require_one_label("two_tower", shape)
    sides = (
        _features_named(user, shape.pooled, "model.user", POOLED),
        _features_named(item, shape.pooled, "model.item", POOLED),
    )
    for feature in shape.pooled:
        towers = [*user, *item].count(feature.name)
        if towers != 1:
            raise ConfigError(
                f"model.user and model.item name {feature.name} {'twice' if towers else 'nowhere'}; each sparse "
                "feature belongs to one tower"
            )
    return sides


def require_heads(heads: int, pairs: Sequence[Pair]) -> None:
    """Raise ConfigError if the heads of self-attention do not divide a sequence's rows."""
    for _, sequence in pairs:
        if sequence.dim % heads:
            raise ConfigError(
                f"model.heads={heads} cut a row into equal parts, and those of {sequence.name} have {sequence.dim} "
                "columns; make it a divisor"
            )


def _require_next_items(weight: float, pairs: Sequence[Pair]) -> None:
    """Raise ConfigError if next elements are to be predicted in a sequence that never has one."""
    for _, sequence in pairs:
        if weight and sequence.max_length == 1:
            raise ConfigError(
                f"model.auxiliary_weight={weight:g} is about the next element of each sequence, and {sequence.name} "
                "has one element at most; raise its max_length, or set model.auxiliary_weight=0"
            )


def _require_one_label(kind: str, shape: InputShape) -> None:
    """Raise ConfigError if there are several labels, for networks whose score is one dot product."""
    if shape.tasks != 1:
        raise ConfigError(
            f"model.kind={kind} gives one score of a sample, but the data set has {shape.tasks} labels; keep one in "
            "dataset.labels"
        )


def _features_named(
    names: Sequence[str], features: Sequence[FeatureShape], key: str, pooling: str
) -> tuple[FeatureShape, ...]:
    """Return the `features` of these names, which have such a `pooling`; raises ConfigError for another at `key`."""
    known = {feature.name: feature for feature in features}
    for name in names:
        if name not in known:
            hint = did_you_mean(name, known)
            raise ConfigError(f"{key}={name}: needs a sparse feature with pooling {pooling}, which this is not; {hint}")
    return tuple(known[name] for name in names)
