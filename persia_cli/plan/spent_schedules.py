"""Schedules of learning rates that are over long before the training is, or longer than it, and late evaluations."""

from collections.abc import Iterator

from persia_cli.config.schema import CosineSchedule, OneCycleSchedule, Run, Schedule
from persia_cli.errors import count

LEAST = 0.01
"""Fraction of a learning rate below which next to nothing is learnt."""
MOST_STEPS = 0.1
"""Fraction of a training's steps that may come after the end of a schedule, such as those of a rounded number."""


def spent_schedules(run: Run, steps: int) -> list[str]:
    """Return a sentence for each learning rate that is next to 0 in the last part of a training of so many steps."""
    found = []
    for key, schedule in _schedules(run):
        if not isinstance(schedule, CosineSchedule | OneCycleSchedule) or schedule.floor >= LEAST:
            continue
        warmup = schedule.warmup_steps if isinstance(schedule, CosineSchedule) else 0
        if steps - (end := warmup + schedule.over_steps) > MOST_STEPS * steps:
            found.append(
                f"{key}.kind={schedule.kind} is over at step {end:,} of {steps:,}: the learning rate stays at "
                f"{schedule.floor:g} of its value from there on; raise {key}.over_steps, or lower train.steps"
            )
    return found


def unreached(run: Run, steps: int) -> list[str]:
    """Return a sentence for each setting that a training of so many steps ends too soon for."""
    found = []
    for key, schedule in _schedules(run):
        if isinstance(schedule, OneCycleSchedule):
            name, rise = f"{key}.over_steps={schedule.over_steps:,}", int(schedule.rise * schedule.over_steps)
        else:
            name, rise = f"{key}.warmup_steps={schedule.warmup_steps:,}", schedule.warmup_steps
        if rise >= steps:
            found.append(
                f"{name}: the learning rate rises for {count(rise, 'step')}, and the training has {steps:,}, so it "
                "never has its full value; lower it, or train longer"
            )
    every = run.eval.every_steps
    if (comparing := next(iter(run.judging_metrics), None)) is not None and every is not None and every >= steps:
        found.append(
            f"{comparing} compares evaluations, and with eval.every_steps={every:,} the only one is that at the end, "
            f"at step {steps:,}; lower eval.every_steps"
        )
    return found


def _schedules(run: Run) -> Iterator[tuple[str, Schedule]]:
    yield "optimizer.dense.schedule", run.optimizer.dense.schedule
    yield "optimizer.embedding.schedule", run.optimizer.embedding.schedule
    for name, table in run.embedding.tables.items():
        if table.optimizer is not None:
            yield f"embedding.tables.{name}.optimizer.schedule", table.optimizer.schedule
