"""The lengths of the lists in dense columns, from the files, so that the network's inputs are known before training."""

from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from persia_cli.config.schema.dataset import ParquetDataset
from persia_cli.config.schema.features import DenseFeature
from persia_cli.config.schema.split import EvalSplit, PredictSplit
from persia_cli.data.read.arrow_types import is_list, plain_type
from persia_cli.data.read.row_groups import RowGroup, RowGroupReader
from persia_cli.errors import DataError


def with_widths(
    dataset: ParquetDataset, filesystem: Any, groups: Sequence[RowGroup], schemas: Sequence[Any]
) -> ParquetDataset:
    """Return the data set with `width` set for every dense column of lists: that of its type, or of its first list.

    Raises DataError for a column of lists of several lengths by its types, or with a transform.
    """
    found = {}
    for feature in dataset.dense_features:
        kinds = [plain_type(schema.field(feature.name).type) for schema in schemas]
        if not any(map(is_list, kinds)):
            continue
        if feature.transform not in ("none", None):
            raise DataError(
                f"dense feature {feature.name} has transform: {feature.transform}, which is of one number per row, and "
                "its column holds lists; leave out transform"
            )
        widths = {kind.list_size for kind in kinds if pa.types.is_fixed_size_list(kind)}
        widths |= {feature.width} - {None}
        if len(widths) > 1:
            if feature.width is not None and isinstance(dataset.split, PredictSplit | EvalSplit):
                others = " and ".join(map(str, sorted(widths - {feature.width})))
                raise DataError(
                    f"dense feature {feature.name} has lists of {others} numbers, and the model was trained with "
                    f"{feature.width}; write that many in each"
                )
            sizes = " and ".join(map(str, sorted(widths)))
            raise DataError(f"dense feature {feature.name} has lists of {sizes} numbers; give all lists one length")
        found[feature.name] = next(iter(widths), None) or _first_length(feature.name, filesystem, groups)
    dense = tuple(
        DenseFeature(name=each, width=found[each]) if isinstance(each, str) and each in found
        else each if isinstance(each, str)
        else each.model_copy(update={"width": found.get(each.name, each.width)})
        for each in dataset.dense
    )  # fmt: skip
    return dataset.model_copy(update={"dense": dense}) if found else dataset


def _first_length(name: str, filesystem: Any, groups: Sequence[RowGroup]) -> int:
    """Return the length of a column's first list that is neither null nor empty; raises DataError if there is none."""
    with RowGroupReader(filesystem) as reader:
        for group in groups:
            lengths = pc.list_value_length(reader.read(group, [name]).column(name)).drop_null()
            if length := next(filter(None, lengths.to_pylist()), 0):
                return int(length)
    raise DataError(f"dense feature {name} has no list with numbers; take it out, or give all lists one length")
