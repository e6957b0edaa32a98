"""`persia drill`."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from persia_cli.commands.options import ConfDir, examples

if TYPE_CHECKING:
    from persia_cli.config.schema import Run
    from persia_cli.drill.result import DrillResult
    from persia_cli.plan.job import JobPlan

EXAMPLES = examples(
    "persia drill kill embedding-server-0 --at-step 200 conf=synthetic     # and the same job undisturbed",
    "persia drill kill nn-worker-0 data-loader-0 conf=synthetic mode=sync  # two at once",
    "persia drill kill driver conf=synthetic --json drill.json           # all end, and the job is started again",
)
KILL = "kill"
LINES = 100
"""Lines of metrics that a job has at least, by which a drill sees how far it is."""
NOT_SHOWN = {"run_dir", "undisturbed", "at", "problems", "recovered", "auc_undisturbed"}
"""Results that are in the file of --json alone, or shown in another way."""
SAVED = 0.6
"""The part of the steps before the kill after which a job has its first checkpoint, if it sets no times."""


def drill(
    words: Annotated[
        list[str],
        typer.Argument(
            metavar="kill TARGET … [conf=NAME | KEY=VALUE]",
            help="The replicas that are killed at once, such as embedding-server-1, or the driver; and settings of "
            "the job, as for persia train.",
            show_default=False,
        ),
    ],
    at_step: Annotated[
        int | None,
        typer.Option("--at-step", min=0, metavar="N", help="The step at which it happens.", show_default="the middle"),
    ] = None,
    compare: Annotated[
        bool, typer.Option("--compare/--no-compare", help="Run an undisturbed job too, and compare the results.")
    ] = True,
    folder: Annotated[
        Path | None,
        typer.Option("--folder", metavar="DIR", help="Folder of the runs.", show_default="drills/NAME-TIME"),
    ] = None,
    json_file: Annotated[
        Path | None, typer.Option("--json", metavar="FILE", help="Write the results to a file as JSON.")
    ] = None,
    conf_dir: ConfDir = None,
) -> None:
    """Kill processes of a fresh job, and measure what that costs.

    Exit code 0: the job recovered as the page "Failures and recovery" describes. 1: it did not.
    """
    import json

    from persia_cli.commands.endings import INTERRUPTED
    from persia_cli.commands.progress_bar import ProgressBar
    from persia_cli.commands.screen import err, labelled, say
    from persia_cli.disk import write_whole
    from persia_cli.drill.drill import Drill
    from persia_cli.errors import PersiaError, UserError, count

    if json_file is not None and (json_file.is_dir() or not json_file.absolute().parent.is_dir()):
        raise UserError(f"--json={json_file}: this is not a file in a folder that exists")
    plan, settings, step = _planned([word for word in words if "=" in word], conf_dir or [], at_step)
    targets = _targets([word for word in words if "=" not in word], [replica.name for replica in plan.replicas])
    if compare and plan.run.checkpoint.path is not None:
        raise UserError(
            "checkpoint.path would be the same for the disturbed and the undisturbed job; give --no-compare"
        )
    settings += [word for each in conf_dir or [] for word in ("--conf-dir", str(each))]
    steps = plan.job.steps
    labelled(err(), "job", f"{plan.run.name}, {plan.run.mode.kind}, {count(steps, 'step')}")
    labelled(err(), "planned", f"kill {' '.join(targets)} at step {step:,}")
    with ProgressBar(err(), "drill") as bar:

        def follow(reached: int, run: str) -> None:
            bar.show(max(reached, 0), steps, [f"step {max(reached, 0):,}/{steps:,}", run])

        try:
            order = Drill(plan.run, settings, targets, step, follow)
            result = order.carry_out(_folder(plan, folder), compare)
        except KeyboardInterrupt:
            say(err(), "interrupted; everything is stopped")
            raise typer.Exit(INTERRUPTED) from None
    if json_file is not None:
        write_whole(json_file, json.dumps(result.as_object(), indent=2).encode() + b"\n")
    _show(result)
    if result.problems:
        raise typer.Exit(PersiaError.exit_code)


def _planned(settings: list[str], conf_dir: list[Path], at_step: int | None) -> "tuple[JobPlan, list[str], int]":
    """Return the plan of the job, its settings with those that a drill needs, and the step of the kill."""
    from persia_cli.commands.facts import facts_of
    from persia_cli.config.compose import compose_run
    from persia_cli.engines.readiness import require_ready
    from persia_cli.errors import UserError
    from persia_cli.plan.job import plan_job

    run = compose_run(settings, conf_dir)
    if run.cluster.kind != "local":
        raise UserError(f"persia drill needs cluster=local: it kills processes of this machine, not those of cluster="
                        f"{run.cluster.kind}")  # fmt: skip
    if run.train.epochs == "auto" and run.train.steps is None:
        # The disturbed and the undisturbed job are to have the same steps.
        settings = [*settings, "train.epochs=1"]
        run = compose_run(settings, conf_dir)
    facts = facts_of(run.dataset)
    steps = plan_job(run, facts, "train", Path("drilled")).job.steps
    step = steps // 2 if at_step is None else at_step
    if step >= steps:
        raise UserError(f"--at-step={step}: the training has the steps 0 to {steps - 1:,} only")
    settings = [*settings, *_more_settings(run, settings, steps, step)]
    plan = plan_job(compose_run(settings, conf_dir), facts, "train", Path("drilled"))
    require_ready([plan])
    return plan, settings, step


def _more_settings(run: "Run", settings: list[str], steps: int, step: int) -> list[str]:
    """Return the settings that a drill needs: a record fine enough, and a checkpoint before the kill."""
    more = []
    if not any(word.startswith("train.log_every_steps=") for word in settings):
        more.append(f"train.log_every_steps={max(1, min(run.train.log_every_steps, steps // LINES))}")
    if run.checkpoint.every_steps is None:
        more.append(f"checkpoint.every_steps={max(1, round(step * SAVED))}")
        more += [] if run.checkpoint.keep else ["checkpoint.keep=3"]
    return more


def _targets(names: list[str], replicas: list[str]) -> tuple[str, ...]:
    """Return the names of what is killed, a role alone meaning its first replica; raises UserError for what is not."""
    from persia_cli.drill.drill import DRIVER
    from persia_cli.errors import UserError

    known = ", ".join([*replicas, DRIVER])
    if names[:1] != [KILL] or len(names) == 1:
        raise UserError(f"write persia drill kill TARGET …; this job has {known}")
    targets = [f"{name}-0" if f"{name}-0" in replicas else name for name in names[1:]]
    for target in targets:
        if target not in [*replicas, DRIVER]:
            raise UserError(f"there is no {target} in this job to kill; it has {known}")
    return tuple(dict.fromkeys(targets))


def _folder(plan: "JobPlan", chosen: Path | None) -> Path:
    """Return the folder of the runs; raises UserError if the chosen one holds something."""
    from persia_cli.disk import claim_folder
    from persia_cli.engines.job import timed
    from persia_cli.errors import UserError

    if chosen is None:
        return claim_folder(timed(Path("drills"), f"{plan.run.name}-")).absolute()
    if chosen.exists() and (not chosen.is_dir() or any(chosen.iterdir())):
        raise UserError(f"--folder={chosen} is not empty; choose another")
    return chosen.absolute()


def _show(result: "DrillResult") -> None:
    """Print what was measured, and what to do next."""
    import shlex

    from persia_cli.commands.screen import err, key_values, labelled, out, pairs, propose, say

    measured = _in_words(result)
    if out().is_terminal:
        pairs(out(), measured)
    else:
        say(out(), key_values({key.replace(" ", "_"): value for key, value in measured.items()}))
    for problem in result.problems:
        labelled(err(), "failed", problem)
    if not result.problems:
        labelled(err(), "recovered", 'as the page "Failures and recovery" describes')
    run_dir = shlex.quote(str(result.run_dir))
    if result.undisturbed is not None:
        propose(err(), f"persia runs compare {shlex.quote(str(result.undisturbed))} {run_dir}")
    else:
        propose(err(), f"persia report {run_dir}")


def _in_words(result: "DrillResult") -> dict[str, str]:
    from persia_cli.observe.recoveries import amount

    words = {}
    for key, value in result.as_object().items():
        match value:
            case _ if key in NOT_SHOWN or value is None:
                continue
            case float() if key.endswith("_s"):
                words[key.removesuffix("_s")] = f"{value:.2f} s"
            case float():
                words[key] = f"{value:+.6f}"
            case bool():
                words["model"] = "identical" if value else "differs"
            case list() | tuple():
                words[key] = " ".join(value)
            case dict() if key == "auc":
                words |= {f"AUC of {label}": "-" if auc is None else f"{auc:.6f}" for label, auc in value.items()}
            case dict():
                words[key] = ", ".join(amount(*pair) for pair in value.items()) or "nothing"
            case _:
                words[key] = str(value)
    return {key.replace("_", " "): value for key, value in words.items()}
