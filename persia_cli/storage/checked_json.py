"""JSON whose first key is its own checksum, so that a damaged description is refused."""

import hashlib
import re
from typing import Any, Protocol

import msgspec

_OPENING = b'{\n  "sha256": "%s",\n'
CHECKED = re.compile(rb'\{\n  "sha256": "([0-9a-f]{64})",\n')
"""The beginning of such a text."""


class ChangedError(ValueError):
    """An error for a file whose text does not match its checksum."""


class Readable(Protocol):
    """A local or remote file."""

    def read_bytes(self) -> bytes:
        """Return the whole content."""
        ...


def checked(content: Any) -> bytes:
    """Return an object as JSON whose first key is the SHA-256 of the text after it."""
    text = msgspec.json.format(msgspec.json.encode(content), indent=2).removeprefix(b"{\n") + b"\n"
    return _OPENING % hashlib.sha256(text).hexdigest().encode() + text


def read_checked(path: Readable) -> bytes:
    """Return the JSON object that `checked` made, without its checksum.

    Raises OSError if it cannot be read, ValueError if it has no checksum, ChangedError if the checksum does not match.
    """
    content = path.read_bytes()
    opening = CHECKED.match(content)
    if opening is None:
        raise ValueError("it does not begin with its own checksum")
    text = content[opening.end() :]
    if hashlib.sha256(text).hexdigest().encode() != opening[1]:
        raise ChangedError("it does not match its own checksum")
    return b"{\n" + text
