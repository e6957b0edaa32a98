"""The configurations and the options of config groups in the search path."""

from collections.abc import Sequence
from pathlib import Path

from persia_cli.shipped import shipped


def primaries(folders: Sequence[Path] = ()) -> dict[str, Path]:
    """Return the file of every primary configuration by name; files in the user's folders hide built-in ones."""
    return _files(_search(folders))


def groups(folders: Sequence[Path] = ()) -> dict[str, dict[str, Path]]:
    """Return the file of every option by config group and name; users can add options, but no groups.

    A folder that has only folders, such as `leaderboards`, is no group: other files name its files in their defaults.
    """
    names = sorted({file.parent.name for file in shipped("conf").glob("*/*.yaml")})
    return {name: _files([folder / name for folder in _search(folders)]) for name in names}


def file_of(path: str, folders: Sequence[Path] = ()) -> Path | None:
    """Return the file of a path below a folder of the search path, such as `base` or `model/fm`; None without one."""
    files = [file for folder in _search(folders) if (file := folder / f"{path}.yaml").is_file()]
    return files[-1] if files else None


def _search(folders: Sequence[Path]) -> list[Path]:
    """Return all folders; files in later ones hide those in earlier ones."""
    return [shipped("conf"), *reversed(folders)]


def _files(folders: Sequence[Path]) -> dict[str, Path]:
    files = {file.stem: file for folder in folders for file in folder.glob("*.yaml")}
    return dict(sorted(files.items()))
