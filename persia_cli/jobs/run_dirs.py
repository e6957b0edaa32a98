"""Run directories: a free one, and one for a run at a URI.

An object store appends to nothing, so of a run at a URI what is appended to stays in a folder here. At the URI are its
checkpoints, each with a copy of the run's record. So another machine goes on from there alone: it fetches the record
into a run directory on its disk.
"""

import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

from persia_cli.config.compose import compose_run
from persia_cli.config.overrides import quoted
from persia_cli.config.record import CONFIG, write_run
from persia_cli.config.schema import Run
from persia_cli.disk import claim_folder
from persia_cli.engines.job import ROLES, URI, require_free, timed
from persia_cli.errors import UserError
from persia_cli.jobs.reporter import Reporter
from persia_cli.observe.remote_records import fetch_record, owner_here, run_at
from persia_cli.plan.job import JobPlan
from persia_cli.storage.addresses import without_credentials
from persia_cli.storage.locations import location_of

RUNS = Path("runs")
WITHOUT_HOST = ("file", "hdfs", "viewfs")
"""Schemes of URIs that need no host, and then have three slashes."""


def choose_run_dir(name: str, chosen: Path | None) -> Path:
    """Return the run directory, by default named after the time; raises UserError if the chosen one is not free."""
    if chosen is None:
        return timed(RUNS, f"{name}-")
    require_free(chosen)
    return chosen


def claimed(plan: JobPlan) -> JobPlan:
    """Return the plan with its run directory created, with a number in its name if another job has that name."""
    return replace(plan, job=replace(plan.job, run_dir=str(claim_folder(plan.run_dir))))


def uri_of(run_dir: str | None) -> str | None:
    """Return the URI that was given for a folder, without credentials; None for a folder, or nothing."""
    if run_dir is None or not URI.match(run_dir):
        return None
    scheme, _, path = run_dir.partition(":")
    if not path.startswith("//"):  # as after os.path.normpath, which leaves one slash
        path = f"//{path}" if scheme in WITHOUT_HOST else f"/{path}"
    return without_credentials(f"{scheme}:{path}")


def checkpoints_at(uri: str, run: Run, resumed: str | None) -> list[str]:
    """Return the settings that put the checkpoints of a run at a URI."""
    if resumed not in (None, "auto"):
        raise UserError(
            f"--run-dir={uri} is for a new run, or with resume=auto for the one that is there; persia resume {uri} "
            f"goes on with that too, and resume={resumed} is not for it"
        )
    if run.checkpoint.path not in (None, uri):
        raise UserError(f"--run-dir={uri} has the checkpoints too; leave out checkpoint.path={run.checkpoint.path}")
    return [f"checkpoint.path={quoted(uri)}"]


@contextmanager
def folder_of(uri: str, name: str, reporter: Reporter) -> Iterator[Path]:
    """Yield the folder of this machine for the run at a URI: its own, or a new one, which goes if nothing begins."""
    if (own := owner_here(location_of(uri))) is not None:
        reporter.labelled("note", f"the run at {location_of(uri)} is in {own}")
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
def fetched(uri: str, reporter: Reporter) -> Iterator[Path]:
    """Yield the folder of this machine with the record of the run at a URI, fetched if it is not there yet."""
    location = location_of(uri)
    with folder_of(uri, run_at(location).name, reporter) as folder:
        if owner_here(location) is None:
            fetch_record(uri, folder, partial(reporter.labelled, "note"))
        yield folder


def run_elsewhere(uri: str, overrides: Sequence[str]) -> Run | None:
    """Return the run at a URI, changed by settings, if an engine runs it on other machines without this command."""
    with TemporaryDirectory(prefix="persia-record-") as scratch:
        config = Path(scratch, CONFIG)
        write_run(run_at(location_of(uri)), config)
        run = compose_run([f"conf={config}", *overrides])
    return run if run.cluster.is_spread else None
