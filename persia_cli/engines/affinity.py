"""The processors of this machine, and how a process is kept to some of them.

A process that is kept to the processors of a NUMA node gets its memory there: Linux takes a page from the node of the
processor that first touches it. It takes another node's where that one is full, which no policy of memory would do.
"""

import os
from pathlib import Path

from persia_cli.errors import ConfigError
from persia_cli.plan.pinning import MachineProcessors, as_text, chosen

SYSTEM = Path("/sys/devices/system")


def processors_here(system: Path = SYSTEM) -> MachineProcessors:
    """Return the processors of this machine, and those of them that this process may use."""
    usable = as_text(os.sched_getaffinity(0))
    nodes = {int(node.name.removeprefix("node")): _read(node / "cpulist") for node in system.glob("node/node[0-9]*")}
    return MachineProcessors(usable, _read(system / "cpu" / "online") or usable, nodes)


def pin(text: str) -> None:
    """Keep this process, and all that it starts, to the processors that `--cpus` names; raises ConfigError.

    To be called before there are other threads, and before libraries count the processors.
    """
    option = f"--cpus {text}"
    processors = chosen(text, processors_here(), option)
    try:
        os.sched_setaffinity(0, processors)
    except OSError as error:
        raise ConfigError(f"{option}: the system refuses it: {error.strerror}") from error


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="ascii").strip()
    except OSError:
        return ""
