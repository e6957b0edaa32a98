"""Measurements for developers: `python -m scripts.bench kernels`, and `… saving` for training during saves."""

import sys
from typing import Annotated

import typer

from persia_cli.commands import bench_views as views
from persia_cli.commands.options import AsJson, ConfDir, Overrides, examples
from persia_cli.commands.screen import err, labelled, out, propose
from persia_cli.errors import PersiaError

KERNEL_EXAMPLES = examples(
    "python -m scripts.bench kernels",
    "python -m scripts.bench kernels --only look-up --json",
)
SAVING_EXAMPLES = examples("python -m scripts.bench saving conf=criteo --steps 400 --saves 3")

app = typer.Typer(no_args_is_help=True, help="Measure parts of Persia.")


@app.command(epilog=SAVING_EXAMPLES)
def saving(
    words: Overrides = None,
    steps: Annotated[int, typer.Option("--steps", min=20, help="Steps from one save to the next.")] = 400,
    saves: Annotated[int, typer.Option("--saves", min=1, help="Number of saves.")] = 3,
    as_json: AsJson = False,
    conf_dir: ConfDir = None,
) -> None:
    """Measure how much training slows down while checkpoints are written, against the same job between them."""
    from persia_cli.bench.machine import this_machine
    from persia_cli.config.compose import compose_run
    from scripts.bench.saving import measure_saving
    from scripts.bench.views import show_saving

    run = compose_run(words or [], conf_dir or [])
    result = measure_saving(run, steps, saves, views.noting(as_json))
    if as_json:
        views.print_json("saving", [result], False, run)
        return
    labelled(out(), "machine", this_machine().processor)
    show_saving(result)
    propose(err(), "python -m scripts.bench kernels --only save")


@app.command(epilog=KERNEL_EXAMPLES)
def kernels(
    only: Annotated[
        str | None, typer.Option("--only", metavar="PATTERN", help="Run cases with this text in their names.")
    ] = None,
    quick: Annotated[bool, typer.Option("--quick", help="Small tables, few rounds: to see if it runs.")] = False,
    as_json: AsJson = False,
) -> None:
    """Measure the embedding store's parts against torch and against the memory's limits, on one thread, alternating."""
    from persia_cli.bench.machine import this_machine
    from scripts.bench import kernels as bench
    from scripts.bench.alternate import FULL, QUICK
    from scripts.bench.views import RatioPrinter

    names = bench.chosen(only)
    with RatioPrinter(this_machine(), len(names), as_json) as report:
        for result in bench.run(names, QUICK if quick else FULL, report.begin):
            report.add(result)
    report.close(quick)
    if not as_json:
        propose(err(), "python -m scripts.bench kernels" if quick else "persia bench throughput conf=criteo")


if __name__ == "__main__":
    try:
        app()
    except PersiaError as error:
        sys.exit(str(error))
