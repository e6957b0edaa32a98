"""The plan of a job: replicas, steps, phases, memory and command lines, from a run and the facts of its data set."""

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import msgspec

from persia_cli.config import record
from persia_cli.config.schema import CustomModel, ParquetDataset, PredictSplit, Run
from persia_cli.config.schema.base import MOST
from persia_cli.control.evaluation_tracker import EvaluationTracker
from persia_cli.control.phases import (
    PendingRequests,
    Phase,
    PhaseKind,
    PhaseMachine,
    in_turns,
    schedule,
    schedule_of_portions,
)
from persia_cli.control.portions import Portions
from persia_cli.control.position import EVAL, TRAIN, JobBatches, StepGrid, TrainingData
from persia_cli.control.restarts import WITH_MEMORY
from persia_cli.errors import ConfigError, DataError
from persia_cli.plan.capacity import require_disks
from persia_cli.plan.checks import check_settings, require_network, require_one_item, split_line
from persia_cli.plan.columns import (
    has_query_ids,
    next_item_features,
    next_item_loss,
    require_equal_kinds,
    sparse_features,
    trains_on_queries,
)
from persia_cli.plan.embedding import embedding_layout, require_limits
from persia_cli.plan.labels import require_labels, with_base_rate
from persia_cli.plan.length import evaluation_interval, training_steps, with_length
from persia_cli.plan.settled import settled
from persia_cli.plan.warm_start import WarmStart
from persia_cli.storage.addresses import local_path, printable
from persia_cli.store.checkpoints.manifest import Manifest
from persia_cli.store.cold.geometry import log_memory, rows_on_disk
from persia_cli.store.layout import EmbeddingLayout
from persia_cli.wire.secret import TOKEN

if TYPE_CHECKING:
    # Every role imports this module, and most do not need pyarrow.
    from persia_cli.data.read.facts import DatasetFacts
    from persia_cli.storage.locations import Location

Task = Literal["train", "evaluate", "predict"]

JOB = record.JOB
ROLES = ("coordinator", "embedding-server", "embedding-worker", "data-loader", "nn-worker")
"""All roles, in the order they are started."""

COORDINATOR = ROLES[0]
DRIVER = "driver"
"""Name under which a benchmark joins a job that trains in alternation, to start each part; it is not a role."""


@dataclass(frozen=True, slots=True)
class Benchmark:
    """The requests of a benchmark to a job; production code has no other special behaviour for benchmarks."""

    turn_steps: int
    """Training pauses before each so many steps, in the phase `idle`, until the driver continues it."""
    ring: int
    """Loaders repeat the first so many training batches from memory; 0: they read files as usual."""


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
class Rollback:
    """The death after which a job was rolled back to the checkpoint of a step."""

    replica: str
    cause: str
    """A sentence."""
    died_at: float
    """Seconds since the epoch."""
    step: int
    steps_again: int
    """Steps after that of the checkpoint whose metrics had been recorded; they are trained again."""


@dataclass(frozen=True, slots=True)
class Job:
    """The data of a job that every role gets in addition to the run: task, size and paths of files.

    `load` is the checkpoint folder to start from; `steps` and `eval_steps` count global batches of the whole training
    and of one evaluation. A resumed training begins at `first_step`, after the last step of that checkpoint.
    """

    task: Task
    run_dir: str
    load: str | None
    train_rows: int
    eval_rows: int
    steps: int
    eval_steps: int
    scored_part: Literal["eval", "test"] = "eval"
    """The split that is evaluated: that of evaluations, or that set aside for a test."""
    first_step: int = 0
    train_data: TrainingData | None = None
    unread_rows: int = 0
    """Rows of text files that did not parse; `dataset.max_bad_rows` bounds them and rows with bad values together."""
    evaluation_due: bool = False
    """True if the model is evaluated at `first_step`, before the first step is trained."""
    warm: WarmStart | None = None
    """The initial values of a new training, if they are not drawn from its seed."""
    rollback: Rollback | None = None
    """The death after which this job began, if it is not the first of its command."""
    benchmark: Benchmark | None = None
    trace_first: int = 0
    trace_last: int = 0
    """The steps [trace_first, trace_last) of training are traced by every replica."""
    output: str = ""
    """File for the scores of a prediction, with the columns `keep` and, if so, `logits`."""
    keep: tuple[str, ...] = ()
    logits: bool = False
    driver: int = 0
    driver_began: int = 0
    """Process that drives the job, and the tick at which it began."""

    @property
    def known_steps(self) -> int | None:
        """Number of training steps; None without any, or on data that grows."""
        return self.steps if 0 < self.steps < MOST else None

    def to_json(self) -> bytes:
        """Encode for the wire."""
        return msgspec.json.encode(self)

    @classmethod
    def from_json(cls, text: bytes) -> "Job":
        """Decode the result of `to_json`; raises ValueError for anything else."""
        return _JOB_DECODER.decode(text)


# Created while this module is imported: msgspec crashes if two threads decode a type for the first time at once.
_JOB_DECODER = msgspec.json.Decoder(Job)


@dataclass(frozen=True, slots=True)
class JobPlan:
    """The complete plan of a job, before the first process starts."""

    run: Run
    facts: "DatasetFacts"
    job: Job
    replicas: tuple[Replica, ...]
    layout: EmbeddingLayout
    resumes: Path | None = None
    """Run directory of the training that this one continues, if its checkpoint is not in that folder."""

    @property
    def run_dir(self) -> Path:
        """Folder of all files that the job writes."""
        return Path(self.job.run_dir)

    @property
    def is_resumed(self) -> bool:
        """True if the job continues the training that saved a checkpoint."""
        return self.job.task == "train" and self.job.load is not None

    @property
    def memory(self) -> int:
        """Maximum number of bytes of rows and indexes of the features' tables, of all servers together."""
        servers = self.run.cluster.embedding_servers
        return sum(group.nbytes + log_memory(group, servers) for group in self.layout.feature_groups)

    @property
    def cold_rows(self) -> int:
        """Maximum number of rows on disks, of all servers together."""
        return sum(rows_on_disk(group, self.run.cluster.embedding_servers) for group in self.layout.feature_groups)

    def commands(self, address: str, arguments: Sequence[str] = (), key_file: Path | None = None) -> list[str]:
        """Return the command that starts each replica by hand, for a coordinator at `address`.

        The coordinator composes the run again from the `arguments` of the command line; the others get it from the
        coordinator. They also get the path of the file with the job's token, which the coordinator writes, or of the
        file with its keys, if it has any.
        """
        lines = []
        for replica in self.replicas:
            line = ["persia", "launch-role", replica.role, "--coordinator", address, "--index", str(replica.index)]
            cpus = self.run.cluster.processors_of(replica.role, replica.index)
            line += ["--cpus", cpus] if cpus else []
            if replica.role == "coordinator":
                line += [
                    "--run-dir",
                    str(self.run_dir),
                    *(["--key-file", str(key_file)] if key_file else []),
                    *arguments,
                ]
            else:
                line += ["--key-file", str(key_file)] if key_file else ["--token-file", str(self.run_dir / TOKEN)]
            lines.append(shlex.join(map(printable, line)))
        return lines


def expected_replicas(run: Run) -> dict[str, int]:
    """Return the number of replicas of each role but the coordinator, in the order of start."""
    return {
        "embedding-server": run.cluster.embedding_servers,
        "embedding-worker": run.cluster.embedding_workers,
        "data-loader": run.cluster.data_loaders,
        "nn-worker": run.cluster.nn_workers,
    }


def all_replicas(run: Run) -> tuple[Replica, ...]:
    """Return all replicas of a job, in the order of start."""
    others = (Replica(role, i) for role, count in expected_replicas(run).items() for i in range(count))
    return (Replica(COORDINATOR, 0), *others)


def job_batches(run: Run, job: Job) -> JobBatches:
    """Return the batches of the job."""
    rows = {TRAIN: job.train_rows if job.steps else 0, EVAL: job.eval_rows}
    batch_size, ranks = run.train.batch, run.cluster.nn_workers
    if run.follows is not None and job.task == "train":
        return JobBatches({}, job.steps, ranks, most=batch_size // ranks)
    grids = {split: StepGrid(count, batch_size, ranks) for split, count in rows.items() if count}
    return JobBatches(grids, job.steps, ranks)


def retains_memory(run: Run, role: str) -> bool:
    """Return whether the memory of a replica outlives its process."""
    return role == WITH_MEMORY and not run.cluster.is_one_process


def plan_job(
    run: Run,
    facts: "DatasetFacts",
    task: Task,
    run_dir: Path,
    load: "Location | None" = None,
    resumed: Manifest | None = None,
) -> JobPlan:
    """Return the plan of a job; raise DataError if the data set has no samples for the task.

    A training that is `resumed` from the checkpoint `load` begins after its step, others with the sources of
    `init_from`. Raise ConfigError for wrong tables, and for a network that does not fit the data, and the errors of
    `plan_warm_start`. Of a custom network only the existence of its file is checked.
    """
    if facts.settled is not None:
        run = run.model_copy(update={"dataset": facts.settled})
    run = settled(run, facts)
    evaluation = StepGrid(facts.eval_rows, run.train.batch, run.cluster.nn_workers)
    if task == "train" and not facts.train_rows:
        raise DataError("the data set has no training samples: dataset.split.kind=eval is for persia eval")
    if task == "evaluate" and isinstance(run.dataset, ParquetDataset) and isinstance(run.dataset.split, PredictSplit):
        raise DataError("dataset.split.kind=predict reads no labels: it is for persia predict")
    if task == "evaluate" and not facts.eval_rows:
        raise DataError(f"the data set has no evaluation samples{split_line(run, 'eval')}")
    if task != "predict" and trains_on_queries(run) and not has_query_ids(run):
        raise ConfigError("train.losses: kind=bpr pairs the samples of one query, a user say; set dataset.group_by")
    if isinstance(run.model, CustomModel) and not local_path(run.model.file).is_file():
        raise ConfigError(f"model.file={run.model.file}: there is no such file; give the Python file with your model")
    if task == "train" and load is None:
        require_equal_kinds(run)
    require_one_item(run, () if facts.found is None else facts.found.lists)
    if task != "predict":
        require_labels(run, facts, task == "train")
    if task == "train":
        check_extras(run)
        run = with_length(run, facts)
        check_settings(run, facts.eval_rows)
        _require_no_future(run, facts)
        run = with_base_rate(run)
    steps = training_steps(run, facts.train_rows) if task == "train" else 0
    layout = embedding_layout(run)
    first, last = traced_steps(run.train.trace_steps, steps)
    job = Job(
        task=task,
        run_dir=str(run_dir),
        load=(str(load) if isinstance(load, Path) else load.uri) if load else None,
        train_rows=facts.train_rows,
        unread_rows=0 if facts.found is None else facts.found.unread,
        train_data=facts.train_data if task == "train" and run.follows is None else None,
        eval_rows=facts.eval_rows,
        steps=steps,
        eval_steps=evaluation.steps,
        first_step=resumed.step if resumed else 0,
        evaluation_due=bool(resumed and resumed.progress.evaluation_due and (facts.eval_rows or run.eval.next)),
        warm=_warm_start(run, layout) if task == "train" and load is None else None,
        trace_first=first,
        trace_last=last,
    )
    require_limits(layout, run.cluster.embedding_servers)
    require_disks(run, run_dir)
    require_network(run, layout)
    return JobPlan(run=run, facts=facts, job=job, replicas=all_replicas(run), layout=layout)


def _require_no_future(run: Run, facts: "DatasetFacts") -> None:
    """Raise DataError if a loss of all positions of a history would train on events of the evaluation."""
    loss, places = next_item_loss(run), next_item_features(run)
    if facts.found is None or loss is None or loss.positions != "all" or places is None:
        return
    if (history := facts.found.settled.history_of(sparse_features(run)[places[1]])) is None:
        return
    from persia_cli.data.read.future import require_no_future  # needs pyarrow

    require_no_future(facts.found, history[0])


def _warm_start(run: Run, layout: EmbeddingLayout) -> WarmStart | None:
    if run.init_from is None:
        return None
    from persia_cli.plan.warm_sources import plan_warm_start  # needs pyarrow

    return plan_warm_start(run, layout)


def traced_steps(wanted: tuple[int, int] | None, steps: int) -> tuple[int, int]:
    """Return the requested steps [first, last) within a training of so many; raise ConfigError if it has none."""
    if wanted is None or not steps:
        return 0, 0
    first, last = wanted
    if first >= steps:
        raise ConfigError(f"train.trace_steps=[{first},{last}]: the training has the steps 0 to {steps - 1} only")
    return first, min(last, steps)


def check_extras(run: Run) -> None:
    """Raise ConfigError if a logger of the run is not installed."""
    for library in run.loggers:
        spec = find_spec(library)
        if spec is None or spec.origin is None:  # A folder of this name is none: W&B makes one.
            raise ConfigError(
                f"loggers=[{library}] needs {library}, which is not installed: pip install 'persia-cli[{library}]'"
            )


def participants(run: Run, job: Job) -> dict[str, int]:
    """Return the number of replicas of each role that the coordinator waits for."""
    return expected_replicas(run) | ({DRIVER: 1} if job.benchmark else {})


def job_phases(
    run: Run,
    job: Job,
    tracker: EvaluationTracker,
    requests: PendingRequests | None = None,
    is_saved: bool = False,
    portions: Portions | None = None,
) -> PhaseMachine:
    """Return the state machine of the job's phases; in training `tracker` and `requests` decide on saves and the end.

    `is_saved` is as in `schedule`; `portions` are those of data that grows.
    """
    if portions is not None:
        phases = schedule_of_portions(
            portions,
            job.first_step,
            steps=job.steps,
            scores_next=run.eval.next,
            save_every=run.checkpoint.every_steps,
            save_at_end=run.checkpoint.at_end,
            requests=requests,
            evaluation_due=job.evaluation_due,
            is_saved=is_saved,
            publishes=run.publish is not None,
        )
    elif job.task == "train":
        phases = schedule(
            job.steps,
            job.eval_steps,
            eval_every=evaluation_interval(run, job.train_rows),
            save_every=run.checkpoint.every_steps,
            save_at_end=run.checkpoint.at_end,
            tracker=tracker,
            first=job.first_step,
            requests=requests,
            evaluation_due=job.evaluation_due,
            is_saved=is_saved,
            publishes=run.publish is not None,
        )
        if job.benchmark:
            phases = in_turns(phases, job.benchmark.turn_steps)
    else:
        kind: PhaseKind = "evaluating" if job.task == "evaluate" else "predicting"
        phases = iter((Phase(kind, 0, job.eval_steps), Phase("done")))
    ranks = frozenset(f"nn-worker-{i}" for i in range(run.cluster.nn_workers))
    servers = frozenset(f"embedding-server-{i}" for i in range(run.cluster.embedding_servers))
    everyone = frozenset(f"{role}-{i}" for role, count in participants(run, job).items() for i in range(count))
    taking_part: dict[PhaseKind, frozenset[str]] = {
        "training": ranks,
        "evaluating": ranks,
        "predicting": ranks,
        "saving": servers | {"nn-worker-0"},
        "idle": frozenset({f"{DRIVER if job.benchmark else COORDINATOR}-0"}),
        "done": everyone,
    }
    return PhaseMachine(phases, taking_part)
