"""Files with a secret, which only their user can read."""

import os
import stat
from pathlib import Path

from persia_cli.disk import rename
from persia_cli.errors import UserError

MAX_BYTES = 1024
ROOT = 0
"""User id of root, who can read all files anyway."""


def write_private(path: Path, text: str, what: str) -> None:
    """Write a line atomically to a new file; raises UserError if the file exists or cannot be written.

    `what` names the content in errors.
    """
    draft = path.with_name(f"{path.name}.{os.getpid()}")
    try:
        file = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        try:
            with os.fdopen(file, "w", encoding="ascii") as draft_file:
                draft_file.write(f"{text}\n")
            rename(draft, path, overwrite=False)
        finally:
            draft.unlink(missing_ok=True)
    except FileExistsError as error:
        raise UserError(f"cannot write {what} to {path}: the file exists; name another, or remove it") from error
    except OSError as error:
        raise UserError(f"cannot write {what} to {path}: {error.strerror}") from error


def read_private(path: Path, what: str) -> str:
    """Return the line in a file; raise UserError if there is none, or if other users could read it.

    A file that root shares read-only with a group of this user counts as private.
    """
    try:
        with path.open(encoding="ascii", errors="replace") as file:
            rights = os.fstat(file.fileno())
            lent = _is_lent(file.fileno(), rights)
            text = file.read(MAX_BYTES).strip()
    except OSError as error:
        raise UserError(f"cannot read {what} from {path}: {error.strerror}") from error
    if not lent and (rights.st_uid not in (os.geteuid(), ROOT) or stat.S_IMODE(rights.st_mode) & 0o077):
        raise UserError(f"other users can access {what} in {path}; make the file private: chmod 600 {path}")
    return text


def _is_lent(file: int, rights: os.stat_result) -> bool:
    """Return True for a file as Kubernetes mounts a Secret: of root, on a read-only mount, readable by the pod's group.

    A process of another user has no other way to read it. On an ordinary disk the same rights are more likely a
    mistake, and others may be in the group.
    """
    others_cannot = not stat.S_IMODE(rights.st_mode) & 0o037
    is_read_only = bool(os.fstatvfs(file).f_flag & os.ST_RDONLY)
    in_group = rights.st_gid in (os.getegid(), *os.getgroups())
    return rights.st_uid == ROOT != os.geteuid() and others_cannot and in_group and is_read_only
