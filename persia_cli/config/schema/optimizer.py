"""Optimizers of the embedding rows (run by the embedding servers) and of the dense network (run by torch)."""

from collections.abc import Mapping
from typing import Annotated, Any, Literal, Self, get_args

from pydantic import Field, field_validator, model_validator

from persia_cli.config.schema.base import AUTO, NUMBER, Amount, Count, Decay, Node, NonNegative, NotTiny, Positive


class _Schedule(Node):
    """Common settings of all schedules; each kind's own settings come after it."""

    kind: str
    warmup_steps: Amount = 0
    """Steps over which the learning rate first rises linearly to its full value."""


class ConstantSchedule(_Schedule):
    """A constant learning rate."""

    kind: Literal["constant"]
    """`constant`"""


class StepSchedule(_Schedule):
    """The learning rate falls in steps."""

    kind: Literal["step"]
    """`step`"""
    every_steps: Count
    """Steps of training between two falls, counted from the end of the warm-up."""
    factor: Annotated[float, Field(gt=0, le=1), NUMBER]
    """Factor of the learning rate at each fall."""


class CosineSchedule(_Schedule):
    """The learning rate falls along half a cosine."""

    kind: Literal["cosine"]
    """`cosine`"""
    over_steps: Count
    """Steps of training that the fall takes, counted from the end of the warm-up."""
    floor: Annotated[float, Field(ge=0, le=1), NUMBER] = 0.0
    """Fraction of the learning rate that remains after the fall."""


class OneCycleSchedule(Node):
    """The learning rate rises and falls once, each along half a cosine (Smith and Topin, arXiv 1708.07120).

    It rises from 0.04 of its full value in 0.3 of the steps, as torch's does by default.
    """

    kind: Literal["one_cycle"]
    """`one_cycle`"""
    over_steps: Count
    """Steps of training that rise and fall take together."""
    floor: Annotated[float, Field(ge=0, le=1), NUMBER] = 4e-6
    """Fraction of the learning rate that remains after the fall."""


class PlateauSchedule(_Schedule):
    """The learning rate falls after each evaluation that does not improve, and training goes on with the lower one.

    An evaluation improves by the metric and `min_delta` of `train.stop_early`, else by `checkpoint.best_by`. Without
    both the metric is `auc` (`rmse` if no label has a probability), with several labels `loss`.
    """

    kind: Literal["reduce_on_plateau"]
    """`reduce_on_plateau`"""
    factor: Annotated[float, Field(gt=0, lt=1), NUMBER] = 0.1
    """Factor of the learning rate at each fall."""
    floor: Annotated[float, Field(ge=0, lt=1), NUMBER] = 1e-3
    """Fraction of the learning rate that remains after all falls."""


Schedule = Annotated[
    ConstantSchedule | StepSchedule | CosineSchedule | OneCycleSchedule | PlateauSchedule, Field(discriminator="kind")
]
CONSTANT = ConstantSchedule(kind="constant")


class _Optimizer(Node):
    """Common settings of all optimizers; each kind's own settings come after it."""

    kind: str
    lr: AUTO | Positive
    """Learning rate; `auto`: the usual one of the optimizer for data of this size."""
    schedule: Schedule = CONSTANT
    """The change of the learning rate over the steps."""

    @property
    def rate(self) -> float:
        """The learning rate, as settled."""
        assert self.lr != "auto", "the plan of the job comes first"
        return self.lr

    @model_validator(mode="after")
    def _decay_leaves_something(self) -> Self:
        # Others than SGD divide a gradient, and with it what `l2` adds, by its own size.
        for key in ("weight_decay", *(["l2"] if self.kind == "sgd" else [])):
            decay = getattr(self, key, 0.0)
            if self.lr != "auto" and decay * self.lr > 1.0:
                raise ValueError(
                    f"{key}={decay:g} times lr={self.lr:g} is above 1, so a step would subtract more from a weight "
                    "than all of it; lower one of them"
                )
        return self


class _RowPenalties(Node):
    """Penalties that draw rows towards zero, applied with each gradient of a row, so only to rows of the batch."""

    l2: NonNegative = 0.0
    """Multiple of a row that is added to its gradient, for the rows of the batch."""
    weight_decay: NonNegative = 0.0
    """Fraction of a row, times the learning rate, that each step subtracts from it, for the rows of the batch."""


class _OfDenseWeights(_Optimizer):
    """Common settings of the optimizers of dense weights."""

    lr: Positive
    """Learning rate."""
    clip_norm: Positive | None = None
    """Greatest Euclidean norm of the gradient of all dense weights together; a larger one is scaled down."""


class _WithDenseL2(_OfDenseWeights):
    """Common settings of those that have an L2 penalty."""

    l2: NonNegative = 0.0
    """Multiple of the weights that is added to their gradient."""


class _Adagrad(_Optimizer):
    """Common settings of Adagrad of rows and of dense weights."""

    eps: NotTiny = 1e-10
    """Constant added to the denominator."""


class _AdamBase(_Optimizer):
    """Common settings of all kinds of Adam."""

    beta2: Decay = 0.999
    """Decay of the running mean of squared gradients."""
    eps: NotTiny = 1e-8
    """Constant added to the denominator."""


class _Adam(_AdamBase):
    """Common settings of Adam and AdamW."""

    beta1: Decay = 0.9
    """Decay of the running mean of gradients."""


class Sgd(_Optimizer, _RowPenalties):
    """Stochastic gradient descent of rows."""

    kind: Literal["sgd"]
    """`sgd`"""


class Adagrad(_Adagrad, _RowPenalties):
    """Adagrad of rows, as torch defines it for sparse gradients."""

    kind: Literal["adagrad"]
    """`adagrad`"""
    initial_accumulator_value: NonNegative = 0.0
    """Start value of the sum of squared gradients."""


class RowwiseAdagrad(_Optimizer, _RowPenalties):
    """Adagrad with one sum per row, of the mean of its squared gradients, as FBGEMM defines it."""

    kind: Literal["rowwise_adagrad"]
    """`rowwise_adagrad`"""
    initial_accumulator_value: NonNegative = 0.0
    """Start value of a row's sum of mean squared gradients."""
    eps: NotTiny = 1e-8
    """Constant added to the denominator."""


class Adam(_Adam, _RowPenalties):
    """Adam of rows in its lazy variant, `torch.optim.SparseAdam`: a row moves only with its gradients."""

    kind: Literal["adam"]
    """`adam`"""


class RowwiseAdam(_AdamBase, _RowPenalties):
    """Adam of rows with one mean of squares for a row, and without a running mean of gradients (`beta1` of 0)."""

    kind: Literal["rowwise_adam"]
    """`rowwise_adam`"""


class Ftrl(_Optimizer):
    """FTRL-Proximal (algorithm 1 of McMahan et al., "Ad Click Prediction", 2013), from z = 0 as in the paper.

    A row is read with its initial weights (`init_bound`) until its first gradient; after that they matter only in the
    proximal term. With init_bound=0 weights begin as zeros, as in the paper. A weight changes only when it gets a
    gradient, whatever the schedule, which scales gradients and leaves the penalties unchanged.
    """

    kind: Literal["ftrl"]
    """`ftrl`"""
    lr: AUTO | Positive
    """Learning rate: alpha of the paper; `auto`: the usual one for data of this size."""
    beta: NotTiny = 1.0
    """Constant added to the root of the sum of squared gradients."""
    l1: NonNegative = 0.0
    """Strength of the L1 penalty: from its first gradient on, a weight is exactly 0 as long as |z| is at most `l1`."""
    l2: NonNegative = 0.0
    """Strength of the L2 penalty."""
    initial_accumulator_value: NonNegative = 0.0
    """Start value of the sum of squared gradients."""


class DenseSgd(_WithDenseL2):
    """Stochastic gradient descent of the dense weights."""

    kind: Literal["sgd"]
    """`sgd`"""


class DenseAdagrad(_WithDenseL2, _Adagrad):
    """Adagrad of the dense weights."""

    kind: Literal["adagrad"]
    """`adagrad`"""


class DenseAdam(_WithDenseL2, _Adam):
    """Adam of the dense weights."""

    kind: Literal["adam"]
    """`adam`"""


class AdamW(_OfDenseWeights, _Adam):
    """Adam with weight decay separate from the gradient (Loshchilov and Hutter, 2019)."""

    kind: Literal["adamw"]
    """`adamw`"""
    weight_decay: NonNegative = 0.01
    """Fraction of the weights, times the learning rate, that each step subtracts."""


DenseOptimizer = Annotated[DenseSgd | DenseAdagrad | DenseAdam | AdamW, Field(discriminator="kind")]
Optimizer = Annotated[Sgd | Adagrad | RowwiseAdagrad | Adam | RowwiseAdam | Ftrl, Field(discriminator="kind")]


def _kinds(union: Any) -> list[str]:
    return [get_args(kind.model_fields["kind"].annotation)[0] for kind in get_args(get_args(union)[0])]


class OptimizerPair(Node):
    """One optimizer for the embedding rows, one for the dense network."""

    embedding: Optimizer
    """Applied by the embedding servers to each row; a table may have its own optimizer."""
    dense: DenseOptimizer
    """Applied by the NN workers to the dense weights."""

    @field_validator("dense", mode="before")
    @classmethod
    def _require_dense_kind(cls, value: Any) -> Any:
        kind = value.get("kind") if isinstance(value, Mapping) else None
        *others, last = dense = _kinds(DenseOptimizer)
        if kind in _kinds(Optimizer) and kind not in dense:
            raise ValueError(
                f"optimizer.dense.kind={kind}: {kind} is for embedding rows only; the dense network takes "
                f"{', '.join(others)} or {last}"
            )
        return value
