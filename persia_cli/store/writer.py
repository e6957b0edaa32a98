"""The claim of a run on the folder of its checkpoints, where that is not in the run directory.

A file beside the checkpoints names the run directory that writes there, by a random id too, which that folder keeps.
Another folder may take the run over if it knows, from when it fetched the record, who wrote there before. Who finds
another one's id there writes no more.
"""

import secrets
from collections.abc import Callable
from pathlib import Path

import msgspec

from persia_cli.config.record import CONFIG
from persia_cli.disk import write_whole
from persia_cli.errors import CheckpointError, ConfigError, DiskError, UserError
from persia_cli.storage.places import Place, place_of, put
from persia_cli.storage.remote import without_secret
from persia_cli.store.manifest import checkpoints_of, finished_steps
from persia_cli.store.retention import remove_unfinished

WRITER = "writer.json"
"""Name of the file, beside the checkpoints, that names the run whose checkpoints they are."""
CLAIM = "claim.json"
"""Name of the file, in a run directory, with what it knows of its claim."""


class OvertakenError(UserError):
    """Another run directory has taken over a run that this one trains."""


class Writer(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The content of that file: the run directory, as an absolute path, the machine that it is on, and its id."""

    run_dir: str
    host: str
    id: str = ""


class Known(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The content of the file in a run directory: its id, and the writer whose run it takes over, if it has not yet."""

    id: str
    run_dir: str
    """The folder itself, as an absolute path: a copy of it has none of its rights."""
    former: Writer | None = None


# Made at import, like the decoder of jobs in `plan/job.py`, since threads must not be the first to use a type.
_DECODER = msgspec.json.Decoder(Writer)
_KNOWN_DECODER = msgspec.json.Decoder(Known)


def claim(
    path: str,
    run_dir: Path,
    host: str,
    newest: int | None = None,
    why_alive: Callable[[Place, Writer], str] = lambda place, writer: "",
) -> None:
    """Note at `checkpoint.path` that the run writes there, and remove what a run that was killed has left in a store.

    What is left on a disk goes when the job begins. This is the first write to the place, before anything is trained.
    `newest` is the step of the checkpoint that a run which is taken over goes on from. `why_alive` says of another run
    that has saved nothing yet why it may be at work, as part of a sentence; empty if it is not. Raises ConfigError if
    the place cannot be read or written, if it has checkpoints of another run, if that may be at work, or if the former
    writer has saved a newer one meanwhile.
    """
    try:
        checkpoints = place_of(path)
        known = known_of(run_dir)
        steps, before = finished_steps(checkpoints), writer_of(checkpoints)
        own = Writer(str(run_dir.absolute()), host, known.id if known else secrets.token_hex(8))
        takes_over = known is not None and known.former is not None
        if steps and not _is_allowed(before, known):
            raise ConfigError(_refusal(checkpoints, before, run_dir, known))
        is_foreign = before is not None and not _is_allowed(before, known) and not _is_own(before, own)
        if before is not None and is_foreign and (why := why_alive(checkpoints, before)):
            raise ConfigError(_in_use(checkpoints, before, why))
        put(checkpoints / WRITER, msgspec.json.encode(own) + b"\n")
        if takes_over and finished_steps(checkpoints)[-1:] != ([] if newest is None else [newest]):
            raise ConfigError(
                f"{checkpoints} has got a newer checkpoint since it was looked at, by the run on "
                f"{before.host if before else 'another machine'}, which this one has taken over; give the command again"
            )
        if not isinstance(checkpoints, Path):
            remove_unfinished(checkpoints)
    except (OSError, CheckpointError, DiskError) as error:
        raise ConfigError(f"checkpoint.path={without_secret(path)} cannot be used: {error}") from error
    know(run_dir, own.id)


def _is_allowed(before: Writer | None, known: Known | None) -> bool:
    if before is None or known is None:
        return False
    return before.id == known.id or before == known.former


def _is_own(before: Writer, own: Writer) -> bool:
    """Return whether the writer was a run in the same folder, which has been emptied since: this one holds its lock."""
    return before.host == own.host and Path(before.run_dir).resolve() == Path(own.run_dir).resolve()


def _in_use(checkpoints: Place, by: Writer, why: str) -> str:
    return (
        f"checkpoint.path={checkpoints} is in use: the run in {by.run_dir} on {by.host} saves there and {why}; choose "
        "another folder, or end that run first"
    )


def _refusal(checkpoints: Place, before: Writer | None, run_dir: Path, known: Known | None) -> str:
    if known is not None and before is not None:
        return _overtaken(checkpoints, run_dir, before)
    owner = f"the run in {before.run_dir} on {before.host}" if before else "another run"
    return (
        f"checkpoint.path={checkpoints} has checkpoints of {owner}; choose another folder, or go on with that run "
        "by persia resume"
    )


def _overtaken(checkpoints: Place, run_dir: Path, by: Writer) -> str:
    where: Place | str = checkpoints if (checkpoints / CONFIG).is_file() else by.run_dir
    next_step = (
        f"persia resume {where} goes on from there"
        if finished_steps(checkpoints)
        else f"there is no checkpoint in {checkpoints} yet, so start this one anew, with another checkpoint.path"
    )
    return f"the run in {run_dir} was taken over by {by.run_dir} on {by.host}; {next_step}"


def require_writer(checkpoints: Place, run_dir: Path) -> None:
    """Raise OvertakenError if another run directory has taken the run over, so that this one must not write there.

    Raises CheckpointError if the place does not answer.
    """
    known = known_of(run_dir)
    writer = writer_of(checkpoints) if known is not None else None
    if known is not None and writer is not None and not _is_allowed(writer, known):
        raise OvertakenError(_overtaken(checkpoints, run_dir, writer))


def is_writer(checkpoints: Place, run_dir: Path) -> bool:
    """Return True if a run directory is the one that writes the checkpoints there."""
    known, writer = known_of(run_dir), writer_of(checkpoints)
    return known is not None and writer is not None and known.id == writer.id


def writer_of(checkpoints: Place) -> Writer | None:
    """Return the run that writes its checkpoints here; None if none does, or if it cannot be known."""
    try:
        return _DECODER.decode((checkpoints / WRITER).read_bytes())
    except (FileNotFoundError, NotADirectoryError, ValueError):
        return None


def known_of(run_dir: Path) -> Known | None:
    """Return what a run directory knows of its writing elsewhere; None if nothing, or if it was copied from another."""
    try:
        known = _KNOWN_DECODER.decode((run_dir / CLAIM).read_bytes())
    except (FileNotFoundError, NotADirectoryError, ValueError):
        return None
    return known if known.run_dir == str(run_dir.absolute()) else None


def know(run_dir: Path, own: str, former: Writer | None = None) -> None:
    """Write what a run directory is to know; raises DiskError."""
    known = Known(own, str(run_dir.absolute()), former)
    write_whole(run_dir / CLAIM, msgspec.json.encode(known) + b"\n")


def remove_own_unfinished(run_dir: Path, path: str | None) -> None:
    """Remove checkpoints that a run has not finished, unless another run directory has taken it over since."""
    checkpoints = checkpoints_of(run_dir, path)
    try:
        is_own = path is None or is_writer(checkpoints, run_dir)
    except CheckpointError:
        is_own = False  # The store does not answer; who goes on removes them.
    if is_own:
        remove_unfinished(checkpoints)
