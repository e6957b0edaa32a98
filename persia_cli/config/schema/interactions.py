"""The settings of perceptrons and of networks of interacting features; `persia_cli.model` has the networks."""

from typing import Annotated, ClassVar, Literal, Self

from pydantic import Field, model_validator

from persia_cli.config.schema.base import NUMBER, Dim, Few, Node, NonNegative, SomeWidths, Width, Widths
from persia_cli.config.schema.perceptrons import Activation, Concatenated, Norm, Perceptrons


class Ffnn(Concatenated):
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


class DcnV2(Concatenated):
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
    """Width of each hidden layer of a perceptron parallel to the attention (AutoInt+); none: no perceptron."""


class Gate(Node):
    """Feature selection: gates that decide which inputs each stream of FinalMLP sees."""

    hidden: Widths
    """Width of each hidden layer of a gate's network."""
    first: tuple[str, ...] = ()
    """Sparse features that the first stream's gate reads; none: a learned vector."""
    second: tuple[str, ...] = ()
    """Sparse features that the second stream's gate reads; none: a learned vector."""


class FinalMlp(Concatenated):
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


class MaskNet(Perceptrons):
    """Blocks whose inputs are multiplied by masks made of the embeddings (arXiv 2102.07619)."""

    LISTS: ClassVar[tuple[str, ...]] = ("blocks", "hidden")

    kind: Literal["masknet"]
    """`masknet`"""
    structure: Literal["serial", "parallel"] = "serial"
    """`serial`: each mask block reads what the one before gives; `parallel`: all read the embeddings."""
    blocks: SomeWidths
    """Width of each mask block."""
    reduction: Annotated[float, Field(gt=0, le=100, allow_inf_nan=False), NUMBER] = 1.0
    """Width of the layer that makes a block's mask, divided by the width of the block's input."""
    embedding_norm: bool = True
    """Normalise each feature's vector over its columns before the first blocks."""
    norm: Norm = "layer"
    """Normalisation within mask blocks; the perceptron after them has none."""
    hidden: Widths = ()
    """Width of each hidden layer of a perceptron after the blocks."""


class Gdcn(Concatenated):
    """Gated cross layers and a multi-layer perceptron (arXiv 2311.04635)."""

    kind: Literal["gdcn"]
    """`gdcn`: gated deep and cross network."""
    layers: Few
    """Gated cross layers."""
    structure: Literal["stacked", "parallel"] = "stacked"
    """`stacked`: the perceptron reads the output of the cross layers; `parallel`: it reads their inputs."""
    hidden: SomeWidths
    """Width of each hidden layer of the perceptron."""


class FinalNet(Perceptrons):
    """One or two blocks of factorized interaction layers (SIGIR 2023, doi 10.1145/3539618.3591988)."""

    LISTS: ClassVar[tuple[str, ...]] = ("first", "second")

    kind: Literal["finalnet"]
    """`finalnet`: FINAL."""
    first: SomeWidths
    """Width of each layer of the first block: half of the columns are linear, half are products."""
    second: Widths = ()
    """Width of each layer of a second block, whose logits are averaged with the first one's; none: one block."""
    gate: bool = False
    """Let the first block read each feature's vector also times a weight of this feature."""
    teaching: NonNegative = 0.0
    """Weight of a loss by which each of two blocks learns to predict what both predict together; FuxiCTR's is 1."""
    activation: Activation | Annotated[tuple[Activation, ...], Field(min_length=1)] = "none"
    """Function after each layer: `none`, one for all, or a list with one for each."""
    norm: Norm = "batch"
    """Normalisation before it: over the `batch` (of all NN workers together), or over the columns of a `layer`."""

    @model_validator(mode="after")
    def _halves_are_whole(self) -> Self:
        odd = [width for width in (*self.first, *self.second) if width % 2]
        if odd:
            raise ValueError(
                f"layers have two halves, and model.first or model.second has the width {odd[0]}; make it even"
            )
        return self

    @model_validator(mode="after")
    def _two_blocks_teach(self) -> Self:
        if self.teaching and not self.second:
            raise ValueError(
                f"teaching={self.teaching:g} needs two blocks; give model.second its layers, or set model.teaching=0"
            )
        return self


Interacting = Ffnn | Dlrm | DcnV2 | AutoInt | FinalMlp | MaskNet | Gdcn | FinalNet
