"""Jobs that train turn by turn: started once, and idle in between, so that others can be measured meanwhile."""

import os
import queue
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from persia_cli.bench.rounds import INTERVALS, MeasuredTurn, samples_and_seconds, turn_steps, without_ends
from persia_cli.config.schema import Run
from persia_cli.data.read.facts import DatasetFacts, inspect
from persia_cli.disk import own_folder
from persia_cli.engines.job import prepare_run_dir
from persia_cli.engines.local import Processes
from persia_cli.engines.readiness import require_ready
from persia_cli.engines.signals import terminating_interrupts
from persia_cli.errors import PersiaError, RoleError, UserError
from persia_cli.observe.journal import EVENTS, METRICS, Tail
from persia_cli.observe.machine import cpu_seconds_of
from persia_cli.observe.recordings import ReplicaTrace, read_recordings
from persia_cli.plan.job import DRIVER, Benchmark, plan_job
from persia_cli.roles.session import CoordinatorSession
from persia_cli.wire.addresses import SOCKETS
from persia_cli.wire.job_messages import Pause, PhaseWork
from persia_cli.wire.loop import Loop
from persia_cli.wire.sockets import Context

LOOK_S = 0.02


class TurnJob:
    """The processes of a job, and turns of training; a context manager that leaves no process and no file.

    The job ends by itself after all turns and a call of `finish`; otherwise its processes are stopped.
    """

    def __init__(
        self,
        run: Run,
        facts: DatasetFacts,
        steps: int,
        turns: int,
        ring: int,
        nn_worker: Callable[[Context, str], Any] | None = None,
        evaluate: bool = False,
    ) -> None:
        """Plan `turns` turns in which `steps` steps each are measured; `ring` batches repeat (0: loaders read).

        One more turn follows, in `finish`: it is traced and not measured. `nn_worker` makes a replacement of the
        NN worker's process, with a method `close`, from a context and the coordinator's address. `evaluate`: `finish`
        evaluates too.
        """
        self._turn_steps = turn_steps(steps)
        self._exit = ExitStack()
        folder = Path(self._exit.enter_context(tempfile.TemporaryDirectory(prefix="persia-bench-")))
        total = (turns + 1) * self._turn_steps
        run = without_ends(run, facts, total, self._turn_steps // INTERVALS)
        plan = plan_job(run, facts if evaluate else replace(facts, eval_rows=0), "train", folder)
        require_ready([plan])
        if nn_worker is not None:
            plan = replace(plan, replicas=tuple(replica for replica in plan.replicas if replica.role != "nn-worker"))
        self._nn_worker = nn_worker
        traced = total - self._turn_steps + self._turn_steps // INTERVALS
        benchmark = Benchmark(self._turn_steps, ring)
        self.plan = replace(plan, job=replace(plan.job, benchmark=benchmark, trace_first=traced, trace_last=total))
        self.pids: dict[str, int] = {}
        self.metrics: dict[str, Any] = {}
        """The last line of metrics of training."""
        self.evaluation: dict[str, Any] = {}
        """The line of metrics of the evaluation, after `finish`."""
        self._metrics, self._events = Tail(folder / METRICS), Tail(folder / EVENTS)
        self._number: int | None = None

    def __enter__(self) -> Self:
        try:
            self._start()
        except BaseException:
            self._exit.close()
            raise
        return self

    def _start(self) -> None:
        prepare_run_dir(self.plan)
        sockets = self._exit.enter_context(own_folder(SOCKETS))
        self._processes = Processes(self.plan, sockets)
        self._exit.callback(self._processes.stop)
        self._processes.start()
        context = Context(self._processes.secret)
        self._exit.callback(context.term)
        self._driver = Driver(context, self._processes.address)
        self._exit.callback(self._driver.close)
        if self._nn_worker is not None:
            self._exit.callback(self._nn_worker(context, self._processes.address).close)
        self._wait_paused()
        self.pids = {
            replica["name"]: replica["pid"]
            for event in self._events.new()
            if event["event"] == "ready"
            for replica in event["replicas"]
            if replica["pid"] != os.getpid()
        }

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._exit.close()

    def turn(self) -> MeasuredTurn:
        """Train a turn and wait until the job is idle again; raises the error of a job that has died."""
        assert self._number is not None
        self._driver.go_on(self._number)
        self._number = None
        lines: list[dict[str, Any]] = []
        clocks: list[dict[str, float]] = []
        while len(lines) < INTERVALS:
            for line in self._lines():
                lines.append(line)
                clocks.append({name: cpu_seconds_of(pid) for name, pid in self.pids.items()})
            time.sleep(LOOK_S)
        if lines[-1]["step"] < self.plan.job.steps:
            self._wait_paused()
        self.metrics, measured = lines[-1], lines[1:]
        used = {name: clocks[-1][name] - clocks[0][name] for name in self.pids}
        staleness = sum(line["staleness_mean"] for line in measured) / len(measured)
        return MeasuredTurn(*samples_and_seconds(lines), used, staleness)

    def cpu_seconds(self) -> float:
        """Return the CPU time of all processes so far."""
        return sum(cpu_seconds_of(pid) for pid in self.pids.values())

    def finish(self) -> tuple[list[ReplicaTrace], int]:
        """Run the last turn, which is traced, wait for the end of the job, and return its traces and traced steps."""
        self.turn()
        while self._processes.running:
            time.sleep(LOOK_S)
        self._processes.check()
        self._new_lines()
        job = self.plan.job
        return read_recordings(self.plan.run_dir), job.trace_last - job.trace_first

    def _lines(self) -> list[dict[str, Any]]:
        ended = not self._processes.running
        lines = self._new_lines()
        if not lines:
            self._check(ended)
        return lines

    def _new_lines(self) -> list[dict[str, Any]]:
        """Return the new lines of training, and keep that of the evaluation."""
        new = list(self._metrics.new())
        self.evaluation = next((line for line in new if line["split"] == "eval"), self.evaluation)
        return [line for line in new if line["split"] == "train"]

    def _wait_paused(self) -> None:
        while self._number is None:
            self._check(not self._processes.running)
            self._number = self._driver.wait_paused(LOOK_S)

    def _check(self, ended: bool) -> None:
        self._processes.check()
        if ended:
            raise PersiaError("the job has ended before all turns were measured")


@contextmanager
def idle_jobs(
    runs: Mapping[str, Run], steps: int, rounds: int, note: Callable[[str], None], evaluate: bool = False
) -> Iterator[dict[str, TurnJob]]:
    """Start a job for each run, for a round to warm up and `rounds` rounds; all processes end with the context.

    Raise UserError if the jobs are not processes of this machine.
    """
    if not all(run.cluster.has_processes_here for run in runs.values()):
        raise UserError("this benchmark measures processes of this machine; use cluster=local")
    with terminating_interrupts(), ExitStack() as exit_stack:
        jobs = {}
        for name, run in runs.items():
            note(f"starting the job {name}")
            job = TurnJob(run, inspect(run.dataset), steps, rounds + 1, ring=0, evaluate=evaluate)
            jobs[name] = exit_stack.enter_context(job)
        yield jobs


class Driver:
    """Joins the job in a separate thread; all methods are for the thread that measures."""

    def __init__(self, context: Context, coordinator: str) -> None:
        self._loop = Loop(context, f"{DRIVER}-0")
        self._session = CoordinatorSession(self._loop, coordinator, DRIVER, 0)
        self._waker = self._loop.waker()
        self._calls: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._paused: queue.SimpleQueue[int] = queue.SimpleQueue()
        self._error: BaseException | None = None
        self._closing = False
        self._thread = threading.Thread(target=self._run, name=f"{DRIVER}-0")
        self._thread.start()

    def wait_paused(self, seconds: float) -> int | None:
        """Wait until the job stands before a turn; returns the number to go on with, None if it has not come yet.

        Raises RoleError if the driver has lost the job.
        """
        if self._error is not None:
            raise RoleError(f"the job cannot be driven any more: {self._error}")
        try:
            return self._paused.get(timeout=seconds)
        except queue.Empty:
            return None

    def go_on(self, number: int) -> None:
        """Begin the turn that `wait_paused` returned."""
        self._calls.put(lambda: self._session.done(number))
        self._waker.wake()

    def close(self) -> None:
        """Leave the job, whatever it does."""
        self._closing = self._session.stop = True
        self._waker.wake()
        self._thread.join()

    def _run(self) -> None:
        try:
            self._session.join("")
            self._session.ready(self._on_instruction)
            while not self._session.stop:
                self._loop.poll(0.2)
                while not self._calls.empty():
                    self._calls.get()()
            self._session.farewell()
        except Exception as error:
            if not self._closing:
                self._error = error
        finally:
            self._loop.close()

    def _on_instruction(self, number: int, work: PhaseWork) -> None:
        if isinstance(work, Pause):
            self._paused.put(number)
