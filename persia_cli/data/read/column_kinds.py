"""The kinds of features' values: numbers, texts or times, found once from the files and then part of the model.

Data that is read later with the model has to be of the same kind, for its ids and numbers would be others.
"""

from collections.abc import Mapping, Set
from typing import Literal

from persia_cli.config.schema.dataset import ParquetDataset
from persia_cli.config.schema.features import DenseFeature, SparseFeature
from persia_cli.data.read.arrow_types import NUMBERS, WORDS, Class
from persia_cli.data.read.time_texts import classes_of
from persia_cli.data.read.times import FORM, READ_AS_TIMES, TIMES

_TIMES = {*(WORDS[each] for each in TIMES), "times"}
"""The contents of columns that are times, also of texts that another feature reads as times."""
_GIVE_TIMES = f"write dates, timestamps or texts such as {FORM}"


def with_kinds(dataset: ParquetDataset, contents: Mapping[str, Set[str]], is_text: bool) -> ParquetDataset:
    """Return the data set with `ids` and `values` set for every feature whose files show its kind.

    `contents` are those of each column over all files, as `columns.classes` names them; `is_text` is True for text
    files, where numbers and dates may stand for text if another file of the column holds text. Files that are read
    later may look different: a column of names may happen to hold only digits. A text that is divided into ids has
    integers if its table's other features have.
    """
    made = [each.ids or _kind_of_ids(contents.get(each.column_name, frozenset()), is_text) for each in dataset.sparse]
    of_integers = {
        each.table_name
        for each, kind in zip(dataset.sparse, made, strict=True)
        if kind == "integer" and not each.buckets
    }
    sparse = []
    for feature, kind in zip(dataset.sparse, made, strict=True):
        is_divided = feature.ids is None and feature.separator is not None and kind == "text"
        found = "integer" if is_divided and feature.table_name in of_integers else kind
        sparse.append(feature.model_copy(update={"ids": found}))
    dense = [_dense_kind(each, contents) for each in dataset.dense]
    return dataset.model_copy(update={"sparse": tuple(sparse), "dense": tuple(dense)})


def _kind_of_ids(contents: Set[str], is_text: bool) -> Literal["integer", "text", "time"] | None:
    held = {each.removeprefix("lists of ") for each in contents}
    if "strings" in held and (len(held) == 1 or is_text):
        return "text"
    if held == {"numbers"}:
        return "integer"
    return "time" if held and held <= _TIMES else None


def _dense_kind(given: str | DenseFeature, contents: Mapping[str, Set[str]]) -> str | DenseFeature:
    feature = DenseFeature(name=given) if isinstance(given, str) else given
    held = contents.get(feature.name, frozenset())
    if feature.values is None and held and held <= _TIMES:
        return feature.model_copy(update={"values": "time", "transform": feature.transform or "standardise"})
    if feature.values is None and held == {"numbers"}:
        return feature.model_copy(update={"values": "number"})
    return given


def wrong_ids(feature: SparseFeature, held: Class, is_text: bool) -> str | None:
    """Return a sentence if values of this class are not those that the ids of a feature are made of.

    A date in a text file is the text that is written there.
    """
    what = f"column {feature.column_name} holds {WORDS.get(held, held)}, but sparse feature {feature.name} has"
    if feature.ids == "time" and held not in READ_AS_TIMES | classes_of(feature.format):
        remedy = " or train with ids: integer" if held in NUMBERS else " or take it out"
        return f"{what} ids: time; {_GIVE_TIMES},{remedy}"
    if held in TIMES and feature.ids == "integer":
        return f"{what} ids: integer; write the integers that it was trained on, or train with ids: time"
    if held in TIMES and feature.ids == "text" and not (is_text and held == "date"):
        hint = f" (dataset.csv.text=[{feature.column_name}])" if is_text else ""
        return f"{what} ids: text; give the texts that it was trained on{hint}, or train with ids: time"
    return None


def wrong_numbers(feature: DenseFeature, held: Class) -> str | None:
    """Return a sentence if values of this class are not those that a dense feature is made of."""
    what = f"column {feature.name} holds {WORDS.get(held, held)}, but dense feature {feature.name} has"
    if feature.values == "time" and held not in READ_AS_TIMES | classes_of(feature.format):
        return f"{what} values: time; {_GIVE_TIMES}, or train with values: number"
    if feature.values == "time" and feature.transform in ("none", "log1p"):
        return (
            f"dense feature {feature.name} is a time, and {feature.transform} is of numbers; leave it out: times are "
            "standardised"
        )
    if feature.values == "number" and held in TIMES:
        return f"{what} values: number; write numbers, or train with values: time"
    return None
