"""The coordinator's part in joining: all replicas are welcomed once the last has said hello, and then report ready."""

import logging
import os
import socket
from collections.abc import Callable
from typing import Any

from persia_cli import __version__
from persia_cli.config.schema import Run
from persia_cli.control.membership import Member, Membership, MisplacedError
from persia_cli.control.rank_group import RankGroup
from persia_cli.errors import WireError
from persia_cli.observe.record import RunRecord
from persia_cli.plan.job import COORDINATOR, Job, Replica
from persia_cli.plan.pinning import shared_processors
from persia_cli.wire.job_messages import Hello, Welcome
from persia_cli.wire.messages import PROTOCOL, Refused
from persia_cli.wire.parts import Sender
from persia_cli.wire.place import own_process
from persia_cli.wire.server import Peer, Server

log = logging.getLogger(__name__)


class JoinHandler:
    """Lets in the replicas that the job expects; `membership` is who is in."""

    def __init__(
        self,
        server: Server,
        run: Run,
        job: Job,
        membership: Membership,
        clock: Callable[[], float],
        record: RunRecord,
    ) -> None:
        """`clock` returns the seconds in which the coordinator has been running; ranks go on from `record`."""
        self._server = server
        self._clock = clock
        self._run = run
        self.membership = membership
        self.group = RankGroup(run.cluster.nn_workers)
        self.on_regrouped: Callable[[], None] = _nothing
        """Called when all ranks are new processes, before they are welcomed."""
        self._record = record
        self.ended: str | None = None
        """Why nobody is let in any more."""
        self._job = job
        self._hellos: dict[tuple[str, int], Peer] = {}

    def on_hello(self, peer: Peer, message: Hello) -> None:
        """Let a replica in; welcome all of them once the last has come. Raises WireError for one that does not fit."""
        if (message.protocol, message.version) != (PROTOCOL, __version__):
            raise MisplacedError(
                f"{message.role}-{message.index} is persia {message.version} (protocol {message.protocol}), "
                f"the coordinator is {__version__} (protocol {PROTOCOL}); install the same version everywhere"
            )
        if self.ended is not None:
            raise WireError(self.ended)
        member = self.membership.join(
            message.role, message.index, message.process, message.host, message.address, self._clock()
        )
        log.info(
            "%s joined: process %d on %s, at %s", member.name, member.process.pid, member.host, member.address or "-"
        )
        self._hellos[member.role, member.index] = peer
        if member.role == "nn-worker" and self.group.join(member.index) and self.group.number:
            self.on_regrouped()
        self.welcome()

    def welcome(self) -> None:
        """Welcome those that wait, unless somebody is missing or they have to wait for something else."""
        if self.membership.missing:
            return
        for key, waiting in list(self._hellos.items()):
            alone = key[0] == "nn-worker" and not self.group.is_whole
            if not alone:
                del self._hellos[key]
                self._welcome(waiting, self.membership.members[key])

    def _welcome(self, peer: Peer, member: Member) -> None:
        welcome = Welcome(
            incarnation=member.incarnation,
            run=self._run.model_dump_json().encode(),
            job=self._job.to_json(),
            addresses=self.membership.addresses(),
            group=self.group.number,
            reports=self._record.reports,
            recorded=self._record.step,
        )
        member.last_seen_s = self._clock()
        self._server.reply(peer, welcome)

    def close(self, ended: str) -> list[str]:
        """Refuse those that wait for the others, and whoever comes yet, with this sentence; return the former."""
        self.ended = ended
        for peer in self._hellos.values():
            self._server.reply(peer, Refused(ended))
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


def _nothing() -> None:
    pass
