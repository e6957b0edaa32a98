"""The configurations and the options of config groups in the search path."""

from collections.abc import Sequence
from pathlib import Path

from persia_cli.shipped import shipped


def primaries(folders: Sequence[Path] = ()) -> dict[str, Path]:
    """Return the file of every primary configuration by name; files in the user's folders hide built-in ones."""
    return _files(_search(folders))


def groups(folders: Sequence[Path] = ()) -> dict[str, dict[str, Path]]:
    """Return the file of every option by config group and name; users can add options, but no groups."""
    names = sorted(folder.name for folder in shipped("conf").iterdir() if folder.is_dir())
    return {name: _files([folder / name for folder in _search(folders)]) for name in names}


def _search(folders: Sequence[Path]) -> list[Path]:
    """Return all folders; files in later ones hide those in earlier ones."""
    return [shipped("conf"), *reversed(folders)]


def _files(folders: Sequence[Path]) -> dict[str, Path]:
    found = {file.stem: file for folder in folders for file in folder.glob("*.yaml")}
    return dict(sorted(found.items()))
