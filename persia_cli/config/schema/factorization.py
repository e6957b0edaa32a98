"""The settings of networks with a weight of each id, and products of vectors; `persia_cli.model` has the networks."""

from typing import Literal

from persia_cli.config.schema.base import Decay, Dim, Positive, SomeWidths, Width, Widths
from persia_cli.config.schema.perceptrons import Network, Perceptrons


class _WithFirstOrder(Perceptrons):
    """Common settings of networks that add first-order weights to a perceptron."""

    dim: Dim
    """Columns of an embedding row; the first ones, one per label, are first-order weights."""
    hidden: Widths
    """Width of each hidden layer of the perceptron."""


class Lr(Network):
    """Logistic regression: a weight of each id and each dense feature, and a bias."""

    kind: Literal["lr"]
    """`lr`: logistic regression."""
    dim: Dim
    """Columns of an embedding row, one per label: the weights."""


class Fm(Network):
    """A factorization machine (ICDM 2010, doi 10.1109/ICDM.2010.127)."""

    kind: Literal["fm"]
    """`fm`: factorization machine."""
    dim: Dim
    """Columns of an embedding row; the first ones, one per label, are first-order weights."""


class Afm(Network):
    """A factorization machine whose products of vectors are weighed by attention (arXiv 1708.04617)."""

    kind: Literal["afm"]
    """`afm`: attentional factorization machine."""
    dim: Dim
    """Columns of an embedding row; the first ones, one per label, are first-order weights."""
    attention: Width
    """Width of the layer that weighs the product of a pair."""
    dropout: Decay = 0.0
    """Share of the columns of the weighed sum of products that a training step sets to 0."""


class WideDeep(_WithFirstOrder):
    """A linear model of all features together with a multi-layer perceptron (arXiv 1606.07792)."""

    kind: Literal["wide_deep"]
    """`wide_deep`: Wide & Deep."""


class DeepFm(_WithFirstOrder):
    """A factorization machine together with a multi-layer perceptron (arXiv 1703.04247)."""

    kind: Literal["deepfm"]
    """`deepfm`"""


class XDeepFm(_WithFirstOrder):
    """A compressed interaction network, a linear model and a multi-layer perceptron (arXiv 1803.05170)."""

    kind: Literal["xdeepfm"]
    """`xdeepfm`"""
    maps: SomeWidths
    """Feature maps of each layer of the compressed interaction network."""


class FibiNet(_WithFirstOrder):
    """Fields weighed by their importance, and bilinear products of all pairs (arXiv 1905.09433)."""

    kind: Literal["fibinet"]
    """`fibinet`: feature importance and bilinear feature interaction."""
    bilinear: Literal["field_all", "field_each", "field_interaction"] = "field_interaction"
    """Whose matrix multiplies a pair of vectors: one of all pairs, one of each first field, one of each pair."""
    reduction: Positive = 3.0
    """Number of features divided by the width of the layer that weighs them."""
    hidden: SomeWidths
    """Width of each hidden layer of the perceptron."""


Factorizing = Lr | Fm | Afm | WideDeep | DeepFm | XDeepFm | FibiNet
