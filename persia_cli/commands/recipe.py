"""`persia recipe`."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer

from persia_cli.commands.options import examples

LS_EXAMPLES = examples("persia recipe ls")
PREPARE_EXAMPLES = examples(
    "persia recipe prepare criteo --input train.txt --output data/criteo",
    "persia recipe prepare criteo --input train.txt.gz --output data/criteo --max-bad-rows 100",
    "persia recipe prepare adult_income --input adult/ --output data/adult_income",
)

app = typer.Typer(no_args_is_help=True, help="Prepare the data of real tasks.", epilog=PREPARE_EXAMPLES)


@app.command("ls", epilog=LS_EXAMPLES)
def ls() -> None:
    """List the recipes and where each is explained."""
    from persia_cli.commands.screen import out, pairs
    from persia_cli.data.recipe import list_recipes, load_recipe

    recipes = [load_recipe(name) for name in list_recipes()]
    pairs(out(), {recipe.name: f"{recipe.title} ({recipe.folder / 'README.md'})" for recipe in recipes})


@app.command(epilog=PREPARE_EXAMPLES)
def prepare(
    name: Annotated[str, typer.Argument(metavar="NAME", help="Name of a recipe, see `persia recipe ls`.")],
    source: Annotated[
        Path, typer.Option("--input", metavar="PATH", help="The data as it was downloaded.", show_default=False)
    ],
    output: Annotated[
        Path, typer.Option("--output", metavar="DIR", help="Folder for the Parquet files.", show_default=False)
    ],
    max_bad_rows: Annotated[
        int, typer.Option("--max-bad-rows", min=0, help="Give up when more rows than this do not parse.")
    ] = 0,
) -> None:
    """Turn a data set, as it was downloaded, into Parquet that `persia train` reads."""
    from persia_cli.commands.screen import count, err, labelled, out, say, size
    from persia_cli.data.recipe import PrepareOptions, load_recipe

    recipe = load_recipe(name)
    with _bar() as progress:
        report = recipe.prepare(source, output, PrepareOptions(max_bad_rows=max_bad_rows), progress)
    for bad in report.first_bad_rows:
        say(err(), f"left out: {bad.file}, line {bad.line}: {bad.reason}")
    if report.bad_rows:
        labelled(err(), "left out", f"{count(report.bad_rows, 'row')} in all")
    labelled(err(), "wrote", f"{count(report.rows, 'row')}, {size(report.nbytes)}")
    for file in report.files:
        say(out(), str(file))


@contextmanager
def _bar() -> Iterator[Callable[[int, int], None]]:
    """Show a bar on a terminal; the function it yields is called with bytes done and in all."""
    from rich.progress import BarColumn, DownloadColumn, Progress, TimeRemainingColumn, TransferSpeedColumn

    from persia_cli.commands.screen import err

    with Progress(
        BarColumn(), DownloadColumn(binary_units=True), TransferSpeedColumn(), TimeRemainingColumn(),
        console=err(), disable=not err().is_terminal,
    ) as progress:  # fmt: skip
        task = progress.add_task("preparing", total=None)
        yield lambda done, total: progress.update(task, completed=done, total=total)
