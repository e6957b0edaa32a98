"""`persia config`."""

from itertools import takewhile
from pathlib import Path
from typing import Annotated

import typer

from persia_cli.commands.options import AsJson, ConfDir, Overrides, examples

SHOW = (
    "persia config show conf=criteo",
    "persia config show conf=criteo model=ffnn > mine.yaml  # then: persia train conf=./mine.yaml",
)
MODEL = ("persia config model conf=criteo model=dcn_v2",)
EXPLAIN = (
    "persia config explain train.batch_size",
    "persia config explain train.batch_size conf=criteo train.batch_size=4096",
)
SCHEMA = "persia config schema > persia.schema.json"
LIST = (
    "persia config list",
    "persia config list train",
)

EXAMPLES = examples(*SHOW, *MODEL, *LIST, *EXPLAIN, SCHEMA)

app = typer.Typer(no_args_is_help=True, help="Look at configurations.", epilog=EXAMPLES)


@app.command(epilog=examples(*SHOW))
def show(overrides: Overrides = None, conf_dir: ConfDir = None) -> None:
    """Print the complete configuration that these arguments result in, as YAML."""
    from persia_cli.commands.screen import out, say
    from persia_cli.config.compose import compose_run
    from persia_cli.config.record import to_yaml

    text = to_yaml(compose_run(overrides or [], conf_dir or []))
    if out().is_terminal:
        from rich.syntax import Syntax

        say(out(), Syntax("", "yaml", background_color="default").highlight(text)[:-1])  # lines stay whole
    else:
        say(out(), text.rstrip("\n"))


@app.command(epilog=examples(*MODEL))
def model(
    overrides: Overrides = None,
    conf_dir: ConfDir = None,
    as_json: AsJson = False,
) -> None:
    """Print the layers of the dense network that these arguments result in, with output and weights of each.

    Also the memory that it takes in each NN worker while it trains, besides what forward keeps.
    """

    from persia_cli.commands.progress import SCREEN
    from persia_cli.commands.screen import err, labelled, out, say_json, size
    from persia_cli.commands.tables import columns, print_table
    from persia_cli.engines.readiness import ask_torch
    from persia_cli.errors import ConfigError
    from persia_cli.jobs.plan import settled_run
    from persia_cli.plan.dense import dense_bytes

    run = settled_run(overrides or [], conf_dir or [], SCREEN)
    [found] = ask_torch("summary", [run])
    if isinstance(found, str):
        raise ConfigError(found)
    layers, graph = found["layers"], found["graph_bytes"]
    total = sum(layer["parameters"] for layer in layers)
    nbytes = dense_bytes(run.optimizer.dense, total)
    if as_json:
        say_json(
            {"model": run.model.kind, "parameters": total, "bytes": nbytes, "graph_bytes": graph, "layers": layers}
        )
        return
    table = columns("layer", "kind", "output", "parameters")
    table.columns[1].justify = "left"
    for layer in layers:
        output = "-" if layer["output"] is None else " x ".join(map(str, layer["output"]))
        table.add_row(layer["layer"], layer["kind"], output, f"{layer['parameters']:,}")
    table.add_row("all", "", "", f"{total:,}", style="bold")
    print_table(out(), table)
    labelled(err(), "model", f"{run.model.kind}; rows of the embedding tables are not among these parameters")
    labelled(
        err(),
        "memory",
        f"{size(nbytes)} in each NN worker: weights, gradients and the state of {run.optimizer.dense.kind}",
    )
    if graph is not None:
        labelled(
            err(),
            "graphs",
            f"{size(graph)} more on a GPU for the steps in flight, estimated for batches of {run.train.batch:,} "
            "with one id per feature, all different",
        )


@app.command("list", epilog=examples(*LIST))
def list_(
    prefix: Annotated[
        str | None,
        typer.Argument(metavar="[PREFIX]", help="List the keys that begin with this, such as train."),
    ] = None,
    conf_dir: ConfDir = None,
) -> None:
    """List the configurations and the options of each config group, or the keys that begin with a prefix.

    Of each key the list has its meaning, the type of its value and the default.
    """
    from persia_cli.commands.screen import out, pairs
    from persia_cli.config import available

    if prefix is not None:
        from persia_cli.commands.config_view import list_keys

        list_keys(prefix)
        return
    folders = conf_dir or []
    files = {f"conf={name}": file for name, file in available.primaries(folders).items()}
    for group, options in available.groups(folders).items():
        files |= {f"{group}={name}": file for name, file in options.items()}
    pairs(out(), {choice: _first_comment(file) for choice, file in files.items()})


@app.command(epilog=examples(*EXPLAIN))
def explain(
    key: Annotated[str, typer.Argument(metavar="KEY", help="A key, such as train.batch_size.")],
    overrides: Overrides = None,
    conf_dir: ConfDir = None,
    as_json: AsJson = False,
) -> None:
    """Explain a key: its meaning, type and default, an example, and the file or argument that sets it."""
    from persia_cli.commands.config_view import explain_key

    explain_key(key, overrides or [], conf_dir or [], as_json)


@app.command(epilog=examples(SCHEMA))
def schema() -> None:
    """Print the JSON Schema of configuration files, for editors that complete and check YAML.

    Most editors read the line `# yaml-language-server: $schema=persia.schema.json` at the top of a file.
    """
    import json

    from persia_cli.commands.screen import out, say
    from persia_cli.config.json_schema import file_schema

    say(out(), json.dumps(file_schema(), indent=2))


def _first_comment(file: Path) -> str:
    """Return a configuration file's description: the comment in its first line, up to the end of a sentence."""
    lines = list(takewhile(lambda line: line.startswith("#"), file.read_text(encoding="utf-8").splitlines()))
    text = " ".join(line.lstrip("# ") for line in lines)
    end = text.find(". ", len(lines[0].lstrip("# ")) - 1) if lines else -1
    return text if end < 0 else text[: end + 1]
