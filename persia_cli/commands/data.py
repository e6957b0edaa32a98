"""`persia data`."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from persia_cli.commands.options import examples

INSPECT_EXAMPLES = examples(
    "persia data inspect data/criteo                       # what a recipe has prepared",
    "persia data inspect data/shop --write shop.yaml       # a suggestion for `persia train dataset=./shop.yaml`",
    "persia data inspect s3://bucket/shop --dim 32 --optimizer adam --memory 8GiB",
)

app = typer.Typer(no_args_is_help=True, help="Look at data.", epilog=INSPECT_EXAMPLES)


class Optimizer(StrEnum):
    """Optimizers of rows."""

    SGD = "sgd"
    ADAGRAD = "adagrad"
    ROWWISE_ADAGRAD = "rowwise_adagrad"
    ADAM = "adam"
    FTRL = "ftrl"


@app.command("inspect", epilog=INSPECT_EXAMPLES)
def inspect(
    path: Annotated[
        str,
        typer.Argument(metavar="PATH", help="A file, a folder or a URI of Parquet files.", show_default=False),
    ],
    write: Annotated[
        Path | None,
        typer.Option("--write", metavar="FILE", help="Write the suggested dataset YAML here.", show_default=False),
    ] = None,
    dim: Annotated[int, typer.Option("--dim", min=1, max=1024, help="Columns of an embedding.")] = 16,
    optimizer: Annotated[Optimizer, typer.Option("--optimizer", help="Optimizer of the rows.")] = Optimizer.ADAGRAD,
    memory: Annotated[
        str | None,
        typer.Option("--memory", metavar="SIZE", help="What all tables may take: shows what fits.", show_default=False),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Show what Parquet files hold, and how to train on it.

    Columns, how many ids they have and which are frequent, how evaluation rows differ from training rows, and how
    much memory the tables would take.
    """
    import json

    from persia_cli.commands.profile_view import as_object, show_profile
    from persia_cli.commands.screen import err, labelled, out, say
    from persia_cli.data.profile.inspection import inspect_data
    from persia_cli.plan.table_need import table_needs

    budget = None if memory is None else _bytes(memory)
    _refuse_name(write)
    with _bar() as progress:
        found = inspect_data(path, progress)
    needs = table_needs(found.table_rows, dim, optimizer.value, budget)
    if as_json:
        say(out(), json.dumps(as_object(found, needs)))
    else:
        show_profile(out(), found, needs)
    if write is not None:
        write.write_text(found.suggestion, encoding="utf-8")
        labelled(err(), "wrote", str(write))
    labelled(err(), "next", _next(path, found.known is not None, write))


def _bytes(text: str) -> int:
    from persia_cli.config.schema.embedding import parse_bytes
    from persia_cli.errors import UserError

    try:
        nbytes = int(parse_bytes(text))
    except ValueError as error:
        raise UserError(f"--memory {text}: {error}") from None
    if nbytes < 1:
        raise UserError(f"--memory {text}: expected more than nothing")
    return nbytes


def _next(path: str, is_prepared: bool, written: Path | None) -> str:
    """Return what to do next: train, or have the suggestion written."""
    import shlex

    if written is not None:
        return f"persia train dataset={shlex.quote(str(written))} --dry-run"
    if is_prepared:
        return f"persia train dataset={shlex.quote(path.rstrip('/'))}/dataset.yaml --dry-run"
    return f"persia data inspect {shlex.quote(path)} --write dataset.yaml"


def _refuse_name(file: Path | None) -> None:
    """Raise UserError, before all rows are read, for a file that cannot be written or could not be named later."""
    from persia_cli.errors import UserError

    if file is None:
        return
    if file.suffix not in (".yaml", ".yml"):
        raise UserError(f"--write {file}: the name of a dataset file ends in .yaml")
    if not file.parent.is_dir():
        raise UserError(f"--write {file}: there is no folder {file.parent}")
    if file.exists():
        raise UserError(f"{file} exists already; name a file that does not, or remove it")


@contextmanager
def _bar() -> Iterator[Callable[[int, int], None]]:
    """Show a bar on a terminal; the function it yields is called with rows done and in all."""
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    from persia_cli.commands.screen import err

    with Progress(
        TextColumn("reading"), BarColumn(), MofNCompleteColumn(), TextColumn("rows"), TimeRemainingColumn(),
        console=err(), disable=not err().is_terminal, transient=True,
    ) as progress:  # fmt: skip
        task = progress.add_task("reading", total=None)
        yield lambda done, total: progress.update(task, completed=done, total=total)
