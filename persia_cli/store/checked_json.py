"""JSON files with the SHA-256 of their own text, so that damage is detected."""

import hashlib
import re
from pathlib import Path
from typing import Any

import msgspec

from persia_cli.disk import write_whole


class ChangedError(ValueError):
    """An error for a file whose text does not match its checksum."""


_OPENING = b'{\n  "sha256": "%s",\n'
_CHECKED = re.compile(rb'\{\n  "sha256": "([0-9a-f]{64})",\n')


def write_checked(path: Path, content: Any) -> None:
    """Write an object as JSON with `write_whole`; its first key is the SHA-256 of the text after it."""
    text = msgspec.json.format(msgspec.json.encode(content), indent=2).removeprefix(b"{\n") + b"\n"
    write_whole(path, _OPENING % hashlib.sha256(text).hexdigest().encode() + text)


def read_checked(path: Path) -> bytes:
    """Return the JSON object that `write_checked` wrote, without its checksum.

    Raises OSError if it cannot be read, ValueError if it has no checksum, ChangedError if the checksum does not match.
    """
    content = path.read_bytes()
    opening = _CHECKED.match(content)
    if opening is None:
        raise ValueError("it does not begin with its own checksum")
    text = content[opening.end() :]
    if hashlib.sha256(text).hexdigest().encode() != opening[1]:
        raise ChangedError("it does not match its own checksum")
    return b"{\n" + text
