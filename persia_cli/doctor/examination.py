"""All checks of `persia doctor`, one after another."""

from collections.abc import Iterator
from pathlib import Path

from persia_cli.doctor import libraries, machine
from persia_cli.doctor.finding import Finding

CHECKS = (
    *(machine.cores, machine.caches, machine.numa, machine.memory, machine.bandwidth, machine.huge_pages),
    *(machine.shared_memory, machine.files, libraries.versions, libraries.torch),
)


def examine(folder: Path) -> Iterator[tuple[str, Finding]]:
    """Yield the name of each check with its finding; `folder` is that of runs."""
    yield "disk", machine.disk(folder)
    for check in CHECKS:
        try:
            found = check()
        except (OSError, ImportError) as error:
            found = Finding(f"not known here ({error})")
        yield check.__name__.replace("_", " "), found
