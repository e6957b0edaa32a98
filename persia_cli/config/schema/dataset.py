"""Where samples come from and what their columns mean."""

from typing import Annotated, Any, Literal, Self

from pydantic import (
    BeforeValidator,
    Field,
    NonNegativeFloat,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    model_validator,
)

from persia_cli.config.schema.node import Node

BUILTIN = "builtin:"
"""What a path begins with that names data shipped with persia."""


class SparseFeature(Node):
    """A categorical feature: one id or a list of ids per sample."""

    name: str
    """Name of the feature, of its column, and of its table unless said otherwise."""
    column: str | None = None
    """Column it is read from."""
    table: str | None = None
    """Table it reads; features that name one table share its rows."""
    pooling: Literal["sum", "mean", "sqrtn", "none"] = "sum"
    """How the rows of one sample become one vector; `none` keeps a padded sequence and its mask."""
    max_length: PositiveInt | None = None
    """Ids kept per sample, the newest (last) ones; required for `pooling: none`."""
    missing_id: Annotated[int, Field(ge=0, lt=2**64)] = 0
    """Id that stands for a null (an empty list stays empty)."""

    @model_validator(mode="after")
    def _sequence_has_a_length(self) -> Self:
        if self.pooling == "none" and self.max_length is None:
            raise ValueError(f"feature {self.name} keeps its sequence (pooling: none) and so needs a max_length")
        return self


def _feature(value: Any) -> Any:
    return {"name": value} if isinstance(value, str) else value


Sparse = Annotated[SparseFeature, BeforeValidator(_feature)]


class FileSplit(Node):
    """Training and evaluation samples lie in files of their own."""

    kind: Literal["files"]
    """`files`: split by file."""
    train: tuple[str, ...]
    """Files of the training split, relative to `dataset.path`; wildcards allowed."""
    eval: tuple[str, ...] = ()
    """Files of the evaluation split."""


class ColumnSplit(Node):
    """A column says which split a sample belongs to."""

    kind: Literal["column"]
    """`column`: split by a column's value."""
    column: str
    """The column."""
    train: str | int
    """Its value for training samples."""
    eval: str | int
    """Its value for evaluation samples."""

    @model_validator(mode="after")
    def _values_differ(self) -> Self:
        if self.train == self.eval:
            raise ValueError(f"train and eval are both {self.train}; the splits would be the same samples")
        return self


class EverySplit(Node):
    """Every n-th row, counted over all files in order, is an evaluation sample."""

    kind: Literal["every"]
    """`every`: split by row number."""
    n: Annotated[int, Field(ge=2)]
    """Row r is an evaluation sample where r mod n = offset."""
    offset: NonNegativeInt = 0
    """See `n`."""

    @model_validator(mode="after")
    def _offset_below_n(self) -> Self:
        if self.offset >= self.n:
            raise ValueError(f"offset must be below n = {self.n}")
        return self


class EvalSplit(Node):
    """Every sample evaluates a model that is trained already."""

    kind: Literal["eval"]
    """`eval`: nothing to train on."""


class PredictSplit(Node):
    """Every sample is scored by a model that is trained already; labels are not read."""

    kind: Literal["predict"]
    """`predict`: nothing to train on or to evaluate with."""


Split = Annotated[FileSplit | ColumnSplit | EverySplit | EvalSplit | PredictSplit, Field(discriminator="kind")]


class Generator(Node):
    """A made-up data set with a planted model, so that AUC means something."""

    train_rows: PositiveInt
    """Samples of the training split."""
    eval_rows: NonNegativeInt
    """Samples of the evaluation split."""
    dense: NonNegativeInt
    """Dense features."""
    cardinalities: tuple[PositiveInt, ...]
    """Distinct ids of each sparse feature."""
    zipf: PositiveFloat = 1.05
    """Exponent of the ids' Zipf distribution."""
    signal: NonNegativeFloat = 1.0
    """Standard deviation of the planted model's logit; 0 makes labels pure noise."""
    label_rate: Annotated[float, Field(gt=0.0, lt=1.0)] = 0.25
    """Share of positive labels, approximately."""


class GeneratedDataset(Node):
    """Samples made on the fly."""

    kind: Literal["generated"]
    """`generated`: no files."""
    generator: Generator
    """Shape of the samples."""
    shuffle: bool = False
    """Generated samples come in random order already; must be false."""

    @model_validator(mode="after")
    def _is_random_already(self) -> Self:
        if self.shuffle:
            raise ValueError("generated samples are random already; leave dataset.shuffle false")
        return self


class ParquetDataset(Node):
    """Samples in Parquet files."""

    kind: Literal["parquet"]
    """`parquet`: files on any file system that pyarrow reads."""
    path: str
    """A file, a folder, or a URI such as s3://bucket/folder; `builtin:NAME` is data that ships with persia."""
    labels: tuple[str, ...]
    """Label columns, one task each, values 0 to 1."""
    dense: tuple[str, ...] = ()
    """Dense columns."""
    sparse: tuple[Sparse, ...] = ()
    """Sparse features; a plain name is short for `{name: NAME}`."""
    weight: str | None = None
    """Column of sample weights, finite and not negative."""
    group_by: str | None = None
    """Column of integers or strings, such as the user, within whose values evaluation samples are ranked: GAUC."""
    split: Split
    """Which samples train and which evaluate."""
    fill: float | None = None
    """Value in place of null or non-finite dense values; without it they are an error."""
    shuffle: bool = True
    """Shuffle row groups, and rows within blocks of them, from the seed."""
    shuffle_row_groups: PositiveInt = 8
    """Row groups in one shuffled block; a loader holds a block in memory."""
    if_missing: Literal["error", "generate"] = "error"
    """What to do where the files are missing: refuse, or train on `stand_in` and say so."""
    stand_in: Generator | None = None
    """Generator of the same shape, for `if_missing: generate`."""
    recipe: str | None = None
    """Recipe that prepares this data set; named in messages."""

    @model_validator(mode="after")
    def _names_are_unique(self) -> Self:
        names = [feature.name for feature in self.sparse]
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise ValueError(f"sparse feature {twice[0]} is listed twice")
        if not self.labels:
            raise ValueError("labels needs at least one column")
        if not self.dense and not self.sparse:
            raise ValueError("a data set needs dense or sparse features")
        if self.if_missing == "generate" and self.stand_in is None:
            raise ValueError("if_missing: generate needs a stand_in")
        return self

    @model_validator(mode="after")
    def _stand_in_has_this_shape(self) -> Self:
        if self.stand_in is None:
            return self
        shape = (self.stand_in.dense, len(self.stand_in.cardinalities))
        if shape != (len(self.dense), len(self.sparse)):
            raise ValueError(
                f"stand_in has {shape[0]} dense and {shape[1]} sparse features, "
                f"but the data set has {len(self.dense)} and {len(self.sparse)}"
            )
        return self


Dataset = Annotated[ParquetDataset | GeneratedDataset, Field(discriminator="kind")]
