"""Records of runs beside their checkpoints at a URI (`checkpoint.record`), read by other machines than wrote them."""

import hashlib
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from persia_cli.config.record import CONFIG, parsed, write_run
from persia_cli.config.schema import Run
from persia_cli.disk import write_whole, writing
from persia_cli.errors import UserError
from persia_cli.observe.journal import EVENTS, METRICS
from persia_cli.storage.places import Place, address_of, subfolders
from persia_cli.store.writer import known_of, writer_of

FILES = (CONFIG, METRICS, EVENTS)
"""What a run directory needs to be reported on; the events come last, since they tell of the others."""
ALIVE = "alive.json"
"""File beside the record that its writer renews every BEAT_S seconds."""
BEAT_S = 5.0
COPIED = "copied-from"
"""File of a folder with a copy of a record, which nobody writes: where that is from."""
COPIES = Path("runs")
"""Folder of the copies that evaluations and predictions put their results into."""


def has_record(place: Place) -> bool:
    """Return True if a folder has the record of a run."""
    return (place / CONFIG).is_file()


def require_record(place: Place) -> None:
    """Raise UserError if a folder does not have the record of a run."""
    if not has_record(place):
        raise UserError(
            f"{place} has no record of a run: {CONFIG} is missing; persia train --run-dir URI, or checkpoint.record, "
            "puts it beside the checkpoints"
        )


def run_at(place: Place) -> Run:
    """Return the configuration of the run at a place, with its checkpoints there.

    Raises UserError if there is none, ConfigError if it is damaged or of another version.
    """
    require_record(place)
    run = parsed((place / CONFIG).read_bytes().decode(errors="replace"), f"{place / CONFIG}")
    checkpoint = run.checkpoint.model_copy(update={"path": address_of(place), "record": True})
    return run.model_copy(update={"checkpoint": checkpoint})


def owner_here(place: Place) -> Path | None:
    """Return the run directory whose checkpoints are at a place, if it is on this machine."""
    writer = writer_of(place)
    if writer is None or writer.host != socket.gethostname():
        return None
    run_dir = Path(writer.run_dir)
    known = known_of(run_dir)
    return run_dir if known is not None and known.id == writer.id and (run_dir / CONFIG).is_file() else None


def copy_record(place: Place, folder: Path) -> None:
    """Copy a record into a folder, over an older copy; raises as `run_at` does, and DiskError."""
    run = run_at(place)
    with writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
    for name in FILES[1:]:
        try:
            content = (place / name).read_bytes()
        except FileNotFoundError:
            content = b""  # A run that has begun has no figures yet.
        write_whole(folder / name, content)
    write_run(run, folder / CONFIG)


def copied_here(place: Place) -> Path:
    """Return the run directory of a run at a place: its own, if that is on this machine, else a copy of the record.

    The copy is made anew; what evaluations have put beside it stays.
    """
    if (own := owner_here(place)) is not None:
        return own
    digest = hashlib.blake2b(address_of(place).encode(), digest_size=4).hexdigest()
    folder = COPIES / f"{run_at(place).name}-copy-{digest}"
    copy_record(place, folder)
    write_whole(folder / COPIED, f"{place}\n")
    return folder


@contextmanager
def records_at(place: Place) -> Iterator[dict[Path, str]]:
    """Yield a run directory for the run at a place, or for each of those in it, with the URI of each.

    Those that are not on this machine are copies, which are gone when the block ends.
    """
    with TemporaryDirectory(prefix="persia-records-") as scratch:
        found: dict[Path, str] = {}
        for each in [place] if has_record(place) else filter(has_record, subfolders(place)):
            if (folder := owner_here(each)) is None:
                folder = Path(scratch, each.name)
                copy_record(each, folder)
                write_whole(folder / COPIED, f"{each}\n")
            found[folder] = address_of(each)
        yield found
