"""`persia drive`, the driver of a job on several machines, which `persia train` starts; it is not for people."""

import os
import signal
import sys
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Annotated

import typer

from persia_cli.commands.options import Words, examples

EXAMPLES = examples("persia drive --run-dir runs/shop resume=auto < input  # what persia train cluster=slurm runs")


def drive(
    run_dir: Annotated[Path, typer.Option("--run-dir", metavar="DIR", help="Folder of the run.", show_default=False)],
    words: Words = None,
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
    from persia_cli.engines.signals import ENDING_SIGNALS, end_on_signals
    from persia_cli.errors import PreemptedError

    slurm = os.environ.get("SLURM_JOB_ID", "")
    if slurm:
        from persia_cli.engines.slurm.queued import require_no_other

        require_no_other(run_dir, slurm)
    with driving(run_dir, lock, slurm), end_on_signals(lambda text: say(err(), text)):
        signal.pthread_sigmask(signal.SIG_UNBLOCK, ENDING_SIGNALS)
        try:
            _drive(run_dir, words or [], bool(slurm))
        except PreemptedError as ended:
            sys.exit(ended.exit_code)


def _drive(run_dir: Path, words: list[str], is_script: bool) -> None:
    from persia_cli.commands.describe import warn_of_slow_precision, warn_of_spent_schedules
    from persia_cli.commands.endings import ROLLBACK
    from persia_cli.commands.job import score_test
    from persia_cli.commands.resume import plan_training, split_word
    from persia_cli.commands.screen import err, labelled
    from persia_cli.config.record import parsed
    from persia_cli.engines.by_kind import engine_of
    from persia_cli.engines.handed_over import take
    from persia_cli.engines.key_files import KEY_FILE
    from persia_cli.engines.readiness import require_network, with_dense_fit
    from persia_cli.engines.rollback import launch_with_rollback

    handed = take(sys.stdin.buffer)
    if handed.key_file is not None:
        os.environ[KEY_FILE] = str(handed.key_file)
    run = parsed(handed.config, "standard input")
    plan = plan_training(run, run_dir, split_word(words)[1])
    require_network(plan)
    plan = with_dense_fit(plan)
    warn_of_slow_precision(run)
    warn_of_spent_schedules(plan)
    launch = engine_of(run, trains=True)
    again: AbstractContextManager[None] = nullcontext()
    if is_script and run.cluster.kind == "slurm":
        from persia_cli.engines.slurm.queued import queued_again

        again = queued_again(plan, os.environ, lambda text: labelled(err(), "slurm", text))
    with again:
        launch_with_rollback(
            plan, lambda plan: launch(plan, lambda: None), lambda text: labelled(err(), ROLLBACK, text)
        )
    if run.cluster.kind == "ray":
        score_test(plan)
