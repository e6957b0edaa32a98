"""The admission of replicas: each gets its welcome when the last one has joined."""

import logging
from typing import NamedTuple

from persia_cli.control.membership import Member, MisplacedError
from persia_cli.errors import WireError
from persia_cli.roles.coordinator.context import JobContext
from persia_cli.roles.coordinator.replacements import Replacements
from persia_cli.version import __version__
from persia_cli.wire.job_messages import Hello, Verdict, Welcome
from persia_cli.wire.messages import PROTOCOL, Refused
from persia_cli.wire.server import Peer

log = logging.getLogger(__name__)


GONE_S = 3.0
"""Seconds of silence after which a replica counts as dead if another process has its name; it beats twice a second."""
IN_FLIGHT_S = 1.0
"""Seconds after a process's death in which its last messages may still arrive."""


class _Claim(NamedTuple):
    peer: Peer
    message: Hello
    since_s: float


class Joining:
    """The admission of the replicas that the job expects."""

    def __init__(self, context: JobContext, replacements: Replacements) -> None:
        """`replacements` decides whether a new process may take the place of a silent replica."""
        self._context, self._replacements = context, replacements
        self._membership = context.membership
        self._ended: str | None = None
        """The reason why no process may join any more, or None."""
        self._hellos: dict[tuple[str, int], Peer] = {}
        self._claims: dict[tuple[str, int], _Claim] = {}

    def on_hello(self, peer: Peer, message: Hello) -> None:
        """Admit a replica, and welcome all when the last one is there; raise WireError for one that does not fit."""
        if (message.protocol, message.version) != (PROTOCOL, __version__):
            raise MisplacedError(
                f"{message.role}-{message.index} is persia {message.version} (protocol {message.protocol}), "
                f"the coordinator is {__version__} (protocol {PROTOCOL}); install the same version everywhere"
            )
        if self._ended is not None:
            raise WireError(self._ended)
        known = self._membership.members.get((message.role, message.index))
        if known is None or known.died or known.process == message.process:
            self._let_in(peer, message)
        else:
            self._claim(known, peer, message)

    def _claim(self, known: Member, peer: Peer, message: Hello) -> None:
        """Register a second process with the name of a replica: restarted by an engine, or by mistake."""
        key = (known.role, known.index)
        if (waiting := self._hellos.pop(key, None)) is not None:
            # The waiting process has no welcome and therefore no state; the newest process gets the place.
            self._context.reply(waiting, _refused(f"another process has taken the place of {known.name}"))
            del self._membership.members[key]
            self._let_in(peer, message)
        elif key not in self._claims:
            self._claims[key] = _Claim(peer, message, self._context.now())
        else:
            raise MisplacedError(f"another process waits for the place of {known.name}")

    def tick(self) -> None:
        """Decide on processes that claim the name of a replica: one that has been silent since the claim is dead."""
        now = self._context.now()
        for key, (peer, message, since_s) in list(self._claims.items()):
            member = self._membership.members[key]
            if not member.died and member.last_seen_s > since_s + IN_FLIGHT_S:
                del self._claims[key]
                where = f"process {member.process.pid} on {member.host}"
                self._context.reply(peer, _refused(f"{member.name} is already running as {where}"))
            elif member.died or now - max(since_s, member.last_seen_s) > GONE_S:
                del self._claims[key]
                verdict = Verdict(True, 0.0, "") if member.died else self._replacements.judge_gone(member)
                if verdict.restart:
                    self._let_in(peer, message)
                else:
                    self._context.reply(peer, Refused(verdict.why))

    def _let_in(self, peer: Peer, message: Hello) -> None:
        member = self._membership.join(
            message.role, message.index, message.process, message.host, message.address, self._context.now()
        )
        log.info(
            "%s joined: process %d on %s, at %s", member.name, member.process.pid, member.host, member.address or "-"
        )
        self._hellos[member.role, member.index] = peer
        if self._membership.missing:
            return
        for key, waiting in self._hellos.items():
            self._welcome(waiting, self._membership.members[key])
        self._hellos.clear()

    def _welcome(self, peer: Peer, member: Member) -> None:
        welcome = Welcome(
            incarnation=member.incarnation,
            run=self._context.run.model_dump_json().encode(),
            job=self._context.job.to_json(),
            addresses=self._membership.addresses(),
        )
        member.last_seen_s = self._context.now()
        self._context.reply(peer, welcome)

    def close(self, ended: str) -> list[str]:
        """Refuse all waiting and all later processes with this sentence; return the names of the waiting ones."""
        self._ended = ended
        for peer in (*self._hellos.values(), *(claim.peer for claim in self._claims.values())):
            self._context.reply(peer, Refused(ended))
        self._claims.clear()
        return [self._membership.members[key].name for key in self._hellos]


def _refused(text: str) -> Refused:
    return Refused(text, MisplacedError.exit_code)
