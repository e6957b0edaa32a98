"""`persia drive`, the driver of a job on several machines, which `persia train` starts; it is not for people."""

import os
import signal
import sys
from pathlib import Path
from typing import Annotated

import typer

from persia_cli.commands.options import Words, examples

EXAMPLES = examples("persia drive --run-dir runs/shop resume=auto < input  # what persia train cluster=slurm runs")


def drive(
    run_dir: Annotated[Path, typer.Option("--run-dir", metavar="DIR", help="Folder of the run.", show_default=False)],
    words: Words = None,
    scheduler: Annotated[
        str, typer.Option("--scheduler", metavar="KIND", help="Kind of the cluster whose scheduler runs this command.")
    ] = "",
    background: Annotated[bool, typer.Option("--background", help="Go on when this command ends.")] = False,
    lock: Annotated[
        int | None, typer.Option("--lock", metavar="FD", help="Open file by which it is the only driver of the run.")
    ] = None,
) -> None:
    """Run the job that standard input has on the machines of its cluster, apart from the command that shows it.

    The input has a line with the job's keys, a line with credentials, and the configuration; `-` stands for none.
    """
    from persia_cli.engines.driver_process import driving, start_driver

    if background:
        start_driver(run_dir, words or [], sys.stdin.read(), ["--debug"] if "--debug" in sys.argv else [])
        return
    # The command may have begun with Ctrl-C ignored, in the background of a shell; here it comes from persia stop.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    from persia_cli.commands.screen import err, say
    from persia_cli.engines.engine import engine_named
    from persia_cli.engines.signals import ENDING_SIGNALS, end_on_signals
    from persia_cli.errors import PreemptedError

    job = engine_named(scheduler).script_job(run_dir) if scheduler else ""
    with driving(run_dir, lock, scheduler, job), end_on_signals(lambda text: say(err(), text)):
        signal.pthread_sigmask(signal.SIG_UNBLOCK, ENDING_SIGNALS)
        try:
            _drive(run_dir, words or [])
        except PreemptedError as ended:
            sys.exit(ended.exit_code)


def _drive(run_dir: Path, words: list[str]) -> None:
    from persia_cli.commands.describe import warn_of_slow_precision, warn_of_spent_schedules
    from persia_cli.commands.endings import ROLLBACK
    from persia_cli.commands.job import score_test
    from persia_cli.commands.resume import plan_training, split_word
    from persia_cli.commands.screen import err, labelled
    from persia_cli.config.record import parsed
    from persia_cli.engines.driver_input import read_input
    from persia_cli.engines.engine import engine_of
    from persia_cli.engines.key_files import KEY_FILE
    from persia_cli.engines.readiness import require_network, with_dense_fit
    from persia_cli.engines.rollback import launch_with_rollback

    handed = read_input(sys.stdin.buffer)
    if handed.key_file is not None:
        os.environ[KEY_FILE] = str(handed.key_file)
    run = parsed(handed.config, "standard input")
    plan = plan_training(run, run_dir, split_word(words)[1])
    require_network(plan)
    plan = with_dense_fit(plan)
    warn_of_slow_precision(run)
    warn_of_spent_schedules(plan)
    engine = engine_of(run.cluster)
    with engine.scheduled_again(plan, lambda text: labelled(err(), run.cluster.name, text)):
        launch_with_rollback(
            plan, lambda plan: engine.launch(plan, lambda: None), lambda text: labelled(err(), ROLLBACK, text)
        )
    if engine.driver_is_here:
        score_test(plan)
