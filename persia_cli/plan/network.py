"""Checks of a run's dense network against the features of its data and the ranks that train it."""

from dataclasses import replace

from persia_cli.config.schema import AsyncMode, InBatchSoftmax, Run
from persia_cli.errors import ConfigError
from persia_cli.model.requirements import require_fit
from persia_cli.model.shape import FeatureShape, InputShape
from persia_cli.plan.columns import dense_count, items_of, label_names
from persia_cli.store.layout import EmbeddingLayout


def require_network(run: Run, layout: EmbeddingLayout) -> None:
    """Raise ConfigError if the run's network cannot be built on its features, or cannot be trained by its ranks."""
    require_fit(run.model, input_shape(run, layout))
    if any(isinstance(loss, InBatchSoftmax) for loss in run.losses):
        require_two_sides(run, "train.losses: kind=in_batch_softmax")
    if run.eval.retrieval is not None:
        require_two_sides(run, "eval.retrieval")
    for loss in run.losses:
        correcting = isinstance(loss, InBatchSoftmax) and loss.correction == "log_q"
        if correcting and isinstance(run.mode, AsyncMode) and run.cluster.nn_workers > 1:
            raise ConfigError(
                "train.losses: with mode.kind=async each NN worker would count only the items of its own batches; use "
                "correction=none, cluster.nn_workers=1 or another mode"
            )
    if isinstance(run.mode, AsyncMode) and run.train.device not in ("auto", "cpu"):
        raise ConfigError(
            f"train.device={run.train.device}: with mode.kind=async dense weights are only on the cpu; "
            "use train.device=cpu, or another mode"
        )


def require_two_sides(run: Run, what: str) -> None:
    """Raise ConfigError if the run's network has no vectors of users and items, which `what` needs."""
    if not items_of(run.model):
        raise ConfigError(
            f"{what} needs a network with a vector of the user and one of the item, and "
            f"model.kind={run.model.kind} has none; use model.kind=two_tower or model.kind=sasrec"
        )


def input_shape(run: Run, layout: EmbeddingLayout) -> InputShape:
    """Return the input shape of the run's network."""
    uncertainty = run.train.task_weights == "uncertainty"
    shape = InputShape(dense_count(run), feature_shapes(layout), len(label_names(run)), uncertainty)
    for loss in run.losses:
        if isinstance(loss, InBatchSoftmax) and loss.correction == "log_q":
            return replace(shape, item_buckets=loss.correction_buckets, item_rate=loss.correction_rate)
    return shape


def feature_shapes(layout: EmbeddingLayout) -> tuple[FeatureShape, ...]:
    """Return the sparse features as the network sees them, in the order of the data set."""
    dims = {group.number: group.dim for group in layout.groups}
    return tuple(
        FeatureShape(spec.name, dims[spec.group], spec.pooling, spec.max_length, spec.table) for spec in layout.features
    )
