"""The claim of a run on the folder of its checkpoints, if that is outside the run directory.

A file next to the checkpoints names the run directory that writes there, with a random id, which that directory has
too. A directory that has fetched the record of a run may take over: its claim has the former writer's id. Each writer
reads the file before it publishes a checkpoint, so the former one ends there.
"""

import secrets
from collections.abc import Callable
from pathlib import Path

import msgspec

from persia_cli.disk import write_whole
from persia_cli.errors import CheckpointError, ConfigError, DiskError, UserError
from persia_cli.storage.places import Place, place_of, put
from persia_cli.storage.remote import without_secret
from persia_cli.store.checkpoints.manifest import checkpoints_of, finished_steps
from persia_cli.store.checkpoints.retention import remove_unfinished

WRITER = "writer.json"
"""Name of the file, next to the checkpoints, that names their run."""
CLAIM = "claim.json"
"""Name of the file, in a run directory, with its claim."""


class OvertakenError(UserError):
    """Another run directory has taken over a run that this one trains."""


class Writer(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The content of `WRITER`: the run directory, as an absolute path, its machine, and the id of its claim."""

    run_dir: str
    host: str
    id: str


class Claim(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The content of `CLAIM`: the id of the claim, and that of the writer that it may replace."""

    id: str
    run_dir: str
    """The directory itself, as an absolute path: a copy of it has no claim."""
    former: str = ""


# Created at import, like the decoder of jobs in `plan/job.py`, since threads must not be the first to use a type.
_DECODER = msgspec.json.Decoder(Writer)
_CLAIM_DECODER = msgspec.json.Decoder(Claim)


def claim(path: str, run_dir: Path, host: str, is_at_work: Callable[[Path], bool] = lambda run_dir: False) -> None:
    """Record in `checkpoint.path` that the run saves there, and remove unfinished checkpoints of a killed run.

    On a disk, the start of the job removes those. This is the first write to the place, before training.
    `is_at_work` returns whether a run on this machine is running. Raise ConfigError if the place cannot be read or
    written, if it has checkpoints of another run, or if another run on this machine saves there.
    """
    try:
        checkpoints = place_of(path)
        steps, before, own_claim = finished_steps(checkpoints), writer_of(checkpoints), read_claim(run_dir)
        own = Writer(str(run_dir.absolute()), host, own_claim.id if own_claim else secrets.token_hex(8))
        if steps and not _is_allowed(before, own_claim):
            raise ConfigError(_refusal(checkpoints, before, run_dir, own_claim))
        if before is not None and _is_neighbour(before, own) and is_at_work(Path(before.run_dir)):
            raise ConfigError(
                f"checkpoint.path={checkpoints} is in use: the run in {before.run_dir} on {host} saves there and "
                "still runs; choose another folder, or end that run first"
            )
        put(checkpoints / WRITER, msgspec.json.encode(own) + b"\n")
        if not isinstance(checkpoints, Path):
            remove_unfinished(checkpoints)
    except (OSError, CheckpointError, DiskError) as error:
        raise ConfigError(f"checkpoint.path={without_secret(path)} cannot be used: {error}") from error
    write_claim(run_dir, own.id)


def _is_allowed(before: Writer | None, own: Claim | None) -> bool:
    return before is not None and own is not None and before.id in (own.id, own.former)


def _is_neighbour(before: Writer, own: Writer) -> bool:
    """Return whether the writer is another directory of this machine; this process holds the lock of its own."""
    return before.host == own.host and Path(before.run_dir).resolve() != Path(own.run_dir).resolve()


def _refusal(checkpoints: Place, before: Writer | None, run_dir: Path, own: Claim | None) -> str:
    if own is not None and before is not None:
        return _overtaken(checkpoints, run_dir, before)
    owner = f"the run in {before.run_dir} on {before.host}" if before else "another run"
    return (
        f"checkpoint.path={checkpoints} has checkpoints of {owner}; choose another folder, or continue that run "
        "with persia resume"
    )


def _overtaken(checkpoints: Place, run_dir: Path, by: Writer) -> str:
    next_step = (
        f"persia resume {checkpoints} continues from there"
        if finished_steps(checkpoints)
        else f"there is no checkpoint in {checkpoints} yet, so start this one again, with another checkpoint.path"
    )
    return f"the run in {run_dir} was taken over by {by.run_dir} on {by.host}; {next_step}"


def require_writer(checkpoints: Place, run_dir: Path) -> None:
    """Raise OvertakenError if another run directory has taken the run over, so that this one must not write there.

    Raise CheckpointError if the place does not answer.
    """
    own = read_claim(run_dir)
    writer = writer_of(checkpoints) if own is not None else None
    if writer is not None and not _is_allowed(writer, own):
        raise OvertakenError(_overtaken(checkpoints, run_dir, writer))


def is_writer(checkpoints: Place, run_dir: Path) -> bool:
    """Return True if a run directory is the one that writes the checkpoints there."""
    own, writer = read_claim(run_dir), writer_of(checkpoints)
    return own is not None and writer is not None and own.id == writer.id


def writer_of(checkpoints: Place) -> Writer | None:
    """Return the run that writes its checkpoints here; None if none does, or if the file cannot be read."""
    try:
        return _DECODER.decode((checkpoints / WRITER).read_bytes())
    except (FileNotFoundError, NotADirectoryError, ValueError):
        return None


def read_claim(run_dir: Path) -> Claim | None:
    """Return the claim of a run directory; None if it has none, or if it was copied from another one."""
    try:
        claim = _CLAIM_DECODER.decode((run_dir / CLAIM).read_bytes())
    except (FileNotFoundError, NotADirectoryError, ValueError):
        return None
    return claim if claim.run_dir == str(run_dir.absolute()) else None


def write_claim(run_dir: Path, own: str, former: str = "") -> None:
    """Write the claim of a run directory, which may replace the writer `former`; raise DiskError."""
    claim = Claim(own, str(run_dir.absolute()), former)
    write_whole(run_dir / CLAIM, msgspec.json.encode(claim) + b"\n")


def remove_own_unfinished(run_dir: Path, path: str | None) -> None:
    """Remove checkpoints that a run has not finished, unless another run directory has taken it over since."""
    checkpoints = checkpoints_of(run_dir, path)
    try:
        is_own = path is None or is_writer(checkpoints, run_dir)
    except CheckpointError:
        is_own = False  # the store does not answer; the next start removes them
    if is_own:
        remove_unfinished(checkpoints)
