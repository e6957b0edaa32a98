"""The meaning of a data set's columns: sparse features, dense features, labels."""

from typing import Annotated, Any, Literal, Self, get_args

from pydantic import BeforeValidator, Field, model_validator

from persia_cli.config.schema.base import NUMBER, Count, Node, Number, Values
from persia_cli.config.schema.time_format import TimeFormat

TimePart = Literal["hour", "weekday", "day"]


class SparseFeature(Node):
    """A categorical feature: one id or a list of ids per sample."""

    name: str
    """Name of the feature; also of its column and its table, unless they are set."""
    column: str | None = None
    """Column that holds its ids."""
    table: str | None = None
    """Table that it reads; features that name the same table read the same rows."""
    pooling: Literal["sum", "mean", "sqrtn", "none"] = "sum"
    """The operation that makes one vector of a sample's rows; `none` keeps a padded sequence and its mask."""
    max_length: Count | None = None
    """Ids kept per sample, the newest (last) ones; required with `pooling: none`."""
    missing_id: Annotated[int, Field(ge=-(2**63), lt=2**64), NUMBER] | Literal["none"] | None = None
    """Id for a null: by default a reserved one, which no value of the data has; an integer, such as `-1`; or `none` for
    no id at all. An empty list stays empty."""
    ids: Literal["integer", "text", "time"] | None = None
    """Source of the ids: `integer`, the value itself; `text`, the hash of its text; `time`, the microsecond of a date,
    a timestamp or an ISO 8601 text; by default the column's type decides, and is kept in the run's configuration. A
    text with a separator has integers where another feature of its table has."""
    transform: TimePart | None = None
    """Ids from times: their `hour` (0-23) or `weekday` (0-6, Monday is 0) in UTC, or their `day` since 1970-01-01."""
    format: TimeFormat | None = None
    """The format of times in texts or numbers: `"%d/%m/%Y %H:%M"` as in strptime, with months by name (`%b`), AM or PM
    (`%p`); or `seconds`, `milliseconds`, `microseconds` or `nanoseconds` since 1970. By default ISO 8601 texts."""
    separator: Annotated[str, Field(min_length=1)] | None = None
    """What divides the ids in a text, such as `"|"`: each text is a list, and an empty text or null an empty
    list. Blanks around an id do not belong to it. Texts in lists are split too."""
    padding: Annotated[int, Field(ge=-(2**63), lt=2**64), NUMBER] | str | None = None
    """A value that fills lists up, such as `0`: it is left out before `max_length` and pooling."""
    buckets: (
        Annotated[int, Field(ge=2, le=65536), NUMBER] | Annotated[tuple[Number, ...], Field(min_length=1)] | None
    ) = None
    """Ids from a column of numbers: 1 + how many of these ascending boundaries a number has reached; or a number of
    buckets with equally many training rows, whose boundaries are kept in the run's configuration."""

    @model_validator(mode="after")
    def _buckets_are_of_numbers(self) -> Self:
        if self.transform is not None and (self.ids != "time" or self.buckets is not None or self.padding is not None):
            raise ValueError(f"transform: {self.transform} of {self.name} is of times: leave out ids, buckets, padding")
        if self.format is not None and self.ids != "time":
            raise ValueError(f"the format of {self.name} is of times: leave out ids: {self.ids}")
        if isinstance(self.buckets, tuple) and list(self.buckets) != sorted(set(self.buckets)):
            raise ValueError(f"the boundaries of {self.name}'s buckets must be ascending")
        if self.buckets is not None and self.ids == "text":
            raise ValueError(f"the ids of {self.name} are its buckets, and no text is hashed; leave out ids: text")
        if self.buckets is not None and self.makes_lists:
            raise ValueError(f"buckets are of numbers, one per row: leave out separator and padding of {self.name}")
        return self

    @property
    def makes_lists(self) -> bool:
        """True if samples may have no or several ids although the column has one value for each."""
        return self.separator is not None or self.padding is not None

    @property
    def column_name(self) -> str:
        """Column that holds its ids."""
        return self.column or self.name

    @property
    def table_name(self) -> str:
        """Table that it reads; its name seeds the hash of text."""
        return self.table or self.name

    @property
    def drops_nulls(self) -> bool:
        """True if a null has no id, so that a sample may have none."""
        return self.missing_id == "none"

    @model_validator(mode="after")
    def _sequence_has_a_length(self) -> Self:
        if self.pooling == "none" and self.max_length is None:
            raise ValueError(f"feature {self.name} keeps its sequence (pooling: none) and so needs a max_length")
        return self


def _feature(value: Any) -> Any:
    """Return the keys of a feature that may be written as its name; parts and formats of times are of times."""
    given = {"name": value} if isinstance(value, str) else value
    if not isinstance(given, dict) or given.get("ids") is not None:
        return given
    is_time = given.get("transform") is not None or given.get("format") is not None
    return {**given, "ids": "time"} if is_time else given


Sparse = Annotated[SparseFeature, BeforeValidator(_feature)]


class DenseFeature(Node):
    """A column of numbers, or of lists of numbers of one length, and the transform to apply before training."""

    name: str
    """Name of the column."""
    width: Annotated[int, Field(gt=0, le=65536), NUMBER] | None = None
    """Numbers in each list of a column of lists, such as vectors of content; by default as many as in the first row
    (the run's configuration then has the number)."""
    values: Literal["number", "time"] | None = None
    """What the column holds: `number`; `time`, dates, timestamps or ISO 8601 texts, which are days since 1970-01-01; by
    default the column's type decides, and is kept in the run's configuration."""
    transform: Literal["none", "log1p", "standardise", "piecewise"] | TimePart | None = None
    """By default, `log1p` or `standardise` for numbers that are far from 1 (`dataset.rescale`). `none`: unchanged;
    `log1p`: sign(x) log(1 + |x|); `standardise`: (x - mean) / deviation, of the training rows, the default of times;
    `piecewise`: one number for each of some `bins`: how far the value is through it (arXiv 2203.05556); `hour`,
    `weekday` (Monday is 0) or `day` of times in UTC, standardised."""
    format: TimeFormat | None = None
    """The format of times in texts or numbers, as for sparse features."""
    mean: Number | None = None
    """Mean for `standardise`; by default that of the training rows, which is kept in the run's configuration."""
    deviation: Annotated[float, Field(gt=0, allow_inf_nan=False), NUMBER] | None = None
    """Deviation for `standardise`; set together with `mean` or not at all."""
    bins: Annotated[int, Field(gt=0, le=1024), NUMBER] | Annotated[tuple[Number, ...], Field(min_length=2)] | None = (
        None
    )
    """Bins for `piecewise`: the ascending edges of all, or a number of bins with equally many training rows, whose
    edges are kept in the run's configuration."""
    times_of: str | None = None
    """The sparse feature (pooling: none) for whose elements the column holds a list of times. The inputs are the time
    from each of its newest elements to the next, and from the last one to the sample (`until`): in seconds, or of
    integers without a format their differences. `model.kind=hstu` reads them, and adds those of a history itself."""
    until: str | None = None
    """Column with the time of each sample, for `times_of`; of a history, its own."""

    @model_validator(mode="before")
    @classmethod
    def _times_are_standardised(cls, given: Any) -> Any:
        if not isinstance(given, dict):
            return given
        is_time = given.get("transform") in get_args(TimePart) or given.get("format") is not None
        if is_time and given.get("values") is None:
            given = {**given, "values": "time"}
        is_plain = given.get("transform") is None and given.get("times_of") is None
        if given.get("values") == "time" and is_plain:
            return {**given, "transform": "standardise"}
        return given

    @model_validator(mode="after")
    def _settings_fit_the_transform(self) -> Self:
        if (self.times_of is None) != (self.until is None):
            raise ValueError(f"give both times_of and until of {self.name}, or none")
        if self.times_of is not None and self.transform is not None:
            raise ValueError(f"transform: {self.transform} of {self.name} is not of times_of; leave it out")
        if (self.mean is None) != (self.deviation is None):
            raise ValueError(f"give both mean and deviation of {self.name}, or none")
        if self.mean is not None and not self.is_standardised:
            raise ValueError(f"mean and deviation of {self.name} are for transform: standardise")
        if self.part is not None and self.values != "time":
            raise ValueError(f"transform: {self.transform} of {self.name} is of times: leave out values: {self.values}")
        if self.format is not None and self.values != "time":
            raise ValueError(f"the format of {self.name} is of times: leave out values: {self.values}")
        if self.values == "time" and self.transform in ("none", "log1p"):
            raise ValueError(
                f"transform: {self.transform} of {self.name} is of numbers; leave it out: times are standardised"
            )
        if (self.bins is None) == (self.transform == "piecewise"):
            raise ValueError(f"{self.name}: transform: piecewise needs bins, such as bins: 16, and no other has them")
        if isinstance(self.bins, tuple) and list(self.bins) != sorted(set(self.bins)):
            raise ValueError(f"the edges of {self.name}'s bins must be ascending")
        if self.width is not None and self.transform not in ("none", None):
            raise ValueError(f"{self.name}: a transform is of one number per row; leave out transform, or width")
        return self

    @property
    def part(self) -> TimePart | None:
        """The part of times that is taken, if one is."""
        match self.transform:
            case "hour" | "weekday" | "day":
                return self.transform
        return None

    @property
    def is_standardised(self) -> bool:
        """True if the mean of the training rows is subtracted, and their deviation divides."""
        return self.transform == "standardise" or self.part is not None

    @property
    def inputs(self) -> int:
        """Number of inputs of the network that the column becomes; bins of equal edges may yet become one."""
        if self.bins is None:
            return self.width or 1
        return self.bins if isinstance(self.bins, int) else len(self.bins) - 1


class Label(Node):
    """A label made from a column's values."""

    name: str
    """Name of the column."""
    positive: Values | None = None
    """The value, or values, that are positive (1); all others are negative (0)."""
    at_least: Annotated[int, NUMBER] | Number | None = None
    """Numbers of at least this are positive (1), lower ones negative (0)."""

    @model_validator(mode="after")
    def _one_rule(self) -> Self:
        if self.positive is not None and self.at_least is not None:
            raise ValueError(f"label {self.name} takes positive or at_least, not both")
        if self.positive == ():
            raise ValueError(f"label {self.name} would be 0 in every row: positive names no value; give at least one")
        return self

    @property
    def positives(self) -> tuple[str | int, ...]:
        """The values that are positive."""
        given = self.positive
        return given if isinstance(given, tuple) else () if given is None else (given,)
