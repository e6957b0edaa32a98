"""The engine that runs each replica as a child of this process, which is driver and supervisor."""

import signal
from collections.abc import Callable, Sequence
from pathlib import Path

from persia_cli.control.restarts import SILENT
from persia_cli.disk import own_folder, writing
from persia_cli.engines.coordinated import FIRST, SETTLE_S, TAIL_LINES, CoordinatedJob
from persia_cli.engines.driver import drive
from persia_cli.engines.engine import Engine
from persia_cli.engines.job import (
    SIGNALLED,
    JobResult,
    recorded_failure,
    was_cut_off,
    was_silent,
)
from persia_cli.engines.kernels import Compiling
from persia_cli.engines.key_files import key_file_of
from persia_cli.engines.role_options import RoleOptions
from persia_cli.engines.supervisor import CLEAN_EXITS, DeathReports, Supervised, supervise
from persia_cli.errors import (
    ConfigError,
    DiskError,
    KilledError,
    MemoryFileError,
    PersiaError,
    RoleError,
    UserError,
)
from persia_cli.plan.job import COORDINATOR, JobPlan, Replica, retains_memory
from persia_cli.roles.start import default_address
from persia_cli.wire.addresses import SOCKETS, ipc_address
from persia_cli.wire.secret import TOKEN, new_keys, new_token, read_secret, write_keys, write_token
from persia_cli.wire.sockets import Context

KEYS = "keys"


class LocalEngine(Engine):
    """An engine whose replicas are children of the command."""

    def launch(self, plan: JobPlan, follow: Callable[[], None] = lambda: None) -> JobResult:
        """Run a job to its end in processes of this machine."""
        with own_folder(SOCKETS) as sockets:
            return drive(plan, lambda _: Processes(plan, sockets), follow)


def _require_this_machine(plan: JobPlan) -> None:
    """Raise ConfigError for a training that is meant for other machines; their models are used on this one."""
    cluster = plan.run.cluster
    if plan.job.task == "train" and cluster.is_spread:
        raise ConfigError(
            f"cluster={cluster.name} is for persia train; this command runs on this machine: give cluster=local"
        )


class Processes(CoordinatedJob):
    """The processes of one job; the kernel kills each of them if the driver dies."""

    def __init__(
        self, plan: JobPlan, sockets: Path, advertised: Callable[[Replica], str | None] = lambda replica: None
    ) -> None:
        """Prepare the job's secret.

        `sockets` is the folder of the processes' sockets. `advertised` returns the address of a replica for the others,
        or None for its own address.
        """
        _require_this_machine(plan)
        super().__init__(plan)
        self._sockets = sockets
        self._advertised = advertised
        self.secret_file = self._prepared_secret(sockets)
        self.secret = read_secret(self.secret_file)
        """The secret that all replicas of the job share."""
        self.address = ""
        """Address of the coordinator, once it has started. Its file is removed as soon as the coordinator ends."""
        self._started: list[Supervised] = []
        self._kernels = Compiling(plan)
        # After a restart, the measurements of a benchmark would be wrong.
        restarts = plan.run.recovery.max_restarts and plan.job.benchmark is None
        self._reports = DeathReports("driver", lambda: self.address, lambda: Context(self.secret)) if restarts else None

    def _prepared_secret(self, folder: Path) -> Path:
        """Return the file of the user's keys if connections are to be encrypted, or of a secret that is made here."""
        cluster = self._plan.run.cluster
        if cluster.tcp_encryption != "curve":
            write_token(folder / TOKEN, new_token())
            return folder / TOKEN
        if (given := key_file_of(None, None)) is not None:
            return given
        write_keys(folder / KEYS, new_keys())
        return folder / KEYS

    def start(self, follow: Callable[[], None] = lambda: None) -> None:
        """Start the coordinator, then the others, each in its own session, so that only the driver gets Ctrl-C."""
        cluster = self._plan.run.cluster
        listen = "tcp://127.0.0.1:*" if cluster.loopback_is_tcp else ipc_address(self._sockets, "coordinator-0")
        coordinator, *others = self._plan.replicas
        self._coordinator = self._spawn(coordinator, listen)
        self.address = self._await_address(follow)
        for replica in others:
            self._spawn(replica, self.address)

    def _spawn(self, replica: Replica, coordinator: str) -> Supervised:
        advertised = self._advertised(replica)
        has_keys = self.secret.keys is not None
        options = RoleOptions(
            replica.role,
            replica.index,
            coordinator,
            bind=default_address(coordinator, replica.name) if advertised else None,
            advertise=advertised,
            run_dir=self._plan.run_dir if replica.role == COORDINATOR else None,
            token_file=None if has_keys else self.secret_file,
            key_file=self.secret_file if has_keys else None,
            cpus=self._plan.run.cluster.processors_of(replica.role, replica.index) or None,
        )
        reports = self._reports if replica.role != COORDINATOR else None
        keeps = retains_memory(self._plan.run, replica.role)
        self._started.append(Supervised(options, reports, keeps, self._log_of(replica.name)))
        return self._started[-1]

    def poll(self) -> None:
        """Record compiled kernels, and replace processes that have died where the coordinator wants that."""
        self._kernels.check()
        # A coordinator that has ended cannot answer, and its silence does not count.
        if self._reports is not None and self._is_coordinated:
            supervise(self._started, self._reports)

    @property
    def running(self) -> bool:
        """True if the coordinator runs and no replica has failed for good."""
        return self._is_coordinated and not any(started.failed for started in self._started)

    def check(self) -> None:
        """Raise the failure that ended the job, if there was one."""
        ended = [started for started in self._started if started.failed]
        for started in ended:
            # It was killed from outside, so this is the cause; errors of other replicas are consequences.
            code = started.process.returncode
            if code < 0 or code > SIGNALLED or code == MemoryFileError.exit_code:
                raise self._death(started)
        if not ended:
            return
        self.wait(SETTLE_S)
        # A replica whose absence made the coordinator fail is the cause.
        first = next((s for s in ended if s.options.role != "coordinator"), ended[0])
        raise recorded_failure(self._plan.run_dir) or self._death(first)

    def _death(self, started: Supervised) -> PersiaError:
        """Return the error that ended a replica: the one in its log, or else its exit code and last lines."""
        code, name, log = started.process.returncode, started.options.name, self._log_of(started.options.name)
        kind = UserError if code == UserError.exit_code else RoleError
        lines, errors = self._lines(name), self._errors(name)
        if was_cut_off(lines) and self._is_coordinated and not self._saves:
            return KilledError(f"{FIRST} was silent and therefore killed: {name}: {errors[-1]}", FIRST)
        if errors and code == MemoryFileError.exit_code:
            return KilledError(f"{name} was killed, and {errors[-1]}", name)
        if errors:
            return kind("\n".join(f"{name}: {error}" for error in errors))
        try:
            with writing(log), log.open("ab") as file:
                file.write(b"\n")
        except DiskError as refused:
            return refused  # the disk is full, so the replica could not write its error
        stopped = f"was stopped ({signal.Signals(code - SIGNALLED).name})" if code > SIGNALLED else ""
        if was_silent(self._plan.run_dir, started.process.pid):
            stopped = SILENT
        text = started.given_up_because or f"{name} {stopped or started.ended_how}"
        death = KilledError(text, name) if code < 0 and not self._saves else kind(text)
        tail = "\n".join(f"  {line}" for line in lines[-TAIL_LINES:]) or "  (nothing)"
        death.add_note(f"The job was stopped. The end of {log}:\n{tail}")
        return death

    def stop(self) -> None:
        """End all processes that still run: ask them to stop, and kill them after `cluster.stop_timeout_s`.

        The coordinator is asked first: it notifies the others, so that each knows that the whole job ends.
        """
        limit_s = self._plan.run.cluster.stop_timeout_s
        try:
            if self._started and self._started[0].process.poll() in CLEAN_EXITS:
                self._wait_for(self._started, limit_s)
            for group in (self._started[:1], self._started):
                for started in group:
                    started.signal(signal.SIGINT)
                self._wait_for(group, limit_s)
        finally:
            for started in self._started:
                started.close()
            if self._reports is not None:
                self._reports.close()
            self._kernels.close()

    def _wait_for(self, replicas: Sequence[Supervised], seconds: float) -> None:
        self._wait_while(lambda: any(replica.process.poll() is None for replica in replicas), seconds)
