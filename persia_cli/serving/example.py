"""An example of a request for a model, made of its golden samples."""

from typing import Any

from persia_cli.data.read.reserved_ids import NULL_ID
from persia_cli.serving.fields import RequestFields
from persia_cli.serving.golden import Golden

EXACT = 2**53
"""Largest integer that JSON numbers represent exactly in all programs."""


def example_row(fields: RequestFields, golden: Golden) -> dict[str, Any]:
    """Return a row that can be predicted: the first golden sample, as far as its ids and numbers determine the fields.

    They do not determine texts, or fields from which columns are computed. So texts are null, which is a missing value
    in training, lists are empty (of CSV files, which have no lists, null), numbers are 0, and all times are the same.
    """
    raw, batch = fields.raw_by_column(), golden.batch
    single = () if fields.csv is None else fields.csv.columns
    row: dict[str, Any] = {}
    for name, datatype, shape in fields.inputs():
        plain = fields.times.get(name, None if datatype == "BYTES" else 0)
        row[name] = plain if len(shape) == 1 else [None] if name in single else []
    if not batch.size:
        return row
    for number, feature in enumerate(fields.sparse):
        if feature.column_name in raw or feature.buckets is not None or feature.ids in ("text", "time"):
            continue
        first, last = batch.offsets[number * batch.size : number * batch.size + 2].tolist()
        ids = [None if id_ == NULL_ID else id_ for id_ in batch.ids[first:last].tolist()]
        if max((id_ for id_ in ids if id_ is not None), default=0) > EXACT:
            if feature.ids is None:  # its texts would be hashed
                continue
            ids = [id_ if id_ is None else str(id_) for id_ in ids]
        row[feature.column_name] = ids if feature.name in fields.lists else ids[0] if ids else None
    place = 0
    for each in fields.dense:
        if each.name not in raw and each.transform is None:
            own = [float(str(value)) for value in batch.dense[0, place : place + each.inputs]]
            row[each.name] = own[0] if each.width is None else own
        place += each.inputs
    return row
