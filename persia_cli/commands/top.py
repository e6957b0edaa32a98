"""`persia top`."""

from pathlib import Path
from typing import Annotated

import typer

from persia_cli.commands.options import examples

EXAMPLES = examples(
    "persia top                              # the newest run in runs/ that goes on",
    "persia top runs/criteo-20261121-081500  # a run, also one that has ended",
)
RUNS = Path("runs")


def top(
    run: Annotated[
        Path | None, typer.Argument(metavar="[RUN]", help="A run directory.", show_default="the newest running run")
    ] = None,
) -> None:
    """Show a job live: each process, the metrics, the tables, and the bottleneck.

    It reads the files of the run directory, so it works wherever that is. Keys save the model, or stop the job.
    """
    import sys

    from persia_cli.errors import UserError
    from persia_cli.observe.history import CONFIG

    chosen = run or _newest_running()
    if not (chosen / CONFIG).is_file():
        raise UserError(f"{chosen} does not contain a run; give the folder that persia train named")
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise UserError(f"persia top needs a terminal; persia report {chosen} writes a page about the run")
    from persia_cli.commands.top_screen import TopScreen

    TopScreen(chosen).run()


def _newest_running() -> Path:
    from persia_cli.engines.resumed import is_at_work
    from persia_cli.errors import UserError
    from persia_cli.observe.history import CONFIG

    configs = [path for path in RUNS.glob(f"*/{CONFIG}") if is_at_work(path.parent)]
    if not configs:
        raise UserError(f"no job of the runs in {RUNS}/ runs on this machine; name a run: persia top RUN")
    return max(configs, key=lambda path: path.stat().st_mtime).parent
