"""Local paths and URIs, as users write them."""

import os
import re
from pathlib import Path
from typing import Any

from persia_cli.errors import DataError, UserError
from persia_cli.storage.remote import ask

_HADOOP = re.compile(r"s3[an]://")
"""The names that Hadoop has for S3."""


def local_path(path: str | os.PathLike[str]) -> Path:
    """Return a local path with a home folder in place of `~` or `~USER`; a file named ~x stays one."""
    return Path(os.path.expanduser(path))  # noqa: PTH111  Path.expanduser raises an error where there is no such user


def open_uri(uri: str, raising: type[UserError] = DataError) -> tuple[Any, str]:
    """Return the file system of a URI, and its path there.

    Raises `raising` if a store does not answer, ValueError or NotImplementedError if pyarrow has no such file system.
    """
    from pyarrow import fs

    # pyarrow would retry a Google store for a quarter of an hour.
    is_patient = uri.startswith(("gs://", "gcs://")) and "?" not in uri
    known = f"{uri}?retry_limit_seconds=30" if is_patient else plain_uri(uri)
    found: tuple[Any, str] = ask(uri, lambda: fs.FileSystem.from_uri(known), raising=raising)
    return found


def plain_uri(uri: str) -> str:
    """Return a URI with s3:// in place of s3a:// and s3n://, which Hadoop writes."""
    return _HADOOP.sub("s3://", uri, count=1) if _HADOOP.match(uri) else uri
