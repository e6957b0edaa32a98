"""The claim of a run on the folder of its checkpoints, if that is outside the run directory.

`WRITER` next to the checkpoints names the run directory that writes there, with a random id; the directory has a copy.
A run starts only where both have the same id, or where nothing is saved. A directory that has fetched the record of a
run gets the id too, and a new one when it starts, so the former directory is refused from then on. A running job
compares the ids before each save: of two runs that start at once, the one that claimed the folder first ends.
"""

import secrets
from collections.abc import Callable
from pathlib import Path

import msgspec

from persia_cli.disk import write_whole
from persia_cli.errors import CheckpointError, ConfigError, DiskError
from persia_cli.storage.locations import Location, location_of, put
from persia_cli.storage.remote import without_secret
from persia_cli.store.checkpoints.manifest import checkpoints_of, finished_steps
from persia_cli.store.checkpoints.retention import remove_unfinished

WRITER = "writer.json"
"""Name of the file, next to the checkpoints and in the run directory, that names their run."""


class Writer(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The content of `WRITER`: the run directory, as an absolute path, its machine, and the id of its claim."""

    run_dir: str
    host: str
    """Empty in a directory that has fetched the record, until it starts."""
    id: str


# Created at import, like the decoder of jobs in `plan/job.py`, since threads must not be the first to use a type.
_DECODER = msgspec.json.Decoder(Writer)


def claim(path: str, run_dir: Path, host: str, is_at_work: Callable[[Path], bool] = lambda run_dir: False) -> None:
    """Record in `checkpoint.path` that the run saves there, and remove unfinished checkpoints of a killed run.

    On a disk, the start of the job removes those. This is the first write to the place, before training.
    `is_at_work` returns whether a run on this machine is running. Raise ConfigError if the place cannot be read or
    written, if it has checkpoints of another run, or if another run on this machine saves there.
    """
    try:
        checkpoints = location_of(path)
        require_writer(checkpoints, run_dir)
        before, present = writer_of(checkpoints), claim_of(run_dir)
        here = str(run_dir.absolute())
        if before is not None and _is_neighbour(before, run_dir, host) and is_at_work(Path(before.run_dir)):
            raise ConfigError(
                f"checkpoint.path={checkpoints} is in use: the run in {before.run_dir} on {host} saves there and "
                "still runs; choose another folder, or end that run first"
            )
        claimed = Writer(here, host, present.id if present is not None and present.host else secrets.token_hex(8))
        put(checkpoints / WRITER, _encoded(claimed))
        if not isinstance(checkpoints, Path):
            remove_unfinished(checkpoints)
    except (OSError, CheckpointError, DiskError) as error:
        raise ConfigError(f"checkpoint.path={without_secret(path)} cannot be used: {error}") from error
    write_whole(run_dir / WRITER, _encoded(claimed))


def require_writer(checkpoints: Location, run_dir: Path) -> None:
    """Raise ConfigError if the folder has checkpoints of another run, CheckpointError if it does not answer."""
    if is_writer(checkpoints, run_dir) or not finished_steps(checkpoints):
        return
    require_claim(checkpoints, run_dir)
    writer = writer_of(checkpoints)
    owner = f"the run in {writer.run_dir} on {writer.host}" if writer else "another run"
    raise ConfigError(
        f"checkpoint.path={checkpoints} has checkpoints of {owner}; choose another folder, or continue that run "
        "with persia resume"
    )


def require_claim(checkpoints: Location, run_dir: Path) -> None:
    """Raise ConfigError if another run has claimed the folder since; CheckpointError if it does not answer."""
    present, writer = claim_of(run_dir), writer_of(checkpoints)
    if present is not None and writer is not None and present.id != writer.id:
        raise ConfigError(
            f"the run in {run_dir} was taken over by {writer.run_dir} on {writer.host}; persia resume {checkpoints} "
            "continues from there, and a new run needs another checkpoint.path"
        )


def _is_neighbour(before: Writer, run_dir: Path, host: str) -> bool:
    """Return whether the writer is another directory of this machine, so that this process does not hold its lock."""
    return before.host == host and Path(before.run_dir).resolve() != run_dir.resolve()


def is_writer(checkpoints: Location, run_dir: Path) -> bool:
    """Return True if a run directory may write its checkpoints there: it writes them, or has fetched their record."""
    present, writer = claim_of(run_dir), writer_of(checkpoints)
    return present is not None and writer is not None and present.id == writer.id


def writer_of(folder: Location) -> Writer | None:
    """Return the run that writes its checkpoints here, None if none does; raise CheckpointError if it is damaged."""
    path = folder / WRITER
    try:
        return _DECODER.decode(path.read_bytes())
    except (FileNotFoundError, NotADirectoryError):
        return None
    except ValueError as error:
        raise CheckpointError(
            f"{path} is damaged ({error}); the run directory and its checkpoint.path have equal copies of this file: "
            "replace it with the other one"
        ) from error


def claim_of(run_dir: Path) -> Writer | None:
    """Return the claim of a run directory; None if it has none, or if it was copied from another one."""
    writer = writer_of(run_dir)
    return writer if writer is not None and Path(writer.run_dir).resolve() == run_dir.resolve() else None


def has_only_fetched(run_dir: Path) -> bool:
    """Return True if a run directory has fetched the record of a run, and has not started."""
    present = claim_of(run_dir)
    return present is not None and not present.host


def allow_to_continue(checkpoints: Location, run_dir: Path) -> None:
    """Let a run directory, which has fetched the record of a run, take over its checkpoints; raise DiskError."""
    if (writer := writer_of(checkpoints)) is not None:
        write_whole(run_dir / WRITER, _encoded(Writer(str(run_dir.absolute()), "", writer.id)))


def _encoded(writer: Writer) -> bytes:
    return msgspec.json.encode(writer) + b"\n"


def remove_unfinished_of(run_dir: Path, path: str | None) -> None:
    """Remove checkpoints that a run has not finished, unless another run directory has taken it over since."""
    checkpoints = checkpoints_of(run_dir, path)
    try:
        writes_there = path is None or (is_writer(checkpoints, run_dir) and not has_only_fetched(run_dir))
    except CheckpointError:
        writes_there = False  # the store does not answer; the next start removes them
    if writes_there:
        remove_unfinished(checkpoints)
