"""Rules of an exported model for reading the fields of CSV files."""

from contextlib import suppress

from persia_cli.config.schema import ParquetDataset, Run
from persia_cli.data.read.arrow_types import class_of
from persia_cli.data.read.files import Format, find_all, format_of, locate_all, of_one_format
from persia_cli.data.read.scan import ParquetScan, scan
from persia_cli.data.read.source import uses_stand_in
from persia_cli.errors import DataError
from persia_cli.serving.request_texts import CsvFields, Held


def csv_fields(trained: Run, samples: Run) -> CsvFields | None:
    """Return the rules by which a run read its CSV files; None if it was trained from other data.

    `samples` is the run with the present files, which may differ from the training data.
    """
    own, dataset = trained.dataset, samples.dataset
    if not isinstance(own, ParquetDataset) or not isinstance(dataset, ParquetDataset) or uses_stand_in(dataset):
        return None
    found = scan(dataset)
    if (_format_of(own) or found.format) != "csv":
        return None
    from_folders = {name for group in found.groups for name in group.constants}
    held = {name: _held(found, name) for name in _columns(dataset) if name not in from_folders}
    return CsvFields(nulls=own.csv.nulls, columns=held)


def _columns(dataset: ParquetDataset) -> list[str]:
    """Return the columns that features read."""
    columns = [*(each.column_name for each in dataset.sparse), *(each.name for each in dataset.dense_features)]
    return list(dict.fromkeys(columns))


def _format_of(dataset: ParquetDataset) -> Format | None:
    """Return the format of a data set's files, by their names if they are gone; None if the names do not show it."""
    if dataset.format != "auto":
        return dataset.format
    with suppress(DataError):  # such as a store that does not answer
        if files := find_all(locate_all(dataset.paths)):
            return of_one_format(files, dataset.format)[0]
    return next((known for path in dataset.paths if (known := format_of(path)) is not None), None)


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
