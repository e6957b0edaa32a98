"""The source of samples, and the meaning of their columns."""

from collections.abc import Sequence
from typing import Annotated, Any, Literal, Self

from pydantic import BeforeValidator, Field, model_validator

from persia_cli.config.schema.base import NUMBER, Amount, Changeable, Count, Node, NonNegative, Positive
from persia_cli.config.schema.features import DenseFeature, Label, Sparse, SparseFeature
from persia_cli.config.schema.follow import Following
from persia_cli.config.schema.histories import History, HistoryName, Windows
from persia_cli.config.schema.raw import RawColumns
from persia_cli.config.schema.split import Split, TrainSplit


def tab_of(value: Any) -> Any:
    """Return a tab for the ways to write one where a tab itself cannot be written; other values unchanged."""
    return "\t" if value in ("tab", "\\t") else value


def _refuse_null(value: Any) -> Any:
    """Refuse YAML's null, which is what NULL, null and ~ without quotes are."""
    if value is None:
        raise ValueError('YAML takes NULL, null and ~ for no value: write a text in quotes, such as "NULL"')
    return value


Character = Annotated[str, Field(min_length=1, max_length=1, pattern=r"^[\x00-\x7f]$")]
Delimiter = Annotated[str, Field(min_length=1, max_length=2, pattern=r"^[\x00-\x7f]{1,2}$"), BeforeValidator(tab_of)]


class Generator(Node):
    """A generated data set with a planted model, so that AUC is meaningful."""

    train_rows: Count
    """Samples of the training split."""
    eval_rows: Amount
    """Samples of the evaluation split."""
    dense: Annotated[int, Field(ge=0, le=65536), NUMBER]
    """Dense features."""
    cardinalities: tuple[Annotated[int, Field(gt=0, le=2**53), NUMBER], ...]
    """Distinct ids of each sparse feature, at most as many as float64 tells apart."""
    zipf: Positive = 1.05
    """Exponent of the ids' Zipf distribution."""
    signal: NonNegative = 1.0
    """Standard deviation of the planted model's logit; 0 makes labels pure noise."""
    label_rate: Annotated[float, Field(gt=0.0, lt=1.0), NUMBER] = 0.25
    """Approximate fraction of positive labels."""


class GeneratedDataset(Node):
    """Samples generated while training."""

    kind: Literal["generated"]
    """`generated`: no files."""
    generator: Generator
    """Shape of the samples."""

    @property
    def label_names(self) -> tuple[str, ...]:
        """Name of each label."""
        return ("label",)

    @model_validator(mode="after")
    def _has_columns(self) -> Self:
        if not self.generator.dense and not self.generator.cardinalities:
            raise ValueError("generated samples need dense features or cardinalities of sparse ones")
        return self


class CsvFormat(Node):
    """The format of CSV files."""

    delimiter: Delimiter | None = None
    """One or two characters between fields, `tab` for a tab; by default a comma, in files named .tsv a tab."""
    header: Literal[True] | tuple[str, ...] = True
    """True if the first line names the columns; otherwise the names."""
    quote: Character | None = '"'
    """Quote around fields that hold delimiters or line ends; null: no field is quoted."""
    nulls: tuple[Annotated[str, BeforeValidator(_refuse_null)], ...] = ("",)
    """Fields that stand for a missing value; blanks around them do not count."""
    text: tuple[str, ...] = ()
    """Columns that are text even if they look like another type."""

    @model_validator(mode="after")
    def _quotes_are_no_delimiters(self) -> Self:
        if self.quote is not None and self.quote in (self.delimiter or ""):
            raise ValueError("delimiter and quote have the same character; give one of them another, or quote: null")
        return self


FileFormat = Literal["auto", "parquet", "csv", "jsonl"]


class FileForm(Node):
    """The keys of a data set for the format of its files."""

    format: FileFormat = "auto"
    csv: CsvFormat = CsvFormat()


def _with_length(feature: Any, histories: dict[Any, Any]) -> Any:
    """Return the keys of a sparse feature, with the `max_length` of the history that it reads, if it reads one."""
    keys = {"name": feature} if isinstance(feature, str) else feature
    if not isinstance(keys, dict) or keys.get("max_length") is not None:
        return feature
    history = histories.get(history_name(keys))
    length = history.get("max_length") if isinstance(history, dict) else None
    return feature if length is None else {**keys, "max_length": length}


def _with_times(feature: Any, sparse: Sequence[Any], histories: dict[Any, Any]) -> Any:
    """Return the keys of a dense feature; of one that is the times of a list, with what the others imply."""
    keys = {"name": feature} if isinstance(feature, str) else feature
    if not isinstance(keys, dict):
        return feature
    lists = [each for each in sparse if isinstance(each, dict) and each.get("pooling") == "none"]
    name, _, column = str(keys.get("name")).partition(".")
    history = histories.get(name)
    if isinstance(history, dict) and column == history.get("time"):
        own = (each.get("name") for each in lists if history_name(each) == name)
        given = {"times_of": next(own, None), "until": column, "format": history.get("format")}
        keys = given | {key: value for key, value in keys.items() if value is not None}
    if keys.get("times_of") is None:
        return feature
    lengths = [each.get("max_length") for each in lists if each.get("name") == keys["times_of"]]
    return {"width": next(iter(lengths), None)} | keys


def with_times_of(dataset: dict[Any, Any], name: str) -> dict[Any, Any]:
    """Return the keys of a data set whose dense features have the times of a sparse feature, if it reads a history."""
    histories, sparse, dense = dataset.get("histories"), dataset.get("sparse"), dataset.get("dense") or []
    if not isinstance(histories, dict) or not all(isinstance(each, list | tuple) for each in (sparse, dense)):
        return dataset
    feature = next((each for each in sparse or () if isinstance(each, dict) and each.get("name") == name), None)
    history = histories.get(history_name(feature))
    if feature is None or not isinstance(history, dict):
        return dataset
    times = {"name": f"{history_name(feature)}.{history.get('time')}", "times_of": name}
    there = [each.get("name") if isinstance(each, dict) else each for each in dense]
    return dataset if times["name"] in there else {**dataset, "dense": [*dense, times]}


def history_name(feature: Any) -> str:
    """Return the history that a sparse feature, as its keys or its name, reads if there is one of that name."""
    keys = feature if isinstance(feature, dict) else {"name": feature}
    return str(keys.get("column") or keys.get("name")).partition(".")[0]


class ParquetDataset(Node):
    """Samples in files: Parquet, or CSV and JSON Lines by their `format`."""

    kind: Literal["parquet"]
    """`parquet`: files on any file system that pyarrow reads."""
    format: FileFormat = "auto"
    """Format of the files; `auto` recognises it by their names. Text is converted once and kept in ~/.cache/persia, or
    in the folder that PERSIA_CACHE_DIR names."""
    csv: CsvFormat = CsvFormat()
    """The format of CSV files."""
    max_bad_rows: Changeable[Amount] = 0
    """Rows that may be unreadable: texts that do not parse, and values that cannot be used, such as a label 7. They are
    left out and counted, and more of them are an error. A prediction leaves out none for its values."""
    path: Changeable[str | tuple[str, ...]]
    """A file, a folder, or a URI such as s3://bucket/folder, or a list of them; `builtin:NAME` is data that ships with
    persia. In a job's configuration a relative path is relative to where persia runs, in a dataset file to its folder.
    `iceberg:CATALOG/NAMESPACE.TABLE` and `delta:PATH` are tables, and `hf://datasets/USER/NAME` is data of the Hugging
    Face Hub: the run's configuration keeps the snapshot that a run reads, as in `delta:PATH@12`."""
    accept_changed: Changeable[str | None] = None
    """Checksum of files that have changed since the checkpoint that a resume continues: it trains on with just these.
    The error that refuses them has it."""
    follow: Following = None
    """Train on files as they come, in the order of their names, instead of on those there are; `true`, or these keys.
    `path` is a table, whose files come with its snapshots, or one folder, in which each file appears whole (give it
    another name first, or one with a leading dot)."""
    labels: tuple[str | Label, ...]
    """Label columns, one task each, with values from 0 to 1; `{name: NAME, positive: VALUE}` and
    `{name: NAME, at_least: NUMBER}` make labels of other values. With several labels, a null means that the label of
    this row is not known: the row does not count for it, neither in the loss nor in metrics."""
    dense: tuple[str | DenseFeature, ...] = ()
    """Dense columns; `{name: NAME, transform: log1p}` or `standardise` changes their scale, and
    `{name: NAME, transform: piecewise, bins: 16}` makes several inputs of each. A column of lists of numbers of one
    length is as many inputs; `{name: NAME, width: 64}` gives the length."""
    sparse: tuple[Sparse, ...] = ()
    """Sparse features; a plain name is short for `{name: NAME}`."""
    histories: dict[HistoryName, History] = Field(default_factory=dict)
    """Earlier events of each sample's user, by the name of the history; sparse features read their columns, as in
    `{name: watched.movie, table: movie, pooling: none}`."""
    samples: Windows | None = None
    """The rows that training samples are made of; by default all."""
    weight: str | None = None
    """Column of sample weights, finite and not negative. The loss of a batch is the sum of weight times loss over the
    sum of weights: only the ratios of weights within a batch matter, and a batch of weight 0 has no gradient."""
    group_by: str | None = None
    """Column of ids, such as the user; GAUC ranks the evaluation samples within each of its values."""
    split: Split
    """The rule that divides samples into training and evaluation."""
    rescale: bool = True
    """Give a dense column without a transform one where it has numbers above 20 or below -20: `log1p` for a long tail,
    else `standardise`. The run's configuration keeps what was chosen."""
    fill: Changeable[Annotated[float, Field(ge=-1e9, le=1e9, allow_inf_nan=False), NUMBER] | None] = None
    """Value in place of null or non-finite dense values, after their transform; without it, they are an error."""
    shuffle: bool = True
    """Shuffle the training rows by the seed: about a million at a time, from row groups of all parts of the files."""
    generator: Generator | None = None
    """Shape of a stand-in, on which jobs run while the files are missing; without it, their absence is an error."""
    raw: tuple[RawColumns, ...] = ()
    """Sources of the recipe's columns, so that an exported model can make the columns of a request's fields."""
    recipe: Changeable[str | None] = None
    """Recipe that prepares this data set, or the URL of its files, for messages."""

    @property
    def label_names(self) -> tuple[str, ...]:
        """Name of each label."""
        return tuple(label.name for label in self.label_rules)

    @property
    def label_rules(self) -> tuple[Label, ...]:
        """Every label, with its rule if it has one."""
        return tuple(Label(name=label) if isinstance(label, str) else label for label in self.labels)

    @property
    def has_optional_labels(self) -> bool:
        """True if a label may be null: its row then counts for the other labels alone."""
        return len(self.labels) > 1

    @property
    def dense_features(self) -> tuple[DenseFeature, ...]:
        """Every dense feature."""
        return tuple(DenseFeature(name=feature) if isinstance(feature, str) else feature for feature in self.dense)

    @property
    def dense_width(self) -> int:
        """Number of inputs of the network that all dense features become."""
        return sum(feature.inputs for feature in self.dense_features)

    @property
    def times(self) -> tuple[DenseFeature, ...]:
        """Every dense feature that is the times of a list."""
        return tuple(feature for feature in self.dense_features if feature.times_of is not None)

    @property
    def paths(self) -> tuple[str, ...]:
        """Every path."""
        return (self.path,) if isinstance(self.path, str) else self.path

    @property
    def place(self) -> str:
        """The paths, for messages."""
        first, *others = self.paths
        return f"{first} and {len(others)} more" if len(others) > 1 else ", ".join(self.paths)

    def history_of(self, feature: SparseFeature) -> tuple[str, str] | None:
        """Return the history whose ids a feature has, and their column in the events; None for a column of samples."""
        name, _, column = feature.column_name.partition(".")
        return (name, column) if name in self.histories else None

    def features_of(self, history: str) -> list[tuple[SparseFeature, str]]:
        """Return the features that read a history, each with its column in the events."""
        found = ((feature, self.history_of(feature)) for feature in self.sparse)
        return [(feature, of[1]) for feature, of in found if of is not None and of[0] == history]

    def history_of_times(self, feature: DenseFeature) -> str | None:
        """Return the history whose times a dense feature is; None for another, and for a column of samples."""
        name, _, _ = feature.name.partition(".")
        return name if feature.times_of is not None and name in self.histories else None

    @model_validator(mode="before")
    @classmethod
    def _features_of_histories_have_a_length(cls, given: Any) -> Any:
        """Give features of a history its `max_length`, unless they have their own, and complete the times of lists."""
        if not isinstance(given, dict) or not isinstance(given.get("sparse"), list | tuple):
            return given
        histories = given.get("histories")
        histories = histories if isinstance(histories, dict) else {}
        sparse = [_with_length(feature, histories) for feature in given["sparse"]]
        dense = given.get("dense")
        if isinstance(dense, list | tuple):
            dense = [_with_times(feature, sparse, histories) for feature in dense]
        return {**given, "sparse": sparse} | ({} if dense is None else {"dense": dense})

    @model_validator(mode="after")
    def _histories_are_read(self) -> Self:
        wrong = [sentence for feature in self.sparse if (sentence := self._wrong_history(feature)) is not None]
        wrong += [
            f"no sparse feature reads history {name}; give one, such as "
            f"dataset.sparse=[…, {{name: {name}.{history.columns[0]}, table: {history.columns[0]}}}], or leave it out"
            for name, history in self.histories.items()
            if not self.features_of(name)
        ]
        if self.samples is not None:
            history = self.histories.get(self.samples.of)
            if history is None:
                wrong.append(f"dataset.samples: there is no history {self.samples.of}; declare it in dataset.histories")
            elif history.ties == "strict":
                wrong.append(
                    f"dataset.samples: windows have events of one time in the order of their rows; leave out ties of "
                    f"history {self.samples.of}"
                )
        if wrong:
            raise ValueError("\n".join(wrong))
        return self

    def _wrong_history(self, feature: SparseFeature) -> str | None:
        """Return a sentence on a feature that asks of a history what it has not."""
        if (found := self.history_of(feature)) is None:
            return None
        name, column = found
        if column not in self.histories[name].columns:
            return (
                f"sparse feature {feature.name} reads column {column} of history {name}, which has "
                f"{', '.join(self.histories[name].columns)}; add it to dataset.histories.{name}.columns"
            )
        if feature.makes_lists or feature.drops_nulls:
            return (
                f"an event of history {name} has exactly one id: leave separator, padding and missing_id: none out of "
                f"{feature.name}"
            )
        if isinstance(feature.buckets, int):
            return f"the buckets of {feature.name} are of events: give their boundaries, such as buckets: [10, 100]"
        return None

    @model_validator(mode="after")
    def _times_are_of_lists(self) -> Self:
        features = {feature.name: feature for feature in self.sparse}
        for times in self.times:
            of = features.get(str(times.times_of))
            if of is None or of.max_length is None or of.pooling != "none" or of.makes_lists or of.drops_nulls:
                raise ValueError(
                    f"dataset.dense: {times.name} has times_of: {times.times_of}, which is no sparse feature with "
                    "pooling: none, and without separator, padding and missing_id: none; name one"
                )
            if times.width != of.max_length:
                raise ValueError(
                    f"dataset.dense: {times.name} has width: {times.width}, and {of.name} max_length: {of.max_length}; "
                    "leave width out"
                )
            if (name := self.history_of_times(times)) and (self.history_of(of) or ("",))[0] != name:
                raise ValueError(f"dataset.dense: {times.name} is of another history than {of.name}; name its own")
        return self

    @model_validator(mode="after")
    def _has_a_path(self) -> Self:
        if not self.paths or not all(self.paths):
            raise ValueError("path is empty; name a file or a folder")
        return self

    @model_validator(mode="after")
    def _columns_have_one_purpose(self) -> Self:
        """Refuse columns listed twice, and labels with another use: the model would see the value it is to predict.

        Other columns may have several uses: a price as a number and as an id, a user as a feature and as `group_by`,
        the day that splits the samples as a feature.
        """
        dense = [feature.name for feature in self.dense_features]
        lists = {"labels": self.label_names, "dense": dense, "sparse": [feature.name for feature in self.sparse]}
        wrong = [
            f"dataset.{key} lists {name} twice; list it once"
            for key, names in lists.items()
            for name in dict.fromkeys(names)
            if list(names).count(name) > 1
        ]
        uses: dict[str, Sequence[str | None]] = {
            "dataset.dense": dense,
            "dataset.sparse": [feature.column_name for feature in self.sparse],
            "dataset.weight": [self.weight],
            "dataset.group_by": [self.group_by],
        }
        uses["dataset.split"] = self.split.columns
        wrong += [
            f"{key} and dataset.labels both name {label}: a label is what the model is to predict, and nothing else; "
            f"take it out of one of them"
            for key, columns in uses.items()
            for label in dict.fromkeys(self.label_names)
            if label in columns
        ]
        if wrong:
            raise ValueError("\n".join(wrong))
        return self

    @model_validator(mode="after")
    def _is_followed_in_order(self) -> Self:
        if self.follow is None:
            return self
        for key, is_given, why in (
            ("split", not isinstance(self.split, TrainSplit), "no sample is set aside: write {kind: train}"),
            ("path", len(self.paths) > 1, "files of several places have no order: name one folder"),
            ("histories", self.histories, "events are read once, at the start"),
            ("samples", self.samples is not None, "windows are found once, at the start"),
            ("generator", self.generator is not None, "made-up samples do not grow"),
        ):
            if is_given:
                raise ValueError(f"dataset.follow excludes dataset.{key}: {why}, or leave follow out")
        return self

    @model_validator(mode="after")
    def _has_columns(self) -> Self:
        if not self.labels:
            raise ValueError("labels is empty, and needs the columns to predict; give labels: [NAME]")
        if not self.dense and not self.sparse:
            raise ValueError("a data set needs dense or sparse features")
        return self

    @model_validator(mode="after")
    def _stand_in_has_this_shape(self) -> Self:
        if self.generator is None:
            return self
        shape = (self.generator.dense, len(self.generator.cardinalities))
        if shape != (self.dense_width, len(self.sparse)):
            raise ValueError(
                f"dataset.generator has {shape[0]} dense and {shape[1]} sparse features, "
                f"but the data set has {self.dense_width} and {len(self.sparse)}"
            )
        return self


Dataset = Annotated[ParquetDataset | GeneratedDataset, Field(discriminator="kind")]
