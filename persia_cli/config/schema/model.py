"""The dense networks' settings, by kind; plain values only, the networks are in `persia_cli.model`."""

from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import Field, model_validator

from persia_cli.config.schema.base import Decay, Dim, Few, Node, SomeWidths, Width, Widths
from persia_cli.errors import count


class _Network(Node):
    """What all networks have; each kind's own settings come after it."""

    kind: str
    dim: Dim
    """Columns of an embedding row."""


Activation = Literal["relu", "gelu", "silu", "prelu", "dice", "sigmoid", "tanh"]
Norm = Literal["none", "batch", "layer"]
Init = Literal["torch", "xavier_uniform", "xavier_normal", "he_uniform", "he_normal"]


class Perceptrons(_Network):
    """What networks with hidden layers have: the style of these layers.

    A hidden layer is a linear one, then normalisation, activation and dropout.
    """

    LISTS: ClassVar[tuple[str, ...]] = ("hidden",)
    """Names of the settings that hold widths of hidden layers."""

    activation: Activation | Annotated[tuple[Activation, ...], Field(min_length=1)] = "relu"
    """Function after each hidden layer: one for all, or a list with one for each. `prelu` and `dice` are learned."""
    norm: Norm = "none"
    """Normalisation before it: over the `batch` (of all NN workers together), or over the columns of a `layer`."""
    dropout: Decay | Annotated[tuple[Decay, ...], Field(min_length=1)] = 0.0
    """Share of a hidden layer's columns that a training step sets to 0: one for all, or a list with one for each."""
    embedding_dropout: Decay = 0.0
    """Share of the numbers of embeddings that a training step sets to 0."""
    init: Init = "torch"
    """Initial weights of linear layers; all but `torch` begin with biases of 0."""

    @model_validator(mode="after")
    def _lists_fit_the_layers(self) -> Self:
        for key in ("activation", "dropout"):
            value = getattr(self, key)
            for name in self.LISTS if isinstance(value, tuple) else ():
                layers = len(getattr(self, name))
                if len(value) != layers:
                    raise ValueError(
                        f"model.{key} has {count(len(value), 'value')}, and model.{name} has {layers}: give one for "
                        "each hidden layer, or a single one for all"
                    )
        return self


class Ffnn(Perceptrons):
    """Dense features and embeddings, concatenated and fed through fully connected layers."""

    kind: Literal["ffnn"]
    """`ffnn`: a plain multi-layer perceptron."""
    hidden: Widths
    """Width of each hidden layer."""


class Dlrm(Perceptrons):
    """Bottom network, pairwise dot products, top network (arXiv 1906.00091)."""

    LISTS: ClassVar[tuple[str, ...]] = ("bottom", "top")

    kind: Literal["dlrm"]
    """`dlrm`: deep learning recommendation model."""
    dim: Dim
    """Columns of an embedding row, and width of the bottom network's last layer."""
    bottom: Widths
    """Width of each hidden layer of the bottom network (its last layer, of width `dim`, is added)."""
    top: Widths
    """Width of each hidden layer of the top network (its last layer, the logits, is added)."""


class WideDeep(Perceptrons):
    """A linear model of all features beside a multi-layer perceptron (arXiv 1606.07792)."""

    kind: Literal["wide_deep"]
    """`wide_deep`: Wide & Deep."""
    dim: Dim
    """Columns of an embedding row; the first ones, one per label, are weights of the linear model."""
    hidden: Widths
    """Width of each hidden layer of the perceptron."""


class DeepFm(Perceptrons):
    """A factorization machine beside a multi-layer perceptron (arXiv 1703.04247)."""

    kind: Literal["deepfm"]
    """`deepfm`"""
    dim: Dim
    """Columns of an embedding row; the first ones, one per label, are first-order weights."""
    hidden: Widths
    """Width of each hidden layer of the perceptron."""


class XDeepFm(Perceptrons):
    """A compressed interaction network beside a linear model and a multi-layer perceptron (arXiv 1803.05170)."""

    kind: Literal["xdeepfm"]
    """`xdeepfm`"""
    dim: Dim
    """Columns of an embedding row; the first ones, one per label, are first-order weights."""
    maps: SomeWidths
    """Feature maps of each layer of the compressed interaction network."""
    hidden: Widths
    """Width of each hidden layer of the perceptron."""


class DcnV2(Perceptrons):
    """Cross layers and a multi-layer perceptron (arXiv 2008.13535)."""

    kind: Literal["dcn_v2"]
    """`dcn_v2`: deep and cross network, second version."""
    layers: Few
    """Cross layers."""
    rank: Width | None = None
    """Rank of the cross layers' matrices; null: full."""
    experts: Few | None = None
    """Experts of each cross layer, mixed by gates, each of `rank`; null: plain cross layers."""
    structure: Literal["stacked", "parallel"] = "stacked"
    """`stacked`: the perceptron reads the output of the cross layers; `parallel`: it reads their inputs."""
    hidden: SomeWidths
    """Width of each hidden layer of the perceptron."""

    @model_validator(mode="after")
    def _experts_have_a_rank(self) -> Self:
        if self.experts is not None and self.rank is None:
            raise ValueError("experts are of low rank; give model.rank, for example 64")
        return self


class AutoInt(Perceptrons):
    """Self-attention over features (arXiv 1810.11921)."""

    kind: Literal["autoint"]
    """`autoint`: automatic feature interaction."""
    layers: Few
    """Layers of self-attention."""
    heads: Few
    """Heads of each layer."""
    width: Width
    """Columns of a head."""
    hidden: Widths = ()
    """Width of each hidden layer of a perceptron beside the attention (AutoInt+); none: no perceptron."""


class Gate(Node):
    """Feature selection: gates that decide which inputs each stream of FinalMLP sees."""

    hidden: Widths
    """Width of each hidden layer of a gate's network."""
    first: tuple[str, ...] = ()
    """Sparse features that the first stream's gate reads; none: a learned vector."""
    second: tuple[str, ...] = ()
    """Sparse features that the second stream's gate reads; none: a learned vector."""


class FinalMlp(Perceptrons):
    """Two gated multi-layer perceptrons and their bilinear fusion (arXiv 2304.00902)."""

    LISTS: ClassVar[tuple[str, ...]] = ("first", "second")

    kind: Literal["finalmlp"]
    """`finalmlp`"""
    first: SomeWidths
    """Width of each layer of the first stream."""
    second: SomeWidths
    """Width of each layer of the second stream."""
    heads: Few
    """Parts that the streams are cut into for their fusion; divides the last width of both."""
    gate: Gate | None = None
    """Feature selection; null: both streams see all inputs."""

    @model_validator(mode="after")
    def _heads_divide_the_streams(self) -> Self:
        for stream, widths in (("first", self.first), ("second", self.second)):
            if widths[-1] % self.heads:
                raise ValueError(
                    f"heads={self.heads} cut the last layer of each stream into equal parts, and the last of "
                    f"model.{stream} has {widths[-1]} columns; make it a multiple"
                )
        return self


class Din(Perceptrons):
    """Attention of targets on sequences of behaviour (arXiv 1706.06978)."""

    kind: Literal["din"]
    """`din`: deep interest network."""
    attend: dict[str, tuple[str, ...]]
    """For each target, the sequences (pooling: none) of its table that it attends to, e.g. `{item: [last_items]}`."""
    attention: Widths
    """Width of each hidden layer of the network that weighs an element of a sequence."""
    attention_activation: Literal["relu", "gelu", "silu", "prelu", "sigmoid", "tanh"] = "prelu"
    """Function after each of these layers."""
    activation: Activation | Annotated[tuple[Activation, ...], Field(min_length=1)] = "prelu"
    """Function after each hidden layer: one for all, or a list with one for each. `prelu` and `dice` are learned."""
    hidden: Widths
    """Width of each hidden layer of the perceptron."""

    @model_validator(mode="after")
    def _something_is_attended_to(self) -> Self:
        if not self.attend or not all(self.attend.values()):
            raise ValueError("attend needs a target and its sequences, e.g. model.attend={item: [last_items]}")
        return self


class Mmoe(Perceptrons):
    """Experts shared by all tasks, a gate and a tower for each (KDD 2018, doi 10.1145/3219819.3220007)."""

    LISTS: ClassVar[tuple[str, ...]] = ("expert", "tower")

    kind: Literal["mmoe"]
    """`mmoe`: multi-gate mixture of experts."""
    experts: Few
    """Experts."""
    expert: SomeWidths
    """Width of each layer of an expert."""
    tower: Widths
    """Width of each hidden layer of a task's tower."""


class Branches(_Network):
    """A linear layer with batch normalisation for dense features, one for embeddings, then linear layers on both."""

    kind: Literal["branches"]
    """`branches`: the network of the original Persia's census example."""
    dense: Width
    """Width of the branch of dense features."""
    sparse: Width
    """Width of the branch of embeddings."""
    hidden: Widths
    """Width of each linear layer on both (the last one, the logits, is added)."""


class CustomModel(_Network):
    """A user's own `torch.nn.Module`."""

    kind: Literal["custom"]
    """`custom`: a class in a Python file."""
    file: str
    """Path of the Python file."""
    name: str
    """Name of the class in that file; it is called as `Class(shape, **args)`."""
    args: dict[str, Any] = Field(default_factory=dict)
    """Keyword arguments of the class."""


Model = Annotated[
    Ffnn | Dlrm | WideDeep | DeepFm | XDeepFm | DcnV2 | AutoInt | FinalMlp | Din | Mmoe | Branches | CustomModel,
    Field(discriminator="kind"),
]
