"""Slurm's own programs, as this one asks them: a job is queued, looked up, told and queued again."""

import re
import subprocess
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path

from persia_cli.errors import RoleError, UserError

ANSWER_S = 60.0
PENDING, RUNNING = "PENDING", "RUNNING"
WAITING = {
    PENDING, "CONFIGURING", "REQUEUED", "REQUEUE_FED", "REQUEUE_HOLD", "RESV_DEL_HOLD", "SPECIAL_EXIT",
}  # fmt: skip
SUSPENDED = {"SUSPENDED", "STOPPED"}
OVER = {
    "BOOT_FAIL", "CANCELLED", "COMPLETED", "DEADLINE", "FAILED", "NODE_FAIL", "OUT_OF_MEMORY", "PREEMPTED", "TIMEOUT",
}  # fmt: skip
FORGOTTEN = "FORGOTTEN"
"""The state of a job that Slurm knows no more: it forgets those that ended some minutes ago."""
UNKNOWN_JOB = "Invalid job id"
NO_CONTROLLER = re.compile("Unable to contact|Connection (refused|timed out)|Zero Bytes", re.IGNORECASE)
LOST_NODE = re.compile(r"down|fail|no_?resp|unk|\*$", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class State:
    """The state of a job, as Slurm names it."""

    name: str
    reason: str = ""
    """Why it waits."""

    @property
    def is_over(self) -> bool:
        """True if it will not run any more."""
        return self.name in OVER or self.name == FORGOTTEN


def submit(script: str, log: Path) -> str:
    """Queue a job, whose script writes to a file, and return its number; raises UserError if Slurm refuses it."""
    try:
        output = _ask(["sbatch", "--parsable", f"--output={log}"], script)
    except RoleError as error:
        if NO_CONTROLLER.search(str(error)):
            raise
        raise UserError(
            f"Slurm refuses the job: {error}; --dry-run prints what was asked for, which the keys of cluster change"
        ) from error
    return output.strip().splitlines()[-1].partition(";")[0]


def state_of(job: str) -> State:
    """Return how a job does."""
    try:
        output = _ask(["squeue", "--noheader", "--states=all", f"--jobs={job}", "--format=%T|%r"])
    except RoleError as error:
        if UNKNOWN_JOB in str(error):
            return State(FORGOTTEN)
        raise
    # Of a heterogeneous job the first component, where the script runs.
    name, _, reason = output.strip().partition("\n")[0].partition("|")
    return State(name or FORGOTTEN, "" if reason == "None" else reason)


def signal_script(job: str, name: str) -> None:
    """Send the script of a job a signal; without its steps."""
    _ask(["scancel", "--batch", f"--signal={name}", job])


def cancel(job: str) -> None:
    """End a job, or take it from the queue."""
    _ask(["scancel", job])


def requeue(job: str) -> None:
    """End a job and queue it again."""
    _ask(["scontrol", "requeue", job])


def hosts_in(nodes: str) -> list[str]:
    """Return the machines that a list such as `n[1-3]` names."""
    return _ask(["scontrol", "show", "hostnames", nodes]).split()


def address_of(node: str) -> str:
    """Return the address, perhaps a name, at which Slurm reaches a machine."""
    match = re.search(r"\bNodeAddr=(\S+)", _ask(["scontrol", "show", "node", node, "--oneliner"]))
    return match[1] if match else node


def lost_among(nodes: Collection[str]) -> list[str]:
    """Return those of some machines that are down, or do not answer."""
    output = _ask(["sinfo", "--noheader", "--Node", f"--nodes={','.join(nodes)}", "--format=%N %T"])
    states = (line.split(None, 1) for line in output.splitlines() if line.strip())
    return sorted({name for name, state in states if LOST_NODE.search(state)})


def _ask(command: Sequence[str], given: str = "") -> str:
    """Return what a program prints; raises UserError if it is not there, RoleError if it fails."""
    name = command[0]
    try:
        # A machine may have any encoding, and a program may print text in it.
        ended = subprocess.run(
            command, input=given, capture_output=True, encoding="utf-8", errors="replace", timeout=ANSWER_S
        )
    except subprocess.TimeoutExpired:
        raise RoleError(f"{name} has not answered after {ANSWER_S:g} s") from None
    except OSError as error:
        raise UserError(
            f"cluster=slurm needs Slurm's program {name}, which cannot be run here: {error.strerror}; go to a machine "
            "from which jobs are queued, or take the script there that --render prints"
        ) from error
    if ended.returncode:
        lines = [line.removeprefix(f"{name}: ") for line in (ended.stderr or ended.stdout).splitlines() if line.strip()]
        raise RoleError(f"{name}: {'; '.join(line.removeprefix('error: ') for line in lines) or 'it printed nothing'}")
    return ended.stdout
