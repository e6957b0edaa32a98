"""A job on machines that ssh reaches: started, followed, ended. It goes on when this process ends before it does."""

import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from persia_cli.config.schema import Run
from persia_cli.engines.configuration import configuration, keys_of_job
from persia_cli.engines.handed_over import text_of
from persia_cli.engines.hosts.connection import Connection
from persia_cli.engines.hosts.machines import address_of_coordinator, ask, require_usable
from persia_cli.engines.hosts.mirror import Mirror
from persia_cli.engines.hosts.placement import placement_of, settings_of
from persia_cli.engines.hosts.remote import answer_of, failure, last_words
from persia_cli.engines.hosts.start import start_folder, start_words
from persia_cli.engines.job import (
    ERROR_LINE,
    SIGNALLED,
    JobResult,
    recorded_failure,
    replicas_named,
    result_of,
    was_cut_off,
)
from persia_cli.errors import KilledError, PersiaError, PreemptedError, RoleError, UserError
from persia_cli.plan.job import COORDINATOR, Replica

FIRST = f"{COORDINATOR}-0"
POLL_S = 0.1
SETTLE_S = 3.0
"""Seconds that the coordinator has to say why a replica failed, before that is said here."""
TAIL_LINES = 20
MOST_LOGS = 8
"""Replicas that a failure names whose logs are shown with it."""
START_S = 600.0
"""Seconds for one start; that of the coordinator looks at the data first."""
CATCH_UP_S = 60.0
MOST_AT_ONCE = 16
WELL = (0, PreemptedError.exit_code)


class HostsJob:
    """A job that has been started; `poll` has to be called all the time."""

    def __init__(
        self, run: Run, run_dir: Path, name: str, number: int, say: Callable[[str], None], copies: bool = True
    ) -> None:
        """`name` is that of the job's folder on each machine, and `number` that of the start.

        `say` is called with sentences for people. With `copies`, the run directory gets the job's record and logs.
        """
        self.run, self.run_dir, self.name, self.number = run, run_dir, name, number
        self._hosts, self._say = settings_of(run), say
        self._copies, self._gives_up = copies, True
        self.placement = placement_of(run)
        self._connections: dict[str, Connection] = {}
        self._started: list[Replica] = []
        self._said: dict[str, str] = {}
        """Last words of the commands that started replicas."""

    def start(self, say_start: Callable[[str], None]) -> None:
        """Start all replicas, the coordinator first; `say_start` is called with what is done.

        Raises UserError or RoleError, which names replica and machine, for the first that does not start.
        """
        machines = list({host.ssh: host for host in self.placement.values()}.values())
        say_start(f"asking {', '.join(host.ssh for host in machines)}")
        facts = ask(self._hosts, machines)
        require_usable(self.run, self.placement, facts)
        address, keys = address_of_coordinator(self.placement, facts), keys_of_job()
        first, *others = self.placement
        say_start(f"{first.name} on {self.placement[first].ssh}")
        self._start(first, address, text_of(keys, configuration(self.run)))
        self.connect([first])
        address = self._await_address()
        say_start(f"{len(others)} other replicas")
        with ThreadPoolExecutor(MOST_AT_ONCE) as pool:
            list(pool.map(lambda replica: self._start(replica, address, text_of(keys)), others))
        self.connect(others)

    def _start(self, replica: Replica, coordinator: str, given: str) -> None:
        self._started.append(replica)  # it may run even if that cannot be told
        host = self.placement[replica]
        words = start_words(self.run, replica, host, self.name, self.number, coordinator)
        what = f"{replica.name} cannot be started"
        ended = answer_of(self._hosts, host, words, given, START_S, what)
        if ended.returncode:
            self._started.remove(replica)
            raise failure(self._hosts, host, ended, what)
        self._said[replica.name] = last_words(ended.stderr)

    def find(self, replicas: Sequence[str] = ()) -> None:
        """Follow these replicas of a job that was started before, by default all.

        Other machines than the coordinator's may be out of reach: `missing` names them, and they are tried again.
        Raises UserError if the coordinator's machine is not reached, or knows nothing of the job.
        """
        self._started = [replica for replica in self.placement if not replicas or replica.name in replicas]
        self.keep_trying()
        self.connect(self._started)
        self.catch_up(CATCH_UP_S)
        self.keep_trying(False)
        if (first := self._host_of(FIRST)) in self.missing:
            raise UserError(f"{first} cannot be reached by ssh; the job may go on")
        if FIRST not in self.there:
            raise UserError(
                f"{self._named(FIRST)}: there is no start {self.number} of the job in the folder {self.name}"
            )

    def connect(self, replicas: Sequence[Replica]) -> None:
        """Follow the machines of these replicas."""
        for host in [self.placement[replica] for replica in replicas]:
            if host.ssh not in self._connections:
                there = [each.name for each, at in self.placement.items() if at is host]
                mirror = Mirror(self.run_dir, there, [each.name for each in self.placement], self._copies)
                start = start_folder(self.name, self.number)
                self._connections[host.ssh] = Connection(self._hosts, host, start, mirror, self._say, self._gives_up)

    def _await_address(self) -> str:
        """Return where the coordinator listens; raises its failure if it ends before."""
        limit_s, begin = self.run.cluster.start_timeout_s, time.monotonic()
        connection = self._connections[self.placement[Replica(COORDINATOR, 0)].ssh]
        while not connection.mirror.address or not connection.caught_up:
            self.poll()
            self.check()
            if FIRST in self.ended:
                raise PreemptedError("a signal")  # to the coordinator itself, before it could save anything
            if connection.caught_up and FIRST not in self.there:
                raise UserError(f"{self._named(FIRST)} was not started: {self._said[FIRST]}")
            if time.monotonic() - begin > limit_s:
                raise RoleError(f"{self._named(FIRST)} does not listen after {limit_s:g} s{self._tail(FIRST)}")
            time.sleep(POLL_S)
        return connection.mirror.address

    def catch_up(self, limit_s: float) -> None:
        """Wait until all that has happened on machines in reach is known here, but not longer than so many seconds.

        The coordinator's machine is waited for also while ssh does not reach it.
        """
        begin, first = time.monotonic(), self._host_of(FIRST)
        while time.monotonic() - begin < limit_s:
            if all(each.caught_up or (each.is_lost and name != first) for name, each in self._connections.items()):
                return
            self.poll()
            time.sleep(POLL_S)

    @property
    def missing(self) -> list[str]:
        """Machines from which it is not known what has happened there."""
        return [name for name, each in self._connections.items() if not each.caught_up]

    def keep_trying(self, wanted: bool = True) -> None:
        """Do not give up machines that ssh does not reach: who ends a job ends it on all others."""
        self._gives_up = not wanted
        for connection in self._connections.values():
            connection.gives_up = not wanted

    @property
    def has_begun(self) -> bool:
        """False if it is sure that nothing was started."""
        cancelled = {name for each in self._connections.values() for name in each.cancelled}
        return any(replica.name not in cancelled for replica in self._started)

    @property
    def there(self) -> set[str]:
        """Replicas that were started, as far as the machines have said."""
        return {name for each in self._connections.values() for name in each.there}

    def poll(self) -> None:
        """Take what has come from the machines."""
        for connection in self._connections.values():
            connection.poll()

    @property
    def ended(self) -> dict[str, int]:
        """Exit codes of the replicas that have ended."""
        return {name: code for each in self._connections.values() for name, code in each.ended.items()}

    @property
    def running(self) -> bool:
        """True if the coordinator runs and no replica has failed for good."""
        ended = self.ended
        return FIRST not in ended and all(code in WELL for code in ended.values())

    def signal(self, name: str, replicas: Sequence[str]) -> None:
        """Send a signal to replicas."""
        for connection in self._connections.values():
            there = [each for each in replicas if self._host_of(each) == connection.host.ssh]
            if there:
                connection.signal(name, there)

    def check(self) -> None:
        """Raise the failure that ended the job, if there was one: KilledError if a process or a machine was lost."""
        failed = {name: code for name, code in self.ended.items() if code not in WELL}
        if not failed:
            return
        self.wait([FIRST], SETTLE_S)
        # Who was killed from outside is the cause; errors of others are consequences.
        killed = [name for name, code in failed.items() if code > SIGNALLED]
        recorded = None if killed else recorded_failure(self.run_dir)
        if recorded is not None and (lost := self._lost_replica(recorded)):
            raise self._with_logs(KilledError(str(recorded), lost)) from recorded
        if recorded is None:
            raise self._failure((killed or sorted(failed, key=lambda name: name == FIRST))[0])
        raise self._with_logs(recorded)

    def result(self) -> JobResult:
        """Return the result of a job whose coordinator has ended well; raises PreemptedError if a signal ended it.

        Raises RoleError if it is not known how the coordinator ended.
        """
        if FIRST not in self.ended:
            raise RoleError(
                f"it is not known whether {self._named(FIRST)} has ended; persia attach {self.run_dir} asks"
            )
        if self.ended[FIRST] == PreemptedError.exit_code:
            raise PreemptedError("a signal")
        return result_of(self.run_dir)

    def stop(self, at_once: bool = False) -> list[str]:
        """End what still runs: ask the coordinator and then all to stop, and kill what runs after that.

        Returns the replicas, with their machines, of which it is not known whether they ended.
        """
        limit_s = self.run.cluster.stop_timeout_s
        self.keep_trying()
        self.connect(self._started)
        self.catch_up(CATCH_UP_S)
        # Also those that are not there: the command that starts one may still be on its way on its machine.
        names = [replica.name for replica in self._started]
        if not at_once:
            if self.ended.get(FIRST) in WELL:
                self.wait(names, limit_s)  # they have heard that the job is done
            self._end([name for name in names if name == FIRST], "SIGINT", limit_s)
            self._end(names, "SIGINT", limit_s)
        self._end(names, "SIGKILL", limit_s)
        if left := [self._named(name) for name in names if not self._is_over(name)]:
            self._say(f"it is not known whether {', '.join(left)} ended")
        return left

    def close(self) -> None:
        """End the connections; what runs on the machines goes on."""
        for connection in self._connections.values():
            connection.close()

    def _end(self, names: Sequence[str], signal: str, limit_s: float) -> None:
        if running := [name for name in names if not self._is_over(name)]:
            self.signal(signal, running)
            self.wait(running, limit_s)

    def wait(self, names: Sequence[str], seconds: float) -> None:
        """Wait until these replicas have ended, but not longer than so many seconds."""
        begin = time.monotonic()
        while any(not self._is_over(name) for name in names) and time.monotonic() - begin < seconds:
            self.poll()
            time.sleep(POLL_S)

    def _is_over(self, name: str) -> bool:
        """Return whether a replica has ended, or will never be started."""
        return any(name in each.ended or name in each.cancelled for each in self._connections.values())

    def _failure(self, name: str) -> PersiaError:
        """Return the error that ended a replica, as its log has it."""
        code = self.ended[name]
        errors = [line.removeprefix(ERROR_LINE) for line in self._log(name) if line.startswith(ERROR_LINE)]
        how = f"was ended by signal {code - SIGNALLED}" if code > SIGNALLED else f"ended with exit code {code}"
        text = f"{self._named(name)}: {errors[-1]}" if errors else f"{self._named(name)} {how}{self._tail(name)}"
        if code > SIGNALLED:
            return KilledError(text, name)
        return UserError(text) if code == UserError.exit_code else RoleError(text)

    def _lost_replica(self, failure: PersiaError) -> str | None:
        """Return the replica that a failure names and that stands still, or was cut off from the coordinator."""
        # Not `there`: a machine may be cut off before it has said that they are.
        started = {replica.name for replica in self._started} - {FIRST}
        named = [name for name in replicas_named(failure) if name in started]
        if isinstance(failure, UserError) or not named:
            return None
        self.wait(named, SETTLE_S)  # what has failed itself ends now
        return next((name for name in named if name not in self.ended or was_cut_off(self._log(name))), None)

    def _with_logs(self, failure: PersiaError) -> PersiaError:
        """Return a failure with the machines of the replicas that it names, and the ends of their logs."""
        here = [each.name for each in self._started if each.name != FIRST]
        named = [name for name in dict.fromkeys(replicas_named(failure)) if name in here]
        for name in named[:MOST_LOGS]:
            failure.add_note(f"{self._named(name)}{self._tail(name)}")
        if others := [self._named(name) for name in named[MOST_LOGS:]]:
            failure.add_note(f"{', '.join(others)}: persia logs {self.run_dir}")
        return failure

    def _log(self, name: str) -> list[str]:
        connection = self._connections.get(self._host_of(name))
        return connection.mirror.log_of(name).splitlines() if connection is not None else []

    def _tail(self, name: str) -> str:
        lines = self._log(name)[-TAIL_LINES:]
        return "; the end of its log:\n" + "\n".join(f"  {line}" for line in lines or ["(nothing)"])

    def _named(self, name: str) -> str:
        return f"{name} on {self._host_of(name)}"

    def _host_of(self, name: str) -> str:
        return next(host.ssh for replica, host in self.placement.items() if replica.name == name)
