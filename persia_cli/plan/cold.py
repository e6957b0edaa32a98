"""The space on disks for rows that leave memory: its division among feature groups, and the folder of a run."""

from collections.abc import Sequence
from pathlib import Path

from persia_cli.config.schema import ENGINES, Run
from persia_cli.errors import ConfigError, count
from persia_cli.store.cold.folders import require_space, run_folder
from persia_cli.store.cold.geometry import ColdGeometry
from persia_cli.store.layout import GroupSpec

UNEVEN = 2
"""Ratio of the average partitions of a server to the fewest, if each has one."""


def disk_space(run: Run, groups: Sequence[GroupSpec]) -> list[int]:
    """Return the bytes of each group: the least that it needs, and a part of the rest that is as large as in memory.

    Raise ConfigError if that is more than there is.
    """
    cold, servers = run.embedding.cold, run.cluster.embedding_servers
    assert cold is not None
    least = [UNEVEN * servers * ColdGeometry(group.width, 0).min_bytes for group in groups]
    rest = cold.size - sum(least)
    if rest < 0:
        raise ConfigError(
            f"embedding.cold.size={cold.size} (bytes) is too small: {count(len(groups), 'group')} of tables on "
            f"{count(servers, 'embedding server')} need at least {sum(least) // 1024}KiB"
        )
    memory = sum(group.nbytes for group in groups)
    return [least[group.number] + rest * group.nbytes // memory for group in groups]


def require_disks(run: Run, run_dir: Path) -> None:
    """Raise ConfigError if this machine will run the job, and cannot store rows on its disks as the run wants."""
    cold = run.embedding.cold
    if cold is not None and run.cluster.kind not in ENGINES:
        require_space(cold.path, run_folder(cold.path, run_dir), cold.size)
