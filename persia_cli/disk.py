"""Writing to disk: atomic files, folders that one process owns, and clear sentences for errors of the disk.

Only this module renames files, so that every file that appears by a rename survives a power cut.
"""

import errno
import fcntl
import os
import secrets
import shutil
import stat
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from itertools import count
from pathlib import Path
from typing import BinaryIO

from persia_cli.errors import DiskError, DiskFaultError, UserError

CLAIM_S = 0.2
"""Seconds for which `claim` tries to lock a file, since readers lock it briefly to see if a process holds it."""
FULL_BYTES = 2**12
"""Free bytes below which a disk counts as full."""
ELSEWHERE = "free space or choose another place"
REASONS = {
    errno.ENOSPC: ("disk full: cannot write {path}", ELSEWHERE),
    errno.EDQUOT: ("disk quota used up: cannot write {path}", ELSEWHERE),
    errno.EFBIG: ("cannot write {path}: it would be larger than files may be here", "raise the limit (see ulimit -f)"),
    errno.EROFS: ("cannot write {path}: the file system is read-only", "choose another place"),
    errno.EACCES: ("cannot write {path}: permission denied", "choose another place, or ask its owner to allow it"),
    errno.EPERM: ("cannot write {path}: not permitted", "choose another place, or ask its owner to allow it"),
    errno.ENAMETOOLONG: ("{path} has a longer name than the file system allows (255 bytes)", "choose a shorter one"),
    errno.ENOTDIR: ("{path} cannot be a path, since a file is where it needs a folder", "choose another place"),
    errno.EIO: ("cannot write {path}: input/output error", "the disk may be failing; choose another place"),
}
"""Error number of the operating system -> the problem and a remedy."""
FAULTS = (errno.ENOSPC, errno.EDQUOT, errno.EIO)
"""Those that are no mistake of the user."""


def disk_error(error: OSError, path: Path | str) -> DiskError:
    """Return the operating system's error for `path` as a DiskError with a remedy."""
    what, remedy = REASONS.get(error.errno or 0, ("cannot write {path}: {error}", "choose another place"))
    kind = DiskFaultError if error.errno in FAULTS else DiskError
    return kind(f"{what.format(path=path, error=error.strerror or error)}; {remedy}")


def refusal(error: BaseException) -> DiskError | None:
    """Return a DiskError for a full or read-only disk and for a path that cannot be one, None for other errors."""
    refused = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.ENAMETOOLONG, errno.ENOTDIR)
    if not isinstance(error, OSError) or error.errno not in refused:
        return None
    return disk_error(error, error.filename or "a file, or what is printed")


def open_regular(path: Path, most: int) -> BinaryIO:
    """Open a file for reading that another user may have put there.

    Raises OSError for one that is no regular file, such as a pipe, which could make readers wait for ever, and for one
    of more than `most` bytes.
    """
    number = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    found = os.fstat(number)
    if not stat.S_ISREG(found.st_mode):
        os.close(number)
        raise OSError(errno.EINVAL, "it is no regular file", str(path))
    if found.st_size > most:
        os.close(number)
        raise OSError(errno.EFBIG, f"it has {found.st_size:,} bytes, and at most {most:,} are read", str(path))
    return os.fdopen(number, "rb")


def read_regular(path: Path, most: int = 2**24) -> bytes:
    """Return the content of a file of at most `most` bytes; raises OSError as `open_regular` does."""
    with open_regular(path, most) as file:
        return file.read(most)


def is_out_of_space(error: DiskError) -> bool:
    """Return True if the cause of an error is a full disk or quota."""
    return isinstance(error.__cause__, OSError) and error.__cause__.errno in (errno.ENOSPC, errno.EDQUOT)


def is_full(folder: Path) -> bool:
    """Return True if the disk of a folder has no space, as far as that is known."""
    with suppress(OSError):
        return shutil.disk_usage(folder).free < FULL_BYTES
    return False


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Raise every OSError of the context as a DiskError that names `path`."""
    try:
        yield
    except OSError as error:
        raise disk_error(error, path) from error


def link(file: int, path: Path) -> bool:
    """Give an open file another name, once it is on the disk; return False if that is not possible.

    The file may have lost its first name, or another file may have it now. Raise DiskError if it cannot be synced.
    """
    with writing(path):
        os.fdatasync(file)
    with suppress(OSError):
        os.link(f"/proc/self/fd/{file}", path, src_dir_fd=file, follow_symlinks=True)
        return True
    return False


def link_briefly(source: Path, target: Path) -> None:
    """Give a file another name in a temporary folder, which is not synced; raises OSError.

    It stays if the first name is removed, except on another file system, where it is a symbolic link.
    """
    try:
        os.link(source, target)
    except OSError:
        target.symlink_to(source.absolute())


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yield a temporary path next to `path` to write to; at the end that file is synced and renamed to `path`.

    Readers see the old file or the complete new one, even after a power cut. After a failure the old file is unchanged
    and the temporary one is removed. Raises DiskError.
    """
    part = path.with_name(f"{path.name}.{secrets.token_hex(4)}.part")
    try:
        with writing(path):
            yield part
            rename(part, path)
    finally:
        with suppress(OSError):
            part.unlink(missing_ok=True)


def write_whole(path: Path, content: str | bytes) -> None:
    """Write a file as `replacing` does; text becomes UTF-8."""
    with replacing(path) as part:
        part.write_bytes(content.encode() if isinstance(content, str) else content)


def rename(source: Path, target: Path, overwrite: bool = True) -> None:
    """Rename a file or folder so that the new name, and all of a file's content, survive a power cut.

    The files of a folder must be synced before. Without `overwrite`, raises FileExistsError if there is
    a file of that name. Raises OSError.
    """
    sync(source)
    if overwrite:
        source.replace(target)
    else:
        _link(source, target)
    sync(target.parent)


def _link(source: Path, target: Path) -> None:
    """Rename a file without replacing another one; of two processes that try, one succeeds."""
    try:
        os.link(source, target)
    except FileExistsError:
        raise
    except OSError as error:
        # This file system has no links, so another process can create the file between the two calls.
        if target.exists():
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(target)) from error
        source.replace(target)
    else:
        source.unlink()


def sync(path: Path) -> None:
    """Sync a file's content, or the names in a folder, to disk, so that they survive a power cut."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        # Some network file systems cannot sync folders.
        if error.errno != errno.EINVAL or not path.is_dir():
            raise
    finally:
        os.close(descriptor)


def claim_folder(folder: Path) -> Path:
    """Create a new folder and return it; if the name is taken, -2, -3 … is added. No other process gets the same one.

    Raises DiskError.
    """
    with writing(folder):
        for number in count(1):
            claimed = folder if number == 1 else folder.with_name(f"{folder.name}-{number}")
            try:
                claimed.mkdir(parents=True)
            except FileExistsError:
                continue
            return claimed
    raise AssertionError("numbers do not end")


def is_held(descriptor: int) -> bool:
    """Try to lock an open file or folder for this process; returns True if another process holds the lock.

    The lock ends when the descriptor is closed, or when the process ends in any way.
    """
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    return False


def claim(descriptor: int) -> bool:
    """Lock an open file or folder for this process; returns False if another process holds the lock for CLAIM_S."""
    deadline = time.monotonic() + CLAIM_S
    while is_held(descriptor):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.01)
    return True


@contextmanager
def own_folder(prefix: str) -> Iterator[Path]:
    """Yield a new folder of this user alone, whose name begins with `prefix`, and remove it at the end.

    Folders of such names whose process has ended are removed first. Raises OSError.
    """
    place = Path(tempfile.gettempdir())
    _remove_left(place, prefix)
    folder, lock = _claimed(place, prefix)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        os.close(lock)


def _claimed(place: Path, prefix: str) -> tuple[Path, int]:
    """Create a folder and lock it; if another process removed it in between, as an abandoned one, try again."""
    while True:
        folder = Path(tempfile.mkdtemp(prefix=prefix, dir=place))
        with suppress(FileNotFoundError):
            lock = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
            try:
                if not is_held(lock) and folder.exists():
                    return folder, lock
            except BaseException:
                shutil.rmtree(folder, ignore_errors=True)
                os.close(lock)
                raise
            os.close(lock)


def _remove_left(place: Path, prefix: str) -> None:
    """Remove folders of this user without a lock."""
    for folder in place.glob(f"{prefix}*"):
        try:
            descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
        except OSError:
            continue
        try:
            if os.fstat(descriptor).st_uid == os.geteuid() and not is_held(descriptor):
                shutil.rmtree(folder, ignore_errors=True)
        except OSError:  # this file system does not lock folders; _claimed raises the error there
            continue
        finally:
            os.close(descriptor)


# Files with a secret, which only their user can read

SECRET_BYTES = 1024
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
            text = file.read(SECRET_BYTES).strip()
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
