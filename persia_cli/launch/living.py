"""Whether the run that has claimed a place for its checkpoints may still be at work.

A run that has saved nothing yet shows nothing else at the place, and would lose all that it trains if another run took
the place. On the same machine its lock tells. A writer elsewhere that copies its record says every few seconds that it
lives; of one that does not, only the age of its claim is known.
"""

import os
import socket
import time
from pathlib import Path

from persia_cli.disk import is_held
from persia_cli.errors import count
from persia_cli.observe.journal import EVENTS, is_being_written
from persia_cli.observe.record_elsewhere import ALIVE, BEAT_S
from persia_cli.storage.places import Place, modified_s
from persia_cli.store.writer import WRITER, Writer

WATCH_S = 4 * BEAT_S
"""Seconds without a sign of life after which nobody writes at a place."""
LOOK_S = 0.5
UNSURE_S = 3600.0
"""Age in seconds up to which a claim from another machine counts, if its run gives no signs of life."""


def why_alive(place: Place, writer: Writer) -> str:
    """Return why the run that has claimed a place may be at work, as part of a sentence; empty if it is not."""
    if writer.host == socket.gethostname():
        return "still goes on" if _is_at_work(Path(writer.run_dir)) else ""
    claimed_s = modified_s(place / WRITER)
    try:
        beats = modified_s(place / ALIVE) >= claimed_s
    except FileNotFoundError:
        beats = False
    if beats:
        return "still goes on" if is_beating(place) else ""
    age_s = time.time() - claimed_s
    if age_s > UNSURE_S:
        return ""
    begun = f"began {count(max(0, round(age_s / 60)), 'minute')} ago"
    return f"{begun} and may still go on (if it does not, remove {WRITER} from there)"


def is_beating(place: Place) -> bool:
    """Return whether the writer at a place gives a sign of life; it is watched for WATCH_S seconds at the most."""
    begin, before = time.monotonic(), _sign(place)
    while time.monotonic() - begin < WATCH_S:
        time.sleep(LOOK_S)
        if _sign(place) != before:
            return True
    return False


def _sign(place: Place) -> bytes:
    try:
        return (place / ALIVE).read_bytes()
    except FileNotFoundError:
        return b""


def _is_at_work(run_dir: Path) -> bool:
    """Return whether a launcher has locked the folder of a run on this machine, or a coordinator its events."""
    try:
        folder = os.open(run_dir, os.O_RDONLY)
    except OSError:
        return False  # It was removed, and a run whose folder is removed ends.
    try:
        if is_held(folder):
            return True
    except OSError:
        pass  # Some network file systems lock no folders.
    finally:
        os.close(folder)
    return (run_dir / EVENTS).exists() and is_being_written(run_dir / EVENTS)
