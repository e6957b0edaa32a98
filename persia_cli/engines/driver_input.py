"""The input of a driver, and of a replica that it starts: keys, credentials and the configuration.

It comes by standard input. The first line has the job's keys, as a file of keys does. The second has the credentials of
URIs, as the environment of a role on the driver's own machine; it may be empty. What follows is the configuration, for
a coordinator.
"""

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from persia_cli.config.record import to_yaml
from persia_cli.config.schema import Run
from persia_cli.engines.job import anchored
from persia_cli.engines.key_files import key_file_of
from persia_cli.errors import ConfigError
from persia_cli.storage.addresses import VARIABLE
from persia_cli.store.memory_file import new_file
from persia_cli.wire.secret import JobKeys, new_keys, read_keys

STDIN = "-"
"""Stands for standard input where a file is expected."""
NOTHING = "-"
"""Stands for no keys, or no credentials."""
_DESCRIPTOR = re.compile(r"/proc/self/fd/(\d+)")


@dataclass(frozen=True, slots=True)
class DriverInput:
    """The keys as a file in memory, which only this process and its children can open, and the configuration."""

    key_file: Path | None
    config: str


def input_text(keys: JobKeys, config: str = "") -> str:
    """Return what to write to the standard input of a role or a driver."""
    return "\n".join([keys.secret.decode(), os.environ.get(VARIABLE, ""), config])


def read_input(source: BinaryIO) -> DriverInput:
    """Read all that is handed over; raises ConfigError if it is no text."""
    try:
        keys, _, rest = source.read().decode().partition("\n")
    except UnicodeDecodeError:
        raise ConfigError("--key-file -: standard input is not text") from None
    credentials, _, config = rest.partition("\n")
    return DriverInput(None if keys == NOTHING else _key_file_with(keys, credentials), config)


def read_first_lines(source: BinaryIO) -> Path:
    """Read the keys and credentials alone, and return the file of the keys; the input goes on."""
    return _key_file_with(*(source.readline().decode(errors="replace").rstrip("\n") for _ in range(2)))


def _key_file_with(keys: str, credentials: str) -> Path:
    if credentials not in ("", NOTHING):
        os.environ[VARIABLE] = credentials
    return file_in_memory(keys)


def file_in_memory(secret: str) -> Path:
    """Return the path of a new file that is nowhere but in memory, private to this user, with one line."""
    file = new_file("keys")
    os.fchmod(file, 0o600)
    os.write(file, f"{secret}\n".encode())
    return Path(f"/proc/self/fd/{file}")


def descriptors(files: Sequence[Path | None]) -> tuple[int, ...]:
    """Return the descriptors that a child process has to inherit to open these files under the same paths."""
    matches = (_DESCRIPTOR.fullmatch(str(file)) for file in files)
    return tuple(int(match[1]) for match in matches if match)


def configuration(run: Run) -> str:
    """Return the configuration, with absolute paths, as the text of a file that `conf=PATH` reads.

    Nothing in it is secret: keys are never in a run, and credentials of URIs have left it when it was read.
    """
    return to_yaml(anchored(run))


def keys_of_job() -> JobKeys:
    """Return the keys that the user names, or else new ones."""
    given = key_file_of(None, None)
    return new_keys() if given is None else read_keys(given)
