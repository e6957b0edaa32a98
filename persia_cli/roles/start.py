"""The run of one role to its end: its loop and its session, in a process or in a thread."""

import logging
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from persia_cli.config.schema import Run
from persia_cli.disk import refusal
from persia_cli.errors import MemoryFileError, PersiaError
from persia_cli.plan.job import Job
from persia_cli.roles.session import CoordinatorSession, StoppedError, share_arrays
from persia_cli.wire.addresses import address_towards, is_remote
from persia_cli.wire.loop import Loop
from persia_cli.wire.sockets import Context

log = logging.getLogger(__name__)


class Stoppable(Protocol):
    """Anything that another thread or a signal handler can ask to stop; the handler may name its signal.

    `signals` gets the names of signals that do not stop it at once.
    """

    stop: bool
    stopped_by: str
    signals: deque[str]

    @property
    def is_resumable(self) -> bool:
        """True if the job was ended so that it can be resumed."""


def run_coordinator(
    context: Context,
    bind: str,
    run: Run,
    job: Job,
    advertise: str | None = None,
    on_start: Callable[[Stoppable, str], None] = lambda coordinator, address: None,
) -> None:
    """Run the coordinator of a job at address `bind`; `on_start` gets its actual address.

    Raise ReplicaError if a replica failed.
    """
    from persia_cli.roles.coordinator.coordinator import Coordinator

    loop = Loop(context, "coordinator-0")
    try:
        if not is_remote(bind):  # clients on other machines cannot use its shared memory
            share_arrays(loop, bind, run)
        coordinator = Coordinator(loop, bind, run, job, advertise)
        on_start(coordinator, coordinator.address)
        coordinator.run()
    finally:
        loop.close()


@dataclass(frozen=True)
class RoleStart:
    """The replica that a process runs, and the addresses and files that it starts with."""

    role: str
    index: int
    coordinator: str
    """Address of the coordinator; for the coordinator, its own."""
    bind: str | None = None
    """Address to listen at; by default `advertise`, or one next to the coordinator's."""
    advertise: str | None = None
    """Address at which others reach it, if it differs."""
    incarnation: int = 1
    """1 for the replica's first process, 2 for its replacement, and so on."""
    memory_file: int | None = None
    """Inherited descriptor of the file for the memory of an embedding server."""

    @property
    def name(self) -> str:
        """Replica name."""
        return f"{self.role}-{self.index}"


def run_role(
    context: Context, start: RoleStart, on_start: Callable[[CoordinatorSession], None] = lambda session: None
) -> None:
    """Run one replica of any other role until the job is over.

    A failure is reported to the coordinator before it is raised, except a MemoryFileError: the driver then rolls the
    job back.
    """
    loop = Loop(context, start.name)
    try:
        session = CoordinatorSession(loop, start.coordinator, start.role, start.index)
        try:
            on_start(session)
            listens_at = start.bind or start.advertise or default_address(start.coordinator, start.name)
            if start.incarnation > 1 and listens_at.startswith("ipc://"):
                # Messages and arrays for the process before must not reach this one.
                listens_at += f".{start.incarnation}"
            advertise = start.advertise if start.bind else None
            _replica(start.role, loop, session, listens_at, advertise, start.memory_file).run()
            session.leave()
        except StoppedError as stopped:
            log.info("%s", stopped)
            session.leave()
        except MemoryFileError:
            raise
        except Exception as error:
            if not isinstance(refusal(error) or error, PersiaError):
                log.exception("%s failed", session.name)
            session.fail(error)
            raise
        finally:
            session.end_trace()
    finally:
        loop.close()


def default_address(coordinator: str, name: str) -> str:
    """Return the default address of a replica: over the coordinator's transport, in its folder or network."""
    transport, _, path = coordinator.partition("://")
    if transport == "tcp":
        return f"tcp://{address_towards(coordinator)}:*"
    if transport == "ipc":
        return f"ipc://{Path(path).parent / name}"
    return f"{coordinator}/{name}"


class Runnable(Protocol):
    """The object of a role."""

    def run(self) -> None:
        """Work until the job is over."""


def _replica(
    role: str, loop: Loop, session: CoordinatorSession, bind: str, advertise: str | None, memory_file: int | None
) -> Runnable:
    """Create the role's object; a role's module is imported only where it runs (only NN workers need torch)."""
    if role == "embedding-server":
        from persia_cli.roles.embedding_server.server import EmbeddingServer

        return EmbeddingServer(loop, session, bind, advertise, memory_file)
    if role == "embedding-worker":
        from persia_cli.roles.embedding_worker import EmbeddingWorker

        return EmbeddingWorker(loop, session, bind, advertise)
    if role == "nn-worker":
        from persia_cli.roles.nn_worker.worker import NNWorker

        return NNWorker(loop, session, bind, advertise)
    from persia_cli.roles.data_loader import DataLoader

    return DataLoader(loop, session)
