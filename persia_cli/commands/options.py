"""Arguments and options of several commands, their output settings, and the examples below a command's help."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer


@dataclass(slots=True)
class OutputSettings:
    """The format of what commands print: `--log-format` and `--verbose`."""

    as_json: bool = False
    """True: stderr has one JSON object a line."""
    verbose: bool = False
    """True: details are printed that `persia report` has too."""


OUTPUT = OutputSettings()
"""The settings of this process."""


def examples(*lines: str) -> str:
    """Return a help epilog of command lines with explanations, one per line, without wrapping."""
    return "\n".join(["\b", "Examples:", *(f"  {line}" for line in lines)])


Overrides = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="conf=NAME | KEY=VALUE",
        help="A configuration, by name or path of a .yaml file (without it: base), and settings of it: a config "
        "group's option such as model=dlrm, or a single key such as train.epochs=2.",
    ),
]
Changes = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="KEY=VALUE", help="Settings that differ from the run's own, such as cluster.embedding_servers=3."
    ),
]
ConfDir = Annotated[
    list[Path] | None,
    typer.Option(
        "--conf-dir",
        envvar="PERSIA_CONF_DIR",
        metavar="DIR",
        help="A folder of your own configurations, searched before the built-in one. May be given several times.",
    ),
]
Model = Annotated[
    str,
    typer.Argument(metavar="RUN|CHECKPOINT", help="A run directory, or one of its checkpoints (a URI too)."),
]
Step = Annotated[
    int | None,
    typer.Option(
        "--step", metavar="N", help="Load the checkpoint of this step.", show_default="the best, else the last"
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]
