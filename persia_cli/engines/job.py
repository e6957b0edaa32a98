"""The run directory and the result of a job, for all engines."""

import re
import socket
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Any

from persia_cli.config.record import SAMPLES, write_run
from persia_cli.config.schema import CustomModel, InitFrom, ParquetDataset, Run
from persia_cli.disk import write_whole, writing
from persia_cli.engines.resumed import DRIVER, continue_record, is_at_work, locked, record_so_far
from persia_cli.engines.signals import JobSignals, PreemptedNow
from persia_cli.errors import DiskError, PersiaError, PreemptedError, UserError
from persia_cli.loggers.logger import LOGGERS, TENSORBOARD
from persia_cli.observe.history import CONFIG, EARLIER, ENDS
from persia_cli.observe.journal import EVENTS, METRICS, PORTIONS, Journal, drop_half_a_line, read_journal, understanding
from persia_cli.observe.kept_samples import encoded_samples
from persia_cli.observe.live_state import LIVE_STATE
from persia_cli.plan import job as planned
from persia_cli.plan.job import Job, JobPlan
from persia_cli.publish.version import LOCAL, require_publishable
from persia_cli.storage.addresses import rooted
from persia_cli.storage.locations import address_of, location_of
from persia_cli.store.checkpoints.claim import WRITER, claim
from persia_cli.store.checkpoints.cuts import CUTS
from persia_cli.wire.process import this_process

JOB = planned.JOB
ROLES = "roles"
"""Folder of a run's logs; the process that creates it owns the run directory."""
BEGINNING = (LIVE_STATE, EVENTS, JOB, CONFIG, SAMPLES, ROLES)
"""Files that every start of a run makes; the folder is first, so a run that begins again moves it last."""
COORDINATOR_ADDRESS = "coordinator.address"
SECRET_FILE = "coordinator.secret"
"""File with the path of the job's secret on the coordinator's machine; only its user can read that."""
MOVED, COPIED = (LIVE_STATE, EVENTS, ROLES), (CONFIG, JOB)
"""Files that a resumed run moves to the folder of its last start, and those it copies there."""
GIVEN = "given"
"""Folder of a run directory with the configuration and the data that a program has given to the Python API."""
STAYING = (EARLIER, COORDINATOR_ADDRESS, SECRET_FILE, DRIVER, WRITER, GIVEN, LOGGERS, TENSORBOARD, CUTS, LOCAL)
"""Files that the folder of a run may have before it begins: an earlier start has left them, or a program wrote them."""


SWITCH_INTERVAL_S = 1e-4
"""Seconds for which a thread may hold the GIL: the default of 5 ms would be added to every message's round trip."""


URI = re.compile(r"[a-z][a-z0-9+]+:/")
"""The begin of a URI that was taken for a path."""
LISTENING = "listening at "
"""Begin of the line in a coordinator's log with its address."""
ERROR_LINE = "error: "
"""Begin of the line in a replica's log with the error that ended it."""
NO_ANSWER = re.compile(r"\bcoordinator at \S+ has not answered for ")
"""Part of the error of a replica that has lost the coordinator, as `persia_cli.wire.client` writes it."""

SIGNALLED = 128
"""Exit code of a process that stopped on a signal, minus the signal's number."""


@dataclass(frozen=True, slots=True)
class JobResult:
    """The result of a finished job: its lines of metrics and events, in order."""

    run_dir: Path
    metrics: list[dict[str, Any]]
    events: list[dict[str, Any]]


def timed(parent: Path, prefix: str = "") -> Path:
    """Return a folder named after the current time; it is not created."""
    return parent / f"{prefix}{datetime.now():%Y%m%d-%H%M%S}"


def was_started(run_dir: Path) -> bool:
    """Return True if a run was started in the folder, though it may have come to nothing."""
    return any((run_dir / name).exists() for name in BEGINNING)


def require_free(run_dir: Path, staying: Sequence[str] = STAYING) -> None:
    """Raise UserError unless the run directory does not exist, or has only files that stay."""
    _refuse_uri(run_dir)
    if not run_dir.exists():
        return
    if not run_dir.is_dir():
        raise UserError(f"{run_dir} is a file; choose another --run-dir")
    if (run_dir / ROLES).exists() or (run_dir / CONFIG).exists():
        raise UserError(f"{run_dir} already contains a run; choose another --run-dir or remove it")
    if any(path.name not in staying for path in run_dir.iterdir()):
        raise UserError(f"{run_dir.absolute()} contains other files; choose an empty folder or a new one as --run-dir")


def _refuse_uri(run_dir: Path) -> None:
    if URI.match(str(run_dir)):
        uri = str(run_dir).replace(":/", "://", 1)
        raise UserError(
            f"{uri} is a URI, and the record of a run is appended to on a disk while it runs: give a folder as "
            "--run-dir, and the URI as checkpoint.path: each checkpoint has a copy of the record"
        )


@contextmanager
def prepared_run_dir(plan: JobPlan) -> Iterator[JobPlan]:
    """Prepare the run directory, and let no other process resume or begin the run until the block ends.

    Yields and raises what `prepare_run_dir` returns and raises. A new folder goes again if nothing begins in it.
    """
    is_new = not plan.run_dir.exists()
    with writing(plan.run_dir):
        plan.run_dir.mkdir(parents=True, exist_ok=True)
    try:
        with locked(plan.run_dir):
            yield prepare_run_dir(plan)
    except UserError:
        if is_new:
            with suppress(OSError):  # It has files if the job has begun.
                plan.run_dir.rmdir()
        raise


def prepare_run_dir(plan: JobPlan) -> JobPlan:
    """Create the run directory and write the resolved run to it; returns the plan with absolute paths.

    All checks come before the first change, so that a refused resume leaves the folder unchanged.

    Raises UserError if the directory is in use, DataError, DiskError if it cannot be created. Of several processes only
    one gets it.
    """
    run_dir = plan.run_dir
    _refuse_uri(run_dir)
    samples = encoded_samples(plan.run, plan.facts.found) if plan.job.task == "train" else None
    with writing(run_dir):
        run_dir.mkdir(parents=True, exist_ok=True)
    record = None
    if plan.job.task == "train" and (publish := anchored(plan.run).publish) is not None:
        # A run that begins again still has its cuts.
        is_new = not plan.is_resumed and not (run_dir / CUTS).exists()
        require_publishable(publish.to, run_dir.absolute().name, is_new)
    if plan.is_resumed:
        record = record_so_far(plan)
    else:
        # A job that goes back to its start trains the portions that it has recorded.
        require_free(run_dir, STAYING if plan.job.rollback is None else (*STAYING, PORTIONS))
    if plan.job.task == "train" and (path := anchored(plan.run).checkpoint.path) is not None:
        # Before the record is changed: another machine may have taken the run over.
        claim(path, run_dir, socket.gethostname(), is_at_work)
    if record is not None:
        continue_record(plan, record, MOVED, COPIED)
    with writing(run_dir):
        try:
            (run_dir / ROLES).mkdir()
        except FileExistsError:
            raise UserError(f"{run_dir} already contains a run; choose another --run-dir or remove it") from None
        # Remove the files of a coordinator that was killed: others would look for the new one at its address.
        (run_dir / COORDINATOR_ADDRESS).unlink(missing_ok=True)
        (run_dir / SECRET_FILE).unlink(missing_ok=True)
    load = plan.job.load and address_of(location_of(plan.job.load))
    driver = this_process()
    job = replace(plan.job, run_dir=str(run_dir.absolute()), load=load, driver=driver.pid, driver_began=driver.began)
    plan = replace(plan, run=anchored(plan.run), job=job)
    try:
        if samples is not None:
            write_whole(run_dir / SAMPLES, samples)
        write_run(plan.run, run_dir / CONFIG)
        write_whole(run_dir / JOB, plan.job.to_json() + b"\n")
    except DiskError:
        # Leave nothing behind, so that the same command works once there is free space.
        for name in (CONFIG, SAMPLES):
            (run_dir / name).unlink(missing_ok=True)
        (run_dir / ROLES).rmdir()
        raise
    return plan


def read_job(path: Path) -> Job:
    """Read the job that a driver has written; raises UserError if the file is missing or damaged."""
    try:
        return Job.from_json(path.read_bytes())
    except FileNotFoundError:
        raise UserError(f"{path.parent} does not contain a run that is ready to start: {path} is missing") from None
    except (OSError, ValueError) as error:
        raise UserError(f"{path} is damaged: {error}; start a new run") from error


def anchored(run: Run) -> Run:
    """Return the run with its relative paths made absolute: roles and later commands may run in other folders."""
    dataset, model = run.dataset, run.model
    if isinstance(dataset, ParquetDataset):
        changed_paths: dict[str, Any] = {"path": _all_absolute(dataset.paths)}
        changed_paths["histories"] = {
            name: history.model_copy(update={"path": _all_absolute(history.paths)}) if history.paths else history
            for name, history in dataset.histories.items()
        }
        dataset = dataset.model_copy(update=changed_paths)
    if isinstance(model, CustomModel):
        model = model.model_copy(update={"file": _absolute(model.file)})
    changed: dict[str, Any] = {"dataset": dataset, "model": model, "init_from": _anchored_source(run.init_from)}
    if run.embedding.cold is not None:
        cold = run.embedding.cold.model_copy(update={"path": _absolute(run.embedding.cold.path)})
        changed["embedding"] = run.embedding.model_copy(update={"cold": cold})
    if run.checkpoint.path is not None:
        changed["checkpoint"] = run.checkpoint.model_copy(update={"path": _absolute(run.checkpoint.path)})
    if run.publish is not None:
        changed["publish"] = run.publish.model_copy(update={"to": _absolute(run.publish.to)})
    return run.model_copy(update=changed)


def _all_absolute(paths: Sequence[str]) -> str | tuple[str, ...]:
    """Return absolute paths as a configuration has them."""
    whole = tuple(map(_absolute, paths))
    return whole if len(whole) > 1 else whole[0]


def _anchored_source(source: InitFrom | None) -> InitFrom | None:
    if source is None:
        return None
    vectors = {name: file.model_copy(update={"path": _absolute(file.path)}) for name, file in source.vectors.items()}
    path = _absolute(source.path) if source.path else None
    return source.model_copy(update={"path": path, "vectors": vectors})


def _absolute(path: str) -> str:
    return rooted(path, Path.cwd())


@contextmanager
def recorded_end(run_dir: Path, signals: JobSignals) -> Iterator[None]:
    """Record the end of the job if its coordinator could not, since it was killed or did not start.

    Raises PreemptedError if a signal ended it before all was done, UserError if the record's folder has been removed.
    A signal that came when all was done changes nothing, even if a replica that was about to end died of it. When the
    block ends, all other writers of the record must have ended.
    """
    try:
        yield
    except KeyboardInterrupt as interrupt:
        end, _ = _recorded_end(run_dir)
        if signals.name and end == "done":
            return
        if not end and run_dir.exists():
            record_end(run_dir, phase="stopped", **({"signal": signals.name} if signals.name else {}))
        if isinstance(interrupt, PreemptedNow):
            raise PreemptedError(signals.name) from interrupt
        raise
    except Exception as error:
        if not run_dir.exists():
            gone = f"{run_dir} was removed while the job was running; the job was stopped and its results are lost"
            raise UserError(gone) from error
        code = error.exit_code if isinstance(error, PersiaError) else PersiaError.exit_code
        end, name = _recorded_end(run_dir)
        name = name or signals.name
        if name and end == "done":
            return
        if name and end != "failed" and code != UserError.exit_code:
            if not end:
                record_end(run_dir, phase="stopped", signal=name, text=str(error))
            raise PreemptedError(name) from error
        if end != "failed":
            record_end(run_dir, phase="failed", error=str(error), exit_code=code)
        raise
    if name := _recorded_end(run_dir)[1]:
        raise PreemptedError(signals.name or name)


def _recorded_end(run_dir: Path) -> tuple[str, str]:
    """Return the recorded end of a job, and the signal that ended it or was ending it; empty if there is none."""
    with understanding(run_dir):
        lines = read_journal(run_dir / EVENTS)
        events = [line for line in lines if line["event"] == "ending" or line.get("phase") in ENDS]
    end = next((str(line["phase"]) for line in reversed(events) if "phase" in line), "")
    last = events[-1] if events else {}
    return end, "" if last.get("phase") == "done" else str(last.get("signal", ""))


def record_end(run_dir: Path, **fields: Any) -> None:
    """Append the last phase of a job to its events; no other process may write them any more."""
    record(run_dir, event="phase", **fields)


def record(run_dir: Path, **fields: Any) -> None:
    """Append an event in the place of a coordinator that has died; no other process may write them now."""
    drop_half_a_line(run_dir / EVENTS)
    events = Journal(run_dir / EVENTS)
    try:
        events.write(**fields)
    finally:
        events.close()


def address_in(run_dir: Path) -> str:
    """Return the address at which the coordinator of a run listens, or did until it died; empty if there is none."""
    try:
        return (run_dir / COORDINATOR_ADDRESS).read_text(encoding="utf-8").strip()
    except FileNotFoundError:
        return ""


def result_of(run_dir: Path) -> JobResult:
    """Return the result of a finished job from its record."""
    return JobResult(run_dir, read_journal(run_dir / METRICS), read_journal(run_dir / EVENTS))


def replicas_named(failure: PersiaError) -> list[str]:
    """Return the replicas that a failure names, in the order in which it does."""
    return re.findall(r"\b(?:coordinator|embedding-server|embedding-worker|data-loader|nn-worker)-\d+", str(failure))


def was_cut_off(log: Sequence[str]) -> bool:
    """Return whether a replica ended because the coordinator did not answer it, by the lines of its log."""
    errors = [line for line in log if line.startswith(ERROR_LINE)]
    return bool(errors) and NO_ANSWER.search(errors[-1]) is not None


def was_silent(run_dir: Path, pid: int) -> bool:
    """Return whether the coordinator has killed a process of its machine, since it was silent."""
    return any(event.get("killed") == pid for event in read_journal(run_dir / EVENTS))


def recorded_failure(run_dir: Path) -> PersiaError | None:
    """Return the failure that the coordinator recorded, if there is one."""
    with understanding(run_dir):
        failed = [event for event in read_journal(run_dir / EVENTS) if event.get("phase") == "failed"]
        if not failed:
            return None
        kind = UserError if failed[0]["exit_code"] == UserError.exit_code else PersiaError
        return kind(failed[0]["error"])
