"""The runs and sweeps in a folder, and names of them that cannot lead out of it."""

import os
from collections.abc import Iterator
from pathlib import Path

from persia_cli.config.record import CONFIG, POINTS, SWEEP
from persia_cli.errors import UserError
from persia_cli.observe.journal import EVENTS, METRICS
from persia_cli.sweeps.folder import RESULTS

DEPTH = 2
"""Runs and sweeps may lie so many folders deep; the points of a sweep lie in its folder `points`."""


class Folder:
    """A folder whose runs and sweeps have their relative paths as names; links in it are not followed."""

    def __init__(self, path: Path) -> None:
        """Raise UserError if there is no such folder."""
        if not path.is_dir():
            raise UserError(f"there is no folder {path}; `persia train` puts runs into the folder runs")
        self.root = path.resolve()

    def sweeps(self) -> list[str]:
        """Return the names of the sweeps."""
        return sorted(self._name(path) for path in _search(self.root) if (path / SWEEP).is_file())

    def runs(self, sweep: str | None = None) -> list[str]:
        """Return the names of the runs that belong to no sweep, or of the points of a sweep."""
        if sweep is not None:
            found = [path for path in _folders(self.sweep(sweep) / POINTS) if (path / CONFIG).is_file()]
        else:
            found = [path for path in _search(self.root) if not (path / SWEEP).is_file()]
        return sorted(map(self._name, found))

    def run(self, name: str) -> Path:
        """Return the run directory of a name; raises UserError if there is none in the folder."""
        return self._inside(name, CONFIG, METRICS, EVENTS)

    def sweep(self, name: str) -> Path:
        """Return the folder of a sweep by its name; raises UserError if there is none in the folder."""
        return self._inside(name, SWEEP, RESULTS)

    def _inside(self, name: str, marker: str, *files: str) -> Path:
        """Return a folder that has a file `marker`; neither it nor any of the files may be a link to elsewhere."""
        try:
            path = Path(os.path.realpath(self.root / name))  # Path.resolve raises RuntimeError for a loop of links.
            ours = [path, *(Path(os.path.realpath(path / file)) for file in (marker, *files))]
            if all(each.is_relative_to(self.root) for each in ours) and (path / marker).is_file():
                return path
        except (OSError, ValueError):
            pass  # a name that cannot be that of a file
        raise UserError(f"{name} is not in {self.root}, or was removed")

    def _name(self, path: Path) -> str:
        return path.relative_to(self.root).as_posix()


def _search(path: Path, depth: int = 0) -> Iterator[Path]:
    """Yield the folders of sweeps, and of runs that are not points of one."""
    if (path / SWEEP).is_file() or (path / CONFIG).is_file():
        yield path
    elif depth < DEPTH:
        for folder in _folders(path):
            yield from _search(folder, depth + 1)


def _folders(path: Path) -> list[Path]:
    """Return the folders in a folder, without links and hidden ones; none if it cannot be read."""
    try:
        with os.scandir(path) as entries:
            found = [each for each in entries if each.is_dir(follow_symlinks=False)]
        return [Path(each.path) for each in found if not each.name.startswith(".")]
    except OSError:
        return []
