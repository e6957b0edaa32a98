"""`persia train`."""

import shlex
import signal
from contextlib import ExitStack, nullcontext, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from persia_cli.commands.options import ConfDir, Words, examples
from persia_cli.commands.resume import plan_from, split_word

if TYPE_CHECKING:
    from persia_cli.config.schema import Run

EXAMPLES = examples(
    "persia train                                        # census data that ships with persia",
    "persia train conf=criteo model=ffnn train.epochs=2  # a configuration, an option, a key",
    "persia train conf=./mine.yaml mode=sync --dry-run   # show the plan and start nothing",
    "persia train conf=criteo --trace steps.json         # a timeline of 200 steps, for ui.perfetto.dev",
    "persia train conf=criteo cluster=hosts cluster.hosts=[h1,h2] --render  # what ssh would start there",
    "persia train conf=criteo cluster=slurm --render > job.sh  # a script for sbatch; without --render, it is queued",
)


def train(
    words: Words = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show the plan and start nothing.")] = False,
    render: Annotated[
        bool, typer.Option("--render", help="Print what cluster=… submits to other machines, and start nothing.")
    ] = False,
    run_dir: Annotated[
        str | None,  # a URI as a path would lose slashes
        typer.Option(
            "--run-dir",
            metavar="DIR",
            help="Folder of the run; at a URI are its checkpoints and copies of its record.",
            show_default="runs/NAME-TIME",
        ),
    ] = None,
    trace: Annotated[
        Path | None,
        typer.Option("--trace", metavar="FILE", help="Write a timeline of every role's work, for Perfetto."),
    ] = None,
    trace_steps: Annotated[
        str | None,
        typer.Option(
            "--trace-steps", metavar="FIRST:LAST", help="The steps to trace.", show_default="200 after the first 20"
        ),
    ] = None,
    conf_dir: ConfDir = None,
    parent: Annotated[int | None, typer.Option("--parent", hidden=True)] = None,
) -> None:
    """Train a model, evaluate it and save it."""
    if parent is not None:
        from persia_cli.engines.processes import die_with

        die_with(parent)
        # A sweep ends its points by SIGINT, also where it itself runs in the background and so ignores it.
        signal.signal(signal.SIGINT, signal.default_int_handler)
    from persia_cli.commands.facts import facts_of
    from persia_cli.commands.job import carry_out, choose_run_dir, claimed, score_test, traced, traced_elsewhere
    from persia_cli.commands.run_at_uri import AUTO, folder_of, uri_of, words_of
    from persia_cli.commands.screen import err, out, propose, say
    from persia_cli.config.compose import compose_run
    from persia_cli.engines.driver_process import driving
    from persia_cli.engines.engine import engine_of
    from persia_cli.engines.job import BEGINNING, was_started
    from persia_cli.engines.key_files import require_given_keys
    from persia_cli.engines.readiness import require_network, require_ready, with_dense_fit
    from persia_cli.engines.resumed import start_over
    from persia_cli.engines.signals import end_on_signals
    from persia_cli.errors import UserError
    from persia_cli.plan.job import plan_job
    from persia_cli.storage.addresses import printable

    with end_on_signals(lambda text: say(err(), text)), ExitStack() as stack:
        words, resumed = split_word(words or [])
        run = compose_run(words, conf_dir or [])
        place = Path(run_dir) if run_dir is not None else None
        if (uri := uri_of(run_dir)) is not None:
            words = [*words, *words_of(uri, run, resumed)]
            place = stack.enter_context(folder_of(uri, run.name)) if resumed == AUTO else None
            run = compose_run(words, conf_dir or [])
        is_spread = run.cluster.is_spread
        if trace_steps and not trace:
            raise UserError("--trace-steps selects the steps that --trace FILE traces; give --trace too")
        if trace and render:
            raise UserError("--trace is not for --render: train.trace_steps=[20,220] records, and persia trace joins")
        if render or (is_spread and (dry_run or not engine_of(run.cluster).drives_here(is_point=parent is not None))):
            run = traced_elsewhere(run, trace, trace_steps) if trace else run
            if dry_run:
                require_given_keys(run.cluster)
            _elsewhere(run, place, resumed, render or dry_run, trace)
            return
        plan = plan_from(resumed, run, place) if resumed else None
        unsaved = place if resumed and plan is None and place and was_started(place) else None
        if plan is None:
            plan = plan_job(run, facts_of(run.dataset), "train", unsaved or choose_run_dir(run.name, place))
        if is_spread:
            require_given_keys(run.cluster)
            require_network(plan)  # the rows are not in the memory of this machine
        elif parent is None or plan.is_resumed:  # new points of a sweep are checked against the machine together
            require_ready([plan])
        plan = with_dense_fit(plan)
        if trace:
            plan = traced(plan, trace, trace_steps)
        again = [*words, *(word for folder in conf_dir or [] for word in ("--conf-dir", str(folder)))]
        if dry_run:
            from persia_cli.commands.describe import describe_plan, warn_of_spent_schedules

            describe_plan(out(), plan, again)
            warn_of_spent_schedules(plan)
            if not plan.is_resumed:
                place_words = ["--run-dir", run_dir] if run_dir else []
                propose(err(), shlex.join(["persia", "train", *map(printable, again), *place_words]))
        else:
            if unsaved:
                say(err(), f"the run in {unsaved} has no complete checkpoint, so it begins again")
                start_over(unsaved, BEGINNING)
            plan = plan if place else claimed(plan)
            try:
                with driving(plan.run_dir) if is_spread else nullcontext():
                    carry_out(plan, again, trace)
                if parent is None:  # points of a sweep are compared by their evaluations
                    score_test(plan)
            finally:
                if not place:
                    with suppress(OSError):  # empty only if the job was refused before it began
                        plan.run_dir.rmdir()


def _elsewhere(run: "Run", run_dir: Path | None, resumed: str | None, render: bool, trace: Path | None) -> None:
    """Train on other machines, or print what would be submitted to them."""
    from persia_cli.commands.screen import out
    from persia_cli.commands.submit import train_elsewhere
    from persia_cli.engines.engine import engine_of
    from persia_cli.errors import UserError

    engine = engine_of(run.cluster)
    if resumed and not engine.driver_is_here:
        raise UserError(f"resume={resumed} is not for cluster={run.cluster.name}; persia resume RUN goes on with a run")
    if render:
        out().out(engine.rendered(run, run_dir), highlight=False)
    else:
        train_elsewhere(run, run_dir, [f"resume={resumed}"] if resumed else [], trace)
