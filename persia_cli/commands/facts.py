"""Examine a data set, and show progress where that may take long."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path, PurePath

from persia_cli.commands.progress_bar import ProgressBar, bytes_done
from persia_cli.commands.screen import err, labelled
from persia_cli.config.compose import compose_run
from persia_cli.config.schema import Dataset, ParquetDataset, Run
from persia_cli.data.read.converted import Progress, cache_folder
from persia_cli.data.read.facts import DatasetFacts, inspect
from persia_cli.errors import DataError
from persia_cli.plan.settled import settled
from persia_cli.storage.remote import without_secret


def settled_run(words: Sequence[str], folders: Sequence[Path]) -> Run:
    """Compose a run that is not trained, with values in place of `auto`: by its data, if they can be read."""
    run = compose_run(words, folders)
    if (without_data := settled(run, None)) is run:
        return run
    try:
        return settled(run, facts_of(run.dataset))
    except DataError:
        labelled(err(), "note", "the data cannot be read; auto has the values for more than a million training rows")
        return without_data


def facts_of(dataset: Dataset) -> DatasetFacts:
    """Return the facts about a data set; raises DataError with every problem, one line each."""
    if isinstance(dataset, ParquetDataset):
        announce(*dataset.paths)
    with converting() as progress:
        facts = inspect(dataset, progress)
    if facts.left_out:
        labelled(err(), "left out", facts.left_out)
    for warning in facts.warnings:
        labelled(err(), "warning", warning)
    return facts


@contextmanager
def converting() -> Iterator[Progress]:
    """Yield a function that shows the conversion of text files: a bar over all of them, or a line for each."""
    said: set[str] = set()
    with ProgressBar(err(), "reading") as bar:

        def show(path: str, done: int, total: int) -> None:
            if path not in said and (not said or not err().is_terminal):
                what = "text files" if err().is_terminal else path
                labelled(
                    err(),
                    "reading",
                    f"{what} twice, to convert them to Parquet, once, in {cache_folder()}",
                )
            said.add(path)
            bar.show(done, total, [*bytes_done(bar, done, total), PurePath(path).name])

        yield show


def announce(*paths: str) -> None:
    """Print a line about paths on other machines before they are read."""
    for path in paths:
        if "://" in path:
            labelled(err(), "looking", f"at {without_secret(path)}")
