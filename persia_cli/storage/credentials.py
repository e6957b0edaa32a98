"""Credentials in URIs, which stay in the environment of a job's processes and never reach a configuration.

A configuration is written to files, manifests and messages. So credentials are taken out of a URI when it is read,
and put back only where it is opened.
"""

import json
import os
import re
from urllib.parse import parse_qsl, urlencode

from persia_cli.storage.remote import without_secret

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
    found = _URI.fullmatch(uri)
    if found is None:
        return uri
    user, query = found["user"], parse_qsl(found["query"] or "", keep_blank_values=True)
    secret = [(key, value) for key, value in query if key not in _PUBLIC or "@" in value]
    # An account without a password, such as the container of abfs://container@account, is part of the address.
    is_secret = user is not None and re.search(r":|%3[Aa]", user) is not None
    if is_secret or secret:
        stored = _stored() | {_beginning(found): [user if is_secret else "", urlencode(secret)]}
        os.environ[VARIABLE] = json.dumps(stored)
    public = [each for each in query if each not in secret]
    named = f"{user}@" if user is not None and not is_secret else ""
    return f"{found['scheme']}{named}{found['host']}{found['path']}{_query(urlencode(public, safe=':/'))}"


def printable(word: str) -> str:
    """Return an argument of a command line, such as `checkpoint.path=URI`, without the credentials of a URI in it."""
    key, sign, value = word.partition("=")
    return without_secret(f"{key}{sign}{without_credentials(value)}", queries=False)


def opened(uri: str) -> str:
    """Return a URI with the credentials that `without_credentials` removed, here or in a parent process."""
    found = _URI.fullmatch(uri)
    if found is None or (stored := _stored().get(_beginning(found))) is None:
        return uri
    user = f"{stored[0]}@" if stored[0] and not found["user"] else f"{found['user']}@" if found["user"] else ""
    query = "&".join(part for part in (found["query"], stored[1]) if part)
    return f"{found['scheme']}{user}{found['host']}{found['path']}{_query(query)}"


def _query(text: str) -> str:
    return f"?{text}" if text else ""


def _beginning(found: re.Match[str]) -> str:
    return f"{found['scheme']}{found['host']}"


def _stored() -> dict[str, list[str]]:
    stored: dict[str, list[str]] = json.loads(os.environ.get(VARIABLE, "{}"))
    return stored
