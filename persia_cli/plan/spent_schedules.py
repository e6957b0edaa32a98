"""Schedules of learning rates that are over long before the training is, or longer than it, and late evaluations."""

from persia_cli.config.schema import CosineSchedule, OneCycleSchedule, Run
from persia_cli.errors import count
from persia_cli.plan.length import end_of, schedules
from persia_cli.store.layout import CYCLE_RISE

LEAST = 0.01
"""Fraction of a learning rate below which next to nothing is learned."""
MAX_REMAINDER = 0.1
"""Fraction of a training's steps that may come after the end of a schedule, such as those of a rounded number."""


def spent_schedules(run: Run, steps: int) -> list[str]:
    """Return a sentence for each learning rate that is next to 0 in the last part of a training of so many steps."""
    found = []
    for key, schedule in schedules(run):
        if not isinstance(schedule, CosineSchedule | OneCycleSchedule) or schedule.floor >= LEAST:
            continue
        if steps - (end := end_of(schedule) or steps) > MAX_REMAINDER * steps:
            found.append(
                f"{key}.kind={schedule.kind} is over at step {end:,} of {steps:,}: the learning rate stays at "
                f"{schedule.floor:g} of its value from there on; raise {key}.over_steps, or lower train.steps"
            )
    return found


def unreached(run: Run, steps: int, every: int | None) -> list[str]:
    """Return a warning for each setting without effect; `every` is the number of steps between evaluations."""
    found = []
    for key, schedule in schedules(run):
        if isinstance(schedule, OneCycleSchedule):
            name, rise = f"{key}.over_steps={schedule.over_steps:,}", int(CYCLE_RISE * schedule.over_steps)
        else:
            name, rise = f"{key}.warmup_steps={schedule.warmup_steps:,}", schedule.warmup_steps
        if rise >= steps:
            found.append(
                f"{name}: the learning rate rises for {count(rise, 'step')}, and the training has {steps:,}, so it "
                "never has its full value; lower it, or train longer"
            )
    if (comparing := next(iter(run.judging_metrics), None)) is not None and every is not None and every >= steps:
        key = "eval.every_epochs" if run.eval.every_epochs else "eval.every_steps"
        found.append(
            f"{comparing} compares evaluations, and with {key}={run.eval.every_epochs or every:,} the only one is that "
            f"at the end, at step {steps:,}; lower {key}"
        )
    return found
