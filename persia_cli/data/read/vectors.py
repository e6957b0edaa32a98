"""Pre-trained vectors in Parquet files: a column of ids and a column of vectors, read in batches of bounded memory."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from persia_cli.data.read.arrow_types import UnusableValueError, class_of, is_list, plain_type, without_extensions
from persia_cli.data.read.files import Location, find_files, locate, of_one_format
from persia_cli.data.read.ids import NULL_ID
from persia_cli.data.read.lists import WrongLengthError, vectors
from persia_cli.data.read.row_groups import read_footer
from persia_cli.data.read.values import Made, id_values
from persia_cli.errors import DataError, one_line

MAX_ROWS, MAX_VALUES = 65536, 2**22
"""Most rows, and most numbers of vectors, in memory at a time."""


class VectorBatch(NamedTuple):
    """Some rows of a file: distinct places, ids uint64 [n], vectors float32 [n, dim]."""

    where: str
    """The file and the row group."""
    first: int
    """Number of the first of these rows in the row group."""
    ids: NDArray[np.uint64]
    vectors: NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class VectorColumns:
    """The contents of the footers of a table's files."""

    files: tuple[str, ...]
    """Paths on their file system, in order."""
    id: str
    vector: str
    """Names of the two columns."""
    rows: int
    has_text: bool
    """True if the ids of every file are text."""


def find_vectors(path: str, id_: str | None, vector: str | None, dim: int, key: str) -> VectorColumns:
    """Return files, columns and rows by the footers, and by the first rows of the first file.

    `id_` and `vector` are the names of the columns if they are given; `key` is that of the configuration. Raises
    DataError with every problem, one line each.
    """
    location = locate(path, key)
    _, files = of_one_format(find_files(location), "parquet")
    if not files:
        raise DataError(f"{key}={path} does not exist or has no Parquet file; correct the path")
    wrong: list[str] = []
    columns_by_file: dict[str, tuple[str, str, int]] = {}
    has_text = True
    for file in files:
        try:
            metadata, schema, _ = read_footer(location.filesystem, file, location.uri)
            columns_by_file[file.path] = (*_columns(schema, id_, vector, dim, key), metadata.num_rows)
            has_text &= class_of(schema.field(columns_by_file[file.path][0]).type) == "text"
        except (OSError, pa.ArrowException) as error:
            wrong.append(f"{file.path}: this is not a readable Parquet file ({one_line(error)}); write it again")
        except DataError as error:
            wrong.append(f"{file.path}: {error}")
    names = {columns[:2] for columns in columns_by_file.values()}
    if len(names) > 1:
        wrong.append(f"{key}={path}: the files name their columns differently; give {key}.id and {key}.vector")
    if wrong:
        raise DataError("\n".join(wrong))
    columns = VectorColumns(
        tuple(columns_by_file), *names.pop(), sum(rows for *_, rows in columns_by_file.values()), has_text
    )
    if not columns.rows:
        raise DataError(f"{key}={path}: the files hold no rows; write them again")
    for _, batch in _numbered(location, columns, columns.files[0], 1024):
        _decode_vectors(batch.column(1), dim, f"{columns.files[0]}, row group 0", 0)
        break
    return columns


def read_vectors(path: str, columns: VectorColumns, dim: int, table: str, made: Made) -> Iterator[VectorBatch]:
    """Yield all rows, in order; the table's name seeds the hash of ids of text, and `made` is the source of its ids.

    Raises DataError for a file that cannot be read, an id that is null or none, and a vector that is null, of another
    dim or not finite, naming file and row group.
    """
    location = locate(path, "init_from.vectors")
    most = min(MAX_ROWS, max(MAX_VALUES // dim, 1024))
    for file in columns.files:
        before, first = -1, 0
        for number, batch in _numbered(location, columns, file, most):
            first = first if number == before else 0
            where = f"{file}, row group {number}"
            ids = _decode_ids(batch.column(0), table, made, columns.id, where, first)
            yield VectorBatch(where, first, ids, _decode_vectors(batch.column(1), dim, where, first))
            before, first = number, first + batch.num_rows


def _columns(schema: Any, id_: str | None, vector: str | None, dim: int, key: str) -> tuple[str, str]:
    """Return the names of the columns of ids and of vectors; raises DataError if they are not clear or of a wrong type.

    Both may be in files with other columns, but then they must be named.
    """
    kinds = {field.name: plain_type(field.type) for field in schema}
    chosen = []
    for what, name, wanted in (("id", id_, False), ("vector", vector, True)):
        fitting = [name for name, kind in kinds.items() if is_list(kind) == wanted and name not in (id_, vector)]
        if name is None and what in fitting:
            fitting = [what]
        if name is None and len(fitting) != 1:
            there = ", ".join(fitting) or "none"
            raise DataError(f"which column holds {what}s is not clear (it may be: {there}); give {key}.{what}=COLUMN")
        if name is not None and name not in kinds:
            raise DataError(f"there is no column {name}, which {key}.{what} names; there are {', '.join(kinds)}")
        chosen.append(name if name is not None else fitting[0])
    if class_of(kinds[chosen[0]]) in ("list", "null", "other"):
        raise DataError(f"column {chosen[0]} holds {kinds[chosen[0]]}, of which no ids can be made")
    kind = kinds[chosen[1]]
    if not is_list(kind) or not pa.types.is_floating(kind.value_type):
        raise DataError(f"column {chosen[1]} holds {kind}; vectors are lists of float16, float32 or float64")
    if pa.types.is_fixed_size_list(kind) and kind.list_size != dim:
        raise DataError(f"column {chosen[1]} has vectors of dim {kind.list_size}, and the table has dim {dim}")
    return chosen[0], chosen[1]


def _numbered(location: Location, columns: VectorColumns, file: str, most: int) -> Iterator[tuple[int, Any]]:
    """Yield number of the row group and record batch [id, vector] of at most `most` rows."""
    names = [columns.id, columns.vector]
    try:
        with location.filesystem.open_input_file(file) as source, pq.ParquetFile(source, pre_buffer=False) as parquet:
            for number in range(parquet.num_row_groups):
                for batch in parquet.iter_batches(most, [number], columns=names, use_threads=False):
                    yield number, without_extensions(batch.select(names))
    except (OSError, KeyError, pa.ArrowException) as error:
        raise DataError(f"{file}: cannot be read ({one_line(error)}); write the file again") from error


def _decode_ids(column: Any, table: str, made: Made, name: str, where: str, first: int) -> NDArray[np.uint64]:
    try:
        ids = id_values(column, table, made, np.uint64(NULL_ID))
    except UnusableValueError as error:
        raise DataError(f"{where}: column {name}, row {first + error.index}: {error}, so it is no id") from error
    except (TypeError, pa.ArrowException) as error:
        raise DataError(f"{where}: column {name}: {one_line(error)}") from error
    if (absent := ids == np.uint64(NULL_ID)).any():
        row = first + int(np.argmax(absent))
        raise DataError(f"{where}: column {name} is null or NaN in row {row}; leave out rows without an id")
    return ids


def _decode_vectors(column: Any, dim: int, where: str, first: int) -> NDArray[np.float32]:
    """Return float32 [n, dim]; raises DataError for the first row that is null, of another length or not finite."""
    try:
        with np.errstate(over="ignore"):
            found = vectors(pa.chunked_array([column]), dim).astype(np.float32)
    except WrongLengthError as wrong:
        what = f"the vector of row {first + int(wrong.rows[0])} has dim {wrong.length}"
        raise DataError(f"{where}: {what}, and the table has dim {dim}") from wrong
    if not (finite := np.isfinite(found).all(axis=1)).all():
        raise DataError(
            f"{where}: the vector of row {first + int(np.argmin(finite))} is null, or has a null or a value that is "
            "not finite in float32; leave out such rows"
        )
    return found
