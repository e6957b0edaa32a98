"""The page about a run, as a file."""

import time
from dataclasses import dataclass
from pathlib import Path

from persia_cli.dashboard.page_file import run_file
from persia_cli.disk import write_whole
from persia_cli.errors import UserError
from persia_cli.observe.history import read_history
from persia_cli.observe.journal import understanding
from persia_cli.observe.remote_records import newest_record, records_at
from persia_cli.storage.locations import address_of, location_of
from persia_cli.store.checkpoints.manifest import checkpoints_of, finished_steps

PAGE = "report.html"


@dataclass(frozen=True)
class WrittenReport:
    """A report that is written."""

    path: Path
    run: str
    """The run directory, or its address."""
    has_model: bool
    """True if the run has a complete checkpoint."""


def write_report(run_dir: Path, output: Path | None = None, address: str | None = None) -> WrittenReport:
    """Write the page of a run (.html), by default into its directory.

    `address` is where the run is, if its directory is a copy. Raises UserError for another name, and DiskError.
    """
    history = read_history(run_dir)
    path = output or run_dir / PAGE
    if path.suffix != ".html":
        raise UserError(f"{path.name}: a report is a page; end its name in .html")
    if not path.absolute().parent.is_dir():
        raise UserError(f"{path}: there is no folder {path.absolute().parent}; create it first")
    with understanding(run_dir):
        page = run_file(history, time.time())
    write_whole(path, page)
    saved = finished_steps(checkpoints_of(run_dir, history.run.checkpoint.path))
    return WrittenReport(path, address or str(run_dir), bool(saved))


def write_report_at(uri: str, output: Path | None) -> WrittenReport:
    """Write the report of the run at a URI, by default into the current folder; raises what `write_report` does."""
    location = location_of(uri)
    newest_record(location)  # refused if there is none
    with records_at(location) as folders:
        [folder] = folders
        return write_report(folder, output or Path(PAGE), address_of(location))
