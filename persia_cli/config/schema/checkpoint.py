"""The settings of checkpoints: when a model is saved, where, and what is kept."""

from typing import Annotated, Any

from pydantic import BeforeValidator

from persia_cli.config.schema.base import Count, Node, Positive, Seconds
from persia_cli.storage.addresses import without_credentials


def _location(value: Any) -> Any:
    if isinstance(value, str) and not value.strip():
        raise ValueError("expected a folder or a URI, such as s3://bucket/folder")
    return without_credentials(value) if isinstance(value, str) and "://" in value else value


Place = Annotated[str, BeforeValidator(_location)]
"""The path of a folder or its URI, without credentials."""


class Checkpoint(Node):
    """Times of saving the model, and the checkpoints to keep."""

    every_steps: Count | None = None
    """Steps between checkpoints during training."""
    every_minutes: Positive | None = 10
    """Minutes after the last checkpoint, or the start, at which the next one is saved during training.

    A job that loses a machine, an NN worker or its coordinator repeats at most the training of this time."""
    grace_s: Seconds = 25.0
    """Time in seconds after SIGTERM or SIGUSR1 in which the model is saved; after that the job ends without it."""
    at_end: bool = True
    """Save when training is done."""
    keep: Count | None = 3
    """Number of newest checkpoints to keep, in addition to the best and the last one; with `null` all are kept."""
    path: Place | None = None
    """Folder of the run's checkpoints, a path or a URI such as s3://bucket/folder; default: in the run directory."""
    best_by: str | None = None
    """Save after each evaluation that is the best so far by this metric, and keep it until there is a better one.

    Default, if `at_end` has a model saved: the metric of `train.stop_early`; one of several epochs without `steps`.
    """

    @property
    def saves(self) -> bool:
        """True if a training saves checkpoints unasked."""
        return self.at_end or any(when is not None for when in (self.every_steps, self.every_minutes, self.best_by))
