"""The length of a training: the values for `train.epochs=auto`, and schedules and evaluations that do not fit it."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from persia_cli.config.schema import (
    CosineSchedule,
    EarlyStop,
    GeneratedDataset,
    OneCycleSchedule,
    PlateauSchedule,
    Run,
    Schedule,
)
from persia_cli.config.schema.base import MOST
from persia_cli.control.position import StepGrid
from persia_cli.errors import count
from persia_cli.plan.columns import next_item_loss
from persia_cli.plan.labels import defined
from persia_cli.plan.settled import EVALUATION_STEPS, MAX_ROWS, most_epochs, patience
from persia_cli.store.layout import CYCLE_RISE

if TYPE_CHECKING:
    from persia_cli.data.read.facts import DatasetFacts  # needs pyarrow

LIST, USERS = 10, 2000
"""Length of the lists by which a retrieval model is judged, and the number of users that have one."""
LEAST = 0.01
"""Fraction of a learning rate below which next to nothing is learned."""
MAX_REMAINDER = 0.1
"""Fraction of a training's steps that may come after the end of a schedule, such as those of a rounded number."""


def with_length(run: Run, facts: "DatasetFacts") -> Run:
    """Return the run with values in place of `auto` in its length, its evaluations, and their decisions.

    `train.epochs=auto` is the number of epochs that `train.steps` take; otherwise one for more than MAX_ROWS rows, else
    many, with an early stop. A training of several epochs without `train.steps` is evaluated and saves its best, if
    evaluation rows exist and are real: after each epoch, or as often as is useful where `epochs` is `auto`.
    """
    if run.follows is not None:
        return run
    steps = epoch_steps(run, facts.train_rows)
    is_auto = run.train.epochs == "auto"
    is_real = bool(facts.eval_rows and steps) and not facts.stand_in and not isinstance(run.dataset, GeneratedDataset)
    is_judged = is_real and run.train.steps is None
    if is_auto:
        is_judged = is_judged and facts.train_rows <= MAX_ROWS
        run = _with_epochs(run, steps, most_epochs(facts.train_rows) if is_judged else 1)
    if is_judged and evaluation_interval(run, facts.train_rows) is None:
        every = _useful_interval(steps) if is_auto else {"every_epochs": 1}
        run = run.model_copy(update={"eval": run.eval.model_copy(update=every)})
    compares = is_judged and training_steps(run, facts.train_rows) > steps
    # A single evaluation with sampled next items too, since its loss cannot be compared with that of other runs.
    ranks = compares or (is_real and facts.train_rows <= MAX_ROWS and next_item_loss(run) is not None)
    if run.eval.retrieval == "auto":
        run = _ranking(run, facts) if ranks else _with_lists(run, None)
    metric = run.checkpoint.best_by or defined(run, facts, run.judging_metric) if compares else None
    if run.train.stop_early == "auto":
        stop = None
        if is_auto and metric:
            evaluations = patience(steps, evaluation_interval(run, facts.train_rows) or steps)
            stop = EarlyStop(metric=metric, patience=evaluations + _falls(run))
        run = _with(run, stop_early=stop)
    if run.checkpoint.best_by is None and run.checkpoint.at_end:
        best_by = run.train.early_stop.metric if run.train.early_stop else metric
        run = run.model_copy(update={"checkpoint": run.checkpoint.model_copy(update={"best_by": best_by})})
    return run


def _ranking(run: Run, facts: "DatasetFacts") -> Run:
    """Return the run with evaluations that rank items if its loss is of retrieval and nothing else is to decide."""
    plain, ranked = _with_lists(run, None), _with_lists(run, (LIST,), run.eval.users or USERS)
    if not run.is_for_retrieval or run.checkpoint.best_by or run.train.early_stop:
        return plain
    return plain if defined(ranked, facts, ranked.judging_metric) == "loss" else ranked


def _with_lists(run: Run, lengths: tuple[int, ...] | None, users: int | None = None) -> Run:
    given = {"retrieval": lengths, "users": users or run.eval.users}
    return run.model_copy(update={"eval": run.eval.model_copy(update=given)})


def _with_epochs(run: Run, steps: int, most: int) -> Run:
    """Return the run with epochs of so many steps in place of `auto`: for its steps or its schedules, or `most`."""
    if run.train.steps:
        return _with(run, epochs=-(-run.train.steps // steps) if steps else 1)
    end = min(max(_ends(run), default=most * steps), most * steps) if most > 1 else steps
    epochs = -(-end // steps) if steps else 1
    return _with(run, epochs=epochs, steps=end if end < epochs * steps else None)


def _useful_interval(steps: int) -> dict[str, int]:
    """Return the setting of evaluations for epochs of so many steps: some between two, in a long epoch two."""
    fewest, many = EVALUATION_STEPS
    return {"every_steps": -(-steps // 2)} if steps >= many else {"every_epochs": -(-fewest // steps)}


def _falls(run: Run) -> int:
    """Return the evaluations more that a training waits if a rate falls on a plateau first."""
    parts = (run.optimizer.dense.schedule, run.optimizer.embedding.schedule)
    return int(any(isinstance(schedule, PlateauSchedule) for schedule in parts))


def epoch_steps(run: Run, train_rows: int) -> int:
    """Return the number of steps of one pass over so many training rows."""
    return StepGrid(train_rows, run.train.batch, run.cluster.nn_workers).steps


def training_steps(run: Run, train_rows: int) -> int:
    """Return the number of steps of a training, at most, on so many rows, or on data that grows."""
    if run.follows is not None:
        return run.train.steps or MOST
    assert run.train.epochs != "auto", "`with_length` comes first"
    return min(epoch_steps(run, train_rows) * run.train.epochs, run.train.steps or MOST)


def evaluation_interval(run: Run, train_rows: int) -> int | None:
    """Return the number of steps between evaluations during training on so many rows; None without any."""
    return run.eval.every_epochs * epoch_steps(run, train_rows) if run.eval.every_epochs else run.eval.every_steps


def schedules(run: Run) -> Iterator[tuple[str, Schedule]]:
    """Yield the key and the value of each schedule of learning rates."""
    yield "optimizer.dense.schedule", run.optimizer.dense.schedule
    yield "optimizer.embedding.schedule", run.optimizer.embedding.schedule
    for name, table in run.embedding.tables.items():
        if table.optimizer is not None:
            yield f"embedding.tables.{name}.optimizer.schedule", table.optimizer.schedule


def end_of(schedule: Schedule) -> int | None:
    """Return the step at which a schedule ends; None for one that can go on."""
    if isinstance(schedule, CosineSchedule):
        return schedule.warmup_steps + schedule.over_steps
    return schedule.over_steps if isinstance(schedule, OneCycleSchedule) else None


def _ends(run: Run) -> list[int]:
    return [end for _, schedule in schedules(run) if (end := end_of(schedule)) is not None]


def _with(run: Run, **train: Any) -> Run:
    return run.model_copy(update={"train": run.train.model_copy(update=train)})


def spent_schedules(run: Run, steps: int) -> list[str]:
    """Return a sentence for each learning rate that is next to 0 in the last part of a training of so many steps."""
    sentences = []
    for key, schedule in schedules(run):
        if not isinstance(schedule, CosineSchedule | OneCycleSchedule) or schedule.floor >= LEAST:
            continue
        if steps - (end := end_of(schedule) or steps) > MAX_REMAINDER * steps:
            of = f" of {steps:,}" if steps < MOST else ", and the training goes on"
            remedy = f"raise {key}.over_steps, or lower train.steps" if steps < MOST else f"raise {key}.floor"
            sentences.append(
                f"{key}.kind={schedule.kind} is over at step {end:,}{of}: the learning rate stays at "
                f"{schedule.floor:g} of its value from there on; {remedy}"
            )
    return sentences


def unreached(run: Run, steps: int, every: int | None) -> list[str]:
    """Return a warning for each setting without effect; `every` is the number of steps between evaluations."""
    sentences = []
    for key, schedule in schedules(run):
        if isinstance(schedule, OneCycleSchedule):
            name, rise = f"{key}.over_steps={schedule.over_steps:,}", int(CYCLE_RISE * schedule.over_steps)
        else:
            name, rise = f"{key}.warmup_steps={schedule.warmup_steps:,}", schedule.warmup_steps
        if rise >= steps:
            sentences.append(
                f"{name}: the learning rate rises for {count(rise, 'step')}, and the training has {steps:,}, so it "
                "never has its full value; lower it, or train longer"
            )
    if (comparing := next(iter(run.judging_metrics), None)) is not None and every is not None and every >= steps:
        key = "eval.every_epochs" if run.eval.every_epochs else "eval.every_steps"
        sentences.append(
            f"{comparing} compares evaluations, and with {key}={run.eval.every_epochs or every:,} the only one is that "
            f"at the end, at step {steps:,}; lower {key}"
        )
    return sentences
