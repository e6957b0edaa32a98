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
from persia_cli.plan.defaults import DROPOUT, MAX_ROWS, batch_size, is_small, row_rate

if TYPE_CHECKING:
    from persia_cli.data.read.facts import DatasetFacts  # needs pyarrow


def settled(run: Run, facts: "DatasetFacts | None") -> Run:
    """Return the run with values in place of `auto` that its data decide; without facts those for many rows.

    Raise ConfigError if the values and the run's other settings exclude each other.
    """
    rows = facts.train_rows if facts else MAX_ROWS
    changed = _with_batch_size(run, batch_size(rows, run.cluster.nn_workers * run.train.accumulate))
    changed = _with_rates(changed, lambda optimizer, _: row_rate(optimizer, rows))
    if isinstance(run.model, Perceptrons):
        is_made_up = isinstance(run.dataset, GeneratedDataset) or (facts is not None and facts.stand_in)
        changed = _with_dropout(changed, run.model, is_small(rows) and not is_made_up)
    return run if changed == run else _checked(changed)


def settled_as(run: Run, saved: Run) -> Run:
    """Return the run with the values of the `saved` run, which it continues, in place of `auto` and of a base rate."""

    def rate(optimizer: Optimizer, table: str | None) -> AUTO | float:
        own = saved.embedding.tables[table].optimizer if table in saved.embedding.tables else None
        return (own or saved.optimizer.embedding).lr

    changed = _with_rates(_with_batch_size(run, saved.train.batch), rate)
    model = run.model
    values = {"dropout": getattr(saved.model, "dropout", "auto")} if getattr(model, "dropout", 0) == "auto" else {}
    if model.output_bias == "base_rate" and isinstance(saved.model.output_bias, tuple):
        values["output_bias"] = saved.model.output_bias
    return changed.model_copy(update={"model": model.model_copy(update=values)})


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
