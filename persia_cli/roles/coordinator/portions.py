"""The portions of data that grows are found and recorded, in `portions.jsonl` of the run directory."""

# Invariants:
#
# - A portion is on the disk before its steps are assigned, and never changes: a job that goes on from a checkpoint has
#   the portions of the record first, with the same files.
# - Files are in portions in the order of the planner, each in one.

import json
import os
import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import msgspec

from persia_cli.config.schema import ParquetDataset, Run
from persia_cli.config.schema.embedding import seconds_of_duration
from persia_cli.control.portions import PlannedPortion
from persia_cli.data.follow.files import MeasuredFile, measured
from persia_cli.data.follow.planner import planner_of
from persia_cli.disk import writing
from persia_cli.errors import CheckpointError, DataError
from persia_cli.observe.journal import PORTIONS, drop_half_a_line
from persia_cli.roles.coordinator.following import Found
from persia_cli.wire.job_messages import MOST_FILES

_DECODER = msgspec.json.Decoder(PlannedPortion)
MOST_TIMES = 2000
"""Number of portions whose times are kept; of more, every second one."""


def recorded(run_dir: Path) -> Iterator[PlannedPortion]:
    """Yield the portions of a run's record, in order; raise CheckpointError for a damaged line."""
    path = run_dir / PORTIONS
    if not path.exists():
        return
    with path.open("rb") as file:
        for number, line in enumerate(file, 1):
            try:
                yield _DECODER.decode(line)
            except msgspec.DecodeError as error:
                raise CheckpointError(f"{path} is damaged: line {number} cannot be read ({error})") from error


class PortionFinder:
    """Finds the next portion of a job; used on one thread, which waits for disks and stores."""

    def __init__(self, run: Run, run_dir: Path, step: int, clock: Callable[[], float] = time.time) -> None:
        """Begin with the portion that has `step`; raise CheckpointError if the record lacks portions before it."""
        assert isinstance(run.dataset, ParquetDataset)
        assert run.dataset.follow is not None
        self._dataset, self._follow, self._clock = run.dataset, run.dataset.follow, clock
        self._batch_size, self._path, self._step = run.train.batch, run_dir / PORTIONS, step
        drop_half_a_line(self._path)
        self._planner = planner_of(
            run.dataset, lambda: (file[0] for known in recorded(run_dir) for file in known.files)
        )
        self._recorded: Iterator[PlannedPortion] | None = recorded(run_dir)
        self._last: PlannedPortion | None = None
        self._cursor: str | None = None
        """The cursor after the last file that waits for its portion, or is in one."""
        self._waiting: list[MeasuredFile] = []
        self._since = 0.0
        """The time at which the first of them was found."""
        self._skipped: list[str] = []
        """Sentences on traps that the present look passes over."""
        after = run.embedding.expire_after
        self._lifetime_s = seconds_of_duration(after) if isinstance(after, str) else None
        self._times: deque[tuple[int, float]] = deque()
        """The first step and the last time of the portions within this lifetime, or of some of them."""

    def find(self) -> Found:
        """Return the next portion once the record has it; none if it has to wait for files, or a trap.

        Files that came before a trap are a portion; the next look finds the trap again.
        """
        now = self._clock()
        if (known := self._next_recorded()) is not None:
            return Found(now, known)
        trap, self._skipped = "", []
        try:
            self._poll(now)
        except DataError as error:
            trap = str(error)
        if not self._waiting:
            return Found(now, skipped=self._skipped, trap=trap)
        is_complete = self._is_full() or trap or now - self._since >= self._follow.max_wait_s
        return Found(now, self._record() if is_complete else None, self._oldest(), self._skipped)

    def _next_recorded(self) -> PlannedPortion | None:
        """Return the next portion of the record that has steps to train; None once there are no more."""
        while self._recorded is not None and (portion := next(self._recorded, None)) is not None:
            self._last, self._cursor = portion, portion.cursor
            self._expired(portion.first_step, portion.greatest)
            if portion.end > self._step:
                return portion
        if self._recorded is not None and (self._last.end if self._last else 0) < self._step:
            raise CheckpointError(
                f"{self._path} lacks the portions up to step {self._step:,}, from which the training is to go on; "
                "restore it, or begin a new run with the model, by init_from"
            )
        self._recorded = None
        return None

    def _oldest(self) -> float | None:
        return self._waiting[0].file.arrived if self._waiting else None

    def _poll(self, now: float) -> None:
        """Add the files that are new, unless there are enough; raises DataError for a trap."""
        if self._is_full():
            return
        plan = self._planner.poll(self._cursor, MOST_FILES)
        self._skipped += plan.skipped
        for file, found in measured(self._dataset, plan.files):
            if isinstance(found, str):
                self._skipped.append(found)
            elif found.rows:
                self._since = self._since if self._waiting else now
                self._waiting.append(found)
            self._cursor = file.cursor

    def _is_full(self) -> bool:
        return len(self._waiting) >= MOST_FILES or sum(file.rows for file in self._waiting) >= self._follow.rows

    def _record(self) -> PlannedPortion:
        """Make a portion of the files that wait, as far as it needs them, and write it."""
        last, taken, rows = self._last, 0, 0
        step = last.end if last else 0
        while taken < min(len(self._waiting), MOST_FILES) and rows < self._follow.rows:
            rows, taken = rows + self._waiting[taken].rows, taken + 1
        files, self._waiting, self._since = self._waiting[:taken], self._waiting[taken:], self._clock()
        least = [file.least for file in files if file.least is not None]
        greatest = [file.greatest for file in files if file.greatest is not None]
        self._last = PlannedPortion(
            number=last.number + 1 if last else 1,
            first_step=step,
            steps=-(-rows // self._batch_size),
            first_sample=last.first_sample + last.rows if last else 0,
            rows=rows,
            files=[(file.file.path, file.rows, file.content) for file in files],
            cursor=files[-1].file.cursor,
            arrived=min(file.file.arrived for file in files),
            least=min(least, default=None),
            greatest=max(greatest, default=None),
            expired=self._expired(step, max(greatest, default=None)),
        )
        self._append(asdict(self._last))
        return self._last

    def _expired(self, step: int, time: float | None) -> int:
        """Return the step before which the rows that expire in a portion were last used, given its step and time."""
        if self._lifetime_s is None or time is None:
            return 0
        self._times.append((step, time))
        while self._times[0][1] < time - self._lifetime_s:
            self._times.popleft()
        if len(self._times) > MOST_TIMES:
            self._times = deque(list(self._times)[::2])
        return self._times[0][0]

    def _append(self, fields: dict[str, Any]) -> None:
        with writing(self._path), self._path.open("ab") as file:
            file.write(json.dumps(fields).encode() + b"\n")
            file.flush()
            os.fsync(file.fileno())
