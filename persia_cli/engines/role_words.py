"""The words of `persia launch-role` by which an engine starts a replica on its machine."""

from dataclasses import dataclass

from persia_cli.engines.handed_over import STDIN
from persia_cli.plan.job import COORDINATOR


@dataclass(frozen=True, slots=True)
class Placed:
    """Where a replica finds what it needs to start, on its machine.

    All are texts, since an engine may have its machines fill in variables, such as an index.
    """

    coordinator: str
    """Address that the coordinator listens at, and that all others reach it at."""
    key_file: str = STDIN
    """File of the job's keys; by default standard input has them."""
    config: str = STDIN
    """File of the resolved configuration, for the coordinator alone; by default it follows the keys.

    Empty if the run directory has been prepared.
    """
    run_dir: str = "run"
    """Folder of the run's record, for the coordinator alone."""
    bind: str = ""
    """Address to listen at, if others do not reach it there."""
    advertise: str = ""
    """Address that others reach it at, if that is not the one of the route to the coordinator."""
    cpus: str = ""
    """Processors that it is to run on, if not on all."""


def role_words(role: str, index: int | str, at: Placed) -> list[str]:
    """Return the words, without those that find Persia itself."""
    words = ["launch-role", role, "--index", str(index), "--coordinator", at.coordinator, "--key-file", at.key_file]
    words += ["--bind", at.bind] if at.bind else []
    words += ["--advertise", at.advertise] if at.advertise else []
    words += ["--cpus", at.cpus] if at.cpus else []
    words += ["--supervise"]
    if role != COORDINATOR:
        return words
    return [*words, "--run-dir", at.run_dir, *([f"conf={at.config}"] if at.config else [])]
