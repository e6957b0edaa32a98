"""The present state of a job, for `persia top`: where each replica runs, what it does, and its counters so far."""

import os
import socket
import time
from typing import Any

from persia_cli.plan.job import COORDINATOR
from persia_cli.roles.coordinator.context import JobContext


def moment_of(context: JobContext) -> dict[str, Any]:
    """Return the content of the file that `persia_cli.observe.moment` reads."""
    queues, now = context.record.queues(), context.now()
    # A process that has been replaced comes before the one in its place.
    roles = {f"{entry['role']}-{entry['index']}": entry for entry in context.record.roles()}
    roles[f"{COORDINATOR}-0"] |= {"host": socket.gethostname(), "pid": os.getpid()}
    for member in context.membership.members.values():
        roles.setdefault(member.name, {"role": member.role, "index": member.index}).update(
            host=member.host,
            pid=member.process.pid,
            doing="starting again" if member.died else member.doing,
            silent_s=round(now - member.last_seen_s, 1),
            queue=queues[member.name],
        )
    phase = context.phases.current
    return {
        "time": time.time(),
        "phase": phase.kind if phase else "starting",
        "cores": len(os.sched_getaffinity(0)),
        "load": os.getloadavg()[0] / (os.cpu_count() or 1),
        "roles": list(roles.values()),
        "tables": context.record.tables(),
    }
