"""The test of networks with torch, in a separate process: each is built and tried as a rank would.

`python -m persia_cli.rehearsal.refusal` reads a JSON list of runs from stdin and writes, for each, null or the
sentence with its problem.
"""

import json
import os
import sys
from collections.abc import Callable

from persia_cli.config.schema import AsyncMode, Run
from persia_cli.errors import UserError
from persia_cli.training.dense_trainer import DenseTrainer
from persia_cli.training.device import device_of
from persia_cli.training.distributed import World
from persia_cli.training.graphs.training import require_graphs


def refusal(run: Run) -> str | None:
    """Return the reason why the run's network cannot be built, trained by its ranks or put on its device, or None."""
    # Checked before, without torch: compiling takes a minute or two. The network is tried on the CPU, without graphs.
    plain = run.model_copy(update={"train": run.train.model_copy(update={"compile": False, "graphs": "off"})})
    try:
        require_graphs(run, device_of(run, 0))
        trainer = DenseTrainer(plain, World())
        if run.cluster.nn_workers > 1 and not isinstance(run.mode, AsyncMode):
            trainer.rehearse()
    except UserError as error:
        return str(error)
    return None


def answer(question: Callable[[Run], object]) -> None:
    """Read runs from stdin and write the answer; prints of a user's network go to stderr, not into the answer."""
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    found = [question(Run.model_validate(values)) for values in json.load(sys.stdin)]
    with answers:
        json.dump(found, answers)


if __name__ == "__main__":
    answer(refusal)
