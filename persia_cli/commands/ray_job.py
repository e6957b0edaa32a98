"""A job on a Ray cluster, on the screen: its driver runs it, and goes on when the command that shows it ends."""

import signal
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import typer

from persia_cli.commands.endings import INTERRUPTED, ROLLBACK
from persia_cli.commands.followed import going_on, plan_of
from persia_cli.commands.progress import following
from persia_cli.commands.results import show_results
from persia_cli.commands.screen import LABEL_WIDTH, err, labelled, say
from persia_cli.config.record import read_run
from persia_cli.engines.job import JobResult, result_of
from persia_cli.engines.ray.cluster import require_reachable
from persia_cli.engines.ray.driver import NAME, RayDriver, driver_of, start_driver
from persia_cli.engines.signals import ENDING_SIGNALS, handling
from persia_cli.errors import PreemptedError, RoleError, UserError
from persia_cli.observe.history import CONFIG
from persia_cli.plan.job import JobPlan

POLL_S = 0.1
ENDING_S = 60.0
"""Seconds for the end of a driver that was told to end, besides those in which it saves the model and ends roles."""


def train_on_ray(plan: JobPlan, words: Sequence[str], trace: Path | None = None) -> JobResult:
    """Start the driver of a job, show it to its end, and return what came of it, or raise how it failed.

    Signals are the driver's, but for that of the terminal's end, which leaves the job alone. The driver joins the
    replicas' traces into the file `trace`.
    """
    require_reachable(plan.run)
    flags = ["--debug"] if "--debug" in sys.argv[1:2] else []
    driver = start_driver(plan, words, trace, flags)
    labelled(err(), NAME, f"runs apart from this command: persia attach {plan.run_dir} shows it, persia stop ends it")
    try:
        return _to_its_end(driver)
    finally:
        if not driver.running:
            driver.forget()


def attach_to_ray(run_dir: Path) -> None:
    """Show a job whose driver was started before to its end."""
    result = _to_its_end(_require_driver(run_dir))
    show_results(plan_of(run_dir), result, [])


def stop_on_ray(run_dir: Path, at_once: bool) -> None:
    """End a job whose driver was started before; unless `at_once`, its model is saved first."""
    driver = _require_driver(run_dir)
    if not driver.running:
        raise UserError(f"the job of {run_dir} has ended; its log says how: persia logs {run_dir} {NAME}")
    driver.signal(signal.SIGINT if at_once else signal.SIGUSR1)
    limit_s = ENDING_S
    if (run_dir / CONFIG).is_file():
        run = read_run(run_dir / CONFIG)
        limit_s += run.checkpoint.grace_s + 4 * run.cluster.stop_timeout_s
    begin = time.monotonic()
    while driver.running:
        if time.monotonic() - begin > limit_s:
            driver.signal(signal.SIGKILL)  # and with it end all that it has started
            raise RoleError(f"the driver of {run_dir} has not ended the job within {limit_s:g} s, and is killed")
        time.sleep(POLL_S)
    code = driver.code
    if code not in (0, PreemptedError.exit_code, INTERRUPTED):
        driver.said()
        raise driver.failure() or RoleError(f"the driver of {run_dir} has ended with exit code {code}")
    say(err(), f"everything is stopped; {going_on(run_dir)}")
    if code:
        sys.exit(code)


def _require_driver(run_dir: Path) -> RayDriver:
    driver = driver_of(run_dir)
    if driver is None:
        raise UserError(f"{run_dir} is not the run directory of a job with cluster=ray that was started from here")
    return driver


def _to_its_end(driver: RayDriver) -> JobResult:
    """Show a job until its driver has ended; return its result, or raise how it failed."""
    run_dir = driver.run_dir
    with _passed_on(driver) as poll:
        try:
            _show(driver, poll)
        except _LeftAloneError:
            with suppress(OSError):
                say(err(), f"the terminal is gone, and the job goes on: persia attach {run_dir}")
            raise typer.Exit(INTERRUPTED) from None
        except BaseException as error:
            # What has failed is here: the terminal, or what reads what is printed.
            error.add_note(f"The job goes on: persia attach {run_dir} shows it, persia stop {run_dir} ends it.")
            raise
    code = driver.code
    if not code:
        return result_of(run_dir)
    failure = None if code in (PreemptedError.exit_code, INTERRUPTED) else driver.failure()
    if failure is None:
        raise typer.Exit(code)  # it has said why
    raise failure


def _show(driver: RayDriver, poll: Callable[[], None]) -> None:
    """Show the progress of each start of a job, and what its driver says, until that has ended."""
    follow: Callable[[], None] = lambda: None  # noqa: E731
    shown = None
    with ExitStack() as view:
        while True:
            runs = driver.running  # before its record is read, so that its last words are
            if (start := driver.start) not in (None, shown):
                view.close()
                plan, shown = plan_of(driver.run_dir), start
                follow = view.enter_context(following(err(), driver.run_dir, plan.job, plan.run.train.batch_size))
            follow()
            for line in driver.said():
                _repeat(line)
            if not runs:
                return
            poll()
            time.sleep(POLL_S)


def _repeat(line: str) -> None:
    """Print a line of the driver as the driver would on a terminal."""
    if line[:LABEL_WIDTH].rstrip() == ROLLBACK:
        labelled(err(), ROLLBACK, line[LABEL_WIDTH:])
    else:
        say(err(), line)


class _LeftAloneError(Exception):
    """The terminal is gone; the job goes on without it."""


@contextmanager
def _passed_on(driver: RayDriver) -> Iterator[Callable[[], None]]:
    """Pass signals on to the driver when the function that this yields is called; that raises _LeftAloneError when the
    terminal has ended.
    """
    came: deque[int] = deque()

    def poll() -> None:
        while came:
            number = came.popleft()
            if number == signal.SIGHUP:
                raise _LeftAloneError
            driver.signal(number)

    with handling((*ENDING_SIGNALS, signal.SIGINT, signal.SIGHUP), came.append):
        yield poll
