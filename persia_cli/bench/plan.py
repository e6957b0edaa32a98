"""A run for measurement: a number of steps, without evaluation and checkpoints."""

from persia_cli.config.schema import Run
from persia_cli.data.facts import DatasetFacts


def without_ends(run: Run, facts: DatasetFacts, steps: int, log_every_steps: int) -> Run:
    """Return the run with `steps` steps, over as many epochs as they need, without evaluation and checkpoints."""
    per_epoch = -(-facts.train_rows // run.train.batch_size)
    train = {"steps": steps, "epochs": -(-steps // per_epoch), "log_every_steps": log_every_steps}
    return run.model_copy(
        update={
            "train": run.train.model_copy(update=train),
            "eval": run.eval.model_copy(update={"every_steps": None}),
            "checkpoint": run.checkpoint.model_copy(update={"every_steps": None, "at_end": False}),
        }
    )
