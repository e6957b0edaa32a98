"""A run directory at a URI: an object store appends to nothing, so what is appended to stays in a folder here.

There are its checkpoints, and with each of them, and at the end, a copy of its record (`checkpoint.record`).
"""

from pathlib import Path

from persia_cli.config.schema import Run
from persia_cli.config.words import quoted
from persia_cli.errors import UserError
from persia_cli.launch.job import URI
from persia_cli.storage.credentials import without_credentials


def uri_of(run_dir: Path | None) -> str | None:
    """Return the URI that was given for a folder, without credentials; None for a folder, or nothing."""
    text = str(run_dir)
    return without_credentials(text.replace(":/", "://", 1)) if URI.match(text) else None


def words_of(uri: str, run: Run, resumed: str | None) -> list[str]:
    """Return the words that put the checkpoints of a new run, and copies of its record, at a URI."""
    if resumed:
        raise UserError(
            f"--run-dir={uri} is for a new run, whose record is appended to in a folder here; persia resume FOLDER "
            f"goes on with that, and resume={resumed} is not for it"
        )
    if run.checkpoint.path not in (None, uri):
        raise UserError(f"--run-dir={uri} has the checkpoints too; leave out checkpoint.path={run.checkpoint.path}")
    return [f"checkpoint.path={quoted(uri)}", "checkpoint.record=true"]
