"""Embedding servers and a worker without the rest of a job: the test is loader, NN worker and coordinator."""

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, cast

from persia_cli.config.schema import Run
from persia_cli.kernels.toolchain.warm import warm
from persia_cli.observe.trace import Trace
from persia_cli.plan.job import Job
from persia_cli.roles.embedding_server.server import EmbeddingServer
from persia_cli.roles.embedding_worker import EmbeddingWorker
from persia_cli.roles.session import CoordinatorSession
from persia_cli.wire.client import Client
from persia_cli.wire.job_messages import Counters
from persia_cli.wire.loop import Loop, identity_of
from persia_cli.wire.message import ProcessId, Sender
from persia_cli.wire.sockets import Context
from tests.conftest import poll_for

ANY = "tcp://127.0.0.1:0"
LIMIT_S = 30.0


@dataclass
class LoneLink:
    """A role's link to its coordinator, without a coordinator."""

    loop: Loop
    role: str
    index: int
    run: Run
    job: Job
    servers: Sequence[str] = ()
    stop: bool = False
    is_ready: bool = False
    has_ended: bool = False
    incarnation: int = 1
    own_address: str = ""
    clients: list[Client] = field(default_factory=list)
    counters: Callable[[], Counters] = field(default=Counters)
    trace: Trace = field(default_factory=Trace)

    @property
    def name(self) -> str:
        """Replica name."""
        return f"{self.role}-{self.index}"

    @property
    def sender(self) -> Sender:
        """The sender in messages to the coordinator."""
        return Sender(self.role, self.index, self.incarnation)

    def join(self, own_address: str) -> tuple[Run, Job]:
        """Return run and job."""
        self.own_address = own_address
        return self.run, self.job

    def connect(self, role: str) -> list[Client]:
        """Connect to the servers."""
        identity = identity_of(self.name, ProcessId(self.incarnation))
        self.clients = [self.loop.connect(each, role, identity, 0.5, LIMIT_S) for each in self.servers]
        return self.clients

    def ready(self, on_instruction: Any, parameters: int = 0, rows: int = 0) -> None:
        """Record that the role serves from now on."""
        self.is_ready = True

    def farewell(self) -> None:
        """Do nothing, since no coordinator waits."""


@dataclass(frozen=True)
class Alone:
    """The addresses of the roles."""

    servers: list[str]
    worker: str
    links: list[LoneLink]
    token: bytes


@contextmanager
def alone(
    run: Run, job: Job, workers: int = 1, memory_file: int | None = None, incarnation: int = 1
) -> Iterator[Alone]:
    """Run the run's embedding servers, and one embedding worker, until the end of the block.

    With more `workers`, each is the next one's former incarnation, as if it had died. The
    memory of the one server is in `memory_file`; with `incarnation` above 1 the server recovers it.
    """
    context, links, threads = Context(), list[LoneLink](), list[threading.Thread]()
    failures: list[BaseException] = []

    def start(kind: type[EmbeddingServer] | type[EmbeddingWorker], role: str, index: int) -> LoneLink:
        servers = [session.own_address for session in links if session.role == "embedding-server"]
        own = incarnation
        if role == "embedding-worker":
            own = 1 + sum(session.role == role for session in links)
        session = LoneLink(Loop(context, f"{role}-{index}"), role, index, run, job, servers, incarnation=own)

        def serve() -> None:
            try:
                if kind is EmbeddingServer:
                    EmbeddingServer(session.loop, cast(CoordinatorSession, session), ANY, memory_file=memory_file).run()
                else:
                    kind(session.loop, cast(CoordinatorSession, session), ANY).run()
            except BaseException as error:
                failures.append(error)
            finally:
                session.loop.close()
                session.has_ended = True

        threads.append(threading.Thread(target=serve, name=session.name))
        threads[-1].start()
        poll_for(lambda: session.is_ready or failures, LIMIT_S, f"{session.name} ready")
        return session

    warm()
    try:
        for index in range(run.cluster.embedding_servers):
            links.append(start(EmbeddingServer, "embedding-server", index))
        for _ in range(workers):
            links.append(start(EmbeddingWorker, "embedding-worker", 0))
        servers = [session.own_address for session in links[: run.cluster.embedding_servers]]
        yield Alone(servers, links[-1].own_address, links, context.secret.token)
    finally:
        for session in links:
            session.stop = True
        for thread in threads:
            thread.join(LIMIT_S)
        context.destroy(linger=0)
        if failures:
            raise failures[0]
