"""A coordinator in the place of one that died: it is told again what that one was told, and so comes to its state."""

import hashlib
import logging
import os
import socket
import time
from collections.abc import Callable, Hashable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from persia_cli.config.schema import Run
from persia_cli.errors import PersiaError, TakeoverError
from persia_cli.observe.journal import EVENTS, METRICS, ContinuedJournal, read_journal
from persia_cli.observe.record import RunRecord
from persia_cli.plan.job import Job
from persia_cli.roles.coordinator.early_saves import EarlySaves
from persia_cli.roles.coordinator.input_log import (
    LOG,
    GivenUp,
    Input,
    InputLog,
    Judged,
    SaveIsDue,
    SignalCame,
    request_of,
)
from persia_cli.roles.coordinator.liveness import LivenessMonitor
from persia_cli.roles.coordinator.reporting import Reporting
from persia_cli.wire.server import Server

log = logging.getLogger(__name__)

NAME = "coordinator-0"
UNKNOWN = "ended"
"""The cause of a death that no supervisor has seen."""


def event_key(line: dict[str, Any]) -> Hashable:
    """Return by what an event is known that two coordinators of a job would both write."""
    return tuple(line.get(key) for key in ("event", "phase", "replica", "step", "text"))


def metrics_key(line: dict[str, Any]) -> Hashable:
    """Return by what a line of metrics is known."""
    return line["split"], line["step"]


def is_continued(run: Run, job: Job) -> bool:
    """Return whether another coordinator takes the job over from one that is killed."""
    return job.task == "train" and job.benchmark is None and run.recovery.max_restarts > 0


def log_of(run_dir: Path, run: Run, job: Job, life: int) -> InputLog:
    """Return the log of a job for the coordinator's process number `life`, of which the first begins it.

    A later one begins it too if the one before was killed before it could have answered anybody. Raises what InputLog
    does.
    """
    path, metrics = run_dir / LOG, run_dir / METRICS
    digest = hashlib.sha256(run.model_dump_json().encode() + job.to_json()).digest()
    has_begun = (path.exists() and path.stat().st_size > 0) or any(
        line["event"] == "began" for line in read_journal(run_dir / EVENTS)
    )
    size = metrics.stat().st_size if metrics.exists() else 0
    return InputLog(path, digest, size, again=life > 1 and has_begun)


class Takeover:
    """Brings a coordinator to the state of the one before, and tells users that it has."""

    def __init__(
        self,
        inputs: InputLog,
        server: Server,
        events: ContinuedJournal,
        metrics: ContinuedJournal,
        record: RunRecord,
        reporting: Reporting,
        early: EarlySaves,
        liveness: LivenessMonitor,
        give_up: Callable[[str, int], None],
        or_give_up: Callable[[], AbstractContextManager[None]],
    ) -> None:
        """`or_give_up` is the context in which every request is handled."""
        self._inputs, self._server, self._events, self._metrics = inputs, server, events, metrics
        self._record, self._reporting, self._early, self._liveness = record, reporting, early, liveness
        self._give_up, self._or_give_up = give_up, or_give_up

    def run(self) -> None:
        """Hear all that the coordinators before have heard, then go on; raises TakeoverError if that does not fit."""
        count = 0
        try:
            for entry in self._inputs.replay():
                count += 1
                with self._or_give_up():
                    self._hear(entry)
        except TakeoverError:
            raise
        except Exception as error:
            log.exception("record %d of the log cannot be followed", count)
            text = str(error) if isinstance(error, PersiaError) else f"{type(error).__name__}: {error}"
            raise TakeoverError(f"the log of the coordinator before cannot be followed: {text}") from error
        self._metrics.drop_earlier()
        self._record.pass_over([str(line["text"]) for line in self._events.earlier if "text" in line])
        self._liveness.begin_anew(self._inputs.clock())
        log.info("took the job over: %d requests and signals were known", count)
        self._tell()

    def _hear(self, entry: Input | SignalCame | SaveIsDue | GivenUp | Judged) -> None:
        match entry:
            case Input():
                self._server.replay(*request_of(entry))
            case SignalCame():
                self._early.on_signal(entry.name)
            case SaveIsDue():
                self._early.on_time()
            case GivenUp():
                self._give_up(entry.text, entry.exit_code)
            case Judged():
                self._reporting.judge(entry.line)

    def _tell(self) -> None:
        """Record the death, unless a supervisor has, and the recovery from it."""
        deaths = [line for line in self._events.earlier if line.get("replica") == NAME]
        self._events.keep_earlier(
            lambda line: line["event"] in ("roles", "tables") or line.get("phase") in ("failed", "stopped")
        )
        if not deaths or deaths[-1]["event"] != "died":
            self._events.write(event="died", replica=NAME, cause=UNKNOWN)
            deaths = [{"time": time.time(), "cause": UNKNOWN}]
        self._events.write(
            event="recovered",
            replica=NAME,
            cause=deaths[-1]["cause"],
            host=socket.gethostname(),
            pid=os.getpid(),
            seconds=round(max(0.0, time.time() - deaths[-1]["time"]), 3),
            repeated={},
            lost=0,
        )
