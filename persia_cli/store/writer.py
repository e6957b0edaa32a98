"""The claim of a run on the folder of its checkpoints, where that is not in the run directory."""

from pathlib import Path

import msgspec

from persia_cli.errors import CheckpointError, ConfigError, DiskError
from persia_cli.storage.places import Place, place_of, put
from persia_cli.storage.remote import without_secret
from persia_cli.store.manifest import finished_steps
from persia_cli.store.retention import remove_unfinished

WRITER = "writer.json"
"""Name of the file, beside the checkpoints, that names the run whose checkpoints they are."""


class Writer(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The content of that file: the run directory, as an absolute path, and the machine that it is on."""

    run_dir: str
    host: str


# Made at import, like the decoder of jobs in `plan/job.py`, since threads must not be the first to use a type.
_DECODER = msgspec.json.Decoder(Writer)


def claim(path: str, writer: Writer) -> None:
    """Note at `checkpoint.path` that the run writes there, and remove what a run that was killed has left in a store.

    What is left on a disk goes when the job begins. This is the first write to the place, before anything is trained.
    Raises ConfigError if it cannot be read or written, or if it has checkpoints of another run.
    """
    try:
        checkpoints = place_of(path)
        steps, before = finished_steps(checkpoints), writer_of(checkpoints)
        if steps and before != writer:
            owner = f"the run in {before.run_dir} on {before.host}" if before else "another run"
            raise ConfigError(
                f"checkpoint.path={without_secret(path)} has checkpoints of {owner}; choose another folder, or go on "
                "with that run by persia resume"
            )
        if not isinstance(checkpoints, Path):
            remove_unfinished(checkpoints)
        put(checkpoints / WRITER, msgspec.json.encode(writer) + b"\n")
    except (OSError, CheckpointError, DiskError) as error:
        raise ConfigError(f"checkpoint.path={without_secret(path)} cannot be used: {error}") from error


def writer_of(checkpoints: Place) -> Writer | None:
    """Return the run that writes its checkpoints here; None if none does, or if it cannot be known."""
    try:
        return _DECODER.decode((checkpoints / WRITER).read_bytes())
    except (FileNotFoundError, NotADirectoryError, ValueError):
        return None
