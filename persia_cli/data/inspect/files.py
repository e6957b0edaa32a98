"""The Parquet files that a path means, with their columns and rows."""

from dataclasses import dataclass
from typing import Any, Literal

import pyarrow as pa
from pyarrow.fs import LocalFileSystem

from persia_cli.config.schema.dataset import CsvFormat
from persia_cli.data.read.converted import Progress, as_parquet, silent, unread_rows
from persia_cli.data.read.csv_files import guessed_delimiter, header_flaw
from persia_cli.data.read.files import DataFile, Format, list_files, locate, nothing_there, of_one_format, without_rows
from persia_cli.data.read.members import left_out
from persia_cli.data.read.row_groups import Footer, HiveColumns, read_footer
from persia_cli.data.read.scan import no_parquet
from persia_cli.data.read.text import TextFile
from persia_cli.errors import DataError

_PLAIN = CsvFormat()


@dataclass(frozen=True, slots=True)
class SourceFiles:
    """Files with the same columns, in the order that rows are numbered in."""

    path: str
    filesystem: Any
    files: tuple[DataFile, ...]
    rows: tuple[int, ...]
    """Number of rows of each file."""
    row_groups: int
    schema: Any
    constants: tuple[dict[str, Any], ...]
    """Columns named by the folders of each file, as Arrow scalars."""
    format: Format
    form: CsvFormat
    """The format of CSV files, with a delimiter that was guessed."""
    left_out: str
    """A clause on data files at the path that are not read; empty if there are none."""
    unread: tuple[str, ...]
    """A sentence for each file with rows that could not be read."""

    @property
    def nbytes(self) -> int:
        """Bytes of all files, as users have them."""
        return sum(file.nbytes for file in self.files)


def open_files(
    path: str, form: CsvFormat = _PLAIN, progress: Progress = silent, wanted: Literal["auto"] | Format = "auto"
) -> SourceFiles:
    """Read the footer of every file; raises DataError for one that is not of its format, or has other columns.

    `wanted` is the format of files whose names do not show it.
    """
    location = locate(path)
    listing = list_files(location)
    remedy = f"name those of one format, such as '{path.rstrip('/')}/*.parquet'"
    kind, files = of_one_format(listing.files, wanted, remedy)
    others = left_out(path, [listing], files)
    filesystem = location.filesystem
    if kind == "csv" and files and form.delimiter is None:
        delimiter = guessed_delimiter(TextFile(files[0].path, filesystem=filesystem), form)
        form = form.model_copy(update={"delimiter": delimiter})
    if kind == "csv" and files and (flaw := header_flaw(TextFile(files[0].path, filesystem=filesystem), form)):
        raise DataError(f"{files[0].path}: {flaw}")
    if kind != "parquet" and files:
        files, filesystem = as_parquet(filesystem, files, kind, form, progress), LocalFileSystem()
    if not files:
        raise DataError(
            f"{nothing_there(path, location, wanted)}; give a file, a folder or a URI of Parquet, CSV or JSON Lines, "
            "and prepare other formats first (persia recipe ls)"
        )
    rows, row_groups, constants, unread = [], 0, [], []
    hive = HiveColumns(file.name for file in files)
    uri = location.uri if kind == "parquet" else None
    schema = hive.schema(files[0].name, _footer(filesystem, files[0], uri).schema)
    for file in files:
        metadata, file_schema, _ = _footer(filesystem, file, uri)
        constants.append(hive.constants(file.name, file_schema))
        file_schema = hive.schema(file.name, file_schema)
        if not file_schema.equals(schema):
            raise DataError(f"{file.name} has other columns or types than {files[0].name}; give files that are alike")
        rows.append(metadata.num_rows)
        if (bad := unread_rows(metadata)).count:
            unread.append(
                f"{file.name}: rows left out that cannot be read: {bad.count:,}, the first of them {bad.found[0]}"
            )
        row_groups += metadata.num_row_groups
    if not sum(rows):
        raise DataError(f"{path}: {without_rows(kind)}")
    twice = sorted({name for name in schema.names if schema.names.count(name) > 1})
    if twice:
        raise DataError(f"{files[0].name}: there are several columns {twice[0]}; give each a different name")
    return SourceFiles(
        path, filesystem, files, tuple(rows), row_groups, schema, tuple(constants), kind, form, others, tuple(unread)
    )


def _footer(filesystem: Any, file: DataFile, uri: str | None) -> Footer:
    try:
        return read_footer(filesystem, file, uri)
    except (OSError, pa.ArrowException) as error:
        raise DataError(f"{file.name}: {no_parquet(file, error)}") from error
