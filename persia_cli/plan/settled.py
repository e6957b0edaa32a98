"""The settings that follow the data: a value in place of each `auto`.

- A planned job has no `auto`: `settled` replaces it for networks, batches and rates, `with_length` for the length. So
  the run directory has values, and a resumed run, an evaluation and an export use the same.
- A value that is set stays.
- A resumed run takes the values of its checkpoint, whatever its data and ranks are now.
- What `auto` becomes is always allowed: it never raises an error that naming a value would avoid.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING

from pydantic import ValidationError

from persia_cli.config.explain import explain
from persia_cli.config.schema import GeneratedDataset, Optimizer, Run, TwoTower
from persia_cli.config.schema.base import AUTO
from persia_cli.config.schema.perceptrons import Perceptrons
from persia_cli.errors import ConfigError

if TYPE_CHECKING:
    from persia_cli.data.read.facts import DatasetFacts  # needs pyarrow

SMALL_ROWS = 1_000_000
"""Training rows below which hidden layers have dropout."""
DROPOUT = 0.2
SMALL_BATCH, BATCH, BATCH_ROWS = 128, 256, 51_200
"""Samples of a step below BATCH_ROWS training rows, and from there on, where an epoch has at least 200 steps.

Batches of 32 for a few thousand rows lost AUC on five tables of five (by .001 to .006), and took twice the time."""
RATES = {"adagrad": 0.05, "rowwise_adagrad": 0.05, "ftrl": 0.05, "adam": 0.001, "rowwise_adam": 0.001, "sgd": 0.1}
"""Learning rate of rows for each optimizer."""
FEW_ROWS = 100_000
RATES_OF_FEW = RATES | {"adagrad": 0.02, "rowwise_adagrad": 0.02}
"""The rates for fewer training rows than FEW_ROWS."""

MAX_ROWS = 5_000_000
"""Training rows above which one pass over the data is enough; click models overfit in the second."""
MAX_EPOCHS, MAX_EPOCHS_OF_MANY = 100, 20
"""Most epochs below SMALL_ROWS, and above."""
MAX_SAMPLES = 50_000_000
"""Samples that a training takes at most, in all epochs."""
EVALUATION_STEPS = (50, 200)
"""Steps of an epoch below which several come between evaluations, and from which on there are two evaluations in it."""
PATIENCE_EPOCHS, PATIENCE_EVALUATIONS, PATIENCE_STEPS = 2, 5, 500
"""Training ends after as many epochs, evaluations and steps without improvement: when all three have passed."""


def settled(run: Run, facts: "DatasetFacts | None") -> Run:
    """Return the run with values in place of `auto` that its data decide; without facts those for many rows.

    Raise ConfigError if the values and the run's other settings exclude each other.
    """
    rows = facts.train_rows if facts and run.follows is None else MAX_ROWS
    changed = _with_batch_size(run, batch_size(rows, run.cluster.nn_workers * run.train.accumulate))
    changed = _with_rates(changed, lambda optimizer, _: row_rate(optimizer, rows))
    if isinstance(run.model, Perceptrons):
        is_generated = isinstance(run.dataset, GeneratedDataset) or (facts is not None and facts.stand_in)
        changed = _with_dropout(changed, run.model, is_small(rows) and not is_generated)
    return run if changed == run else _checked(changed)


def settled_as(run: Run, saved: Run) -> Run:
    """Return the run with the values of the `saved` run, which it continues, in place of `auto` and of a base rate.

    Raise ConfigError if they and the run's other settings exclude each other.
    """

    def rate(optimizer: Optimizer, table: str | None) -> AUTO | float:
        optimizer_of_table = saved.embedding.tables[table].optimizer if table in saved.embedding.tables else None
        return (optimizer_of_table or saved.optimizer.embedding).lr

    changed = _with_rates(_with_batch_size(run, saved.train.batch), rate)
    model = run.model
    values = {"dropout": getattr(saved.model, "dropout", "auto")} if getattr(model, "dropout", 0) == "auto" else {}
    if model.output_bias == "base_rate" and isinstance(saved.model.output_bias, tuple):
        values["output_bias"] = saved.model.output_bias
    changed = changed.model_copy(update={"model": model.model_copy(update=values)})
    return run if changed == run else _checked(changed)


def _with_batch_size(run: Run, size: int) -> Run:
    if run.train.batch_size != "auto":
        return run
    return run.model_copy(update={"train": run.train.model_copy(update={"batch_size": size})})


def _with_rates(run: Run, rate: Callable[[Optimizer, str | None], AUTO | float]) -> Run:
    """Return the run with learning rates of rows, and of the rows of tables with their own optimizer, by their name."""

    def rated(optimizer: Optimizer, table: str | None = None) -> Optimizer:
        if optimizer.lr != "auto":
            return optimizer
        return optimizer.model_copy(update={"lr": rate(optimizer, table)})

    tables = {
        name: table if table.optimizer is None else table.model_copy(update={"optimizer": rated(table.optimizer, name)})
        for name, table in run.embedding.tables.items()
    }
    optimizer = run.optimizer.model_copy(update={"embedding": rated(run.optimizer.embedding)})
    return run.model_copy(
        update={"optimizer": optimizer, "embedding": run.embedding.model_copy(update={"tables": tables})}
    )


def _with_dropout(run: Run, model: Perceptrons, is_small: bool) -> Run:
    """Return the run with dropout of hidden layers; towers have none, for it would move both compared vectors."""
    if model.dropout != "auto":
        return run
    regular = is_small and model.has_layers and not isinstance(model, TwoTower)
    return run.model_copy(update={"model": model.model_copy(update={"dropout": DROPOUT if regular else 0.0})})


def _checked(run: Run) -> Run:
    values = run.model_dump(mode="json")
    try:
        return Run.model_validate(values)
    except ValidationError as error:
        raise ConfigError("\n".join(explain(error, Run, values).values())) from error


def is_small(train_rows: int) -> bool:
    """Return True for so few training rows that a network would learn them by heart."""
    return train_rows < SMALL_ROWS


def batch_size(train_rows: int, parts: int) -> int:
    """Return the samples of a step, a multiple of the `parts` that it is divided into."""
    size = SMALL_BATCH if train_rows < BATCH_ROWS else BATCH
    return -(-size // parts) * parts


def row_rate(optimizer: Optimizer, train_rows: int) -> float:
    """Return the learning rate of the rows of tables."""
    return (RATES_OF_FEW if train_rows < FEW_ROWS else RATES)[optimizer.kind]


def most_epochs(train_rows: int) -> int:
    """Return the most epochs of a training that ends when evaluations no longer improve."""
    most = MAX_EPOCHS if is_small(train_rows) else MAX_EPOCHS_OF_MANY
    return max(1, min(most, MAX_SAMPLES // train_rows))


def patience(epoch_steps: int, interval: int) -> int:
    """Return the evaluations without improvement after which training ends; `interval` is the steps between two."""
    steps = max(PATIENCE_EPOCHS * epoch_steps, PATIENCE_STEPS)
    return max(PATIENCE_EVALUATIONS, -(-steps // interval))
