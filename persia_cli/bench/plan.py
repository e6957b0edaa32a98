"""A run as it is measured: so many steps, no evaluation and no checkpoint."""

from persia_cli.config.schema import Run
from persia_cli.data.facts import DatasetFacts


def without_ends(run: Run, facts: DatasetFacts, steps: int, log_every_steps: int) -> Run:
    """Return the run with `steps` steps, however many epochs that is, and nothing else to do."""
    per_epoch = -(-facts.train_rows // run.train.batch_size)
    train = {"steps": steps, "epochs": -(-steps // per_epoch), "log_every_steps": log_every_steps}
    return run.model_copy(
        update={
            "train": run.train.model_copy(update=train),
            "eval": run.eval.model_copy(update={"every_steps": None}),
            "checkpoint": run.checkpoint.model_copy(update={"every_steps": None, "at_end": False}),
        }
    )
