"""The `persia` command."""

import os
import re
import sys
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Literal, NoReturn

import typer

from persia_cli.commands import (
    bench,
    checkpoint,
    config,
    dashboard,
    data,
    doctor,
    drive,
    evaluate,
    export,
    follow,
    keys,
    launch_role,
    plan,
    predict,
    publish,
    recipe,
    recommend,
    report,
    resume,
    rollback,
    runs,
    serve,
    sweep,
    table,
    top,
    trace,
    train,
)
from persia_cli.commands.options import OUTPUT, examples
from persia_cli.commands.parser import GroupedCommands, WholeLines, as_user_error, refuse_empty
from persia_cli.engines.output import outlive_readers, require_printed
from persia_cli.errors import PersiaError
from persia_cli.version import __version__

app = typer.Typer(
    name="persia",
    cls=GroupedCommands,
    no_args_is_help=True,
    rich_markup_mode=None,  # help without rich comes in half the time
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["--help", "-h"]},
)
app.command(epilog=train.EXAMPLES)(train.train)
app.command(epilog=resume.EXAMPLES)(resume.resume)
app.command(epilog=sweep.EXAMPLES)(sweep.sweep)
app.command(epilog=plan.EXAMPLES)(plan.plan)
app.command(epilog=follow.ATTACH)(follow.attach)
app.command(epilog=follow.STOP)(follow.stop)
app.command(epilog=follow.LOGS)(follow.logs)
app.command(epilog=top.EXAMPLES)(top.top)
app.command("eval", epilog=evaluate.EXAMPLES)(evaluate.evaluate)
app.command(epilog=predict.EXAMPLES)(predict.predict)
app.command(epilog=recommend.EXAMPLES)(recommend.recommend)
app.command(epilog=export.EXAMPLES)(export.export)
app.command(epilog=publish.EXAMPLES)(publish.publish)
app.command(epilog=serve.EXAMPLES)(serve.serve)
app.command(epilog=rollback.EXAMPLES)(rollback.rollback)
app.command(epilog=report.EXAMPLES)(report.report)
app.command(epilog=dashboard.EXAMPLES)(dashboard.dashboard)
app.command(epilog=trace.EXAMPLES)(trace.trace)
app.command(epilog=doctor.EXAMPLES)(doctor.doctor)
app.command("launch-role", epilog=launch_role.EXAMPLES)(launch_role.launch_role)
app.command("on-host", hidden=True, epilog=drive.ON_HOST_EXAMPLES)(drive.on_host)
app.command(hidden=True, epilog=drive.EXAMPLES)(drive.drive)
app.add_typer(runs.app, name="runs", cls=WholeLines)
app.add_typer(checkpoint.app, name="checkpoint", cls=WholeLines)
app.add_typer(table.app, name="table", cls=WholeLines)
app.add_typer(keys.app, name="keys", cls=WholeLines)
app.add_typer(bench.app, name="bench", cls=WholeLines)
app.add_typer(recipe.app, name="recipe", cls=WholeLines)
app.add_typer(data.app, name="data", cls=WholeLines)
app.add_typer(config.app, name="config", cls=WholeLines)

EXAMPLES = examples(
    "persia train                        # train on the census data that ships with persia",
    "persia config list                  # what there is to choose from",
    "persia train conf=criteo --dry-run  # what would run",
)


def _show_version(wanted: bool) -> None:
    if wanted:
        print(f"persia {__version__}")
        raise typer.Exit


@app.callback(epilog=EXAMPLES)
def persia(
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Print the version.")
    ] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")] = False,
    verbose: Annotated[bool, typer.Option("--verbose", help="Print details that persia report has too.")] = False,
    log_format: Annotated[
        Literal["text", "json"], typer.Option("--log-format", help="json: stderr has one JSON object a line.")
    ] = "text",
) -> None:
    """Train huge recommender models on ordinary machines.

    These options may stand anywhere on the command line.
    """
    OUTPUT.verbose, OUTPUT.as_json = verbose, log_format == "json"


def main() -> None:
    """Run the command line; every error ends as one line on stderr and an exit code."""
    outlive_readers()
    arguments = [_at_home(argument) for argument in _options_first(sys.argv[1:])]
    OUTPUT.as_json = "--log-format=json" in arguments or ("--log-format", "json") in pairwise(arguments)
    try:
        refuse_empty(arguments)
        code = _run(arguments)
        require_printed()
    except Exception as error:
        if _comes_of_interrupt(error):
            raise KeyboardInterrupt from error
        from persia_cli.commands.screen import report_failure

        code = report_failure(as_user_error(error), debug="--debug" in arguments)
    _end(code)


def _run(arguments: list[str]) -> object:
    """Run a command and return its exit code."""
    try:
        return app(arguments, prog_name="persia", standalone_mode=False)
    except SystemExit as ended:
        return ended.code


def _options_first(arguments: list[str]) -> list[str]:
    """Return the arguments with the options of every command before the command."""
    first, others = [], []
    rest = iter(arguments)
    for argument in rest:
        if argument in ("--debug", "--verbose") or argument.startswith("--log-format="):
            first.append(argument)
        elif argument == "--log-format":
            first += [argument, *([value] if (value := next(rest, None)) is not None else [])]
        else:
            others.append(argument)
    return [*first, *others]


def _at_home(argument: str) -> str:
    """Return an argument with the home folder in place of ~/, which shells leave in --run-dir=~/shop.

    Settings stay: cluster.persia=~/bin/persia is at home on another machine.
    """
    return re.sub(r"^(--[a-z-]+=)?~/", lambda found: f"{found[1] or ''}{Path.home()}/", argument)


def _comes_of_interrupt(error: BaseException) -> bool:
    """Return True if a library raised an error because of a Ctrl-C during its import."""
    if isinstance(error, PersiaError):  # has its own text for what Ctrl-C has ended
        return False
    causes = (error.__cause__, error.__context__)
    return any(isinstance(cause, KeyboardInterrupt) or _comes_of_interrupt(cause) for cause in causes if cause)


def _end(code: object) -> NoReturn:
    """End the process; at once if the threads of a library could delay its exit, or abort it."""
    remote, ranks = (sys.modules.get(f"persia_cli.{name}") for name in ("storage.remote", "training.distributed"))
    # A call to a remote store may still wait; and C++ calls std::terminate if a thread of torch's groups still runs.
    if (remote is not None and remote.is_waiting()) or (ranks is not None and ranks.has_joined()):
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code if isinstance(code, int) else 0)
    sys.exit(code if isinstance(code, int) else 0)
