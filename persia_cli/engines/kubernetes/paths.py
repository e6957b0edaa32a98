"""Paths in a configuration, as pods see them: not those of the machine where a job is rendered."""

import posixpath
from collections.abc import Iterator, Sequence
from pathlib import PurePosixPath
from urllib.parse import unquote, urlsplit

from persia_cli.config.schema import CustomModel, ParquetDataset, Run, Volume
from persia_cli.config.schema.dataset import BUILTIN
from persia_cli.engines.kubernetes.pod import OWN, SCRATCH, SHARED
from persia_cli.errors import ConfigError

KEY = "cluster.volumes"
ONLY_THE_JOBS = ("/proc", "/sys", OWN)
"""Folders in which there is no place for a volume, besides those where the job has its own volume."""
HERE = ("file://", "local://")
"""Beginnings of URIs of a machine's own files."""


def check_paths(run: Run, volumes: Sequence[Volume]) -> None:
    """Raise ConfigError for paths that pods cannot have, and for checkpoints that have no place all pods reach."""
    _check_volumes(volumes)
    for key, path in _paths(run):
        if not _is_elsewhere(path) and not _here(path).startswith("/"):
            raise ConfigError(
                f"{key}={path}: pods do not have the files of this machine; give a URI, or an absolute path in one of "
                f"{KEY} or in the image"
            )
    location = run.checkpoint.path
    if run.checkpoint.saves and not (location and (_is_elsewhere(location) or _is_written(location, volumes))):
        raise ConfigError(
            "checkpoint.path has to be a URI that all pods reach, such as s3://bucket/folder, or in one of "
            f"{KEY} with read_only: false; or save nothing (checkpoint.at_end=false and "
            "checkpoint.every_minutes=null)"
        )


def _check_volumes(volumes: Sequence[Volume]) -> None:
    """Raise ConfigError for a volume that would hide files of the job or of the system."""
    for volume in volumes:
        at = PurePosixPath("/" + posixpath.normpath(volume.path).lstrip("/"))
        hidden = [folder for folder in (SCRATCH, SHARED, *ONLY_THE_JOBS) if PurePosixPath(folder).is_relative_to(at)]
        if hidden or any(at.is_relative_to(folder) for folder in ONLY_THE_JOBS):
            what = f"{at} hides {hidden[0]}, which" if hidden and hidden[0] != str(at) else f"{at}"
            raise ConfigError(
                f"{KEY}: the path {what} pods have for themselves; give {volume.claim} another one, such as /data"
            )


def _paths(run: Run) -> Iterator[tuple[str, str]]:
    if isinstance(run.dataset, ParquetDataset):
        yield from (("dataset.path", path) for path in run.dataset.paths)
    if isinstance(run.model, CustomModel):
        yield "model.file", run.model.file
    if run.init_from is not None:
        yield from ([("init_from.path", run.init_from.path)] if run.init_from.path else [])
        yield from ((f"init_from.vectors.{name}.path", file.path) for name, file in run.init_from.vectors.items())
    if run.checkpoint.path is not None:
        yield "checkpoint.path", run.checkpoint.path


def _is_elsewhere(path: str) -> bool:
    return path.startswith(BUILTIN) or ("://" in path and not path.startswith(HERE))


def _here(path: str) -> str:
    """Return the path of a machine's own file, which may be named by a URI."""
    return unquote(urlsplit(path).path) if path.startswith(HERE) else path


def _is_written(path: str, volumes: Sequence[Volume]) -> bool:
    at = PurePosixPath(posixpath.normpath(_here(path)))
    return any(at.is_relative_to(volume.path) for volume in volumes if not volume.read_only)
