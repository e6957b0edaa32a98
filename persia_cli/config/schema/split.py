"""The rules that divide samples into training and evaluation."""

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from persia_cli.config.schema.base import MOST, NUMBER, Amount, Node, Values


class FileSplit(Node):
    """Training and evaluation samples are in different files."""

    kind: Literal["files"]
    """`files`: split by file."""
    train: Annotated[tuple[str, ...], Field(min_length=1)]
    """Files of the training split, relative to `dataset.path`; wildcards allowed."""
    eval: tuple[str, ...] = ()
    """Files of the evaluation split."""


class ColumnSplit(Node):
    """A column names the split of each sample; folders may name the column, as in `day=2024-01-31/`."""

    kind: Literal["column"]
    """`column`: split by a column's value."""
    column: str
    """The column."""
    train: Values | None = None
    """Its value, or values, for training samples; without it, all samples that do not evaluate train."""
    eval: Values
    """Its value, or values, for evaluation samples."""

    def values(self, name: Literal["train", "eval"]) -> tuple[str | int, ...]:
        """Return the values of a split; empty for a training split of all other samples."""
        given = self.train if name == "train" else self.eval
        return given if isinstance(given, tuple) else () if given is None else (given,)

    @model_validator(mode="after")
    def _values_differ(self) -> Self:
        if not self.values("eval") or self.train == ():
            raise ValueError("train and eval each need a value")
        both = set(self.values("train")) & set(self.values("eval"))
        if both:
            raise ValueError(f"train and eval are both {min(both, key=str)}; the splits would have samples in common")
        return self


class EverySplit(Node):
    """Every n-th row, counted over all files in order, is an evaluation sample."""

    kind: Literal["every"]
    """`every`: split by row number."""
    n: Annotated[int, Field(ge=2, le=MOST), NUMBER]
    """Row r is an evaluation sample where r mod n = offset."""
    offset: Amount = 0
    """The remainder in the rule of `n`."""

    @model_validator(mode="after")
    def _offset_below_n(self) -> Self:
        if self.offset >= self.n:
            raise ValueError(f"offset must be below n = {self.n}")
        return self


class EvalSplit(Node):
    """Every sample evaluates an existing model."""

    kind: Literal["eval"]
    """`eval`: no training samples."""


class PredictSplit(Node):
    """Every sample is scored by an existing model; labels are not read."""

    kind: Literal["predict"]
    """`predict`: no training and no evaluation samples."""


Split = Annotated[FileSplit | ColumnSplit | EverySplit | EvalSplit | PredictSplit, Field(discriminator="kind")]
