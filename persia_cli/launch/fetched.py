"""The record of a run at a URI, fetched by another machine that goes on with the run.

Who writes there says so every few seconds while its job lasts. So a run whose record has no end is watched for a
while: one whose machine is lost is silent, and one that goes on is left alone.
"""

import secrets
from collections.abc import Callable
from pathlib import Path

from persia_cli.disk import writing
from persia_cli.errors import UserError
from persia_cli.launch.job import ROLES
from persia_cli.launch.living import WATCH_S, is_beating
from persia_cli.observe.history import CONFIG, EARLIER, ENDS
from persia_cli.observe.journal import EVENTS, read_journal
from persia_cli.observe.record_elsewhere import copy_record, has_record
from persia_cli.storage.places import Place, place_of
from persia_cli.store.manifest import finished_steps
from persia_cli.store.writer import Writer, know, known_of, writer_of


def is_to_be_fetched(run_dir: Path, place: Place) -> bool:
    """Return True if a run directory is to go on with the run at a place, and does not have its record yet."""
    known = known_of(run_dir)
    has_own = (run_dir / ROLES).exists() or ((run_dir / CONFIG).exists() and (known is None or known.former is None))
    return not has_own and bool(finished_steps(place)) and has_record(place)


def fetch_record(address: str, run_dir: Path, say: Callable[[str], None]) -> None:
    """Fetch a run's record into a folder, which may then claim its checkpoints; `say` is called with a sentence.

    Raises UserError if the run still goes on, or if there is no record; DiskError.
    """
    place = place_of(address)
    writer = writer_of(place)
    with writing(run_dir):
        # It was started before, and perhaps with other settings since.
        (run_dir / EARLIER).mkdir(parents=True, exist_ok=True)
    know(run_dir, secrets.token_hex(8), writer)
    copy_record(place, run_dir)
    if writer is not None and not _has_ended(run_dir):
        say(f"the record at {place} has no end: waiting {WATCH_S:g} s for a sign of life of the run on {writer.host}")
        _require_silence(place, writer)
    say(f"the record of {writer.run_dir if writer else 'the run'} is fetched from {place} into {run_dir}")


def _has_ended(run_dir: Path) -> bool:
    phases = [event["phase"] for event in read_journal(run_dir / EVENTS) if event["event"] == "phase"]
    return bool(phases) and phases[-1] in ENDS


def _require_silence(place: Place, writer: Writer) -> None:
    """Raise UserError if the writer gives a sign of life."""
    if is_beating(place):
        raise UserError(
            f"the run in {writer.run_dir} on {writer.host} still goes on and writes to {place}; end it there "
            "(persia stop), or wait for its end"
        )
