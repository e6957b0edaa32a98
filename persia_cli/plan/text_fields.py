"""The rules for reading the fields of CSV files."""

from persia_cli.config.schema import ParquetDataset
from persia_cli.data.read.arrow_types import class_of
from persia_cli.data.read.scan import ParquetScan
from persia_cli.serving.request_texts import CsvFields, Held


def csv_fields(found: ParquetScan) -> CsvFields | None:
    """Return the rules by which the fields of a data set's files are read; None if these are no CSV files."""
    if found.format != "csv":
        return None
    dataset = found.settled
    from_folders = {name for group in found.groups for name in group.constants}
    held = {name: _held(found, name) for name in _columns(dataset) if name not in from_folders}
    return CsvFields(nulls=dataset.csv.nulls, columns=held)


def _columns(dataset: ParquetDataset) -> list[str]:
    """Return the columns that features read."""
    columns = [*(each.column_name for each in dataset.sparse), *(each.name for each in dataset.dense_features)]
    return list(dict.fromkeys(columns))


def _held(found: ParquetScan, column: str) -> Held:
    """Return the type of a column in all files; numbers, if it has no value and a feature reads numbers."""
    dataset = found.settled
    if any(each.name == column and each.values == "time" for each in dataset.dense_features) or any(
        each.column_name == column and each.ids == "time" for each in dataset.sparse
    ):
        return "text"
    classes = {class_of(schema.field(column).type) for schema in found.schemas} - {"null"}
    if classes == {"boolean"}:
        return "boolean"
    features = [each for each in dataset.sparse if each.column_name == column]
    if any(each.buckets is None and each.ids == "integer" for each in features):
        return "integer"
    reads_numbers = any(each.name == column for each in dataset.dense_features) or any(
        each.buckets is not None for each in features
    )
    return "number" if reads_numbers or (classes and "text" not in classes) else "text"
