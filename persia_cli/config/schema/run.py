"""The configuration of a whole job."""

import difflib
import re
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, BeforeValidator, Field, ModelWrapValidatorHandler, model_validator

from persia_cli.config.schema.base import (
    AUTO,
    NUMBER,
    BatchSize,
    Changeable,
    Count,
    Few,
    Node,
    NonNegative,
    Seconds,
    StepRange,
)
from persia_cli.config.schema.checkpoint import Checkpoint
from persia_cli.config.schema.cluster import Cluster
from persia_cli.config.schema.dataset import Dataset, ParquetDataset, with_times_of
from persia_cli.config.schema.embedding import Embedding
from persia_cli.config.schema.follow import Follow, Until
from persia_cli.config.schema.init_from import Source
from persia_cli.config.schema.interactions import FinalNet
from persia_cli.config.schema.loss import BCE, Bpr, InBatchSoftmax, Loss, LossOfLabel, Pairwise, SampledSoftmax
from persia_cli.config.schema.mode import AsyncMode, Mode
from persia_cli.config.schema.model import Model
from persia_cli.config.schema.optimizer import OptimizerPair, PlateauSchedule
from persia_cli.config.schema.publish import Publish
from persia_cli.errors import did_you_mean
from persia_cli.metric import AUC, Link, headlines, is_of_retrieval, metrics_of

LONGEST_NAME = 100
Tracker = Literal["tensorboard", "mlflow", "wandb", "trackio"]


def _device(value: Any) -> Any:
    if isinstance(value, str) and not re.fullmatch(r"auto|cpu|cuda(:\d+)?", value):
        raise ValueError("expected auto, cpu, cuda or cuda:N")
    return value


class EarlyStop(Node):
    """Training ends when evaluations no longer improve."""

    metric: str
    """Metric of an evaluation that is to improve, by its key in `metrics.jsonl`."""
    patience: Count = 3
    """Consecutive evaluations without improvement after which training ends."""
    min_delta: NonNegative = 0.0
    """An evaluation is an improvement if the metric is better by more than this."""


class Training(Node):
    """Length of training, batches, and settings of the dense network's computation."""

    batch_size: AUTO | BatchSize = "auto"
    """Samples of one step over all ranks.

    `auto`: 128 below 51,200 training rows, else 256; rounded up to a multiple of `accumulate` times NN workers.
    """
    accumulate: Changeable[Few] = 1
    """Equal parts of a step that the dense network computes one after another, so that it needs memory for one part.

    Their gradients add up, of rows too, and the step ends as one of `batch_size` samples does.
    """
    epochs: Changeable[Literal["auto"] | Count] = "auto"
    """Passes over the training split.

    `auto`: with at most 5 million training rows and an evaluation split, up to 100, with an early stop; otherwise one.
    With `steps`: as many as these take. Several epochs without `steps` are evaluated after each, and the best is kept.
    """
    steps: Changeable[Count | None] = None
    """Stop after this number of steps, if that is earlier."""
    until: Changeable[Until | None] = None
    """With `dataset.follow`: the end of the training. Without it, and without `steps`, only a signal ends it."""
    threads: Changeable[Few] = 1
    """Torch threads of each NN worker."""
    losses: dict[str, LossOfLabel] = Field(default_factory=dict)
    """Loss of each label, by the label's name; labels that are not named have `bce` of weight 1."""
    calibrate: Changeable[Literal["auto", "off"]] = "auto"
    """Correct the logits of each label by a slope and a shift that are fitted on the evaluation samples.

    `auto`: where that lowers their log loss by more than chance, but not with a `pos_weight`. The two numbers are saved
    with the model, and its predictions have them; training and its evaluations do not. `off`: never.
    """
    task_weights: Literal["given", "uncertainty"] = "given"
    """How losses of several labels are weighed: by their weights alone, or also by a learnt uncertainty of each
    (arXiv 1705.07115)."""
    precision: Literal["float32", "tf32", "bfloat16"] = "float32"
    """Arithmetic of the dense network; weights, losses, rows and optimizers are always float32.

    `tf32` rounds the factors of products to 10 bits of mantissa, on a GPU; the others are by autocast.
    """
    graphs: Changeable[Literal["auto", "on", "off"]] = "auto"
    """Train steps on a GPU as CUDA graphs. `auto`: where the network and the loss allow it, except `model=custom`.

    `on` refuses to train without; `off` is to find errors.
    """
    device: Changeable[Annotated[str, BeforeValidator(_device)]] = "auto"
    """Device of the dense network: cpu, cuda, cuda:N, or auto: a CUDA device if there is one, each rank its own."""
    compile: Changeable[bool] = False
    """Compile the dense network by torch.compile before the first step."""
    log_every_steps: Changeable[Count] = 50
    """Steps between two lines of metrics."""
    trace_steps: Changeable[StepRange | None] = None
    """Steps [first, last) whose work and waits all roles record, for `persia trace`; `--trace` sets them itself."""
    stop_early: Changeable[EarlyStop | Literal["auto"] | None] = "auto"
    """Stop before the last step if evaluations no longer improve; the best weights are saved (`checkpoint.best_by`).

    `auto`: with `epochs=auto`, after two epochs, five evaluations and 500 steps without improvement; else never, as
    with null.
    """

    @property
    def batch(self) -> int:
        """The samples of one step over all ranks, as settled."""
        assert self.batch_size != "auto", "the plan of the job comes first"
        return self.batch_size

    @property
    def early_stop(self) -> EarlyStop | None:
        """The early stop that is set; None for `auto`, which the plan of a training settles."""
        return None if self.stop_early == "auto" else self.stop_early


def _once(names: tuple[Tracker, ...]) -> tuple[Tracker, ...]:
    return tuple(dict.fromkeys(names))


def _in_order(lengths: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(sorted(set(lengths)))


class Evaluation(Node):
    """Times of evaluation; the model is always evaluated at the end, if there is an evaluation split."""

    every_steps: Count | None = None
    """Steps between evaluations during training."""
    every_epochs: Count | None = None
    """Epochs between evaluations during training, instead of `every_steps`."""
    next: bool = False
    """With `dataset.follow`: score each portion before it is trained."""
    retrieval: AUTO | Annotated[tuple[Count, ...], Field(min_length=1), AfterValidator(_in_order)] | None = "auto"
    """Evaluations rank all items for each user too, by a network of two sides: lengths k of the list in recall@k,
    ndcg@k and hr@k. `auto`: 10 where `in_batch_softmax` or `sampled_softmax` is the loss, no other metric decides and
    there are at most 5 million training rows, else null; null: they rank none."""
    users: Count | None = None
    """Users that `retrieval` ranks items for, always the same ones; null: all, or 2,000 with `auto`."""

    @property
    def lists(self) -> tuple[int, ...]:
        """Lengths of the lists of items that evaluations rank; none without, and before `auto` has a value."""
        return () if self.retrieval is None or self.retrieval == "auto" else self.retrieval

    @model_validator(mode="after")
    def _has_one_interval(self) -> Self:
        if self.every_steps is not None and self.every_epochs is not None:
            raise ValueError("eval.every_steps and eval.every_epochs exclude each other; set one of them to null")
        return self


class Recovery(Node):
    """Processes that die while the job goes on: which are replaced, and how often."""

    max_restarts: Annotated[int, Field(ge=0, le=1000), NUMBER] = 3
    """New processes that a replica gets within `window_s`; 0: a death ends the job.

    Data loaders, embedding workers and embedding servers get them, each but the first after a longer wait. After any
    other death, and at most as often, the whole job goes back to its newest checkpoint.
    """
    window_s: Seconds = 600.0
    """Seconds after which a restart no longer counts."""


def _name(value: Any) -> Any:
    text = str(value) if isinstance(value, int) and not isinstance(value, bool) else value
    if isinstance(text, str) and not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]*", text):
        raise ValueError("expected only letters, digits, '.', '_' and '-', since the name is used for a folder")
    if isinstance(text, str) and len(text) > LONGEST_NAME:
        raise ValueError(f"expected at most {LONGEST_NAME} characters, since the name is used for a folder")
    return text


class Run(Node):
    """A complete training job."""

    name: Changeable[Annotated[str, BeforeValidator(_name)]]
    """Short name of the job; part of its run directory's name."""
    seed: Annotated[int, Field(ge=0, lt=2**63), NUMBER] = 0
    """Seed of sample order, initial rows and initial dense weights."""
    dataset: Dataset
    """Source of samples."""
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
    eval: Changeable[Evaluation] = Evaluation()
    """Evaluation."""
    checkpoint: Changeable[Checkpoint] = Checkpoint()
    """Checkpoints."""
    cluster: Changeable[Cluster]
    """Processes."""
    init_from: Source | None = None
    """The model that the run begins with, instead of rows and weights drawn from the seed."""
    recovery: Changeable[Recovery] = Recovery()
    """Reaction to the death of a process."""
    loggers: Changeable[Annotated[tuple[Tracker, ...], AfterValidator(_once)]] = ()
    """Trackers that get the metrics of a training too; each has its own settings, in environment variables."""
    publish: Changeable[Publish | None] = None
    """Versions of the model for a server that follows its training."""
    metrics_port: Changeable[Annotated[int, Field(ge=1, le=65535), NUMBER] | None] = None
    """Port of the loopback interface of the coordinator's machine where Prometheus gets the latest metrics of a
    training, at `/metrics`."""

    @model_validator(mode="wrap")
    @classmethod
    def _hstu_reads_times(cls, given: Any, validated: ModelWrapValidatorHandler[Self]) -> Self:
        """Add the times of the history that HSTU reads to the dense features."""
        model, dataset = (given.get(key) if isinstance(given, dict) else None for key in ("model", "dataset"))
        if not isinstance(model, dict) or not isinstance(dataset, dict) or model.get("kind") != "hstu":
            return validated(given)
        attend = model.get("attend")
        lists = attend.values() if isinstance(attend, dict) else ()
        named = [name for names in lists if isinstance(names, list | tuple) for name in names]
        return validated({**given, "dataset": with_times_of(dataset, named[0])} if len(named) == 1 else given)

    @model_validator(mode="after")
    def _ranks_and_parts_share_a_batch(self) -> Self:
        ranks, parts, batch = self.cluster.nn_workers, self.train.accumulate, self.train.batch_size
        if batch != "auto" and batch % (ranks * parts):
            factors = [f"cluster.nn_workers={ranks}"] * (ranks > 1) + [f"train.accumulate={parts}"] * (parts > 1)
            raise ValueError(
                f"train.batch_size={batch} is not a multiple of {' times '.join(factors)}; change one of them"
            )
        joint = [name for name, loss in self.train.losses.items() if isinstance(loss, Pairwise | Bpr | InBatchSoftmax)]
        if parts > 1 and joint:
            raise ValueError(
                f"train.accumulate={parts}: train.losses.{joint[0]}.kind={self.train.losses[joint[0]].kind} compares "
                "the samples of a step with each other, and a part has only some of them; leave out train.accumulate"
            )
        return self

    @property
    def follows(self) -> Follow | None:
        """The way in which data that grows is followed; None for data that is complete."""
        return self.dataset.follow if isinstance(self.dataset, ParquetDataset) else None

    @model_validator(mode="after")
    def _settings_fit_data_that_grows(self) -> Self:
        if self.follows is None:
            return self
        until = self.train.until
        if until is not None and until.time is not None and self.follows.time is None:
            raise ValueError("train.until.time is a time of the data: name its column in dataset.follow.time")
        for key, is_given, remedy in (
            ("train.epochs", self.train.epochs != "auto", "each portion is trained once; leave it out"),
            ("train.stop_early", self.train.early_stop is not None, "windows differ; leave it out"),
            ("checkpoint.best_by", self.checkpoint.best_by is not None, "windows differ; leave it out"),
            ("eval.every_steps", self.eval.every_steps is not None, "set eval.next=true"),
            ("eval.every_epochs", self.eval.every_epochs is not None, "set eval.next=true"),
            ("eval.retrieval", bool(self.eval.lists), "the items are not known yet; leave it out"),
        ):
            if is_given:
                raise ValueError(f"{key} is of data that is complete, and dataset.follow is set: {remedy}")
        for name, loss in self.train.losses.items():
            if isinstance(loss, SampledSoftmax):
                raise ValueError(
                    f"train.losses.{name}.kind={loss.kind} draws negatives from all training rows, and dataset.follow "
                    "has only those so far; choose another loss"
                )
        for part, optimizer in (("dense", self.optimizer.dense), ("embedding", self.optimizer.embedding)):
            if isinstance(optimizer.schedule, PlateauSchedule):
                raise ValueError(
                    f"optimizer.{part}.schedule.kind=reduce_on_plateau compares evaluations of the same samples, and "
                    "dataset.follow has others each time; choose another schedule"
                )
        return self

    @model_validator(mode="after")
    def _servers_have_partitions(self) -> Self:
        if self.embedding.num_partitions < self.cluster.embedding_servers:
            raise ValueError(
                f"embedding.num_partitions={self.embedding.num_partitions} is fewer than "
                f"cluster.embedding_servers={self.cluster.embedding_servers}"
            )
        return self

    @model_validator(mode="after")
    def _metrics_exist(self) -> Self:
        for key, metric in self.judging_metrics.items():
            self._require(key, metric)
        return self

    @model_validator(mode="after")
    def _plateaus_belong_to_evaluations(self) -> Self:
        for name, table in self.embedding.tables.items():
            if table.optimizer is not None and isinstance(table.optimizer.schedule, PlateauSchedule):
                raise ValueError(
                    f"embedding.tables.{name}.optimizer.schedule.kind=reduce_on_plateau: all tables that evaluations "
                    "slow down do so together; give the schedule to optimizer.embedding, or the table another"
                )
        if isinstance(self.optimizer.dense.schedule, PlateauSchedule) and isinstance(self.mode, AsyncMode):
            raise ValueError(
                "optimizer.dense.schedule.kind=reduce_on_plateau: with mode.kind=async embedding servers keep the "
                "dense weights, and know no evaluations of them; choose another schedule, or another mode"
            )
        return self

    @property
    def judging_metrics(self) -> dict[str, str]:
        """The metrics by which evaluations decide something, by the keys that name them."""
        metrics = {}
        if self.train.early_stop is not None:
            metrics["train.stop_early.metric"] = self.train.early_stop.metric
        if self.checkpoint.best_by is not None:
            metrics["checkpoint.best_by"] = self.checkpoint.best_by
        for part, optimizer in (("dense", self.optimizer.dense), ("embedding", self.optimizer.embedding)):
            if isinstance(optimizer.schedule, PlateauSchedule):
                metrics[f"optimizer.{part}.schedule.kind=reduce_on_plateau, metric"] = self.plateau_metric
        return metrics

    @property
    def plateau_metric(self) -> str:
        """The metric that decides on learning rates (`reduce_on_plateau`)."""
        early = self.train.early_stop
        return early.metric if early else self.checkpoint.best_by or self.headline

    @property
    def judging_metric(self) -> str:
        """The metric by which a run chooses its evaluation, a sweep its settings and a search its trials."""
        early = self.train.early_stop
        return self.checkpoint.best_by or (early.metric if early else self.headline)

    @property
    def headline(self) -> str:
        """The metric that compares evaluations by default: AUC for probabilities, of several labels its mean."""
        if self.is_for_retrieval:
            cuts = self.eval.lists
            return f"recall@{10 if 10 in cuts else cuts[0]}" if cuts else "loss"
        if len(self.losses) > 1:
            ranks_items = any(isinstance(loss, InBatchSoftmax | SampledSoftmax) for loss in self.losses)
            return AUC if set(self.links.values()) == {"logistic"} and not ranks_items else "loss"
        return "gauc" if isinstance(self.losses[0], Bpr) else headlines(self.links)[0]

    @property
    def is_for_retrieval(self) -> bool:
        """True if the loss is of the rank of an item among others, so that probabilities and AUC are not its aim."""
        return len(self.losses) == 1 and isinstance(self.losses[0], InBatchSoftmax | SampledSoftmax)

    def _require(self, key: str, metric: str) -> None:
        """Raise ValueError if evaluations do not have the metric, or if there are none to compare."""
        links = self.links
        has_queries = isinstance(self.dataset, ParquetDataset) and self.dataset.group_by is not None
        metrics = metrics_of(links, has_queries, self.eval.lists)
        if metric not in metrics and metric in metrics_of(links, queries=True):
            raise ValueError(f"{key}={metric} needs query ids; set dataset.group_by")
        if is_of_retrieval(metric) and metric not in metrics:
            lengths = {*self.eval.lists, int(metric.partition("@")[2] or 10)}
            raise ValueError(
                f"{key}={metric} is a retrieval metric, which evaluations do not compute unless they are asked to; "
                f"set eval.retrieval={sorted(lengths)}"
            )
        if metric not in metrics:
            near = difflib.get_close_matches(metric, metrics, n=1)
            hint = f"did you mean {near[0]}? " if near else ""
            raise ValueError(f"{key}={metric}: no such metric; {hint}there are {', '.join(metrics)}")
        is_settled = self.train.epochs == 1 or self.train.steps is not None
        if is_settled and self.eval.every_steps is None and self.eval.every_epochs is None:
            raise ValueError(f"{key}={metric} compares evaluations during training; set eval.every_epochs=1")

    @model_validator(mode="after")
    def _losses_have_labels(self) -> Self:
        labels = self.dataset.label_names
        for name in self.train.losses:
            if name not in labels:
                raise ValueError(f"train.losses.{name}: no label has this name; {did_you_mean(name, labels)}")
        if all(name in self.train.losses and not self.train.losses[name].weight for name in labels):
            raise ValueError("train.losses gives every label the weight 0; at least one needs more")
        if self.train.task_weights == "uncertainty" and len(labels) == 1:
            raise ValueError(
                f"train.task_weights=uncertainty weighs labels against each other, and {labels[0]} is alone; "
                "leave it out"
            )
        return self

    @model_validator(mode="after")
    def _probabilities_are_taught(self) -> Self:
        if isinstance(self.model, FinalNet) and self.model.teaching:
            for name, link in self.links.items():
                if link != "logistic":
                    raise ValueError(
                        f"model.teaching={self.model.teaching:g} needs labels with probabilities, and "
                        f"train.losses.{name}.kind={self.train.losses[name].kind} predicts a number; set "
                        "model.teaching=0"
                    )
        return self

    @property
    def losses(self) -> tuple[Loss, ...]:
        """The loss of each label, in the order of labels."""
        return tuple(self.train.losses.get(name, BCE) for name in self.dataset.label_names)

    @property
    def links(self) -> dict[str, Link]:
        """The function that makes each label's prediction of the network's output, by the label's name."""
        return {name: loss.LINK for name, loss in zip(self.dataset.label_names, self.losses, strict=True)}
