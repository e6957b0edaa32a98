"""The thread of one logger: it sends new lines of metrics, and repeats what fails until the job ends."""

import logging
import threading
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from persia_cli.config.record import CONFIG
from persia_cli.config.schema import Run
from persia_cli.disk import write_whole
from persia_cli.errors import one_line
from persia_cli.loggers.logger import LOGGERS, Facts, Logger, flat, metrics_of
from persia_cli.observe.history import ENDS
from persia_cli.observe.journal import EVENTS, METRICS, Tail, read_journal
from persia_cli.observe.outcome import metrics_in
from persia_cli.plan.columns import label_names

EVERY_S = 1.0
"""Seconds between two looks at the metrics, and before a failed call is repeated for the first time."""
LONGEST_WAIT_S = 30.0
"""Maximum number of seconds before a failed call is repeated: they double."""
LONGEST_ERROR = 200
"""Maximum number of characters of an error in the state."""


class LoggerState(msgspec.Struct):
    """The content of `loggers/NAME.json`."""

    run: str | None = None
    """The id of the tracker's run."""
    sent: dict[str, int] = {}
    """The last step that the tracker has, by split.

    Not a position in the file: a resume cuts that, and lines of the same steps take the place of those it cuts.
    """
    process: int = 0
    """The process that has written the state, the number of its calls that failed, and the error of the first."""
    failures: int = 0
    error: str = ""

    def lacks(self, line: Mapping[str, Any]) -> bool:
        """Return True if the tracker has no line of this split and step."""
        return int(line["step"]) > self.sent.get(line["split"], -1)


_DECODER = msgspec.json.Decoder(LoggerState)


def state_in(run_dir: Path, name: str) -> LoggerState:
    """Return the state of a logger; an empty one if there is none, or if it is damaged."""
    try:
        return _DECODER.decode((run_dir / LOGGERS / f"{name}.json").read_bytes())
    except (OSError, ValueError):
        return LoggerState()


class LoggerFeed(threading.Thread):
    """The lines of a run's metrics for one logger, each once, in order, until `ending` is set and all are sent."""

    def __init__(self, name: str, logger: Logger, run: Run, run_dir: Path, ending: threading.Event) -> None:
        super().__init__(name=name, daemon=True)  # a daemon, since a call may never return
        self._logger, self._run, self._run_dir, self._ending = logger, run, run_dir, ending
        self.state = state_in(run_dir, name)
        self._lines = Tail(run_dir / METRICS)
        self._saved_s = time.monotonic()

    def run(self) -> None:
        """Begin, send each line once it is written, and end the tracker's run."""
        if self._repeat(self._begin) and self._follow():
            self._repeat(self._end)
        self.save()

    def _begin(self) -> None:
        state, run = self.state, self._run
        step = max(state.sent.values(), default=0)
        facts = Facts(run.name, self._run_dir.name, self._run_dir / LOGGERS, state.run, step, label_names(run))
        state.run = self._logger.start(facts, flat(run.model_dump(mode="json")))
        self.save()
        try:
            self._logger.artefact(self._run_dir / CONFIG, CONFIG)
        except Exception as error:  # Metrics are worth more: a server may have no place for files.
            self._note(error)

    def _follow(self) -> bool:
        """Send lines until the job has ended; return False if some could not be sent."""
        while True:
            is_last = self._ending.is_set()
            sent = dict(self.state.sent)
            for line in filter(self.state.lacks, self._lines.new()):
                if not self._repeat(partial(self._send, line)):
                    return False
            if self.state.sent != sent:
                self.save()
            if is_last:
                return True
            self._ending.wait(EVERY_S)

    def _send(self, line: dict[str, Any]) -> None:
        self._logger.line(line["split"], line["step"], line["time"], metrics_of(line))
        self.state.sent[line["split"]] = line["step"]
        if time.monotonic() > self._saved_s + EVERY_S:
            self.save()

    def _end(self) -> None:
        phases = [event["phase"] for event in read_journal(self._run_dir / EVENTS) if event.get("phase") in ENDS]
        found = metrics_in(self._run_dir, self._run.judging_metric)
        summary = {"steps": found.steps, "samples_per_s": found.samples_per_s} | found.quality if found else {}
        self._logger.end(phases[-1] if phases else "stopped", metrics_of(summary))

    def _repeat(self, call: Callable[[], None]) -> bool:
        """Call until that succeeds; return False if it does not after the end of the job."""
        wait_s = EVERY_S
        while True:
            is_last = self._ending.is_set()
            try:
                call()
                return True
            except Exception as error:
                self._note(error)
            if is_last:
                return False
            self._ending.wait(wait_s)
            wait_s = min(2 * wait_s, LONGEST_WAIT_S)

    def _note(self, error: Exception) -> None:
        logging.warning("%s", error, exc_info=not self.state.failures)
        self.state.failures += 1
        self.state.error = self.state.error or f"{type(error).__name__}: {one_line(error)[:LONGEST_ERROR]}"
        self.save()

    def save(self) -> None:
        """Write the state."""
        write_whole(self._run_dir / LOGGERS / f"{self.name}.json", msgspec.json.encode(self.state) + b"\n")
        self._saved_s = time.monotonic()
