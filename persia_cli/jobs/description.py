"""Descriptions of a run in one line: its network, and how it is trained."""

from persia_cli.config.schema import DenseOptimizer, Optimizer, Run, SyncMode
from persia_cli.config.schema.perceptrons import Concatenated
from persia_cli.errors import count


def model_description(run: Run) -> str:
    """Return the network in one line; of what follows its linear layers, what is not as usual."""
    usual = {
        key: type(run.model).model_fields[key].default for key in Concatenated.model_fields if hasattr(run.model, key)
    }
    usual |= {"dropout": 0.0} if "dropout" in usual else {}
    settings = {
        key: value
        for key, value in run.model.model_dump(exclude={"kind", "dim"}).items()
        if key not in usual or value != usual[key]
    }
    layers = [
        f"{key} {'-'.join(map(str, value))}" for key, value in settings.items() if isinstance(value, tuple | list)
    ]
    others = [f"{key} {value}" for key, value in settings.items() if isinstance(value, str | int | float)]
    return ", ".join([run.model.kind, f"dim {run.model.dim}", *layers, *others])


def training_description(run: Run) -> str:
    """Return batch size, mode, optimizers, seed and unusual settings of training in one line.

    Values that follow the data are `auto` for a job on other machines, since these read the data.
    """
    size = run.train.batch_size if run.train.batch_size == "auto" else f"{run.train.batch_size:,}"
    mode = run.mode.kind if isinstance(run.mode, SyncMode) else f"{run.mode.kind}, staleness {run.mode.staleness}"
    rows, dense = run.optimizer.embedding, run.optimizer.dense
    parts = f" in {run.train.accumulate} parts" if run.train.accumulate > 1 else ""
    return (
        f"{size} samples{parts}; {mode}; "
        f"{_optimizer(rows)} for rows, {_optimizer(dense)} for dense weights; {_arithmetic(run)}seed {run.seed}"
    )


def _arithmetic(run: Run) -> str:
    """Return the losses and the precision that are not the default."""
    losses = [f"{loss.kind} of {name}" for name, loss in run.train.losses.items()]
    learnt = ["weights of labels by uncertainty"] if run.train.task_weights == "uncertainty" else []
    precision = [] if run.train.precision == "float32" else [run.train.precision]
    return "".join(f"{part}; " for part in [*precision, ", ".join(losses), *learnt] if part)


def _optimizer(optimizer: Optimizer | DenseOptimizer) -> str:
    """Return kind and learning rate, the schedule if it is not constant, and penalties."""
    schedule = optimizer.schedule
    changes = []
    if schedule.kind != "one_cycle" and schedule.warmup_steps:
        changes.append(f"{count(schedule.warmup_steps, 'step')} warm-up")
    if schedule.kind == "step":
        changes.append(f"x {schedule.factor:g} every {count(schedule.every_steps, 'step')}")
    elif schedule.kind == "cosine":
        changes.append(f"cosine to {schedule.floor:g} over {count(schedule.over_steps, 'step')}")
    elif schedule.kind == "one_cycle":
        changes.append(f"one cycle over {count(schedule.over_steps, 'step')}")
    elif schedule.kind == "reduce_on_plateau":
        changes.append(f"x {schedule.factor:g} on a plateau")
    penalties = {name: getattr(optimizer, name, 0.0) for name in ("l2", "weight_decay")}
    changes += [f"{name} {penalty:g}" for name, penalty in penalties.items() if penalty]
    rate = optimizer.lr if optimizer.lr == "auto" else f"{optimizer.lr:g}"
    return f"{optimizer.kind} {rate}" + (f" ({', '.join(changes)})" if changes else "")
