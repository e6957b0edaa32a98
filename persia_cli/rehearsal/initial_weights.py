"""The dense weights that a run takes from a saved model, in a separate process before the job starts.

`python -m persia_cli.rehearsal.initial_weights` reads a JSON list of runs from stdin, whose `init_from.path` is a
checkpoint, and writes, for each, the fit of its weights, or the sentence with its problem.
"""

from dataclasses import asdict
from typing import Any

from persia_cli.config.schema import AsyncMode, Run
from persia_cli.config.schema.init_from import DENSE, OPTIMIZER
from persia_cli.errors import UserError
from persia_cli.model.build import build_model
from persia_cli.plan.columns import input_shape
from persia_cli.plan.embedding import embedding_layout
from persia_cli.rehearsal.refusal import answer
from persia_cli.storage.locations import location_of
from persia_cli.store.checkpoints.manifest import verified_folder
from persia_cli.training.dense_state import load_fitting
from persia_cli.training.optimizer import dense_optimizer


def fit(run: Run) -> dict[str, Any] | str:
    """Return the initial dense weights of a run, as its ranks will take them, or the problem."""
    assert run.init_from is not None
    assert run.init_from.path is not None
    try:
        module = build_model(run.model, input_shape(run, embedding_layout(run)), run.seed)
        optimizer = dense_optimizer(run.optimizer.dense, module)
        states = OPTIMIZER not in run.init_from.skip and not isinstance(run.mode, AsyncMode)
        return asdict(load_fitting(verified_folder(location_of(run.init_from.path), DENSE), module, optimizer, states))
    except UserError as error:
        return str(error)


if __name__ == "__main__":
    answer(fit)
