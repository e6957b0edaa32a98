"""Records of runs on other machines, read from the copies in their checkpoints."""

import hashlib
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory

from persia_cli.config.record import CONFIG, SAMPLES, parsed, write_run
from persia_cli.config.schema import Run
from persia_cli.disk import write_whole, writing
from persia_cli.errors import UserError
from persia_cli.observe.history import COPIED, EARLIER
from persia_cli.observe.journal import EVENTS, METRICS, PORTIONS
from persia_cli.observe.record_state import copies_in
from persia_cli.storage.locations import Location, address_of, location_of, subfolders
from persia_cli.store.checkpoints.claim import allow_to_continue, has_only_fetched, is_writer, writer_of
from persia_cli.store.checkpoints.manifest import decode_manifest, finished_steps, newest_checkpoint, verify

COPIES = Path("runs")
"""Folder of the copies, in which evaluations and predictions put their results."""


def newest_record(checkpoints: Location) -> dict[str, bytes]:
    """Return the files of a run's record, by name, from its newest checkpoint.

    Raises UserError if there are none, CheckpointError if that checkpoint is damaged.
    """
    newest = newest_checkpoint(checkpoints) if finished_steps(checkpoints) else None
    copies = copies_in(decode_manifest(newest)) if newest is not None else []
    contents = {}
    for file in copies:
        assert newest is not None
        path = newest / file.folder / file.name
        verify(path, file)
        contents[file.name] = path.read_bytes()
    if contents:
        return contents
    raise UserError(f"{checkpoints} has no record of a run: no checkpoint there has a copy of its {CONFIG}")


def run_at(checkpoints: Location) -> Run:
    """Return the configuration of the run whose checkpoints are in a folder, with that as its place of checkpoints.

    Raise the errors of `newest_record`, and ConfigError if it is damaged or of another version.
    """
    return _run_in(newest_record(checkpoints), checkpoints)


def _run_in(record: dict[str, bytes], checkpoints: Location) -> Run:
    run = parsed(record[CONFIG].decode(errors="replace"), f"{CONFIG} of the newest checkpoint in {checkpoints}")
    checkpoint = run.checkpoint.model_copy(update={"path": address_of(checkpoints)})
    return run.model_copy(update={"checkpoint": checkpoint})


def owner_here(checkpoints: Location) -> Path | None:
    """Return the run directory whose checkpoints are in a folder, if it is on this machine."""
    writer = writer_of(checkpoints)
    if writer is None or writer.host != socket.gethostname():
        return None
    run_dir = Path(writer.run_dir)
    return run_dir if is_writer(checkpoints, run_dir) and (run_dir / CONFIG).is_file() else None


def copy_record(checkpoints: Location, folder: Path) -> None:
    """Copy a run's record from its newest checkpoint over an older copy; raises as `run_at` does, and DiskError."""
    record = newest_record(checkpoints)
    run = _run_in(record, checkpoints)
    with writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
    for name in [name for name in (SAMPLES, METRICS, EVENTS, PORTIONS) if name in record]:
        write_whole(folder / name, record[name])
    write_run(run, folder / CONFIG)


def is_to_be_fetched(run_dir: Path, checkpoints: Location) -> bool:
    """Return whether a run directory has no record, but can continue a run whose checkpoints are at the place."""
    has_no_record = not (run_dir / CONFIG).exists() or has_only_fetched(run_dir)
    return has_no_record and bool(finished_steps(checkpoints))


def fetch_record(address: str, run_dir: Path, say: Callable[[str], None]) -> None:
    """Copy a run's record into a directory that will continue it; call `say` with a sentence.

    The directory may replace the writer of the checkpoints. Raise the errors of `copy_record`.
    """
    checkpoints = location_of(address)
    writer = writer_of(checkpoints)
    copy_record(checkpoints, run_dir)
    with writing(run_dir):
        # The run was started before, perhaps with other settings.
        (run_dir / EARLIER).mkdir(exist_ok=True)
    allow_to_continue(checkpoints, run_dir)
    say(f"the record of {writer.run_dir if writer else 'the run'} is fetched from {checkpoints} into {run_dir}")


def copied_here(checkpoints: Location) -> Path:
    """Return the run directory of the checkpoints in a folder: its own, if it is on this machine, else a new copy.

    Results of evaluations in an older copy stay.
    """
    if (owner := owner_here(checkpoints)) is not None:
        return owner
    digest = hashlib.blake2b(address_of(checkpoints).encode(), digest_size=4).hexdigest()
    folder = COPIES / f"{run_at(checkpoints).name}-copy-{digest}"
    copy_record(checkpoints, folder)
    write_whole(folder / COPIED, f"{checkpoints}\n")
    return folder


@contextmanager
def records_at(location: Location) -> Iterator[dict[Path, Location]]:
    """Yield a run directory for the run whose checkpoints are in a folder, or for each run in it, with their place.

    Directories for runs of other machines are copies, which are removed when the block ends.
    """
    with TemporaryDirectory(prefix="persia-records-") as scratch:
        folders: dict[Path, Location] = {}
        for checkpoints_here in (
            [location] if finished_steps(location) else filter(finished_steps, subfolders(location))
        ):
            if (folder := owner_here(checkpoints_here)) is None:
                folder = Path(scratch, checkpoints_here.name)
                with suppress(UserError):  # a folder without a record is shown as a damaged run
                    copy_record(checkpoints_here, folder)
                    write_whole(folder / COPIED, f"{checkpoints_here}\n")
            folders[folder] = checkpoints_here
        yield folders
