"""`persia data`."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from persia_cli.commands.options import examples

if TYPE_CHECKING:
    from persia_cli.config.schema.dataset import FileForm
    from persia_cli.store.layout import OptimizerKind

INSPECT_EXAMPLES = examples(
    "persia data inspect data/criteo                       # what a recipe has prepared",
    "persia data inspect data/shop --write dataset.yaml    # a suggestion for `persia train dataset=dataset.yaml`",
    "persia data inspect old.csv 'dataset.csv.delimiter=;' dataset.csv.nulls=[NA]",
    "persia data inspect u.data dataset.format=csv 'dataset.csv.header=[user,item,stars,time]'",
    "persia data inspect s3://bucket/shop --dim 32 --optimizer adam --memory 8GiB",
)

LAND_EXAMPLES = examples(
    "persia data land kafka://broker:9092/clicks --to data/clicks             # until a signal",
    "persia data land kafka://broker:9092/clicks --to data/clicks --once      # what there is now",
    "persia data land kafka://b1,b2/clicks --to data/clicks --config kafka.properties --format arrow",
)

app = typer.Typer(no_args_is_help=True, help="Look at data, and land messages as files.", epilog=INSPECT_EXAMPLES)


@app.command("inspect", epilog=INSPECT_EXAMPLES)
def inspect(
    path: Annotated[
        str,
        typer.Argument(metavar="PATH", help="A file, a folder or a URI of Parquet, CSV or JSON Lines."),
    ],
    overrides: Annotated[
        list[str] | None,
        typer.Argument(metavar="KEY=VALUE", help="The format of the files: dataset.format and dataset.csv.*."),
    ] = None,
    write: Annotated[
        Path | None,
        typer.Option("--write", metavar="FILE", help="Write the suggested dataset YAML here."),
    ] = None,
    dim: Annotated[int, typer.Option("--dim", min=1, max=1024, help="Columns of an embedding.")] = 16,
    optimizer: Annotated[
        str, typer.Option("--optimizer", metavar="KIND", help="Optimizer of the rows, such as `adam`.")
    ] = "adagrad",
    memory: Annotated[
        str | None,
        typer.Option("--memory", metavar="SIZE", help="Memory for all tables: shows what fits."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Show the contents of data files, and suggest the `dataset` part of a configuration.

    Columns, the number of ids and the frequent ones, the differences between evaluation and training rows, and the
    memory that the tables would take.
    """
    import json

    from persia_cli.commands.inspect_view import as_object, show_profile
    from persia_cli.commands.progress import SCREEN
    from persia_cli.commands.screen import err, labelled, out, propose, say
    from persia_cli.data.inspect.inspection import inspect_data
    from persia_cli.jobs.plan import announce
    from persia_cli.plan.capacity import table_needs

    budget = None if memory is None else _bytes(memory)
    kind = _optimizer_kind(optimizer)
    _refuse_name(write)
    announce(SCREEN, path)
    form = _form(overrides or [])
    with SCREEN.converting() as conversion, _bar() as progress:
        inspection = inspect_data(
            path, progress, form.csv if overrides else None, conversion, form.format, write and write.parent
        )
    if inspection.profile.source.left_out:
        labelled(err(), "left out", inspection.profile.source.left_out)
    for sentence in inspection.profile.source.unread:
        labelled(err(), "warning", sentence)
    for sentence in inspection.notes:
        labelled(err(), "note", sentence)
    needs = table_needs(inspection.table_rows, dim, kind, budget)
    if as_json:
        say(out(), json.dumps(as_object(inspection, needs)))
    else:
        show_profile(out(), inspection, needs, has_suggestion=write is None)
    if write is not None:
        write.write_text(inspection.suggestion, encoding="utf-8")
        labelled(err(), "wrote", str(write))
    propose(err(), _next(path, inspection.known is not None, write))


@app.command("land", epilog=LAND_EXAMPLES)
def land(
    address: Annotated[
        str, typer.Argument(metavar="kafka://BROKER/TOPIC", help="A topic; brokers have commas between.")
    ],
    to: Annotated[Path, typer.Option("--to", metavar="FOLDER", help="Folder of this machine for the files.")],
    form: Annotated[
        Literal["json", "arrow"],
        typer.Option("--format", help="`json`: one object, which is a row. `arrow`: an Arrow IPC stream."),
    ] = "json",
    every_s: Annotated[
        float, typer.Option("--every-s", min=0.1, metavar="SECONDS", help="Seconds after which messages are written.")
    ] = 60.0,
    columns: Annotated[
        str | None,
        typer.Option(
            "--columns", metavar="NAME:TYPE,…", help="Columns of the first file; by default those of its messages."
        ),
    ] = None,
    max_bad: Annotated[
        int, typer.Option("--max-bad", min=0, metavar="N", help="Messages that may be left out as they cannot be rows.")
    ] = 0,
    config: Annotated[
        Path | None,
        typer.Option(
            "--config", metavar="FILE", help="Properties of librdkafka, such as credentials: KEY=VALUE a line."
        ),
    ] = None,
    once: Annotated[bool, typer.Option("--once", help="End when all that is there now is written.")] = False,
) -> None:
    """Write the messages of a Kafka topic to Parquet files, each message to exactly one, however often this is killed.

    Names of files hold the offsets of their messages, so the same command goes on where the last file ended. Ctrl-C and
    SIGTERM write what is in memory, and end.
    """
    import signal
    from functools import partial

    from persia_cli.commands.screen import err, labelled
    from persia_cli.data.land.folder import landing_folder
    from persia_cli.data.land.landing import Landing
    from persia_cli.data.land.messages import READERS, columns_of
    from persia_cli.data.land.topic import open_topic, read_properties
    from persia_cli.engines.signals import handling
    from persia_cli.errors import UserError

    if "://" in str(to).replace(":/", "://"):
        raise UserError(f"--to {to}: give a folder of this machine, where files get their names at once")
    schema = None if columns is None else columns_of(columns)
    came: list[int] = []
    with (
        handling((signal.SIGTERM, signal.SIGINT), came.append),
        open_topic(address, read_properties(config)) as topic,
        landing_folder(to, topic.name, topic.cluster) as folder,
    ):
        landing = Landing(topic, folder, READERS[form], every_s, max_bad, schema, partial(labelled, err()))
        landing.run(once, lambda: bool(came))


def _form(given: list[str]) -> "FileForm":
    """Return the format of files that settings give; raises ConfigError for other settings and wrong values."""
    from pydantic import ValidationError

    from persia_cli.config.explain import explain
    from persia_cli.config.overrides import key_and_value, parse_overrides
    from persia_cli.config.schema.dataset import FileForm
    from persia_cli.errors import ConfigError

    if other := next((word for word in given if not word.startswith(("dataset.format=", "dataset.csv."))), None):
        raise ConfigError(f"{other}: inspect takes dataset.format and the keys of dataset.csv alone")
    overrides = parse_overrides(given, [], {})
    values: dict[str, Any] = {"csv": {}}
    for key, value in [*map(key_and_value, overrides.hydra), *overrides.replacements.items()]:
        group = values["csv"] if key.startswith("dataset.csv.") else values
        group[key.rpartition(".")[2]] = value
    try:
        form = FileForm.model_validate(values)
    except ValidationError as error:
        mistakes = explain(error, FileForm, values).values()
        raise ConfigError("\n".join([*overrides.wrong.values(), *(f"dataset.{text}" for text in mistakes)])) from error
    if overrides.wrong:
        raise ConfigError("\n".join(overrides.wrong.values()))
    return form


def _optimizer_kind(text: str) -> "OptimizerKind":
    from typing import get_args

    from persia_cli.errors import UserError
    from persia_cli.store.layout import OptimizerKind

    kinds: tuple[OptimizerKind, ...] = get_args(OptimizerKind)
    if text not in kinds:
        raise UserError(f"--optimizer {text}: expected one of {', '.join(kinds)}")
    return kinds[kinds.index(text)]


def _bytes(text: str) -> int:
    from persia_cli.config.schema.embedding import parse_bytes
    from persia_cli.errors import UserError

    try:
        nbytes = int(parse_bytes(text))
    except ValueError as error:
        raise UserError(f"--memory {text}: {error}") from None
    if nbytes < 1:
        raise UserError(f"--memory {text}: expected more than 0 bytes")
    return nbytes


def _next(path: str, is_prepared: bool, written: Path | None) -> str:
    """Return the next command: train, or write the suggestion to a file."""
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
        raise UserError(f"--write {file}: the name of a dataset file must end in .yaml")
    if not file.parent.is_dir():
        raise UserError(f"--write {file}: there is no folder {file.parent}")
    if file.exists():
        raise UserError(f"{file} exists already; name a file that does not exist, or remove it")


@contextmanager
def _bar() -> Iterator[Callable[[int, int], None]]:
    """Show a progress bar on a terminal; yield a function of the rows done and in total."""
    from persia_cli.commands.progress import ProgressBar
    from persia_cli.commands.screen import clock, err

    with ProgressBar(err(), "reading") as bar:
        yield lambda done, total: bar.show(done, total, [f"{done:,}/{total:,} rows", f"{clock(bar.left_s)} left"])
