"""The dense networks' settings, by kind; plain values only, the networks are in `persia_cli.model`."""

from typing import Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from persia_cli.config.schema.base import Dim, Few, Node, SomeWidths, Width, Widths


class _Network(Node):
    """What all networks have; each kind's own settings come after it."""

    kind: str
    dim: Dim
    """Columns of an embedding row."""


class Ffnn(_Network):
    """Dense features and embeddings, concatenated and fed through fully connected layers."""

    kind: Literal["ffnn"]
    """`ffnn`: a plain multi-layer perceptron."""
    hidden: Widths
    """Width of each hidden layer."""


class Dlrm(_Network):
    """Bottom network, pairwise dot products, top network (arXiv 1906.00091)."""

    kind: Literal["dlrm"]
    """`dlrm`: deep learning recommendation model."""
    dim: Dim
    """Columns of an embedding row, and width of the bottom network's last layer."""
    bottom: Widths
    """Width of each hidden layer of the bottom network (its last layer, of width `dim`, is added)."""
    top: Widths
    """Width of each hidden layer of the top network (its last layer, the logits, is added)."""


class WideDeep(_Network):
    """A linear model of all features beside a multi-layer perceptron (arXiv 1606.07792)."""

    kind: Literal["wide_deep"]
    """`wide_deep`: Wide & Deep."""
    dim: Dim
    """Columns of an embedding row; the first ones, one per label, are weights of the linear model."""
    hidden: Widths
    """Width of each hidden layer of the perceptron."""


class DeepFm(_Network):
    """A factorization machine beside a multi-layer perceptron (arXiv 1703.04247)."""

    kind: Literal["deepfm"]
    """`deepfm`"""
    dim: Dim
    """Columns of an embedding row; the first ones, one per label, are first-order weights."""
    hidden: Widths
    """Width of each hidden layer of the perceptron."""


class XDeepFm(_Network):
    """A compressed interaction network beside a linear model and a multi-layer perceptron (arXiv 1803.05170)."""

    kind: Literal["xdeepfm"]
    """`xdeepfm`"""
    dim: Dim
    """Columns of an embedding row; the first ones, one per label, are first-order weights."""
    maps: SomeWidths
    """Feature maps of each layer of the compressed interaction network."""
    hidden: Widths
    """Width of each hidden layer of the perceptron."""


class DcnV2(_Network):
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


class AutoInt(_Network):
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


class FinalMlp(_Network):
    """Two gated multi-layer perceptrons and their bilinear fusion (arXiv 2304.00902)."""

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


class Din(_Network):
    """Attention of targets on sequences of behaviour (arXiv 1706.06978)."""

    kind: Literal["din"]
    """`din`: deep interest network."""
    attend: dict[str, tuple[str, ...]]
    """For each target, the sequences (pooling: none) of its table that it attends to, e.g. `{item: [last_items]}`."""
    attention: Widths
    """Width of each hidden layer of the network that weighs an element of a sequence."""
    hidden: Widths
    """Width of each hidden layer of the perceptron."""

    @model_validator(mode="after")
    def _something_is_attended_to(self) -> Self:
        if not self.attend or not all(self.attend.values()):
            raise ValueError("attend needs a target and its sequences, e.g. model.attend={item: [last_items]}")
        return self


class Mmoe(_Network):
    """Experts shared by all tasks, a gate and a tower for each (KDD 2018, doi 10.1145/3219819.3220007)."""

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
    """`branches`: the network of the original Persia's census example; for one NN worker."""
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
