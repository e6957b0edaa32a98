"""Local paths and URIs, as users write them, and the credentials in URIs.

Credentials stay in the environment of a job's processes and never reach a configuration, which is written to files,
manifests and messages. So they are taken out of a URI when it is read, and put back only where it is opened.
"""

import json
import os
import re
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlencode

from persia_cli.errors import DataError, UserError
from persia_cli.storage.remote import ask, without_secret

BUILTIN, ICEBERG, DELTA, HUB = "builtin:", "iceberg:", "delta:", "hf://"
"""The beginnings of paths of data: shipped with persia, a table of a catalog, a Delta table, the Hugging Face Hub."""
_HADOOP = re.compile(r"s3[an]://")
"""The names that Hadoop has for S3."""


def local_path(path: str | os.PathLike[str]) -> Path:
    """Return a local path with a home folder in place of `~` or `~USER`; a file named ~x stays one."""
    return Path(os.path.expanduser(path))  # noqa: PTH111  Path.expanduser raises an error where there is no such user


def is_elsewhere(path: str) -> bool:
    """Return True for the path of data that is a URI or a name, and no local file or folder."""
    return "://" in path or path.startswith((BUILTIN, ICEBERG))


def rooted(path: str, folder: Path) -> str:
    """Return the path of data from a folder on, also that of a Delta table; URIs, names and absolute paths stay."""
    if is_elsewhere(path):
        return path
    prefix = DELTA if path.startswith(DELTA) else ""
    return f"{prefix}{folder / local_path(path.removeprefix(prefix))}"


def open_uri(uri: str, raising: type[UserError] = DataError) -> tuple[Any, str]:
    """Return the file system of a URI, and its path there.

    Raises `raising` if a store does not answer, ValueError or NotImplementedError if pyarrow has no such file system.
    """
    from pyarrow import fs

    # pyarrow would retry a Google store for a quarter of an hour.
    is_patient = uri.startswith(("gs://", "gcs://")) and "?" not in uri
    known = f"{uri}?retry_limit_seconds=30" if is_patient else plain_uri(uri)
    opened_uri: tuple[Any, str] = ask(uri, lambda: fs.FileSystem.from_uri(known), raising=raising)
    return opened_uri


def plain_uri(uri: str) -> str:
    """Return a URI with s3:// in place of s3a:// and s3n://, which Hadoop writes."""
    return _HADOOP.sub("s3://", uri, count=1) if _HADOOP.match(uri) else uri


VARIABLE = "PERSIA_STORE_CREDENTIALS"
"""Environment variable: a JSON object from the beginning of a URI, such as `s3://bucket`, to its credentials."""

_PUBLIC = {
    "allow_bucket_creation", "allow_bucket_deletion", "blob_storage_authority", "blob_storage_scheme",
    "connect_timeout", "dfs_storage_authority", "dfs_storage_scheme", "enable_tls", "endpoint_override",
    "location", "project_id", "region", "replication", "retry_limit_seconds", "scheme", "user",
}  # fmt: skip
"""Keys of queries whose values are no secrets."""
_URI = re.compile(
    r"(?P<scheme>[A-Za-z][\w+.-]*://)(?:(?P<user>(?![^/?@:]*:\d+/|[^:@?]*\?).*)@)?(?P<host>[^/?@]*)(?P<path>[^?]*)(?:\?(?P<query>.*))?"
)
"""A URI, also with characters of a secret that should be encoded, unless the beginning is host:port/."""


def without_credentials(uri: str) -> str:
    """Return a URI without password, user and the secret keys of its query, which this process stores for `opened`."""
    parsed = _URI.fullmatch(uri)
    if parsed is None:
        return uri
    user, query = parsed["user"], parse_qsl(parsed["query"] or "", keep_blank_values=True)
    secret = [(key, value) for key, value in query if key not in _PUBLIC or "@" in value]
    # An account without a password, such as the container of abfs://container@account, is part of the address.
    is_secret = user is not None and re.search(r":|%3[Aa]", user) is not None
    if is_secret or secret:
        stored = _stored() | {_beginning(parsed): [user if is_secret else "", urlencode(secret)]}
        os.environ[VARIABLE] = json.dumps(stored)
    public = [pair for pair in query if pair not in secret]
    named = f"{user}@" if user is not None and not is_secret else ""
    return f"{parsed['scheme']}{named}{parsed['host']}{parsed['path']}{_query(urlencode(public, safe=':/'))}"


def printable(word: str) -> str:
    """Return an argument of a command line, such as `checkpoint.path=URI`, without the credentials of a URI in it."""
    key, sign, value = word.partition("=")
    return without_secret(f"{key}{sign}{without_credentials(value)}", queries=False)


def opened(uri: str) -> str:
    """Return a URI with the credentials that `without_credentials` removed, here or in a parent process."""
    parsed = _URI.fullmatch(uri)
    if parsed is None or (stored := _stored().get(_beginning(parsed))) is None:
        return uri
    user = f"{stored[0]}@" if stored[0] and not parsed["user"] else f"{parsed['user']}@" if parsed["user"] else ""
    query = "&".join(part for part in (parsed["query"], stored[1]) if part)
    return f"{parsed['scheme']}{user}{parsed['host']}{parsed['path']}{_query(query)}"


def _query(text: str) -> str:
    return f"?{text}" if text else ""


def _beginning(parsed: re.Match[str]) -> str:
    return f"{parsed['scheme']}{parsed['host']}"


def _stored() -> dict[str, list[str]]:
    stored: dict[str, list[str]] = json.loads(os.environ.get(VARIABLE, "{}"))
    return stored
