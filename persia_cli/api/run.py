"""A run as an object: its record, its model, and the job that trains it."""

import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Self

from persia_cli.api.child import LEAVING, SAVING, ChildCommand
from persia_cli.api.tables import frame_of, paths_of, scratch
from persia_cli.errors import UserError

Line = Mapping[str, Any]


class JournalLine(Mapping[str, Any]):
    """A line of metrics or events, unchangeable, with its keys as attributes: `line.auc`, or `line["recall@10"]`.

    It is also a mapping, so `dict(line)` has all keys.
    """

    __slots__ = ("_stop", "_values")

    def __init__(self, values: Line, stop: Callable[[], None] = lambda: None) -> None:
        """Take the values without `event`; `stop` stops the job that reports the line."""
        object.__setattr__(self, "_values", {key: value for key, value in values.items() if key != "event"})
        object.__setattr__(self, "_stop", stop)

    def stop(self) -> None:
        """Let the job save its model and end; this does not wait. Does nothing if the job has ended."""
        self._stop()

    def __getattr__(self, name: str) -> Any:
        if name in JournalLine.__slots__ or name not in self._values:
            raise AttributeError(f"this line has no {name}; it has {', '.join(self._values)}")
        return self._values[name]

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"{name}: this line cannot be changed")

    def __getitem__(self, key: str) -> Any:
        return self._values[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def __repr__(self) -> str:
        return ", ".join(f"{key}={value!r}" for key, value in self._values.items())


Callback = Callable[[JournalLine], object] | None


class Callbacks:
    """The functions of a user for metrics of training, for evaluations and for checkpoints."""

    def __init__(
        self, on_metrics: Callback = None, on_evaluation: Callback = None, on_checkpoint: Callback = None
    ) -> None:
        self._on_metrics, self._on_evaluation, self._on_checkpoint = on_metrics, on_evaluation, on_checkpoint

    def take(self, line: Line, stop: Callable[[], None]) -> None:
        """Call the function for a line that a job reports, if there is one."""
        function = None
        if line.get("event") == "metrics":
            function = self._on_metrics if line["split"] == "train" else self._on_evaluation
        elif line.get("event") == "saved":
            function = self._on_checkpoint
        if function is not None:
            function(JournalLine(line, stop))


class RunFolder:
    """A run in its folder: its record, its saved model, and the job that trains it.

    [train][persia_cli.train] and [open][persia_cli.open] return one. The methods use the best checkpoint, else the
    newest, unless `step` names another. They raise PersiaError with the sentence of the command line.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder.absolute()
        """The run directory."""
        self._job: ChildCommand | None = None
        self._callbacks = Callbacks()
        self._stopping: Any = None
        """The job that was asked to stop, whose command to do so may still run."""
        self._since = 0.0
        """Time of the last line of metrics before the job, which reports earlier ones again."""

    def __repr__(self) -> str:
        return f"Run({str(self.folder)!r}, {self.state})"

    @property
    def has_begun(self) -> bool:
        """True if there is a record of the run."""
        from persia_cli.observe.history import CONFIG

        return (self.folder / CONFIG).is_file()

    @property
    def state(self) -> str:
        """`running`, `done`, `failed`, `stopped`, `dead` (killed), or `silent`: killed or stuck elsewhere."""
        if self._job is not None and self._job.runs:
            return "running"
        if not self.has_begun:
            return "failed"
        import time

        from persia_cli.observe.history import read_history

        return read_history(self.folder).outcome(time.time()).state

    @property
    def metrics(self) -> Any:
        """All lines of metrics, as a pandas.DataFrame, or a pyarrow.Table where pandas is not installed."""
        from persia_cli.observe.journal import METRICS, read_journal

        return frame_of(read_journal(self.folder / METRICS))

    @property
    def tables(self) -> Any:
        """The tables of the saved model, as a DataFrame or an Arrow table: name, rows, dim, type and size."""
        from dataclasses import asdict

        from persia_cli.checkpoint.description import describe_checkpoint

        return frame_of([asdict(table) for table in describe_checkpoint(self.folder).tables])

    def _start(self, arguments: Sequence[str], callbacks: Callbacks) -> None:
        """Start a command that trains the run; `wait` shows it."""
        from persia_cli.observe.journal import METRICS, read_journal

        if self._job is not None and self._job.runs:
            raise UserError(f"the job of {self.folder} still runs; wait() for it, or stop() it")
        self._since = max((line["time"] for line in read_journal(self.folder / METRICS)), default=0.0)
        self._callbacks = callbacks
        self._job = ChildCommand(list(arguments), SAVING)

    def wait(self) -> Self:
        """Show the job until it has ended, and call the functions for its metrics, evaluations and checkpoints.

        Ctrl-C, and an exception of such a function, let the job save its model, end it, and are raised. A job that
        another process has started goes on.

        Returns:
            The same run.

        Raises:
            PersiaError: The job has failed.
        """
        job = self._job or ChildCommand(["attach", str(self.folder)], LEAVING)
        try:
            self._show(job, self._callbacks)
        except BaseException:
            if job.runs:
                self.stop() if job is self._job else job.stop()
            self._show(job, Callbacks())
            self._clean_up()
            raise
        if (failure := job.failure()) is not None:
            self._clean_up()
            raise failure
        return self

    def _show(self, job: ChildCommand, callbacks: Callbacks) -> None:
        """Show what a command reports, and pass it on, until it ends."""
        from persia_cli.api.display import Display

        with Display() as display:
            for line in job:
                if line.get("event") == "metrics" and line["time"] <= self._since:
                    continue
                display.show(line)
                callbacks.take(line, self._ask_to_stop)

    def _clean_up(self) -> None:
        """Remove what was written for a job that was refused before it began."""
        from persia_cli.engines.job import GIVEN

        if not self.has_begun:
            shutil.rmtree(self.folder / GIVEN, ignore_errors=True)
            with suppress(OSError):  # not if it is not there, or has files of others
                self.folder.rmdir()

    def stop(self) -> None:
        """Save the model and end the job; returns when it has ended."""
        if self._job is not None and self._job.runs and not self._has_driver:
            self._job.stop()
        else:
            from persia_cli.errors import OrderlyEndError
            from persia_cli.jobs.follow import stop

            with suppress(OrderlyEndError):  # as it should
                stop(self.folder, at_once=False)

    def _ask_to_stop(self) -> None:
        """Do the same without waiting."""
        if self._job is not None and self._has_driver:
            from persia_cli.jobs.follow import job_of

            self._job.stopped = True
            self._stopping = job_of(self.folder)
            self._stopping.stop(at_once=False)
        elif self._job is not None:
            self._job.ask_to_stop()

    @property
    def _has_driver(self) -> bool:
        """True if another process than the command drives the job, so that it would outlive the command."""
        from persia_cli.engines.driver_process import RECORD
        from persia_cli.engines.resumed import DRIVER

        return (self.folder / DRIVER / RECORD).is_file()

    def resume(
        self,
        *overrides: str,
        on_metrics: Callback = None,
        on_evaluation: Callback = None,
        on_checkpoint: Callback = None,
        wait: bool = True,
    ) -> Self:
        """Go on with the training from the newest checkpoint.

        Args:
            *overrides: Settings that a resume may change, such as `"train.epochs=4"`.
            on_metrics: As for [train][persia_cli.train], like the others.
            on_evaluation: Function for each evaluation.
            on_checkpoint: Function for each checkpoint.
            wait: If False, return at once.

        Returns:
            The same run.
        """
        callbacks = Callbacks(on_metrics, on_evaluation, on_checkpoint)
        self._start(["resume", str(self.folder), *overrides], callbacks)
        return self.wait() if wait else self

    def evaluate(self, data: Any = None, *overrides: str, test: bool = False, step: int | None = None) -> JournalLine:
        """Return the metrics of the saved model, as a line: `run.evaluate().auc`.

        Args:
            data: A path, a list of paths, a DataFrame or an Arrow table; by default the evaluation samples of the run.
            *overrides: Settings, such as `"cluster.nn_workers=2"`.
            test: If True, take the test samples of the run.
            step: Step of the checkpoint.
        """
        with paths_of([] if data is None else data, self.folder) as paths:
            options = options_of({"data": paths, "test": test, "step": step})
            reported = run_command(["eval", str(self.folder), *overrides, *options])[1]
        return JournalLine([line for line in reported if line.get("event") == "metrics"][-1])

    def predict(
        self, data: Any, *overrides: str, keep: str | Sequence[str] = (), logits: bool = False, step: int | None = None
    ) -> Any:
        """Return the scores of each row of data, in the order of the data, as a `pyarrow.Table`.

        For each label there is a column `LABEL_probability`, or `LABEL_prediction` if it is a number.

        Args:
            data: A path, a list of paths, a DataFrame or an Arrow table, without the label if you like.
            *overrides: Settings, such as `"cluster.nn_workers=2"`.
            keep: Columns of the data to return too.
            logits: If True, return the logits too, the output of the network before the sigmoid.
            step: Step of the checkpoint.
        """
        import pyarrow.parquet as pq

        with paths_of(data, self.folder) as paths, scratch(self.folder) as temporary:
            output = temporary / "scores.parquet"
            options = options_of({"output": output, "keep": keep, "logits": logits, "step": step})
            run_command(["predict", str(self.folder), *paths, *overrides, *options])
            return pq.read_table(output)

    def rows(self, table: str, ids: Sequence[Any]) -> Any:
        """Return the embeddings of ids from the saved model: a NumPy array, float32 [ids, dim].

        Args:
            table: Name of a table, as `tables` has it.
            ids: Ids as the data has them, numbers or texts. An id without a row has zeros, as in a prediction.
        """
        from persia_cli.checkpoint.export import vectors_of
        from persia_cli.observe.saved_run import find_model

        model = find_model(self.folder)
        return vectors_of(model.checkpoint, model.run, table, ids)

    def export(self, folder: str | Path, **options: Any) -> Path:
        """Export the saved model for serving, as `persia export` does, and return the folder.

        Args:
            folder: A new or empty folder.
            **options: Options of `persia export`, with underscores, such as `rows="int8"`.
        """
        run_command(["export", str(self.folder), "-o", str(folder), *options_of(options)])
        return Path(folder)

    def report(self) -> Path:
        """Write the page about the run, as `persia report` does, and return its path."""
        from persia_cli.dashboard.report import write_report

        return write_report(self.folder).path


def options_of(options: dict[str, Any]) -> list[str]:
    """Return keywords as options of a command: `limit_s=60` is `--limit-s 60`, and `prune=True` is `--prune`."""
    arguments: list[str] = []
    for key, value in options.items():
        name = f"--{key.replace('_', '-')}"
        for item in value if isinstance(value, list | tuple) else [value]:
            arguments += [] if item is None or item is False else [name] if item is True else [name, str(item)]
    return arguments


def run_command(
    arguments: list[str], codes: Sequence[int] = (0,), is_short: bool = True
) -> tuple[ChildCommand, list[dict[str, Any]]]:
    """Run a command to its end, and return it and what it has reported.

    Raises PersiaError for another exit code than these, and for settings that are refused.
    """
    from persia_cli.api.display import Display

    command, reported = ChildCommand(arguments), []
    with Display(is_short) as display:
        try:
            for line in command:
                reported.append(line)
                display.show(line)
        except BaseException:
            command.stop()
            raise
    if (failure := command.failure(codes)) is not None:
        raise failure
    return command, reported
