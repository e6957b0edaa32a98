"""Text files that are not UTF-8: they are refused, with the command that converts them."""

import re
from typing import Any

from persia_cli.data.read.files import DataFile
from persia_cli.data.read.text_files import TextStream
from persia_cli.errors import DataError

_HEAD_BYTES = 256
_MARKS = (b"\xff\xfe", b"\xfe\xff")


def refuse_utf16(filesystem: Any, file: DataFile) -> None:
    """Raise DataError for a file in UTF-16, which may look like text with a zero byte beside each letter."""
    with TextStream(filesystem, file) as stream:
        head = stream.read(_HEAD_BYTES)
    encoding = "UTF-16" if head.startswith(_MARKS) else _unmarked(head)
    if encoding is not None:
        raise DataError(
            f"{file.path}: the file is not UTF-8 (it begins as {encoding} does); convert it, as "
            f"iconv -f {encoding} -t UTF-8 does"
        )


def not_utf8(file: DataFile, error: Exception) -> DataError | None:
    """Return the error for users if `error`, of reading a CSV, says that the file is not UTF-8."""
    text = str(error)
    if isinstance(error, UnicodeDecodeError):
        where = " (in its header)"
    elif "invalid UTF8" in text:
        place = re.search(r"column #(\d+): Row #(\d+)", text)
        where = f" (row {int(place[2]):,}, field {int(place[1]) + 1})" if place else ""
    else:
        return None
    return DataError(
        f"{file.path}: the file is not UTF-8{where}; convert it from its encoding, for instance as "
        "iconv -f WINDOWS-1252 -t UTF-8 does"
    )


def _unmarked(head: bytes) -> str | None:
    """Return the kind of UTF-16 if every other byte is zero, as in plain English."""
    pairs = len(head) // 2
    if pairs < 2:
        return None
    low, high = head[0 : 2 * pairs : 2], head[1 : 2 * pairs : 2]
    if not any(high) and all(low):
        return "UTF-16LE"
    return "UTF-16BE" if not any(low) and all(high) else None
