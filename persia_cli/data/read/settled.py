"""The properties of features that are found once from the files and then part of the model.

They are the kinds of values (numbers, texts or times), and the lengths of lists of numbers, so that the network's
inputs are known before training. Data that is read later with the model has to be of the same kind, for its ids and
numbers would be others.
"""

from collections.abc import Mapping, Sequence, Set
from typing import Any, Literal

import pyarrow as pa
import pyarrow.compute as pc

from persia_cli.config.schema.dataset import ParquetDataset
from persia_cli.config.schema.features import DenseFeature, SparseFeature
from persia_cli.config.schema.split import EvalSplit, PredictSplit
from persia_cli.data.read.arrow_types import NUMBERS, WORDS, Class, is_list, plain_type
from persia_cli.data.read.files import Format
from persia_cli.data.read.row_groups import GroupedRows
from persia_cli.data.read.times import FORM, READ_AS_TIMES, TIMES, classes_of
from persia_cli.errors import DataError

_TIMES = {*(WORDS[kind] for kind in TIMES), "times"}
"""The contents of columns that are times, also of texts that another feature reads as times."""
_GIVE_TIMES = f"write dates, timestamps or texts such as {FORM}"


def with_kinds(dataset: ParquetDataset, contents: Mapping[str, Set[str]], is_text: bool) -> ParquetDataset:
    """Return the data set with `ids` and `values` set for every feature whose files show its kind.

    `contents` are those of each column over all files, as `columns.classes` names them; `is_text` is True for text
    files, where numbers and dates may stand for text if another file of the column holds text. Files that are read
    later may look different: a column of names may happen to hold only digits. A text that is divided into ids has
    integers if its table's other features have.
    """
    kinds = [
        feature.ids or _kind_of_ids(contents.get(feature.column_name, frozenset()), is_text)
        for feature in dataset.sparse
    ]
    of_integers = {
        feature.table_name
        for feature, kind in zip(dataset.sparse, kinds, strict=True)
        if kind == "integer" and not feature.buckets
    }
    sparse = []
    for feature, kind in zip(dataset.sparse, kinds, strict=True):
        is_divided = feature.ids is None and feature.separator is not None and kind == "text"
        settled = "integer" if is_divided and feature.table_name in of_integers else kind
        sparse.append(feature.model_copy(update={"ids": settled}))
    dense = [_dense_kind(feature, contents) for feature in dataset.dense]
    return dataset.model_copy(update={"sparse": tuple(sparse), "dense": tuple(dense)})


def _kind_of_ids(contents: Set[str], is_text: bool) -> Literal["integer", "text", "time"] | None:
    elements = {content.removeprefix("lists of ") for content in contents}
    if "strings" in elements and (len(elements) == 1 or is_text):
        return "text"
    if elements == {"numbers"}:
        return "integer"
    return "time" if elements and elements <= _TIMES else None


def _dense_kind(given: str | DenseFeature, contents: Mapping[str, Set[str]]) -> str | DenseFeature:
    feature = DenseFeature(name=given) if isinstance(given, str) else given
    values = contents.get(feature.until or feature.name, frozenset())
    if feature.times_of is not None:
        is_time = feature.format is not None or not values <= {"numbers"}
        return feature.model_copy(update={"values": feature.values or ("time" if is_time else "number")})
    if feature.values is None and values and values <= _TIMES:
        return feature.model_copy(update={"values": "time", "transform": feature.transform or "standardise"})
    if feature.values is None and values == {"numbers"}:
        return feature.model_copy(update={"values": "number"})
    return given


def wrong_ids(feature: SparseFeature, values: Class, is_text: bool) -> str | None:
    """Return a sentence if values of this class are not those that the ids of a feature are made of.

    A date in a text file is the text that is written there.
    """
    what = f"column {feature.column_name} holds {WORDS.get(values, values)}, but sparse feature {feature.name} has"
    if feature.ids == "time" and values not in READ_AS_TIMES | classes_of(feature.format):
        remedy = " or train with ids: integer" if values in NUMBERS else " or take it out"
        return f"{what} ids: time; {_GIVE_TIMES},{remedy}"
    if values in TIMES and feature.ids == "integer":
        return f"{what} ids: integer; write the integers that it was trained on, or train with ids: time"
    if values in TIMES and feature.ids == "text" and not (is_text and values == "date"):
        hint = f" (dataset.csv.text=[{feature.column_name}])" if is_text else ""
        return f"{what} ids: text; give the texts that it was trained on{hint}, or train with ids: time"
    return None


def wrong_numbers(feature: DenseFeature, values: Class) -> str | None:
    """Return a sentence if values of this class are not those that a dense feature is made of."""
    what = f"column {feature.name} holds {WORDS.get(values, values)}, but dense feature {feature.name} has"
    if feature.values == "time" and values not in READ_AS_TIMES | classes_of(feature.format):
        return f"{what} values: time; {_GIVE_TIMES}, or train with values: number"
    if feature.values == "time" and feature.transform in ("none", "log1p"):
        return (
            f"dense feature {feature.name} is a time, and {feature.transform} is of numbers; leave it out: times are "
            "standardised"
        )
    if feature.values == "number" and values in TIMES:
        return f"{what} values: number; write numbers, or train with values: time"
    return None


_COMMA = r"^\s*[+-]?[0-9]*(,[0-9]+)?\s*$"
_NUMBER = r"^\s*[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?\s*$"
_MOST_WORDS = 5
"""Number of different texts that may stand for a missing number."""


def meant_as_numbers(name: str, column: Any, kind: Format, nulls: tuple[str, ...]) -> str | None:
    """Return a sentence on some texts of a column that are numbers with a comma, or numbers and a few texts.

    `nulls` are the texts that stand for a missing value so far. None for other texts.
    """
    texts = column.cast(pa.large_string()).drop_null().combine_chunks()
    with_comma = pc.match_substring(texts, ",")
    if pc.all(pc.match_substring_regex(texts, _COMMA)).as_py() and pc.any(with_comma).as_py():
        return (
            f"column {name} holds numbers with a comma, such as {texts.filter(with_comma)[0].as_py()!r}; write them "
            "with a point, as pandas.read_csv(FILE, sep=';', decimal=',').to_parquet('data.parquet') does"
        )
    is_number = pc.match_substring_regex(texts, _NUMBER)
    markers = pc.unique(texts.filter(pc.invert(is_number)))
    if not pc.any(is_number).as_py() or not 0 < len(markers) <= _MOST_WORDS:
        return None
    shown = ", ".join("'" + word.replace("'", "''") + "'" for word in [*nulls, *markers.to_pylist()])
    what = "word" if len(markers) == 1 else "words"
    sentence = f"column {name} holds numbers and the {what} {', '.join(map(repr, markers.to_pylist()))}"
    if kind == "csv":
        return f"{sentence}; list the markers of missing values: dataset.csv.nulls=[{shown}]"
    return f"{sentence}; write null in place of what stands for a missing value"


def with_widths(dataset: ParquetDataset, rows: GroupedRows, schemas: Sequence[Any]) -> ParquetDataset:
    """Return the data set with `width` set for every dense column of lists: that of its type, or of its first list.

    Raises DataError for a column of lists of several lengths by its types, or with a transform.
    """
    widths_of = {}
    for feature in dataset.dense_features:
        if feature.times_of is not None:
            continue
        kinds = [plain_type(schema.field(feature.name).type) for schema in schemas]
        if not any(map(is_list, kinds)):
            continue
        if feature.transform not in ("none", None):
            raise DataError(
                f"dense feature {feature.name} has transform: {feature.transform}, which is of one number per row, and "
                "its column holds lists; leave out transform"
            )
        widths = {kind.list_size for kind in kinds if pa.types.is_fixed_size_list(kind)}
        widths |= {feature.width} - {None}
        if len(widths) > 1:
            if feature.width is not None and isinstance(dataset.split, PredictSplit | EvalSplit):
                others = " and ".join(map(str, sorted(widths - {feature.width})))
                raise DataError(
                    f"dense feature {feature.name} has lists of {others} numbers, and the model was trained with "
                    f"{feature.width}; write that many in each"
                )
            sizes = " and ".join(map(str, sorted(widths)))
            raise DataError(f"dense feature {feature.name} has lists of {sizes} numbers; give all lists one length")
        widths_of[feature.name] = next(iter(widths), None) or _first_length(feature.name, rows)
    dense = tuple(
        DenseFeature(name=feature, width=widths_of[feature]) if isinstance(feature, str) and feature in widths_of
        else feature if isinstance(feature, str)
        else feature.model_copy(update={"width": widths_of.get(feature.name, feature.width)})
        for feature in dataset.dense
    )  # fmt: skip
    return dataset.model_copy(update={"dense": dense}) if widths_of else dataset


def _first_length(name: str, rows: GroupedRows) -> int:
    """Return the length of a column's first list that is neither null nor empty; raises DataError if there is none."""
    for _, table in rows.read([name]):
        lengths = pc.list_value_length(table.column(name)).drop_null()
        if length := next(filter(None, lengths.to_pylist()), 0):
            return int(length)
    raise DataError(f"dense feature {name} has no list with numbers; take it out, or give all lists one length")
