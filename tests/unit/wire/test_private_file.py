"""A secret that root lends to a user's group is read where Kubernetes mounts it, and nowhere else."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

import persia_cli
from tests.support.hosts import needs_hosts

SECRET, MOUNT = "word", "/run/persia-secret"
PROGRAM = "/run/program"
"""A folder in which the other user sees the package, whose own folder may be private."""
USER, GROUP = 12345, 23456
AS_USER = f"setpriv --reuid={USER} --regid={USER} --groups={{groups}} --no-new-privs"
READ = """
import sys
from pathlib import Path
from persia_cli.errors import UserError
from persia_cli.wire.private_file import read_private
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
