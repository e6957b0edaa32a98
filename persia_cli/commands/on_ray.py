"""`persia on-ray`, the driver of a job with `cluster=ray`, which `persia train` starts; it is not for people."""

import signal
import sys
from pathlib import Path
from typing import Annotated

import typer

from persia_cli.commands.options import examples

EXAMPLES = examples("persia on-ray --run-dir runs/shop  # what persia train cluster=ray leaves running")


def on_ray(
    run_dir: Annotated[Path, typer.Option("--run-dir", metavar="DIR", help="Folder of the run.", show_default=False)],
    lock: Annotated[
        int | None, typer.Option("--lock", metavar="FD", help="Open file by which it is the only driver of the run.")
    ] = None,
) -> None:
    """Run the job that standard input has on the machines of a Ray cluster, apart from the command that shows it."""
    # The command may have begun with Ctrl-C ignored, in the background of a shell; here it comes from persia stop.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    from persia_cli.commands.endings import INTERRUPTED, ROLLBACK, ended_in_words
    from persia_cli.commands.job import take_trace
    from persia_cli.commands.screen import err, labelled, say
    from persia_cli.engines.ray.driver import driving, take
    from persia_cli.engines.ray.launch import launch
    from persia_cli.engines.rollback import launch_with_rollback
    from persia_cli.engines.signals import ENDING_SIGNALS, end_on_signals

    with driving(run_dir, lock), end_on_signals(lambda text: say(err(), text)):
        try:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, ENDING_SIGNALS)
            plan, words, trace = take(sys.stdin.buffer)
            try:
                with ended_in_words(plan, words):
                    launch_with_rollback(plan, launch, lambda text: labelled(err(), ROLLBACK, text))
            finally:
                if trace:
                    take_trace(plan, trace)
        except typer.Exit as ended:
            sys.exit(ended.exit_code)
        except KeyboardInterrupt:
            say(err(), "interrupted; no job is running")
            sys.exit(INTERRUPTED)
