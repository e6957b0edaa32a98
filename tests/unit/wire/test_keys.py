"""Files of keys: private, never overwritten, and identified by a fingerprint that reveals nothing."""

import base64
import stat
from pathlib import Path

import pytest

from persia_cli.errors import UserError
from persia_cli.wire.secret import (
    JobKeys,
    JobSecret,
    new_keys,
    new_token,
    read_keys,
    read_secret,
    write_keys,
    write_token,
)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "keys"


def test_keys_come_back_from_a_file_that_is_private(file: Path) -> None:
    keys = new_keys()
    write_keys(file, keys)
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert read_keys(file) == keys
    assert [path.name for path in file.parent.iterdir()] == ["keys"]
    assert read_secret(file) == JobSecret.of(keys)
    assert new_keys() != keys


def test_no_file_is_overwritten(file: Path) -> None:
    keys = new_keys()
    write_keys(file, keys)
    with pytest.raises(UserError, match=f"job's keys to {file}: the file exists; name another, or remove it"):
        write_keys(file, new_keys())
    assert read_keys(file) == keys


@pytest.mark.parametrize("mode", [0o644, 0o640, 0o604, 0o660, 0o622])
def test_a_file_that_others_can_read_is_refused(file: Path, mode: int) -> None:
    write_keys(file, new_keys())
    file.chmod(mode)
    for read in (read_keys, read_secret):
        with pytest.raises(UserError, match=f"other users can access .* in {file}; make the file private: chmod 600"):
            read(file)


@pytest.mark.parametrize("content", ["", "x", "~" * 40, "a" * 39, "a" * 41, "é" * 40, "\n" * 40, "0" * 32])
def test_a_file_without_keys_is_named(file: Path, content: str) -> None:
    file.write_text(content)
    file.chmod(0o600)
    with pytest.raises(UserError, match=f"{file} does not contain keys; make a file of keys with `persia keys new"):
        read_keys(file)


def test_a_token_is_no_key_and_the_secret_of_a_job_all_the_same(file: Path) -> None:
    token = new_token()
    write_token(file, token)
    assert read_secret(file) == JobSecret(token)
    with pytest.raises(UserError, match="does not contain keys"):
        read_keys(file)


def test_keys_are_shown_as_a_fingerprint() -> None:
    keys = new_keys()
    assert len(keys.fingerprint) == 8
    int(keys.fingerprint, 16)
    assert keys.fingerprint == JobKeys(keys.secret, keys.public).fingerprint != new_keys().fingerprint
    secret = keys.secret.decode()
    for shown in (repr(keys), str(keys), repr(JobSecret.of(keys)), keys.fingerprint):
        assert secret not in shown
        assert keys.token.hex() not in shown
        assert base64.b64encode(keys.secret).decode() not in shown
