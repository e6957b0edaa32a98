"""What a replica does when the process of another one has died, and when a new one has taken its place."""

import logging
from collections.abc import Callable, Iterable

from persia_cli.wire.job_messages import Change
from persia_cli.wire.loop import Loop
from persia_cli.wire.message import Array

log = logging.getLogger(__name__)


class PeerRestarts:
    """The changes that a replica has heard of; all on the thread of its poll loop."""

    def __init__(self, loop: Loop) -> None:
        self._loop = loop
        self.heard = 0
        """Number of the last one."""
        self.on_restart: Callable[[str, int], None] = lambda role, index: None
        """Called with role and index of a replica once its new process can be asked."""
        self._lent: list[Array] = []
        """What dead processes had borrowed, and may have lent on."""

    def heed(self, changes: Iterable[Change]) -> None:
        """Hold back requests to replicas that have died, and repeat them at new processes."""
        for change in changes:
            if change.number > self.heard:
                self._heed(change)
        self.heard = max([self.heard, *(change.number for change in changes)])

    def _heed(self, change: Change) -> None:
        name = f"{change.role}-{change.index}"
        self._lent += self._loop.forget(name, change.process)
        if not change.alive:
            log.info("%s has died; waiting for its new process", name)
            self._loop.hold(name)
            return
        log.info("%s has a new process%s", name, f" at {change.address}" if change.address else "")
        self._loop.reconnect(name, change.address)
        self.on_restart(change.role, change.index)

    def begin_phase(self) -> None:
        """Take note that nothing is in flight: nobody reads any more what dead processes had borrowed."""
        self._lent.clear()
