"""A job of Slurm."""

import shlex
from typing import Annotated, Literal, Self

from pydantic import Field, field_validator, model_validator

from persia_cli.config.schema.base import NUMBER, Amount, Few
from persia_cli.config.schema.replicas import ProcessReplicas, SpreadReplicas

Word = Annotated[str, Field(pattern=r"^[^\s'\"\\]+$")]
"""A name that Slurm knows."""
Line = Annotated[str, Field(pattern=r"^[^\n\r]+$")]
Hours = Annotated[float, Field(gt=0, le=10_000, allow_inf_nan=False), NUMBER]


class SlurmCluster(ProcessReplicas, SpreadReplicas):
    """The machines of a job, and what of the cluster it may use."""

    kind: Literal["slurm"]
    """`slurm`: every replica is a step of a job of Slurm."""
    nodes: Few | None = None
    """Machines; by default as many as there are embedding servers, or NN workers without separate machines."""
    gpu_nodes: Amount | None = None
    """Machines for NN workers with GPUs alone, by default one for each; 0 puts them on the others, which need GPUs."""
    partition: Word | None = None
    """Partition of all machines; by default the cluster's."""
    gpu_partition: Word | None = None
    """Partition of machines for NN workers with GPUs alone, by default `partition`."""
    gpu: Word = "gpu"
    """The generic resource that stands for a GPU, such as `gpu:a100`."""
    hours: Hours | None = None
    """Time limit of one turn, by default the partition's. Near its end the job is saved, and queued again."""
    options: tuple[Annotated[Line, Field(pattern=r"^--[a-z]")], ...] = ()
    """Other options of sbatch for all machines, such as `--constraint=avx512` or `--account=ranking`."""
    setup: tuple[Line, ...] = ()
    """Lines of shell that the script begins with, such as `module load python`."""
    persia: Annotated[Line, Field(min_length=1)] = "persia"
    """The command that runs Persia on the machines, e.g. `~/venv/bin/persia`."""

    @field_validator("persia")
    @classmethod
    def _is_words(cls, persia: str) -> str:
        if "$" in persia or "`" in persia:
            raise ValueError("no shell expands it on the machines; write it out, or set PATH in cluster.setup")
        first, *_ = [*shlex.split(persia), ""]  # raises ValueError for a quote without an end
        if not first:
            raise ValueError("it is empty; name a command, such as persia")
        return persia

    @model_validator(mode="after")
    def _is_for_gpus(self) -> Self:
        if self.gpu_partition is not None and self.gpu_nodes == 0:
            raise ValueError("cluster.gpu_partition is for separate machines, and gpu_nodes=0 asks for none")
        return self
