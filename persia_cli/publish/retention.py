"""The versions of a published model that are retained, and those that are removed."""

import time
from pathlib import Path

from persia_cli.publish.version import VERSION, chain_of, read_current, versions_of
from persia_cli.storage.locations import modified_s, remove

KEPT = 3
"""Number of newest versions that can be served at once, without a rollback."""
GRACE_S = 600.0
"""Seconds for which any version stays: a server may be reading its files."""


def remove_old(folder: Path) -> None:
    """Remove versions that neither the newest ones nor `current.json` need; raises OSError, DiskError."""
    versions = versions_of(folder)
    wanted = {*list(versions)[-KEPT:], read_current(folder).version}
    needed = {each.version for number in wanted for each in chain_of(folder, number)}
    # A base is removed after its deltas, so that a chain is never broken in the middle.
    for number in reversed([number for number in versions if number not in needed]):
        if time.time() - modified_s(versions[number] / VERSION) > GRACE_S:
            remove(versions[number], VERSION)
