"""The identity of data files: all that a job reads is of the files that it was planned with.

A file has two identities, since a copy of it holds the same data, and what is written at its place later does not:

- Its *version* changes when it is written or replaced: on a disk, size, inode and time of the last write; in a store,
  its tag (ETag), on the Hugging Face Hub its hash. It is taken before the footer is read, and compared whenever the
  file is opened again and, on a disk, after each read. So what has been read is of one version.
- Its *content* is equal in copies: on a disk, a checksum of its size, its footer, the beginning of the columns of two
  row groups, and samples from all its parts; in a store, the tag, which needs no request, though a copy may have
  another one. Loaders compare it with the plan, and a resume with the checkpoint. On a disk, a change of a few values
  that keeps all sizes can escape it.

Text is read from its conversion, which nothing writes again; its content is that of the text file.
"""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from xxhash import xxh64

from persia_cli.errors import DataError

SAMPLES = 64
"""Parts of a file that have a sample each."""
SAMPLE_BYTES = 1024
_TAG = "ETag"
_HUB = "py::fsspec+hf"


def version_of(filesystem: Any, path: str, source: Any) -> str:
    """Return the version of a file that is open as `source`; empty for a store without tags. Raises OSError."""
    if filesystem.type_name.startswith(_HUB):
        return str(filesystem.handler.fs.info(path).get("blob_id") or "")
    if filesystem.type_name != "local":
        return str(source.metadata().get(_TAG, b"").decode())
    stat = Path(path).stat()
    return f"{stat.st_size} {stat.st_ino} {stat.st_mtime_ns}"


def require_version(filesystem: Any, path: str, source: Any, version: str) -> None:
    """Raise DataError if a file, open as `source`, no longer has this version; an empty one is not compared."""
    try:
        if not version or version_of(filesystem, path, source) == version:
            return
    except FileNotFoundError:
        pass
    raise DataError(
        f"{path} was changed, replaced or removed while this job read it; write new data into another folder, and "
        "restore this file to go on"
    )


def content_of(filesystem: Any, path: str, metadata: Any = None, version: str = "") -> str:
    """Return what identifies the content of a file, given its Parquet metadata unless it is text. Raises OSError.

    `version` is that of a file in a store, if it is known.
    """
    if filesystem.type_name != "local":
        if not version:
            with filesystem.open_input_file(path) as source:
                version = version_of(filesystem, path, source)
        return version or str(filesystem.get_file_info(path).mtime_ns)
    with Path(path).open("rb") as file:
        size = os.fstat(file.fileno()).st_size
        digest = xxh64(str(size).encode())
        for start, length in _parts(size, metadata):
            digest.update(os.pread(file.fileno(), length, start))
    return digest.hexdigest()


def _parts(size: int, metadata: Any) -> Iterator[tuple[int, int]]:
    """Yield place and length of each part of a file that the checksum of its content is made of."""
    for start in range(0, size, max(SAMPLE_BYTES, size // SAMPLES)):
        yield start, SAMPLE_BYTES
    if metadata is None:
        yield max(0, size - SAMPLE_BYTES), SAMPLE_BYTES
        return
    length = metadata.serialized_size + 8
    yield size - length, length
    for number in sorted({0, metadata.num_row_groups - 1}) if metadata.num_row_groups else ():
        group = metadata.row_group(number)
        for column in map(group.column, range(group.num_columns)):
            yield column.dictionary_page_offset or column.data_page_offset, SAMPLE_BYTES
