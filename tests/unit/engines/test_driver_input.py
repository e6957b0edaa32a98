"""Input of roles on other machines through their standard input."""

import io
import os
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from persia_cli.engines.driver_input import descriptors, file_in_memory, input_text, read_first_lines, read_input
from persia_cli.errors import ConfigError
from persia_cli.storage.addresses import VARIABLE
from persia_cli.wire.secret import new_keys, read_keys


def _in_memory() -> set[int]:
    """The descriptors of this process's files in memory that hold keys."""
    found = [path for path in Path("/proc/self/fd").iterdir() if path.is_symlink()]
    return {int(path.name) for path in found if str(path.readlink()).startswith("/memfd:keys")}


@pytest.fixture(autouse=True)
def _closed() -> Iterator[None]:
    """Close the files in memory that a test makes, and forget credentials."""
    before, credentials = _in_memory(), os.environ.pop(VARIABLE, None)
    yield
    for name in _in_memory() - before:
        os.close(name)
    os.environ.pop(VARIABLE, None)
    if credentials is not None:
        os.environ[VARIABLE] = credentials


def test_keys_credentials_and_configuration_arrive_unchanged(monkeypatch: pytest.MonkeyPatch) -> None:
    keys = new_keys()
    monkeypatch.setenv(VARIABLE, '{"s3://a": ["user:secret", ""]}')
    text = input_text(keys, "name: a\nseed: 1\n")
    monkeypatch.delenv(VARIABLE)
    handed = read_input(io.BytesIO(text.encode()))
    assert handed.key_file is not None
    assert read_keys(handed.key_file) == keys
    assert read_keys(handed.key_file) == keys  # each process of a role reads it
    assert handed.config == "name: a\nseed: 1\n"
    assert os.environ[VARIABLE] == '{"s3://a": ["user:secret", ""]}'


def test_keys_or_a_configuration_may_come_alone() -> None:
    keys = new_keys()
    handed = read_input(io.BytesIO(keys.secret + b"\n"))
    assert handed.key_file is not None
    assert (read_keys(handed.key_file), handed.config) == (keys, "")
    handed = read_input(io.BytesIO(b"-\n-\nname: a\n"))
    assert (handed.key_file, handed.config) == (None, "name: a\n")


def test_keys_are_read_while_the_input_goes_on() -> None:
    keys = new_keys()
    out, source = os.pipe()
    with os.fdopen(out, "rb") as reader, os.fdopen(source, "wb") as writer:
        writer.write(input_text(keys).encode())
        writer.flush()
        assert read_keys(read_first_lines(reader)) == keys


def test_the_file_is_private_and_only_heirs_can_open_it() -> None:
    file = file_in_memory("secret")
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    program = [sys.executable, "-c", f"print(open('{file}').read())"]
    heir = subprocess.run(program, pass_fds=descriptors([file]), capture_output=True, text=True)
    assert heir.stdout.strip() == "secret"
    assert subprocess.run(program, capture_output=True).returncode


def test_what_is_no_text_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"^--key-file -: standard input is not text"):
        read_input(io.BytesIO(b"\xff\xfe"))
