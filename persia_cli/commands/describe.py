"""A job in a few lines, before it starts."""

import shlex
from collections import Counter
from collections.abc import Sequence

from rich.console import Console
from rich.panel import Panel
from rich.text import Text

from persia_cli.commands.screen import columns, count, labelled, say, size
from persia_cli.config.schema import DenseOptimizer, Optimizer, ParquetDataset, Run, SyncMode
from persia_cli.plan.embedding import table_rows
from persia_cli.plan.job import JobPlan


def describe(console: Console, plan: JobPlan) -> None:
    """Print the run, its data and its model."""
    run, facts = plan.run, plan.facts
    labelled(console, "run", f"{run.name} in {plan.run_dir}")
    labelled(console, "data", facts.source)
    labelled(
        console,
        "",
        f"{_samples(plan)}; {facts.dense} dense and {len(facts.sparse)} sparse features, {count(facts.tasks, 'label')}",
    )
    labelled(console, "model", model_words(run))
    if plan.job.load:
        labelled(console, "loaded", plan.job.load)
    labelled(console, "rows", f"{count(len(plan.memory), 'table')}, up to {size(sum(plan.memory.values()))}")
    if plan.job.task == "train":
        labelled(console, "training", f"{count(plan.job.steps, 'step')} of {training_words(run)}")
    labelled(console, "cluster", f"{run.cluster.kind}: {_roles(plan)}")


def describe_plan(console: Console, plan: JobPlan, words: Sequence[str]) -> None:
    """Print everything that is settled before the first process starts: what `--dry-run` shows."""
    describe(console, plan)
    table = columns("table", "dim", "dtype", "optimizer", "rows", "memory")
    for group in plan.layout.groups:
        for name, rows in table_rows(group).items():
            # As many rows as the network turns out to need, whose size is not known yet.
            many, memory = (f"{rows:,}", size(plan.memory[name])) if name in plan.memory else ("-", "-")
            table.add_row(name, str(group.dim), group.dtype, group.optimizer.kind, many, memory)
    table.add_row("all", "", "", "", "", size(sum(plan.memory.values())), style="bold")
    say(console, "")
    console.print(table)
    say(console, "\nTo start each replica by hand, with ADDRESS where the coordinator shall listen:")
    for command in plan.commands("ADDRESS", words):
        say(console, f"  {command}")


def warn_of_stand_in(console: Console, plan: JobPlan, words: Sequence[str]) -> None:
    """Say loudly that the data is made up, and how to put the real data in its place."""
    dataset = plan.run.dataset
    if not plan.facts.stand_in or not isinstance(dataset, ParquetDataset):
        return
    prepare = f"persia recipe prepare {dataset.recipe} --input FILE --output {shlex.quote(dataset.path)}"
    text = (
        f"NOT REAL DATA. There are no files at {dataset.path}; samples of the same shape are made up, so the figures "
        "say nothing about the real data set. To train on it:\n"
    )
    train = shlex.join(["persia", "train", *words])
    if console.is_terminal:
        console.print(Panel(Text(f"{text}\n  {prepare}\n  {train}"), title="stand-in data", style="bold yellow"))
    else:
        for line in f"{text}{prepare}\n{train}".splitlines():
            say(console, f"STAND-IN DATA: {line}")


def _samples(plan: JobPlan) -> str:
    if plan.job.task == "predict":
        return f"{count(plan.facts.eval_rows, 'sample')} to score"
    return f"{plan.facts.train_rows:,} training and {plan.facts.eval_rows:,} evaluation samples"


def model_words(run: Run) -> str:
    """Return the network in a line."""
    settings = run.model.model_dump(exclude={"kind", "dim"})
    layers = [
        f"{key} {'-'.join(map(str, value))}" for key, value in settings.items() if isinstance(value, tuple | list)
    ]
    others = [f"{key} {value}" for key, value in settings.items() if isinstance(value, str | int)]
    return ", ".join([run.model.kind, f"dim {run.model.dim}", *layers, *others])


def training_words(run: Run) -> str:
    """Return batch size, mode, optimizers, seed and what else is special about training in a line."""
    mode = run.mode.kind if isinstance(run.mode, SyncMode) else f"{run.mode.kind}, staleness {run.mode.staleness}"
    rows, dense = run.optimizer.embedding, run.optimizer.dense
    return (
        f"{run.train.batch_size:,} samples; {mode}; "
        f"{_optimizer(rows)} for rows, {_optimizer(dense)} for dense weights; {_arithmetic(run)}seed {run.seed}"
    )


def _arithmetic(run: Run) -> str:
    """Return what of the losses and the precision is not as usual."""
    losses = [f"{loss.kind} of {name}" for name, loss in run.train.losses.items()]
    precision = [] if run.train.precision == "float32" else [run.train.precision]
    return "".join(f"{word}; " for word in [*precision, ", ".join(losses)] if word)


def _optimizer(optimizer: Optimizer | DenseOptimizer) -> str:
    """Return kind and learning rate, and how that changes if it does."""
    schedule = optimizer.schedule
    changes = [f"{count(schedule.warmup_steps, 'step')} warm-up"] if schedule.warmup_steps else []
    if schedule.kind == "step":
        changes.append(f"x {schedule.factor:g} every {count(schedule.every_steps, 'step')}")
    elif schedule.kind == "cosine":
        changes.append(f"cosine to {schedule.floor:g} over {count(schedule.over_steps, 'step')}")
    return f"{optimizer.kind} {optimizer.lr:g}" + (f" ({', '.join(changes)})" if changes else "")


def _roles(plan: JobPlan) -> str:
    replicas = Counter(replica.role for replica in plan.replicas)
    return ", ".join(f"{number} {role}" for role, number in replicas.items())
