"""Files of keys: private, never overwritten, lent by root where Kubernetes mounts them, and shown as a fingerprint."""

import base64
import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

import persia_cli
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
from tests.support.hosts import needs_hosts


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


SECRET, MOUNT = "word", "/run/persia-secret"
PROGRAM = "/run/program"
"""A folder in which the other user sees the package, whose own folder may be private."""
USER, GROUP = 12345, 23456
AS_USER = f"setpriv --reuid={USER} --regid={USER} --groups={{groups}} --no-new-privs"
READ = """
import sys
from pathlib import Path
from persia_cli.errors import UserError
from persia_cli.disk import read_private
try:
    print(read_private(Path(sys.argv[1]), "the secret"))
except UserError as error:
    sys.exit(str(error))
"""
MAKE = """
set -e
mount -t tmpfs tmpfs /run
mkdir -p {mount} {program}/persia_cli
mount --bind "$2" {program}/persia_cli
mount -t tmpfs -o mode=755 tmpfs {mount}
echo {secret} > {mount}/keys
chown {owner} {mount}/keys
chmod {mode} {mount}/keys
{remount}
cd /
exec {as_user} "$0" -P -c "$1" {mount}/keys
"""
READ_ONLY = f"mount -o remount,ro {MOUNT}"


def read_in_a_mount(mode: str, owner: str = f"0:{GROUP}", groups: int = GROUP, remount: str = READ_ONLY) -> str:
    """The content of a file of a mount that a process of another user reads, or its error."""
    as_user = AS_USER.format(groups=groups)
    script = MAKE.format(
        mount=MOUNT, program=PROGRAM, secret=SECRET, owner=owner, mode=mode, remount=remount, as_user=as_user
    )
    # The interpreter itself, and not a link to it in a folder that the other user may not enter either.
    python, package = str(Path(sys.executable).resolve()), str(Path(persia_cli.__file__).parent)
    command = ["unshare", "--mount", "/bin/sh", "-c", script, python, READ, package]
    environment = os.environ | {"PYTHONPATH": PROGRAM}
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60, env=environment)
    return ended.stdout.strip() or ended.stderr.strip()


@needs_hosts
def test_a_file_of_root_and_the_users_group_on_a_read_only_mount_is_read() -> None:
    assert read_in_a_mount("440") == SECRET


@needs_hosts
@pytest.mark.parametrize(
    "changed",
    [
        {"remount": ""},
        {"mode": "444"},
        {"mode": "460"},
        {"owner": f"{USER + 1}:{GROUP}", "mode": "440"},
        {"owner": f"{USER}:{GROUP}", "mode": "440"},
    ],
    ids=["on a disk", "for all", "to write", "of another user", "of the user"],
)
def test_any_other_file_that_more_than_its_user_can_access_is_refused(changed: dict[str, str]) -> None:
    said = read_in_a_mount(**{"mode": "440", **changed})
    assert said.startswith("other users can access the secret in"), said


@needs_hosts
def test_a_group_that_the_user_is_not_in_lends_nothing() -> None:
    assert "Permission denied" in read_in_a_mount("440", groups=GROUP + 1)
