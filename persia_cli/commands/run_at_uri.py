"""A run directory at a URI: an object store appends to nothing, so what is appended to stays in a folder here.

There are its checkpoints, each with a copy of the run's record. So another machine goes on from there alone: it fetches
the record into a run directory on its disk.
"""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from persia_cli.commands.screen import err, labelled
from persia_cli.config.compose import compose_run
from persia_cli.config.overrides import quoted
from persia_cli.config.record import CONFIG, write_run
from persia_cli.config.schema import Run
from persia_cli.disk import claim_folder
from persia_cli.engines.job import ROLES, URI, timed
from persia_cli.errors import UserError
from persia_cli.observe.remote_records import fetch_record, owner_here, run_at
from persia_cli.storage.addresses import without_credentials
from persia_cli.storage.locations import location_of

AUTO = "auto"
RUNS = Path("runs")
WITHOUT_HOST = ("file", "hdfs", "viewfs")
"""Schemes of URIs that need no host, and then have three slashes."""


def uri_of(run_dir: str | None) -> str | None:
    """Return the URI that was given for a folder, without credentials; None for a folder, or nothing."""
    if run_dir is None or not URI.match(run_dir):
        return None
    scheme, _, place = run_dir.partition(":")
    if not place.startswith("//"):  # as after os.path.normpath, which leaves one slash
        place = f"//{place}" if scheme in WITHOUT_HOST else f"/{place}"
    return without_credentials(f"{scheme}:{place}")


def words_of(uri: str, run: Run, resumed: str | None) -> list[str]:
    """Return the settings that put the checkpoints of a run at a URI."""
    if resumed not in (None, AUTO):
        raise UserError(
            f"--run-dir={uri} is for a new run, or with resume=auto for the one that is there; persia resume {uri} "
            f"goes on with that too, and resume={resumed} is not for it"
        )
    if run.checkpoint.path not in (None, uri):
        raise UserError(f"--run-dir={uri} has the checkpoints too; leave out checkpoint.path={run.checkpoint.path}")
    return [f"checkpoint.path={quoted(uri)}"]


@contextmanager
def folder_of(uri: str, name: str) -> Iterator[Path]:
    """Yield the folder of this machine for the run at a URI: its own, or a new one, which goes if nothing begins."""
    if (own := owner_here(location_of(uri))) is not None:
        labelled(err(), "note", f"the run at {location_of(uri)} is in {own}")
        yield own
        return
    with new_folder(name) as folder:
        yield folder


@contextmanager
def new_folder(name: str) -> Iterator[Path]:
    """Yield a new folder of this machine for a run, which goes if nothing begins."""
    folder = claim_folder(timed(RUNS, f"{name}-"))
    try:
        yield folder
    finally:
        if not (folder / ROLES).exists():
            shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def taken_up(uri: str) -> Iterator[Path]:
    """Yield the folder of this machine with the record of the run at a URI, fetched if it is not there yet."""
    place = location_of(uri)
    with folder_of(uri, run_at(place).name) as folder:
        if owner_here(place) is None:
            fetch_record(uri, folder, note)
        yield folder


def note(text: str) -> None:
    """Show a sentence about a record elsewhere."""
    labelled(err(), "note", text)


def run_elsewhere(uri: str, words: list[str]) -> Run | None:
    """Return the run at a URI, changed by settings, if an engine runs it on other machines without this command."""
    with TemporaryDirectory(prefix="persia-record-") as scratch:
        config = Path(scratch, CONFIG)
        write_run(run_at(location_of(uri)), config)
        run = compose_run([f"conf={config}", *words])
    return run if run.cluster.is_spread else None
