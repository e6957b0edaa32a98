"""A job whose roles are threads of the test, with sockets over tcp that go through proxies."""

import socket
import threading
from contextlib import ExitStack
from types import TracebackType
from typing import Self

from persia_cli.engines.job import JobResult, prepare_run_dir, result_of
from persia_cli.plan.job import JobPlan, Replica
from persia_cli.roles.start import RoleStart, Stoppable, run_coordinator, run_role
from persia_cli.wire.sockets import Context
from tests.support.proxy import Proxy

LIMIT_S = 120.0


def free_address() -> str:
    """Return a tcp address of this machine at which no process listens."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return f"tcp://127.0.0.1:{probe.getsockname()[1]}"


class ThreadJob:
    """Every role in a thread with its own sockets; as a context manager it leaves none of them behind.

    `addresses` has each replica's address, `proxies` the relay to it, both by replica name.
    """

    def __init__(self, plan: JobPlan) -> None:
        self._plan = plan
        self._context = Context()
        self.token = self._context.secret.token
        self._exit = ExitStack()
        self._stoppables: list[Stoppable] = []
        self.errors: dict[str, BaseException] = {}
        serving = [replica.name for replica in plan.replicas if replica.role != "data-loader"]
        self.addresses = {name: free_address() for name in serving}
        self.proxies = {name: Proxy(address) for name, address in self.addresses.items()}
        self._threads = [
            threading.Thread(target=self._run, args=(replica,), name=replica.name) for replica in plan.replicas
        ]

    def __enter__(self) -> Self:
        prepare_run_dir(self._plan)
        for proxy in self.proxies.values():
            self._exit.enter_context(proxy)
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for stoppable in self._stoppables:
            stoppable.stop = True
        for thread in self._threads:
            thread.join(LIMIT_S)
        self._context.destroy(linger=0)
        self._exit.close()

    def goes_on(self, seconds: float) -> bool:
        """Wait for the end of the job, at most this long; return True if it is still running."""
        self._threads[0].join(seconds)
        return self._threads[0].is_alive() and not self.errors

    def result(self) -> JobResult:
        """Wait for the end and return the result of the job; raises the error of a replica."""
        for thread in self._threads:
            thread.join(LIMIT_S)
            assert not thread.is_alive(), f"{thread.name} has not ended in {LIMIT_S:g} s"
        for error in self.errors.values():
            raise error
        return result_of(self._plan.run_dir)

    def _run(self, replica: Replica) -> None:
        bind = self.addresses.get(replica.name)
        advertise = self.proxies[replica.name].address if bind else None
        try:
            if replica.role == "coordinator":
                assert bind is not None
                run_coordinator(
                    self._context,
                    bind,
                    self._plan.run,
                    self._plan.job,
                    advertise,
                    on_start=lambda coordinator, address: self._stoppables.append(coordinator),
                )
            else:
                coordinator = self.proxies["coordinator-0"].address
                start = RoleStart(replica.role, replica.index, coordinator, bind, advertise)
                run_role(self._context, start, self._stoppables.append)
        except BaseException as error:
            self.errors[replica.name] = error
