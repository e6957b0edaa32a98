"""A checked run and the facts of its data set become a job plan: replicas, steps, memory, command lines."""

import json
import shlex
from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from persia_cli.config.schema import CustomModel, ParquetDataset, PredictSplit, Run
from persia_cli.control.batches import JobBatches
from persia_cli.control.position import StepGrid
from persia_cli.control.splits import EVAL, TRAIN
from persia_cli.errors import ConfigError, DataError
from persia_cli.plan.embedding import embedding_layout, group_rows, table_rows
from persia_cli.store.layout import EmbeddingLayout, bytes_per_row

if TYPE_CHECKING:
    # Every role imports this module, and most have no need of pyarrow.
    from persia_cli.data.facts import DatasetFacts

Task = Literal["train", "evaluate", "predict"]

ROLES = ("coordinator", "embedding-server", "embedding-worker", "data-loader", "nn-worker")
"""All roles, in the order they are started."""

DRIVER = "driver"
"""Who joins a job that trains in turns, and says when the next one begins; part of what measures, not a role."""


@dataclass(frozen=True, slots=True)
class Replica:
    """One process (or thread) of the job."""

    role: str
    index: int

    @property
    def name(self) -> str:
        """Name in messages and log files."""
        return f"{self.role}-{self.index}"


@dataclass(frozen=True, slots=True)
class Job:
    """What every role is told beside the run: the task, its size, and where its files are.

    `load` is the checkpoint folder to start from, `steps` and `eval_steps` count global batches (of training in all,
    of one evaluation). For measurements: training stops before each `turn_steps` steps until a driver lets it go on
    (0: never, and there is no driver), and loaders repeat the first `ring` training batches from memory (0: they read).
    """

    task: Task
    run_dir: str
    load: str | None
    train_rows: int
    eval_rows: int
    steps: int
    eval_steps: int
    turn_steps: int = 0
    ring: int = 0
    trace_first: int = 0
    trace_last: int = 0
    """The steps [trace_first, trace_last) of training are traced by every replica."""
    output: str = ""
    """File that scores are written to, for a prediction; `keep` are the columns handed on beside them."""
    keep: tuple[str, ...] = ()
    logits: bool = False
    """Whether the file holds logits too."""

    def to_json(self) -> bytes:
        """Encode for the wire."""
        return json.dumps({field.name: getattr(self, field.name) for field in fields(self)}).encode()

    @classmethod
    def from_json(cls, text: bytes) -> "Job":
        """Decode what `to_json` made."""
        values = json.loads(text)
        return cls(**values | {"keep": tuple(values["keep"])})


@dataclass(frozen=True, slots=True)
class JobPlan:
    """Everything that is settled before the first process starts."""

    run: Run
    facts: "DatasetFacts"
    job: Job
    replicas: tuple[Replica, ...]
    layout: EmbeddingLayout

    @property
    def run_dir(self) -> Path:
        """Folder of everything the job leaves."""
        return Path(self.job.run_dir)

    @property
    def memory(self) -> dict[str, int]:
        """Bytes the features' tables may take, all servers together, by name; of a shared store, each one's part."""
        return {
            name: int(
                group_rows(group) * bytes_per_row(group.dim, group.dtype, group.optimizer) * rows / group.capacity
            )
            for group in self.layout.feature_groups
            for name, rows in table_rows(group).items()
        }

    def commands(self, address: str, words: Sequence[str] = ()) -> list[str]:
        """Return the command that starts each replica by hand, for a coordinator at `address`.

        The coordinator composes the run again from the `words` of the command line; the others get it from there.
        """
        lines = []
        for replica in self.replicas:
            line = ["persia", "launch-role", replica.role, "--coordinator", address, "--index", str(replica.index)]
            if replica.role == "coordinator":
                line += ["--run-dir", str(self.run_dir), *words]
            lines.append(shlex.join(line))
        return lines


def expected_replicas(run: Run) -> dict[str, int]:
    """Return the number of replicas of each role but the coordinator, in the order of start."""
    return {
        "embedding-server": run.cluster.embedding_servers,
        "embedding-worker": run.cluster.embedding_workers,
        "data-loader": run.cluster.data_loaders,
        "nn-worker": run.cluster.nn_workers,
    }


def job_batches(run: Run, job: Job) -> JobBatches:
    """Return which batches the job has."""
    rows = {TRAIN: job.train_rows if job.steps else 0, EVAL: job.eval_rows}
    batch_size, ranks = run.train.batch_size, run.cluster.nn_workers
    grids = {split: StepGrid(count, batch_size, ranks) for split, count in rows.items() if count}
    return JobBatches(grids, job.steps, ranks)


def plan_job(run: Run, facts: "DatasetFacts", task: Task, run_dir: Path, load: Path | None = None) -> JobPlan:
    """Plan a job; raises DataError where the data set has nothing to do the task with, ConfigError for bad tables."""
    train = StepGrid(facts.train_rows, run.train.batch_size, run.cluster.nn_workers)
    evaluation = StepGrid(facts.eval_rows, run.train.batch_size, run.cluster.nn_workers)
    steps = min(train.steps * run.train.epochs, run.train.steps or train.steps * run.train.epochs)
    if task == "train" and not facts.train_rows:
        raise DataError("the data set has no training samples: dataset.split.kind=eval is for persia eval")
    if task == "evaluate" and isinstance(run.dataset, ParquetDataset) and isinstance(run.dataset.split, PredictSplit):
        raise DataError("dataset.split.kind=predict reads no labels: it is for persia predict")
    if task == "evaluate" and not facts.eval_rows:
        raise DataError("the data set has no evaluation samples; give dataset.split an evaluation part")
    if task == "train" and not facts.eval_rows and (run.train.stop_early or run.checkpoint.best_by):
        key = "train.stop_early" if run.train.stop_early else "checkpoint.best_by"
        raise ConfigError(
            f"{key} compares evaluations, and the data set has none; give dataset.split an evaluation part"
        )
    if isinstance(run.model, CustomModel) and not Path(run.model.file).expanduser().is_file():
        raise ConfigError(f"model.file={run.model.file}: there is no such file; give the Python file with your model")
    job = Job(
        task=task,
        run_dir=str(run_dir),
        load=str(load) if load else None,
        train_rows=facts.train_rows,
        eval_rows=facts.eval_rows,
        steps=steps if task == "train" else 0,
        eval_steps=evaluation.steps,
    )
    replicas = [Replica("coordinator", 0)]
    replicas += [Replica(role, i) for role, count in expected_replicas(run).items() for i in range(count)]
    return JobPlan(run=run, facts=facts, job=job, replicas=tuple(replicas), layout=embedding_layout(run))
