"""The footers of Parquet files."""

from typing import Any

import pyarrow.parquet as pq

from persia_cli.data.files import DataFile
from persia_cli.data.remote import ask


def read_footer(filesystem: Any, file: DataFile, uri: str | None) -> tuple[Any, Any]:
    """Return a file's metadata and Arrow schema; a store on other machines, named by `uri`, has a deadline.

    Raises DataError for a store that does not answer or refuses, OSError or pyarrow.ArrowException for a file that is
    not Parquet.
    """

    def read() -> tuple[Any, Any]:
        with filesystem.open_input_file(file.path) as source, pq.ParquetFile(source) as parquet:
            return parquet.metadata, parquet.schema_arrow

    return read() if uri is None else ask(f"{uri.partition('://')[0]}://{file.path}", read)
