"""The folders of cold logs: `PATH/RUN/embedding-server-N`, where RUN has the name of a run and a hash of its place."""

import os
import re
import shutil
from contextlib import suppress
from hashlib import blake2b
from pathlib import Path

from persia_cli.errors import ConfigError
from persia_cli.storage.addresses import local_path

SERVER = "embedding-server-"


def run_folder(path: str, run_dir: Path) -> Path:
    """Return the folder of all servers of a run: no other run has it, and each start of this one has the same."""
    absolute = run_dir.absolute()
    return local_path(path) / f"{absolute.name}-{blake2b(str(absolute).encode(), digest_size=4).hexdigest()}"


def server_folder(run: Path, server: int) -> Path:
    """Return the folder of one server in that of its run."""
    return run / f"{SERVER}{server}"


def require_space(path: str, run: Path, nbytes: int) -> None:
    """Raise ConfigError unless the folder `path`, or its parent, can be written and has so much space for a run."""
    folder = local_path(path).absolute()
    given = f"embedding.cold.path={path}"
    there = folder if folder.exists() else folder.parent
    if not there.is_dir():
        what = "is not a folder" if folder.exists() else f"there is no folder {there}"
        raise ConfigError(f"{given}: {what}; give a folder on a disk of this machine")
    if not os.access(there, os.W_OK | os.X_OK):
        raise ConfigError(f"{given}: {there} cannot be written; choose another folder, or ask its owner to allow it")
    # Files that an earlier start of the run has left go when it starts.
    free = shutil.disk_usage(there).free + sum(_used(file) for file in run.rglob("*"))
    if free < nbytes:
        raise ConfigError(
            f"{given}: {nbytes:,} bytes are wanted there and {free:,} are free; give embedding.cold.size a lower "
            "value, or choose another disk"
        )


def _used(path: Path) -> int:
    try:
        return path.lstat().st_blocks * 512
    except FileNotFoundError:
        return 0


def clear(run: Path, server: int, servers: int) -> None:
    """Remove the files that earlier starts of a run have left of a server, and of those that it has no more."""
    with suppress(FileNotFoundError):
        for folder in run.iterdir():
            match = re.fullmatch(rf"{SERVER}(\d+)", folder.name)
            if match and (int(match[1]) == server or int(match[1]) >= servers):
                shutil.rmtree(folder, ignore_errors=True)


def leave(run: Path, server: int) -> None:
    """Remove the folder of a server, and that of its run, unless there are files in them."""
    with suppress(OSError):
        server_folder(run, server).rmdir()
        run.rmdir()
