"""The rules that divide samples into training and evaluation."""

from datetime import UTC, date, datetime
from itertools import combinations
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import BeforeValidator, Field, model_validator

from persia_cli.config.schema.base import MOST, NUMBER, Amount, Node, Values
from persia_cli.config.schema.time_format import TimeFormat


def _iso(value: Any) -> Any:
    """Return a date or time as ISO text in UTC, without the zone; integers unchanged."""
    if isinstance(value, str):
        try:
            value = datetime.fromisoformat(value)
        except ValueError:
            raise ValueError(f"{value!r} is no time: write 2024-02-01, 2024-02-01T12:00:00 or an integer") from None
    if isinstance(value, datetime):
        return (value if value.tzinfo is None else value.astimezone(UTC)).isoformat().removesuffix("+00:00")
    return f"{value.isoformat()}T00:00:00" if isinstance(value, date) else value


def _is_not_later(late: str | int | None, early: str | int | None) -> bool:
    """Return True if two times of one kind are known, and `late` is not the later one."""
    if isinstance(late, int) and isinstance(early, int):
        return late <= early
    return isinstance(late, str) and isinstance(early, str) and late <= early


Time = Annotated[str | int, BeforeValidator(_iso)]
Part = Literal["train", "eval", "test"]
PART_NAMES: tuple[Part, ...] = ("train", "eval", "test")
Fraction = Annotated[float, Field(gt=0.0, lt=1.0), NUMBER]


class _Split(Node):
    """A rule that splits samples; each field `test…` of a kind is the counterpart of its field `eval…`."""

    DECIDING: ClassVar[tuple[str, ...]] = ()
    """Fields that name columns."""

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns that decide which split a sample is in."""
        return tuple(name for field in self.DECIDING if (name := getattr(self, field)) is not None)

    def of_test(self) -> Self | None:
        """Return the split that evaluates on the test samples; None if there are none."""
        fields = {name: field.default for name, field in type(self).model_fields.items() if name.startswith("test")}
        if all(getattr(self, name) == default for name, default in fields.items()):
            return None
        as_eval = {name.replace("test", "eval"): getattr(self, name) for name in fields}
        return self.model_copy(update={name: as_eval[name] for name in as_eval if hasattr(self, name)} | fields)


class FileSplit(_Split):
    """Training and evaluation samples are in different files."""

    kind: Literal["files"]
    """`files`: split by file."""
    train: Annotated[tuple[str, ...], Field(min_length=1)]
    """Files of the training split, relative to `dataset.path`; wildcards allowed."""
    eval: tuple[str, ...] = ()
    """Files of the evaluation split."""
    test: tuple[str, ...] = ()
    """Files that only `persia eval --test` reads."""


class ColumnSplit(_Split):
    """A column names the split of each sample; folders may name the column, as in `day=2024-01-31/`."""

    DECIDING = ("column",)

    kind: Literal["column"]
    """`column`: split by a column's value."""
    column: str
    """The column."""
    train: Values | None = None
    """Its value, or values, for training samples; without it, all samples that do not evaluate train."""
    eval: Values
    """Its value, or values, for evaluation samples."""
    test: Values | None = None
    """Its value, or values, for samples that only `persia eval --test` reads."""

    def values(self, name: Part) -> tuple[str | int, ...]:
        """Return the values of a split; empty for a training split of all other samples."""
        given = {"train": self.train, "eval": self.eval, "test": self.test}[name]
        return given if isinstance(given, tuple) else () if given is None else (given,)

    @model_validator(mode="after")
    def _values_differ(self) -> Self:
        if not self.values("eval") or self.train == ():
            raise ValueError("train and eval each need a value")
        for one, other in combinations(PART_NAMES, 2):
            if both := set(self.values(one)) & set(self.values(other)):
                shared = min(both, key=str)
                raise ValueError(f"{one} and {other} are both {shared}; the splits would have samples in common")
        return self


class EverySplit(_Split):
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


class TimeSplit(_Split):
    """Samples from a time on are evaluation samples."""

    DECIDING = ("column",)

    kind: Literal["time"]
    """`time`: split by a column of times."""
    column: str
    """Column of dates, timestamps, texts such as 2024-02-01 or 2024-02-01T12:00:00, or integers. Times without a zone
    are UTC."""
    format: TimeFormat | None = None
    """The format of times in texts or numbers, as for sparse features; without it, integers are compared unchanged."""
    eval_from: Time | None = None
    """Time of the first evaluation samples."""
    eval_fraction: Fraction | None = None
    """Fraction of the samples, the latest, that evaluate; samples of one time stay together."""
    test_from: Time | None = None
    """Time from which on samples are read by `persia eval --test` only; it is later than `eval_from`."""
    test_fraction: Fraction | None = None
    """Fraction of the samples, the latest, that are read by `persia eval --test` only."""

    @model_validator(mode="after")
    def _has_one_rule(self) -> Self:
        if (self.eval_from is None) == (self.eval_fraction is None):
            raise ValueError("give either eval_from, the time of the first evaluation samples, or eval_fraction")
        if self.test_from is not None and self.test_fraction is not None:
            raise ValueError("give either test_from or test_fraction")
        if (self.eval_fraction or 0.0) + (self.test_fraction or 0.0) >= 1.0:
            raise ValueError("eval_fraction and test_fraction leave nothing to train on")
        if _is_not_later(self.test_from, self.eval_from):
            raise ValueError(
                f"test_from={self.test_from} must be later than eval_from={self.eval_from}, since the latest samples "
                "are those of the test; correct one of them"
            )
        return self


class HashSplit(_Split):
    """A random part of the samples, or of a column's values with all their samples, evaluates."""

    DECIDING = ("column",)

    kind: Literal["hash"]
    """`hash`: split by the hash of a value, which does not depend on the seed."""
    column: str | None = None
    """Column, such as the user; all nulls are one value. Without it, each row is for itself, by its number."""
    eval_fraction: Fraction
    """Fraction of the values, or rows, that evaluate."""
    test_fraction: Fraction | None = None
    """Fraction that is read by `persia eval --test` only."""

    @model_validator(mode="after")
    def _something_trains(self) -> Self:
        if self.eval_fraction + (self.test_fraction or 0.0) >= 1.0:
            raise ValueError("eval_fraction and test_fraction leave nothing to train on")
        return self


class LastSplit(_Split):
    """The last sample of each group, such as a user, is an evaluation sample."""

    DECIDING = ("group", "order")

    kind: Literal["last"]
    """`last`: leave the last one out."""
    group: str
    """Column of the groups; a group with one sample trains, and so do nulls."""
    order: str
    """Column of times or integers that orders the samples of a group; of equal ones the later row is the last."""
    format: TimeFormat | None = None
    """The format of times in texts or numbers of `order`, as for sparse features."""
    test: bool = False
    """True: the last one is read by `persia eval --test` only, and the one before it evaluates."""


class TrainSplit(_Split):
    """Every sample is trained."""

    kind: Literal["train"]
    """`train`: no evaluation samples."""


class EvalSplit(_Split):
    """Every sample evaluates an existing model."""

    kind: Literal["eval"]
    """`eval`: no training samples."""


class PredictSplit(_Split):
    """Every sample is scored by an existing model; labels are not read."""

    kind: Literal["predict"]
    """`predict`: no training and no evaluation samples."""


Split = Annotated[
    FileSplit | ColumnSplit | EverySplit | TimeSplit | HashSplit | LastSplit | TrainSplit | EvalSplit | PredictSplit,
    Field(discriminator="kind"),
]
