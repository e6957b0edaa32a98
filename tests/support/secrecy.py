"""A search for a job's secret in files, command lines, environments and logs."""

import base64
from collections.abc import Iterable, Iterator
from pathlib import Path

import psutil
from zmq.utils import z85

from persia_cli.wire.secret import JobKeys


def forms_of(keys: JobKeys) -> list[bytes]:
    """Return the secret key and the token of a job in every usual encoding."""
    raw = [bytes(z85.decode(keys.secret)), keys.secret, keys.token]
    texts = [form for each in raw for form in (each.hex(), each.hex().upper(), base64.b64encode(each).decode())]
    return [*raw, *(text.rstrip("=").encode() for text in texts)]


def leaks_in_files(keys: JobKeys, folders: Iterable[Path]) -> list[Path]:
    """Return the files below these folders with the secret, in any encoding."""
    forms = forms_of(keys)
    files = [path for folder in folders for path in folder.rglob("*") if path.is_file() and not path.is_symlink()]
    assert files
    return [path for path in files if any(form in path.read_bytes() for form in forms)]


def leaks_in_processes(keys: JobKeys, processes: Iterable[psutil.Process]) -> Iterator[str]:
    """Yield the command lines and environments of processes with the secret, in any encoding."""
    forms = forms_of(keys)
    for process in processes:
        for what in ("cmdline", "environ"):
            try:
                content = Path(f"/proc/{process.pid}/{what}").read_bytes()
            except OSError:
                continue
            if any(form in content for form in forms):
                yield f"{what} of {process.pid}: {content!r}"
