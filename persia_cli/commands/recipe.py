"""`persia recipe`."""

import shlex
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, ClassVar, NoReturn

import typer

from persia_cli.commands.options import Changes, ConfDir, examples

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderResult
    from rich.markdown import Markdown

    from persia_cli.data.prepare.options import PrepareOptions, PrepareReport
    from persia_cli.data.prepare.recipe import Recipe

LS_EXAMPLES = examples("persia recipe ls")
SHOW_EXAMPLES = examples("persia recipe show criteo")
CP_EXAMPLES = examples(
    "persia recipe cp criteo ./mine  # then: persia recipe prepare ./mine --input ...",
    "persia recipe cp shop shop      # the clicks of a shop, as a CSV file to try things with",
)
PREPARE_EXAMPLES = examples(
    "persia recipe prepare criteo --input train.txt --output data/criteo",
    "persia recipe prepare criteo --input train.txt.gz --output data/criteo --max-bad-rows 100",
    "persia recipe prepare criteo --input train.txt --min-count 10 --split chronological:0.1",
    "persia recipe prepare ./mine --input raw/ --output data/mine",
)
RUN_EXAMPLES = examples(
    "persia recipe run criteo --input train.txt",
    "persia recipe run criteo --input train.txt model=ffnn train.epochs=2",
    "persia recipe run adult_income  # its data ships with persia",
    "persia recipe run online_loop   # a server, clicks, and a model that learns from them",
)

app = typer.Typer(no_args_is_help=True, help="Prepare and train real tasks.", epilog=PREPARE_EXAMPLES)

Name = Annotated[
    str, typer.Argument(metavar="NAME", help="Name of a recipe, see `persia recipe ls`, or path of your own recipe.")
]
Output = Annotated[
    Path | None,
    typer.Option("--output", metavar="DIR", help="Folder for the Parquet files.", show_default="data/NAME"),
]
MaxBadRows = Annotated[
    int, typer.Option("--max-bad-rows", min=0, help="Give up when more rows than this do not parse.")
]
MinCount = Annotated[
    int, typer.Option("--min-count", min=1, max=255, help="Ids that occur fewer times than this all become one id.")
]
Split = Annotated[
    str | None,
    typer.Option(
        "--split",
        metavar="ORDER:FRACTION",
        help="Part of the rows for evaluation: random:0.1, or chronological:0.1 for the last ones.",
        show_default="the recipe's own",
    ),
]
Workers = Annotated[
    int | None, typer.Option("--workers", min=1, help="Threads.", show_default="one for each core, up to 8")
]


@app.command("ls", epilog=LS_EXAMPLES)
def ls() -> None:
    """List the recipes."""
    from persia_cli.commands.screen import err, out, pairs, propose
    from persia_cli.data.prepare.recipe import folder_of, list_folders, title_of

    pairs(out(), {name: title_of(folder_of(name)) for name in list_folders()})
    propose(err(), "persia recipe show NAME")


@app.command("show", epilog=SHOW_EXAMPLES)
def show(name: Name) -> None:
    """Print a recipe's README: the source of the data, the prepared columns, and the expected results."""
    from persia_cli.commands.screen import err, out, propose, say
    from persia_cli.data.prepare.recipe import PREPARE, RUN, folder_of, readme_of

    folder = folder_of(name)
    text = readme_of(folder)
    if out().is_terminal:
        out().print(as_markdown(text), crop=False)
    else:
        say(out(), text.rstrip("\n"))
    steps = {PREPARE: "prepare {} --input PATH", RUN: "run {}"}
    step = next((step for file, step in steps.items() if (folder / file).is_file()), "cp {} DIR")
    propose(err(), f"persia recipe {step.format(shlex.quote(name))}")


def as_markdown(text: str) -> "Markdown":
    """Return a README for a terminal, to be printed without cropping: a long command in it can still be copied."""
    from rich.markdown import CodeBlock, Markdown
    from rich.text import Text

    class PlainCode(CodeBlock):
        """Code without wrapping."""

        def __rich_console__(self, console: "Console", options: "ConsoleOptions") -> "RenderResult":
            yield Text(str(self.text).rstrip(), "bold", no_wrap=True, overflow="ignore")

    class Readme(Markdown):
        """Markdown with such code."""

        elements: ClassVar = {**Markdown.elements, "fence": PlainCode, "code_block": PlainCode}

    return Readme(text)


@app.command("cp", epilog=CP_EXAMPLES)
def cp(
    name: Name,
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="Folder to make.")],
) -> None:
    """Copy a recipe, or data that ships with Persia, to a folder of your own."""
    from persia_cli.commands.screen import err, out, propose, say
    from persia_cli.data.prepare.recipe import PREPARE, RUN, copy_folder, folder_of

    files = copy_folder(folder_of(name), folder)
    for file in files:
        say(out(), str(file))
    if folder / PREPARE in files:
        propose(err(), f"persia recipe prepare {_as_path(folder)} --input PATH")
    elif folder / RUN in files:
        propose(err(), f"persia recipe run {_as_path(folder)}")
    else:
        data = next(file for file in files if file.suffix not in (".md", ".yaml"))
        propose(err(), f"persia data inspect {shlex.quote(str(data))} --write dataset.yaml")


@app.command(epilog=PREPARE_EXAMPLES)
def prepare(
    name: Name,
    source: Annotated[Path, typer.Option("--input", metavar="PATH", help="The downloaded data.")],
    output: Output = None,
    max_bad_rows: MaxBadRows = 0,
    min_count: MinCount = 1,
    split: Split = None,
    workers: Workers = None,
) -> None:
    """Convert a downloaded data set to Parquet that `persia train` reads; continue if an earlier run was stopped."""
    from persia_cli.commands.screen import err, out, propose, say
    from persia_cli.data.prepare.recipe import load_recipe

    recipe = load_recipe(name)
    report = _prepare(recipe, source, output or _output(recipe), _options(max_bad_rows, min_count, split, workers))
    for file in (*report.files, report.dataset):
        say(out(), str(file))
    conf = _conf_of(recipe)
    words = [*([f"conf={conf}"] if conf else []), f"dataset={report.dataset}"]
    propose(err(), shlex.join(["persia", "train", *words]))


@app.command(epilog=RUN_EXAMPLES)
def run(
    name: Name,
    overrides: Changes = None,
    source: Annotated[
        Path | None,
        typer.Option("--input", metavar="PATH", help="The downloaded data; not needed once it is prepared."),
    ] = None,
    output: Output = None,
    max_bad_rows: MaxBadRows = 0,
    min_count: MinCount = 1,
    split: Split = None,
    workers: Workers = None,
    conf_dir: ConfDir = None,
) -> None:
    """Prepare a data set, if that is not done yet, then train and evaluate the recipe's model on it.

    A recipe that is a separate program, such as online_loop, is started.
    """
    from persia_cli.commands.job_view import train_and_show
    from persia_cli.commands.screen import err, labelled
    from persia_cli.data.prepare.recipe import RUN, folder_of, load_recipe
    from persia_cli.errors import UserError

    program = folder_of(name) / RUN
    if program.is_file():
        if source is not None or max_bad_rows or min_count > 1 or split is not None or workers is not None or conf_dir:
            raise UserError(f"{name} prepares no data; give it no option but --output, and settings KEY=VALUE")
        _start(program, output or Path("data") / program.parent.name, overrides or [])
    recipe = load_recipe(name)
    conf = _conf_of(recipe)
    chosen = [f"conf={conf}"] if conf else []
    dataset = (output or _output(recipe)) / "dataset.yaml"
    if source is not None:
        options = _options(max_bad_rows, min_count, split, workers)
        chosen.append(f"dataset={_prepare(recipe, source, dataset.parent, options).dataset}")
    elif min_count > 1 or split is not None:
        raise UserError(
            "--min-count and --split change the preparation of data; give the downloaded data by --input PATH"
        )
    elif dataset.is_file():
        labelled(err(), "data", f"{dataset} exists already")
        chosen.append(f"dataset={dataset}")
    elif output is not None or not (recipe.folder / "data").is_dir():
        raise UserError(f"there is no {dataset}; give the downloaded data by --input PATH")
    train_and_show([*chosen, *(overrides or [])], conf_dir or [])


def _start(program: Path, output: Path, overrides: list[str]) -> NoReturn:
    """Replace this process by the program of a recipe, which writes a new folder."""
    import os
    import sys

    os.execv(sys.executable, [sys.executable, str(program), str(output), *overrides])


def _prepare(recipe: "Recipe", source: Path, output: Path, options: "PrepareOptions") -> "PrepareReport":
    """Prepare with a progress bar, and report the result."""
    from persia_cli.commands.screen import err, labelled, say, size
    from persia_cli.data.prepare.preparation import KEPT
    from persia_cli.errors import count

    try:
        with _bar() as progress:
            report = recipe.prepare(source, output, options, progress)
    except KeyboardInterrupt:
        from persia_cli.engines.driver_process import INTERRUPTED

        say(err(), f"interrupted; {KEPT}")
        raise typer.Exit(INTERRUPTED) from None
    for bad in report.first_bad_rows:
        say(err(), f"left out: {bad.file}, line {bad.line}: {bad.reason}")
    if report.bad_rows:
        labelled(err(), "left out", f"{count(report.bad_rows, 'row')} in all")
    if report.kept:
        labelled(err(), "kept", f"{count(report.kept, 'file')} of an earlier run")
    made = "has" if report.kept == len(report.files) else "wrote"
    labelled(err(), made, f"{count(report.rows, 'row')}, {size(report.nbytes)}")
    return report


def _options(max_bad_rows: int, min_count: int, split: str | None, workers: int | None) -> "PrepareOptions":
    from persia_cli.data.prepare.options import PrepareOptions, parse_split

    chosen = parse_split(split) if split else None
    return PrepareOptions(max_bad_rows=max_bad_rows, min_count=min_count, split=chosen, workers=workers)


def _output(recipe: "Recipe") -> Path:
    return Path("data") / recipe.name


def _conf_of(recipe: "Recipe") -> str | None:
    """Return the configuration for a recipe's data: the one in its folder, or the one of its name, if there is one."""
    from persia_cli.config import available

    own = recipe.folder / "conf.yaml"
    if own.is_file():
        return str(own)
    return recipe.name if recipe.name in available.primaries() else None


def _as_path(folder: Path) -> str:
    """Return a folder written as a path, for use in place of a recipe's name."""
    return shlex.quote(str(folder) if "/" in str(folder) else f"./{folder}")


@contextmanager
def _bar() -> Iterator[Callable[[int, int], None]]:
    """Show progress in bytes; yield a function of the bytes done and in total."""
    from persia_cli.commands.progress import LINE_S, ProgressBar, bytes_done
    from persia_cli.commands.screen import err, labelled

    with ProgressBar(err(), "preparing") as bar:
        shown_s = time.monotonic()

        def show(done: int, total: int) -> None:
            nonlocal shown_s
            parts = bytes_done(bar, done, total)
            bar.show(done, total, parts)
            if not err().is_terminal and time.monotonic() - shown_s >= LINE_S:
                labelled(err(), "preparing", "  ".join(parts))
                shown_s = time.monotonic()

        yield show
