"""`persia drill`."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from persia_cli.commands.options import ConfDir, examples

if TYPE_CHECKING:
    from persia_cli.config.schema import Run
    from persia_cli.drill.job import DrilledJob
    from persia_cli.drill.plan import Disturbance
    from persia_cli.plan.job import JobPlan

EXAMPLES = examples(
    "persia drill kill embedding-server-0 --at-step 200 conf=synthetic     # a fresh job, and an undisturbed one",
    "persia drill stop nn-worker-0 --for 5 conf=synthetic mode=sync        # stands still for five seconds",
    "persia drill cut embedding-worker-0 embedding-server-0 --for 2        # connections between the two",
    "persia drill kill data-loader-0 --run runs/shop-20261121-081500       # a job that runs already, now",
    "persia drill --random 5 --seed 1 conf=synthetic --json drills.json    # five of them, drawn from a seed",
)
MIDDLE = 0.5
"""The part of a training after which a drill happens that names no step."""
LINES = 100
"""Lines of metrics that a job has at least, by which a drill sees how far it is."""
SAVED = 0.6
"""The part of the steps before the first drill after which a job has its first checkpoint, if it sets no times."""


def drill(
    words: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="KIND [TARGET …] [conf=NAME | KEY=VALUE]",
            help="What happens: kill, stop, slow, cut, fill-disk, corrupt-frame or node; to whom, such as "
            "embedding-server-1; and settings of a fresh job, as for persia train.",
            show_default=False,
        ),
    ] = None,
    at_step: Annotated[
        int | None,
        typer.Option("--at-step", min=0, metavar="N", help="The step at which it happens.", show_default="the middle"),
    ] = None,
    for_s: Annotated[
        float, typer.Option("--for", min=0.0, metavar="S", help="Seconds that it lasts (stop, slow, cut).")
    ] = 2.0,
    run_dir: Annotated[
        Path | None, typer.Option("--run", metavar="RUN", help="Disturb the running job of this run directory.")
    ] = None,
    number: Annotated[
        int | None, typer.Option("--random", min=1, metavar="N", help="N drills drawn at random, at random steps.")
    ] = None,
    seed: Annotated[int, typer.Option("--seed", help="Seed of --random.")] = 0,
    compare: Annotated[
        bool, typer.Option("--compare/--no-compare", help="Run an undisturbed job too, and compare the results.")
    ] = True,
    folder: Annotated[
        Path | None,
        typer.Option("--folder", metavar="DIR", help="Folder of the fresh runs.", show_default="drills/NAME-TIME"),
    ] = None,
    limit_s: Annotated[
        float, typer.Option("--limit-s", min=1.0, help="Seconds after which a job has not recovered, or stands still.")
    ] = 300.0,
    json_file: Annotated[
        Path | None, typer.Option("--json", metavar="FILE", help="Write the results to a file as JSON.")
    ] = None,
    conf_dir: ConfDir = None,
) -> None:
    """Disturb a job on purpose, and count what that costs.

    Exit code 0: the job recovered as "When things fail" says. 1: it did not.
    """
    from persia_cli.drill.job import DrilledJob
    from persia_cli.drill.plan import split_words
    from persia_cli.drill.processes import launcher_of
    from persia_cli.errors import UserError
    from persia_cli.observe.history import CONFIG

    names, settings = split_words(words or [])
    if json_file is not None and (json_file.is_dir() or not json_file.absolute().parent.is_dir()):
        raise UserError(f"--json={json_file}: this is not a file in a folder that exists")
    folders = [word for each in conf_dir or [] for word in ("--conf-dir", str(each))]
    if run_dir is not None:
        launcher = launcher_of(run_dir)
        if settings or folder is not None:
            raise UserError("a running job keeps its settings and its folder; leave them out, or leave --run out")
        settings = [f"conf={run_dir / CONFIG}"]
    plan, settings = _planned(names, settings, conf_dir or [], run_dir, at_step, number)
    job = None
    first = 0
    if run_dir is not None:
        job = DrilledJob(run_dir.absolute(), _names(plan), launcher, run_dir.absolute() / "drill.log")
        first = _steps_done(run_dir)
    disturbances = _disturbances(plan, names, at_step, for_s, number, seed, first, run_dir is not None)
    _require_outlived(plan.run, disturbances)
    if job is None and compare and plan.run.checkpoint.path is not None:
        raise UserError(
            "checkpoint.path would be the same for the disturbed and the undisturbed job; give --no-compare"
        )
    _carry_out(plan, [*settings, *folders], disturbances, limit_s, job, folder, compare, json_file)


def _carry_out(
    plan: "JobPlan",
    words: list[str],
    disturbances: "list[Disturbance]",
    limit_s: float,
    job: "DrilledJob | None",
    folder: Path | None,
    compare: bool,
    json_file: Path | None,
) -> None:
    """Disturb a running job, or a fresh one in `folder`, and show the results; exits with 1 if it did not recover."""
    from persia_cli.commands.drill_view import Following, drill_plan_lines, show_drill, write_json
    from persia_cli.commands.endings import INTERRUPTED
    from persia_cli.commands.screen import err, say
    from persia_cli.drill.drill import DrillOrder, drill_fresh, drill_running
    from persia_cli.errors import PersiaError

    with Following(err(), plan.job.steps) as following:
        drill_plan_lines(err(), plan, disturbances)
        order = DrillOrder(
            plan.run, words, _names(plan), plan.job.steps, disturbances, limit_s, following.follow, following.report
        )
        try:
            result = drill_running(order, job) if job else drill_fresh(order, _folder(plan, folder), compare)
        except KeyboardInterrupt:
            say(err(), f"interrupted; {'the job goes on' if job else 'everything is stopped'}")
            raise typer.Exit(INTERRUPTED) from None
    if json_file is not None:
        write_json(json_file, result)
    show_drill(result, json_file)
    if result.problems:
        raise typer.Exit(PersiaError.exit_code)


def _planned(
    names: list[str],
    settings: list[str],
    conf_dir: list[Path],
    run_dir: Path | None,
    at_step: int | None,
    number: int | None,
) -> "tuple[JobPlan, list[str]]":
    """Return the plan of the job, and its settings with those that a fresh job needs in order to be drilled."""
    from persia_cli.commands.facts import facts_of
    from persia_cli.config.compose import compose_run
    from persia_cli.errors import UserError
    from persia_cli.launch.readiness import require_ready
    from persia_cli.plan.job import plan_job

    run = compose_run(settings, conf_dir)
    if run.cluster.kind != "local":
        raise UserError(
            f"cluster={run.cluster.kind} is one process, of which nothing can be disturbed alone; use cluster=local"
        )
    if run.train.epochs == "auto" and run.train.steps is None:
        # The disturbed and the undisturbed job are to have the same steps.
        settings = [*settings, "train.epochs=1"]
        run = compose_run(settings, conf_dir)
    facts = facts_of(run.dataset)
    plan = plan_job(run, facts, "train", run_dir or Path("drilled"))
    if run_dir is not None:
        return plan, settings
    more = _more_settings(run, settings, plan.job.steps, at_step, number)
    if more:
        settings = [*settings, *more]
        plan = plan_job(compose_run(settings, conf_dir), facts, "train", Path("drilled"))
    require_ready([plan])
    return plan, settings


def _more_settings(run: "Run", settings: list[str], steps: int, at_step: int | None, number: int | None) -> list[str]:
    """Return the settings that a drill needs: checkpoints before it, enough restarts, and a record fine enough."""
    more = []
    if not any(word.startswith("train.log_every_steps=") for word in settings):
        more.append(f"train.log_every_steps={max(1, min(run.train.log_every_steps, steps // LINES))}")
    if run.checkpoint.every_steps is None:
        middle = round(steps * MIDDLE) if at_step is None else at_step
        before = steps // 10 if number else middle
        more += [f"checkpoint.every_steps={max(1, round(before * SAVED))}"]
        more += [] if run.checkpoint.keep else ["checkpoint.keep=3"]
    if number and not any(word.startswith("recovery.max_restarts=") for word in settings):
        more.append(f"recovery.max_restarts={max(run.recovery.max_restarts, number)}")
    return more


def _disturbances(
    plan: "JobPlan",
    names: list[str],
    at_step: int | None,
    for_s: float,
    number: int | None,
    seed: int,
    first: int,
    runs: bool,
) -> "list[Disturbance]":
    """Return what is to happen; raises UserError for what cannot."""
    from persia_cli.drill.plan import chosen, drawn
    from persia_cli.errors import UserError

    steps = plan.job.steps
    if number is not None:
        if names or at_step is not None:
            raise UserError("--random chooses kinds, targets and steps itself; leave them out, or leave --random out")
        return drawn(number, seed, first, steps, _names(plan))
    if at_step is None and not runs:
        at_step = round(steps * MIDDLE)
    if at_step is not None and at_step >= steps:
        raise UserError(f"--at-step={at_step}: the training has the steps 0 to {steps - 1:,} only")
    return [chosen(names, at_step, for_s, _names(plan))]


def _require_outlived(run: "Run", disturbances: "list[Disturbance]") -> None:
    """Raise UserError for a disturbance that ends the job by design, since its process is silent for too long."""
    from persia_cli.errors import UserError

    limit_s = run.cluster.silence_timeout_s
    for each in disturbances:
        if each.for_s >= limit_s:
            raise UserError(
                f"--for={each.for_s:g}: after {limit_s:g} s of silence a job ends; give less, or raise "
                "cluster.silence_timeout_s"
            )


def _names(plan: "JobPlan") -> list[str]:
    return [replica.name for replica in plan.replicas]


def _folder(plan: "JobPlan", chosen: Path | None) -> Path:
    """Return the folder of the fresh runs; raises UserError if the chosen one holds something."""
    from persia_cli.disk import claim_folder
    from persia_cli.errors import UserError
    from persia_cli.launch.job import timed

    if chosen is None:
        return claim_folder(timed(Path("drills"), f"{plan.run.name}-")).absolute()
    if chosen.exists() and (not chosen.is_dir() or any(chosen.iterdir())):
        raise UserError(f"--folder={chosen} is not empty; choose another")
    return chosen.absolute()


def _steps_done(run_dir: Path) -> int:
    """Return how many steps of a run its metrics have."""
    from persia_cli.observe.journal import METRICS, read_journal

    return max((int(line["step"]) for line in read_journal(run_dir / METRICS)), default=0)
