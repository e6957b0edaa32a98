"""Whether the replicas of a job pass large arrays in shared memory."""

import logging

from persia_cli.config.schema import Run
from persia_cli.wire.addresses import is_beyond
from persia_cli.wire.loop import Loop
from persia_cli.wire.shared_memory import share_memory

log = logging.getLogger(__name__)


def share_arrays(loop: Loop, coordinator: str, run: Run) -> None:
    """Have a replica's loop pass large arrays in shared memory to those at its place, if the run wants it."""
    if not run.cluster.shared_memory or not (coordinator.startswith("ipc://") or is_beyond(coordinator)):
        return
    memory = share_memory()
    if memory is None:
        log.warning("this system shares no memory between processes; arrays go through Unix sockets")
    loop.share(memory)
