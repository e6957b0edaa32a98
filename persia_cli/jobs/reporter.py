"""The reports of functions of this package while they work; each caller shows them in its own way."""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

from persia_cli.data.read.converted import Progress
from persia_cli.plan.job import Job


class Reporter:
    """Takes reports and shows nothing; a subclass shows them."""

    def say(self, text: str) -> None:
        """Report a sentence."""

    def labelled(self, label: str, text: str) -> None:
        """Report a sentence with a word that names its subject."""

    def options(self) -> list[str]:
        """Return the options of `persia` on another machine whose output is shown here."""
        return []

    def converting(self) -> AbstractContextManager[Progress]:
        """Return a context with a function that takes the progress of a conversion of text files."""
        return nullcontext(lambda path, done, total: None)

    def following(self, run_dir: Path, job: Job, batch_size: int) -> AbstractContextManager[Callable[[], None]]:
        """Return a context with a function that reports what is new in the record of a running job."""
        return nullcontext(lambda: None)


SILENT = Reporter()
"""Reports nothing."""
