"""The functions of `import persia_cli as persia`: train, open, sweep and recommend."""

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from persia_cli.api.run import Callback, Callbacks, options_of, run_command
from persia_cli.api.run import RunFolder as Run
from persia_cli.api.tables import frame_of, paths_of, scratch, write_table
from persia_cli.errors import UserError, count
from persia_cli.storage.addresses import local_path

Conf = str | os.PathLike[str] | Mapping[str, Any]


def train(
    conf: Conf = "base",
    *overrides: str,
    data: Any = None,
    folder: str | os.PathLike[str] | None = None,
    on_metrics: Callback = None,
    on_evaluation: Callback = None,
    on_checkpoint: Callback = None,
    wait: bool = True,
) -> Run:
    """Train a model in a child process and return its run.

    Ctrl-C, and an exception of one of the functions, let the job save its model, end it, and are raised. The job
    also ends with this process.

    Args:
        conf: Name of a configuration, path of a YAML file, or dict of what differs from `base`.
        *overrides: Settings as on the command line, such as `"train.epochs=3"`.
        data: Data in place of that of the configuration: a pandas or polars DataFrame, a `pyarrow.Table`, or a path.
        folder: A new or empty folder for the run; by default `runs/NAME-TIME`.
        on_metrics: Function for each line of metrics of training, a [JournalLine][persia_cli.api.run.JournalLine].
        on_evaluation: Function for each evaluation, of evaluation or test samples.
        on_checkpoint: Function for each checkpoint; its line has `step`.
        wait: If False, return at once; [wait][persia_cli.Run.wait] then shows progress and calls the functions.

    Raises:
        PersiaError: The job is refused or fails.
    """
    run = Run(_claimed(conf, folder))
    try:
        arguments = _arguments(conf, overrides, data, run.folder)
        run._start(
            ["train", *arguments, "--run-dir", str(run.folder)], Callbacks(on_metrics, on_evaluation, on_checkpoint)
        )
    except BaseException:
        run._clean_up()
        raise
    return run.wait() if wait else run


def open(folder: str | os.PathLike[str]) -> Run:
    """Return the run in a folder, whatever has trained it, and whether or not it has ended.

    Args:
        folder: A run directory, such as `runs/first`.

    Raises:
        PersiaError: The folder is not a run directory.
    """
    run = Run(local_path(folder))
    if not run.has_begun:
        raise UserError(f"{folder} is not a run directory: it has no config.yaml; give the folder that train named")
    return run


@dataclass(frozen=True)
class FinishedSweep:
    """The results of a sweep, whose tables are pandas DataFrames, or Arrow tables where pandas is not installed."""

    folder: Path
    """The folder of the sweep, with its page `sweep.html`."""
    points: Any
    """A row for each point, as in `results.csv`; one that failed has an `error`."""
    settings: Any
    """A row for each setting: means over its seeds, and differences to the baseline."""

    @property
    def runs(self) -> list[Run]:
        """The runs of the points that have begun, in the order of `points`."""
        folders = [self.folder / str(name) for name in self.points["run_dir"]]
        return [run for run in map(Run, folders) if run.has_begun]


def sweep(conf: str | os.PathLike[str] | None = None, *overrides: str, **options: Any) -> FinishedSweep:
    """Train every combination of values, as `persia sweep` does, and return the results.

    Args:
        conf: Name of a configuration, path of a YAML file, or a setting such as `"dataset=dataset.yaml"`.
        *overrides: Settings, some with several values, such as `"model.dim=4,16"`.
        **options: Options of `persia sweep`, with underscores: `jobs=2`, `search="tpe"`, `resume="sweeps/mine"`.

    Raises:
        PersiaError: The sweep is refused. A point that fails has its error in the results.
    """
    if options.get("dry_run"):
        raise UserError("dry_run leaves no results to return; run persia sweep --dry-run")
    arguments = [*([] if conf is None else [_conf_argument(conf)]), *overrides, "--json", *options_of(options)]
    command, _ = run_command(["sweep", *arguments], (0, 1), is_short=False)
    folder = Path(json.loads(command.output)["folder"])
    return FinishedSweep(folder, _read_csv(folder / "results.csv"), _read_csv(folder / "settings.csv"))


def recommend(run: Run | str | os.PathLike[str], users: Any, top: int = 100, **options: Any) -> Any:
    """Return the best items of each user, as `persia recommend` does, as a `pyarrow.Table`.

    Args:
        run: A run of a retrieval model, or its folder.
        users: A DataFrame, an Arrow table or a path with the columns of users.
        top: Number of items for each user.
        **options: Options of `persia recommend`, with underscores, such as `approximate=True`.

    Raises:
        PersiaError: The run is refused, or has no model that ranks items.
    """
    import pyarrow.parquet as pq

    folder = run.folder if isinstance(run, Run) else open(run).folder
    with paths_of(users, folder) as paths, scratch(folder) as temporary:
        if len(paths) != 1:
            raise UserError(f"users: expected a path or a table, not {count(len(paths), 'path')}; give their folder")
        output = temporary / "lists.parquet"
        given = options_of({"users": paths[0], "top": top, "output": output, **options})
        run_command(["recommend", str(folder), *given])
        return pq.read_table(output)


def _claimed(conf: Conf, folder: str | os.PathLike[str] | None) -> Path:
    """Return the run directory: the given one if it is free, else a new one named after the configuration."""
    from persia_cli.disk import claim_folder
    from persia_cli.engines.job import require_free, timed

    if folder is not None:
        require_free(local_path(folder))
        return local_path(folder)
    name = str(conf.get("name", "run")) if isinstance(conf, Mapping) else Path(conf).stem
    return claim_folder(timed(Path("runs"), f"{'base' if '=' in name else name}-"))


def _arguments(conf: Conf, overrides: tuple[str, ...], data: Any, folder: Path) -> list[str]:
    """Return the settings of a training; a configuration and data in memory are written to its run directory."""
    from persia_cli.config.available import groups
    from persia_cli.config.overrides import quoted
    from persia_cli.engines.job import GIVEN

    path = None
    if data is not None:
        is_path = isinstance(data, str | os.PathLike)
        path = os.fspath(data) if is_path else write_table(data, folder / GIVEN / "data.parquet")
    if isinstance(conf, Mapping):
        chosen = {key: value for key, value in conf.items() if key in groups() and isinstance(value, str)}
        whole = {"defaults": ["base", "_self_"], **{key: conf[key] for key in conf if key not in chosen}}
        if path is not None:
            whole["dataset"] = {**whole.get("dataset", {}), "path": path}
        path = _written(whole, folder / GIVEN / f"{whole.get('name', 'run')}.yaml")
        return [f"conf={path}", *(f"{key}={value}" for key, value in chosen.items()), *overrides]
    of_data = [f"dataset.path={quoted(path)}", "dataset.generator=null", "dataset.recipe=null"] if path else []
    return [_conf_argument(conf), *of_data, *overrides]


def _conf_argument(conf: str | os.PathLike[str]) -> str:
    """Return a configuration, or a setting in its place, as an argument."""
    if not isinstance(conf, str | os.PathLike):
        raise UserError("a sweep takes the name or the path of a configuration, so that it can be resumed")
    text = os.fspath(conf)
    return text if "=" in text and not Path(text).is_file() else f"conf={text}"


def _plain(value: Any) -> Any:
    """Return a value as YAML has it: NumPy's numbers and arrays, and paths, as Python's own."""
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    return value.tolist() if hasattr(value, "tolist") else value


def _written(conf: dict[str, Any], path: Path) -> str:
    import yaml

    from persia_cli.disk import writing

    try:
        text = yaml.safe_dump(_plain(conf), sort_keys=False)
    except yaml.YAMLError as error:
        raise UserError(f"the configuration has a {type(error.args[-1]).__name__}, which YAML has not") from error
    with writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return str(path)


def _read_csv(path: Path) -> Any:
    from pyarrow import csv

    return frame_of(csv.read_csv(path).to_pylist())
