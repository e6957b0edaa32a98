"""The coordinator's part in joining: all replicas are welcomed once the last has said hello, and then report ready."""

import logging
import os
import socket
from collections.abc import Callable
from typing import Any, NamedTuple

from persia_cli import __version__
from persia_cli.config.schema import Run
from persia_cli.control.membership import Member, Membership, MisplacedError
from persia_cli.errors import WireError
from persia_cli.plan.job import COORDINATOR, Job, Replica
from persia_cli.plan.pinning import shared_processors
from persia_cli.wire.job_messages import Hello, Verdict, Welcome
from persia_cli.wire.message import Sender
from persia_cli.wire.messages import PROTOCOL, Refused
from persia_cli.wire.place import own_process
from persia_cli.wire.server import Peer, Server

log = logging.getLogger(__name__)


GONE_S = 3.0
"""Seconds of silence after which a replica is dead whose name another process has taken; it beats twice a second."""
IN_FLIGHT_S = 1.0
"""Seconds after a process's death in which its last messages may still come."""


class _Claim(NamedTuple):
    peer: Peer
    message: Hello
    since_s: float


class JoinHandler:
    """Lets in the replicas that the job expects; `membership` is who is in."""

    def __init__(
        self,
        server: Server,
        run: Run,
        job: Job,
        membership: Membership,
        clock: Callable[[], float],
    ) -> None:
        """`clock` returns the seconds in which the coordinator has been running."""
        self._server = server
        self._clock = clock
        self._run = run
        self.membership = membership
        self.ended: str | None = None
        """Why nobody is let in any more."""
        self._job = job
        self._hellos: dict[tuple[str, int], Peer] = {}
        self._claims: dict[tuple[str, int], _Claim] = {}
        self.judge_gone: Callable[[Member], Verdict] = lambda member: Verdict(False, 0.0, "")
        """Takes a replica for dead and returns whether its new process is let in."""

    def on_hello(self, peer: Peer, message: Hello) -> None:
        """Let a replica in; welcome all of them once the last has come. Raises WireError for one that does not fit."""
        if (message.protocol, message.version) != (PROTOCOL, __version__):
            raise MisplacedError(
                f"{message.role}-{message.index} is persia {message.version} (protocol {message.protocol}), "
                f"the coordinator is {__version__} (protocol {PROTOCOL}); install the same version everywhere"
            )
        if self.ended is not None:
            raise WireError(self.ended)
        known = self.membership.members.get((message.role, message.index))
        if known is None or known.died or known.process == message.process:
            self._let_in(peer, message)
        else:
            self._claim(known, peer, message)

    def _claim(self, known: Member, peer: Peer, message: Hello) -> None:
        """Another process takes the name of a replica: an engine has started that again, or a person by mistake."""
        key = (known.role, known.index)
        if (waiting := self._hellos.pop(key, None)) is not None:
            # It was not welcomed, so it holds nothing; the newest process has the place.
            self._server.reply(waiting, _refused(f"another process has taken the place of {known.name}"))
            del self.membership.members[key]
            self._let_in(peer, message)
        elif key not in self._claims:
            self._claims[key] = _Claim(peer, message, self._clock())
        else:
            raise MisplacedError(f"another process waits for the place of {known.name}")

    def tick(self) -> None:
        """Decide on processes that have taken the name of a replica: a replica that is silent meanwhile has died."""
        now = self._clock()
        for key, (peer, message, since_s) in list(self._claims.items()):
            member = self.membership.members[key]
            if not member.died and member.last_seen_s > since_s + IN_FLIGHT_S:
                del self._claims[key]
                where = f"process {member.process.pid} on {member.host}"
                self._server.reply(peer, _refused(f"{member.name} is already running as {where}"))
            elif member.died or now - max(since_s, member.last_seen_s) > GONE_S:
                del self._claims[key]
                verdict = Verdict(True, 0.0, "") if member.died else self.judge_gone(member)
                if verdict.restart:
                    self._let_in(peer, message)
                else:
                    self._server.reply(peer, Refused(verdict.why))

    def _let_in(self, peer: Peer, message: Hello) -> None:
        member = self.membership.join(
            message.role, message.index, message.process, message.host, message.address, self._clock()
        )
        log.info(
            "%s joined: process %d on %s, at %s", member.name, member.process.pid, member.host, member.address or "-"
        )
        self._hellos[member.role, member.index] = peer
        self.welcome()

    def welcome(self) -> None:
        """Welcome the replicas that wait, unless one is missing."""
        if self.membership.missing:
            return
        for key, waiting in self._hellos.items():
            self._welcome(waiting, self.membership.members[key])
        self._hellos.clear()

    def _welcome(self, peer: Peer, member: Member) -> None:
        welcome = Welcome(
            incarnation=member.incarnation,
            run=self._run.model_dump_json().encode(),
            job=self._job.to_json(),
            addresses=self.membership.addresses(),
        )
        member.last_seen_s = self._clock()
        self._server.reply(peer, welcome)

    def close(self, ended: str) -> list[str]:
        """Refuse those that wait for the others, and whoever comes yet, with this sentence; return the former."""
        self.ended = ended
        for peer in (*self._hellos.values(), *(claim.peer for claim in self._claims.values())):
            self._server.reply(peer, Refused(ended))
        self._claims.clear()
        return [self.membership.members[key].name for key in self._hellos]

    def find(self, sender: Sender, only: str | None = None) -> Member:
        """Return the replica that speaks; raises WireError if it is unknown, or not of the role that may say this."""
        member = self.membership.find(sender.role, sender.index, sender.incarnation)
        if only is not None and member.role != only:
            raise WireError(f"this is for a replica of the role {only} to say, but {member.name} said it")
        member.last_seen_s = self._clock()
        return member

    def replicas(self) -> list[dict[str, Any]]:
        """Return name, process and host of every replica, this one first."""
        own = {"name": "coordinator-0", "pid": os.getpid(), "host": socket.gethostname()}
        members = self.membership.members.values()
        return [own, *({"name": m.name, "pid": m.process.pid, "host": m.host} for m in members)]

    def shared_processors(self) -> list[str]:
        """Return a sentence for each machine on which replicas are pinned to the same processors."""
        own, here = own_process().place, socket.gethostname()
        hosts, replicas = {own or here: here}, {own or here: [Replica(COORDINATOR, 0)]}
        for each in self.membership.members.values():
            machine = each.process.place or each.host
            hosts[machine] = each.host
            replicas.setdefault(machine, []).append(Replica(each.role, each.index))
        found = (shared_processors(self._run, there, hosts[machine]) for machine, there in replicas.items())
        return [text for text in found if text is not None]


def _refused(text: str) -> Refused:
    return Refused(text, MisplacedError.exit_code)
