"""A suggested `dataset.yaml` for files that have none; users read and correct it."""

import json
import re
from collections.abc import Collection

import yaml

from persia_cli.config.explain import CANDIDATE
from persia_cli.config.schema.dataset import CsvFormat
from persia_cli.config.schema.embedding import DENSE_TABLE
from persia_cli.config.schema.split import ColumnSplit, FileSplit
from persia_cli.data.inspect.labels import candidates_of, comparable, entry_of
from persia_cli.data.inspect.profile import ColumnProfile, DatasetProfile, TimeHint
from persia_cli.data.inspect.roles import Guess, name_of_buckets
from persia_cli.errors import count

USUAL = re.compile(r"^(time_?stamp|time|date|date_?time|ts)$", re.IGNORECASE)
"""Names of the time of a row."""
_FEW_ROWS = 100
LATEST = """\
# The latest rows evaluate and test: a model in use scores rows that come
# after its training, so a split at random would give too good an AUC."""
LONG = 100
"""Lists longer than this are cut to a length that 99 % of them do not exceed."""
_WIDTH = 100
_COMMENT = 50
"""Column, at most, at which the comments of a list are aligned."""


def suggest_dataset(
    profile: DatasetProfile, guesses: dict[str, Guess], path: str, form: CsvFormat, wanted: str = "auto"
) -> str:
    """Return YAML for `dataset`; `path` is the place of the files, `wanted` and `form` are their format."""
    of_role = {
        role: [name for name, guess in guesses.items() if guess.role == role]
        for role in ("label", "dense", "sparse", "weight", "time", "unused")
    }
    ids = [name for name, guess in guesses.items() if guess.role == "sparse" or guess.buckets is not None]
    times = {name: guess.time for name, guess in guesses.items() if guess.time is not None}
    parts = [item for name, time in times.items() for item in _parts(name, time, guesses)]
    lines = [
        "# Suggested by `persia data inspect` from names, types and values.",
        "# Correct what is guessed wrong.",
        "kind: parquet",
        f"path: {_quoted(path)}",
        *([f"format: {wanted}"] if wanted != "auto" else []),
        *_csv(form),
        *_labels(of_role["label"], guesses, profile),
        *_listed("dense", [_number(profile.columns[name], guesses[name]) for name in of_role["dense"]]),
        *_listed("sparse", [_feature(profile.columns[name], guesses[name], guesses) for name in ids] + parts),
        *(f"weight: {_quoted(name)}  # if these do not weigh samples, list it in dense" for name in of_role["weight"]),
        *_split(profile, times),
    ]
    if any(not profile.columns[name].is_complete for name in of_role["dense"]):
        lines.append("fill: 0.0  # in place of null and non-finite dense values")
    of_role["unused"] += of_role["time"]
    if of_role["unused"]:
        lines += [
            "# Not used:",
            *(_on_one_line(f"#   {name}: {guesses[name].reason}") for name in of_role["unused"]),
        ]
    return "\n".join(lines) + "\n"


def _labels(names: list[str], guesses: dict[str, Guess], profile: DatasetProfile) -> list[str]:
    """Return the lines of the label, with the reason, or else those of the candidates to choose from."""
    if names:
        reasons = "; ".join(guesses[name].reason for name in names)
        entries = [entry_of(label) for name in names if (label := guesses[name].label)]
        return [f"labels: {_flow(entries)}  # {_on_one_line(reasons)}"]
    candidates = comparable(candidates_of(profile))
    if not candidates:
        return ["labels: ???  # no column has two values; {name: NAME, positive: VALUE} makes a label of another"]
    choices = " ".join(f"{candidate.name}?" for candidate in candidates)
    return [
        f"labels: ???  # {_on_one_line(choices)} Write one of these lines in its place:",
        *(f"{CANDIDATE}{_flow([entry_of(candidate.label)])}" for candidate in candidates),
    ]


def _csv(form: CsvFormat) -> list[str]:
    """Return the line of a format of CSV that is not the usual one."""
    keys = form.model_dump(mode="json", exclude_defaults=True)
    comment = "  # these texts mean null, in every column" if "nulls" in keys else ""
    return [f"csv: {_flow(keys)}{comment}"] if keys else []


def _listed(key: str, items: list[tuple[str, str]]) -> list[str]:
    """Return the lines of a list of items in YAML, each with a comment."""
    width = min(_COMMENT, max((len(item) for item, _ in items), default=0))
    lines = [f"  - {item:<{width}}  # {_on_one_line(comment)}" for item, comment in items]
    return [f"{key}:", *lines] if items else [f"{key}: []"]


def _number(column: ColumnProfile, guess: Guess) -> tuple[str, str]:
    """Return a dense column in YAML, and a comment."""
    settings = {"name": _quoted(column.name)}
    if guess.transform is not None:
        settings["transform"] = guess.transform
    if column.lengths is not None:
        settings["width"] = str(column.lengths.greatest)
    numbers = column.numbers
    has_range = numbers is not None and numbers.least is not None and not numbers.is_binary
    about = f"{numbers.least:,.6g} … {numbers.greatest:,.6g}" if numbers and has_range else guess.reason
    return _item(settings), "; ".join(filter(None, (about, guess.doubt)))


def _feature(column: ColumnProfile, guess: Guess, columns: Collection[str]) -> tuple[str, str]:
    """Return a sparse feature in YAML, and a comment."""
    about = "more than a thousand ids" if column.distinct is None else count(column.distinct, "id")
    table = guess.table or (f"{column.name} ids" if column.name == DENSE_TABLE else column.name)
    settings = {"name": _quoted(column.name)}
    if guess.buckets:
        settings = {"name": _quoted(name_of_buckets(column.name, columns)), "column": _quoted(column.name)}
        return _item(settings | {"buckets": str(guess.buckets)}), "the same number in parts"
    if table != column.name:
        settings["table"] = _quoted(table)
    if guess.separator is not None or column.lengths is not None:
        settings["pooling"] = "mean"
    if guess.separator is not None:
        settings["separator"] = _quoted(guess.separator)
    if guess.padding is not None:
        settings["padding"] = _quoted(guess.padding) if isinstance(guess.padding, str) else str(guess.padding)
    if column.lengths is not None and column.lengths.greatest > LONG:
        settings["max_length"] = str(column.lengths.covering(0.99))
    more = guess.doubt if guess.buckets is None else "next to the number"
    return _item(settings), "; ".join(filter(None, (about, more)))


def _item(settings: dict[str, str]) -> str:
    """Return a mapping in YAML; a name alone stands for itself."""
    together = ", ".join(f"{key}: {value}" for key, value in settings.items())
    return f"{{{together}}}" if len(settings) > 1 else settings["name"]


def _on_one_line(text: str) -> str:
    """Return text for a comment: names of columns may have line ends."""
    return "".join(letter if letter.isprintable() else " " for letter in text)


def _parts(name: str, time: TimeHint, guesses: dict[str, Guess]) -> list[tuple[str, str]]:
    """Return the features that are made of a column of times, in YAML, each with a comment."""
    features = []
    for part in time.parts:
        new_name = f"{name}_{part}"
        while new_name in guesses:
            new_name += "s"
        item = _flow({"name": new_name, "column": name, "transform": part} | _format(time))
        features.append((item, "; ".join(filter(None, ("in UTC", guesses[name].doubt, _doubt(time))))))
    return features


def _format(time: TimeHint) -> dict[str, str]:
    return {} if time.format is None else {"format": time.format}


def _doubt(time: TimeHint) -> str:
    others = " and ".join(map(repr, time.others))
    return f"all values fit {others} too: correct the format if it is another" if others else ""


def _split(profile: DatasetProfile, times: dict[str, TimeHint]) -> list[str]:
    """Return the lines of the split: the marked one, else by time, else by chance."""
    split = profile.split
    if isinstance(split, ColumnSplit | FileSplit):
        return [f"split: {_flow(split.model_dump(mode='json', exclude_defaults=True))}"]
    able = [name for name, time in times.items() if time.divides and profile.columns[name].is_complete]
    if able:
        first, *others = sorted(able, key=lambda name: USUAL.search(name) is None)
        rule = {"kind": "time", "column": first} | _format(times[first]) | {"eval_fraction": 0.1, "test_fraction": 0.1}
        more = f"other times: {', '.join(others)}" if others else ""
        notes = "; ".join(filter(None, (more, _doubt(times[first]))))
        return [LATEST, f"split: {_flow(rule)}{notes and f'  # {_on_one_line(notes)}'}"]
    if profile.rows < _FEW_ROWS:
        return ["split: {kind: every, n: 10}  # every tenth row evaluates; so few rows have none for a test"]
    return ["split: {kind: hash, eval_fraction: 0.1, test_fraction: 0.1}  # rows at random"]


def _flow(values: object) -> str:
    """Return YAML on one line."""
    dumped = yaml.safe_dump(values, default_flow_style=True, allow_unicode=True, width=10**6, sort_keys=False)
    return str(dumped).strip()


def _quoted(text: str) -> str:
    """Return text as a YAML string, in quotes where it needs them."""
    if not text.isprintable():  # such as line ends, which would divide a comment
        return json.dumps(text)
    return str(yaml.safe_dump([text], default_flow_style=True, allow_unicode=True, width=_WIDTH)).strip()[1:-1]
