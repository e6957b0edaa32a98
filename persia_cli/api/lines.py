"""Lines of a run's record as objects, and the functions of a user that get them."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

Line = Mapping[str, Any]


class JournalLine(Mapping[str, Any]):
    """A line of metrics or events, unchangeable, with its keys as attributes: `line.auc`, or `line["recall@10"]`."""

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
