"""Paths in a configuration, as pods see them: not those of the machine where a job is rendered."""

from collections.abc import Iterator, Sequence
from pathlib import PurePosixPath

from persia_cli.config.schema import CustomModel, ParquetDataset, Run, Volume
from persia_cli.config.schema.dataset import BUILTIN
from persia_cli.errors import ConfigError


def check_paths(run: Run, volumes: Sequence[Volume], key_of_volumes: str) -> None:
    """Raise ConfigError for paths that pods cannot have, and for checkpoints that have no place all pods reach."""
    for key, path in _paths(run):
        if not _is_elsewhere(path) and not path.startswith("/"):
            raise ConfigError(
                f"{key}={path}: pods do not have the files of this machine; give a URI, or an absolute path in one of "
                f"{key_of_volumes} or in the image"
            )
    checkpoint = run.checkpoint
    saves = checkpoint.at_end or checkpoint.every_steps or checkpoint.every_minutes
    if saves and not (checkpoint.path and (_is_elsewhere(checkpoint.path) or _is_written(checkpoint.path, volumes))):
        raise ConfigError(
            f"checkpoint.path has to be a URI, such as s3://bucket/folder, or in one of {key_of_volumes} with "
            "read_only: false; or save nothing (checkpoint.at_end=false, and neither every_steps nor every_minutes)"
        )


def _paths(run: Run) -> Iterator[tuple[str, str]]:
    if isinstance(run.dataset, ParquetDataset):
        yield from (("dataset.path", path) for path in run.dataset.paths)
    if isinstance(run.model, CustomModel):
        yield "model.file", run.model.file
    if run.init_from is not None:
        yield from ([("init_from.path", run.init_from.path)] if run.init_from.path else [])
        yield from ((f"init_from.vectors.{name}.path", each.path) for name, each in run.init_from.vectors.items())
    if run.checkpoint.path is not None:
        yield "checkpoint.path", run.checkpoint.path


def _is_elsewhere(path: str) -> bool:
    return "://" in path or path.startswith(BUILTIN)


def _is_written(path: str, volumes: Sequence[Volume]) -> bool:
    return any(PurePosixPath(path).is_relative_to(each.path) for each in volumes if not each.read_only)
