"""`persia drive` and `persia on-host`, which `persia train` starts on other machines; they are not for people."""

import os
import signal
import sys
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from persia_cli.commands.options import Overrides, examples

EXAMPLES = examples("persia drive --run-dir runs/shop resume=auto < input  # what persia train cluster=slurm runs")

ON_HOST_EXAMPLES = examples("persia on-host  # what ssh runs first on each machine of persia train cluster=hosts")


def drive(
    run_dir: Annotated[Path, typer.Option("--run-dir", metavar="DIR", help="Folder of the run.")],
    overrides: Overrides = None,
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
        start_driver(run_dir, overrides or [], sys.stdin.read(), ["--debug"] if "--debug" in sys.argv else [])
        return
    # The command may have begun with Ctrl-C ignored, in the background of a shell; here it comes from persia stop.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    from persia_cli.commands.progress import SCREEN
    from persia_cli.engines.engine import engine_named
    from persia_cli.engines.signals import ENDING_SIGNALS, end_on_signals
    from persia_cli.errors import PreemptedError

    job = engine_named(scheduler).script_job(run_dir) if scheduler else ""
    with driving(run_dir, lock, scheduler, job), end_on_signals(SCREEN.say):
        signal.pthread_sigmask(signal.SIG_UNBLOCK, ENDING_SIGNALS)
        try:
            _drive(run_dir, overrides or [])
        except PreemptedError as ended:
            sys.exit(ended.exit_code)


def _drive(run_dir: Path, overrides: list[str]) -> None:
    from persia_cli.commands.job_view import score_test
    from persia_cli.commands.plan_view import warn_of_slow_precision, warn_of_spent_schedules
    from persia_cli.commands.progress import SCREEN
    from persia_cli.config.record import parsed
    from persia_cli.engines.driver_input import read_input
    from persia_cli.engines.engine import engine_of
    from persia_cli.engines.key_files import KEY_FILE
    from persia_cli.engines.readiness import require_network, with_dense_fit
    from persia_cli.jobs.plan import plan_training, split_resume
    from persia_cli.jobs.run import launch_unseen

    handed = read_input(sys.stdin.buffer)
    if handed.key_file is not None:
        os.environ[KEY_FILE] = str(handed.key_file)
    run = parsed(handed.config, "standard input")
    plan = plan_training(run, run_dir, split_resume(overrides)[1], SCREEN)
    require_network(plan)
    plan = with_dense_fit(plan)
    warn_of_slow_precision(run)
    warn_of_spent_schedules(plan)
    engine = engine_of(run.cluster)
    with engine.scheduled_again(plan, partial(SCREEN.labelled, run.cluster.name)):
        launch_unseen(plan, SCREEN)
    if engine.driver_is_here:
        score_test(plan)


def on_host() -> None:
    """Print the version of Persia, the memory and the processors of this machine."""
    from persia_cli.engines.hosts.ssh import facts_in_json

    print(facts_in_json())
