"""A whole job."""

import re
from typing import Annotated, Any, Self

from pydantic import BeforeValidator, Field, PositiveInt, model_validator

from persia_cli.config.schema.cluster import Cluster
from persia_cli.config.schema.dataset import Dataset
from persia_cli.config.schema.embedding import Embedding
from persia_cli.config.schema.mode import Mode
from persia_cli.config.schema.model import Model
from persia_cli.config.schema.node import Node
from persia_cli.config.schema.optimizer import OptimizerPair


class Training(Node):
    """How long and in what portions the model trains."""

    batch_size: PositiveInt
    """Samples of one step over all ranks."""
    epochs: PositiveInt = 1
    """Passes over the training split."""
    steps: PositiveInt | None = None
    """Stop after this many steps, if that is earlier."""
    threads: PositiveInt = 1
    """Torch threads of each NN worker."""
    log_every_steps: PositiveInt = 50
    """Steps between two lines of metrics."""


class Evaluation(Node):
    """When the model is evaluated; at the end it always is, if there is an evaluation split."""

    every_steps: PositiveInt | None = None
    """Steps between evaluations during training."""


class Checkpoint(Node):
    """When the model is saved."""

    every_steps: PositiveInt | None = None
    """Steps between checkpoints during training."""
    at_end: bool = True
    """Save when training is done."""


def _name(value: Any) -> Any:
    text = str(value) if isinstance(value, int) else value
    if isinstance(text, str) and not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]*", text):
        raise ValueError("expected letters, digits, '.', '_' and '-' only, for it names a folder")
    return text


class Run(Node):
    """A training job, complete."""

    name: Annotated[str, BeforeValidator(_name)]
    """Short name of the job; part of its run directory's name."""
    seed: Annotated[int, Field(ge=0, lt=2**63)] = 0
    """Seed of sample order, initial rows and initial dense weights."""
    dataset: Dataset
    """Where samples come from."""
    model: Model
    """The dense network."""
    embedding: Embedding
    """The embedding tables."""
    optimizer: OptimizerPair
    """Optimizers of rows and dense weights."""
    mode: Mode
    """Order of updates."""
    train: Training
    """Training."""
    eval: Evaluation = Evaluation()
    """Evaluation."""
    checkpoint: Checkpoint = Checkpoint()
    """Checkpoints."""
    cluster: Cluster
    """Processes."""

    @model_validator(mode="after")
    def _ranks_share_a_batch(self) -> Self:
        if self.train.batch_size % self.cluster.nn_workers:
            raise ValueError(
                f"train.batch_size={self.train.batch_size} is shared by cluster.nn_workers={self.cluster.nn_workers}; "
                "make it a multiple"
            )
        if self.embedding.num_partitions < self.cluster.embedding_servers:
            raise ValueError(
                f"embedding.num_partitions={self.embedding.num_partitions} is fewer than "
                f"cluster.embedding_servers={self.cluster.embedding_servers}"
            )
        return self
