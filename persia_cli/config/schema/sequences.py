"""The settings of networks that read sequences; `persia_cli.model` has the networks."""

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from persia_cli.config.schema.base import Decay, Few, NonNegative, Positive, Width, Widths
from persia_cli.config.schema.perceptrons import Activation, Concatenated, Network, Perceptrons


class Attending(Concatenated):
    """Common settings of networks that read sequences with a target, and all other features in a perceptron."""

    attend: dict[str, tuple[str, ...]]
    """For each target, the sequences (pooling: none) of its table that it attends to, e.g. `{item: [last_items]}`."""
    hidden: Widths
    """Width of each hidden layer of the perceptron."""

    @model_validator(mode="after")
    def _something_is_attended_to(self) -> Self:
        if not self.attend or not all(self.attend.values()):
            raise ValueError("attend needs a target and its sequences, e.g. model.attend={item: [last_items]}")
        return self


class Din(Attending):
    """Attention of targets on sequences of behaviour (arXiv 1706.06978)."""

    kind: Literal["din"]
    """`din`: deep interest network."""
    attention: Widths
    """Width of each hidden layer of the network that weighs an element of a sequence."""
    activation: Activation | Annotated[tuple[Activation, ...], Field(min_length=1)] = "prelu"
    """Function after each hidden layer: one for all, or a list with one for each. `prelu` and `dice` are learned."""


class Dien(Attending):
    """Interests of sequences of behaviour, and how they evolve towards a target (arXiv 1809.03672)."""

    kind: Literal["dien"]
    """`dien`: deep interest evolution network."""
    activation: Activation | Annotated[tuple[Activation, ...], Field(min_length=1)] = "prelu"
    """Function after each hidden layer: one for all, or a list with one for each. `prelu` and `dice` are learned."""
    auxiliary_weight: NonNegative = 0.0
    """Weight of the loss by which interests learn to tell the next element of a sequence from one of another sample."""


class Bst(Attending):
    """Transformer blocks on sequences of behaviour with their target (arXiv 1905.06874)."""

    kind: Literal["bst"]
    """`bst`: behaviour sequence transformer."""
    layers: Few
    """Transformer blocks."""
    heads: Few
    """Heads of each block's attention; divides the columns of a row."""
    inner: Width
    """Width of the hidden layer in a transformer block."""
    attention_dropout: Decay = 0.0
    """Share of the columns of what a block adds that a training step sets to 0."""


class Sequential(Network):
    """Common settings of networks whose states of a sequence predict its next element, of one table.

    A sample has one candidate, and the sequence that it may follow; it has no other features.
    """

    attend: dict[str, tuple[str, ...]]
    """The candidate, and the sequence (pooling: none) of its table that it may follow, e.g. `{item: [last_items]}`."""
    layers: Few
    """Blocks of self-attention."""
    heads: Few
    """Heads of each block; divides the columns of a row."""
    dropout: Decay = 0.0
    """Share of the columns of a sequence, of each block's hidden layer and of what it adds that a step sets to 0."""

    @model_validator(mode="after")
    def _one_sequence_has_one_candidate(self) -> Self:
        if [len(names) for names in self.attend.values()] != [1]:
            raise ValueError("attend needs one candidate and its sequence, e.g. model.attend={item: [last_items]}")
        return self

    @property
    def candidate(self) -> str:
        """The feature with the candidate."""
        return next(iter(self.attend))

    @property
    def sequence(self) -> str:
        """The feature with the sequence."""
        return self.attend[self.candidate][0]


class SasRec(Sequential):
    """Causal self-attention on a sequence, and how well its last state fits a candidate (arXiv 1808.09781)."""

    kind: Literal["sasrec"]
    """`sasrec`: self-attentive sequential recommendation."""


class Ligr(Sequential):
    """SASRec's attention in blocks with gated residuals and SwiGLU layers (arXiv 2502.03417)."""

    kind: Literal["ligr"]
    """`ligr`: LinkedIn generative ranker's blocks."""
    expansion: Few = 4
    """Width of a block's hidden layer, in multiples of the columns of a row."""


class Hstu(Sequential):
    """Pointwise attention on a sequence, with biases of positions and times (arXiv 2402.17152).

    It has times if its sequence is of `dataset.histories`, or if a dense feature has its `times_of`.
    """

    kind: Literal["hstu"]
    """`hstu`: hierarchical sequential transduction units."""


class TwoTower(Perceptrons):
    """A tower for users and one for items, whose vectors are multiplied, to retrieve items (RecSys 2019)."""

    kind: Literal["two_tower"]
    """`two_tower`: two towers."""
    user: tuple[str, ...] = Field(min_length=1)
    """Sparse features of users (and of the moment); dense features are theirs too."""
    item: tuple[str, ...] = Field(min_length=1)
    """Sparse features of items."""
    hidden: Widths
    """Width of each hidden layer of a tower."""
    width: Width
    """Columns of the vectors that towers give; they have length 1, so a score is a cosine over the temperature."""
    temperature: Positive = 0.1
    """Number that scores are divided by."""


Reading = Din | Dien | Bst | SasRec | Ligr | Hstu | TwoTower
