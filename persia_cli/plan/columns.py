"""The columns of a run's samples, read from files or generated, and the shape of the network's input."""

from dataclasses import replace

from persia_cli.config.schema import (
    Bpr,
    InBatchSoftmax,
    Model,
    ParquetDataset,
    Run,
    SampledSoftmax,
    SparseFeature,
    TwoTower,
)
from persia_cli.config.schema.sequences import Sequential
from persia_cli.errors import ConfigError
from persia_cli.model.shape import FeatureShape, InputShape
from persia_cli.store.layout import EmbeddingLayout


def sparse_features(run: Run) -> tuple[SparseFeature, ...]:
    """Return the sparse features, in the order of the ids on the wire."""
    if isinstance(run.dataset, ParquetDataset):
        return run.dataset.sparse
    return tuple(SparseFeature(name=f"feature_{i}") for i in range(len(run.dataset.generator.cardinalities)))


def require_equal_kinds(run: Run) -> None:
    """Raise ConfigError if the features of a table have ids of different kinds, which are never equal."""
    first: dict[str, SparseFeature] = {}
    for feature in sparse_features(run):
        if feature.ids is None or feature.transform is not None or feature.buckets is not None:
            continue
        other = first.setdefault(feature.table_name, feature)
        if other.ids != feature.ids:
            raise ConfigError(
                f"dataset.sparse: {other.name} (ids: {other.ids}) and {feature.name} (ids: {feature.ids}) read table "
                f"{feature.table_name}, but such ids are never equal; give both the same ids, or a table each"
            )


def dense_count(run: Run) -> int:
    """Return the number of dense inputs of the network."""
    return run.dataset.dense_width if isinstance(run.dataset, ParquetDataset) else run.dataset.generator.dense


def has_query_ids(run: Run) -> bool:
    """Return True if evaluation samples have query ids, within which GAUC ranks them."""
    return isinstance(run.dataset, ParquetDataset) and run.dataset.group_by is not None


def trains_on_queries(run: Run) -> bool:
    """Return True if a loss is of pairs within queries, so that samples of training have query ids too."""
    return any(isinstance(loss, Bpr) for loss in run.losses)


def item_features(run: Run) -> tuple[int, ...]:
    """Return the numbers of the features that make an item, if a loss distinguishes items; otherwise none."""
    if not any(isinstance(loss, InBatchSoftmax) for loss in run.losses):
        return ()
    names = items_of(run.model)
    return tuple(number for number, feature in enumerate(sparse_features(run)) if feature.name in names)


def next_item_loss(run: Run) -> SampledSoftmax | None:
    """Return the loss of next elements of sequences, which is the only one then; None for other losses."""
    return next((loss for loss in run.losses if isinstance(loss, SampledSoftmax)), None)


def next_item_features(run: Run) -> tuple[int, int] | None:
    """Return the numbers of the features of the item and of its sequence for a loss of next elements, if it is one."""
    if next_item_loss(run) is None or not isinstance(run.model, Sequential):
        return None
    names = [feature.name for feature in sparse_features(run)]
    return names.index(run.model.candidate), names.index(run.model.sequence)


def items_of(model: Model) -> tuple[str, ...]:
    """Return the names of the features that make an item in a network of two sides; none in another."""
    match model:
        case TwoTower():
            return model.item
        case Sequential():
            return (model.candidate,)
    return ()


def label_names(run: Run) -> tuple[str, ...]:
    """Return the name of each task's label."""
    return run.dataset.label_names


def input_shape(run: Run, layout: EmbeddingLayout) -> InputShape:
    """Return the input shape of the run's network."""
    uncertainty = run.train.task_weights == "uncertainty"
    times = run.dataset.times if isinstance(run.dataset, ParquetDataset) else ()
    times_of = tuple(str(feature.times_of) for feature in times)
    features = feature_shapes(layout)
    shape = InputShape(dense_count(run), features, len(label_names(run)), uncertainty, times_of=times_of)
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
