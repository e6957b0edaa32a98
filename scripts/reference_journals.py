"""The reference page of metrics and events, from their declarations."""

import ast
import inspect
from collections.abc import Iterator, Sequence

from persia_cli.metric import AIMS
from persia_cli.observe.journal_keys import EVENT_KINDS, LOOK_UP_COUNTERS, METRIC_KEYS
from persia_cli.observe.record import ALL_IN_USE, DROPPED, NOTIFICATIONS, USED_LONGEST_AGO
from persia_cli.store.table_counters import TableCounters

HEAD = """# Metrics and events

This page is generated from `persia_cli/observe/journal_keys.py`. Both files of a [run directory](../run-directory.md)
have one JSON object a line, in UTF-8, written at once. After a crash, only the last line may be incomplete.

## metrics.jsonl

Training writes a line every `train.log_every_steps` steps, each evaluation one. Undefined values are `null`, such as an
AUC without positive samples. With several labels, keys of quality metrics end in the label: `auc_click`.

Quality metrics of training lines are progressive: each sample is scored before the model learns from it. They cover
the whole run; `window_auc` and the like cover the last 10 lines.

"""
EVENTS = """
## events.jsonl

Each line has `time`, `event` and some of these keys:

"""
COUNTERS = """
## Counters of a table

"Ids" are the distinct ids of training batches.

"""
NOTES = """
## Notes about tables

A run prints each of these once and continues. [Big tables](../guide/tables-and-memory.md#is-the-memory-enough) explains
when to raise the budget.

"""
LINES = {"all": "all", "train": "training", "eval": "evaluation, test"}
BETTER = {"high": "high", "low": "low", "one": "close to 1"}


def page() -> str:
    """Return the page as Markdown."""
    metrics = [
        (f"`{key}`", metric.unit, LINES[metric.lines], BETTER[AIMS[key]] if key in AIMS else "", metric.meaning)
        for key, metric in METRIC_KEYS.items()
    ]
    events = [(f"`{kind}`", _keys(event.keys), event.meaning) for kind, event in EVENT_KINDS.items()]
    meanings = dict(_documented(TableCounters)) | LOOK_UP_COUNTERS
    counters = [(f"`{name}`", meaning) for name, meaning in meanings.items()]
    texts = [(counter, text) for counter, (_, text) in NOTIFICATIONS.items()]
    texts += [("refused", ALL_IN_USE), ("evicted", USED_LONGEST_AGO), ("dropped", DROPPED)]
    notes = [
        (f"`{counter}`", text.format(table="item", memory="table item", budget="embedding.memory"))
        for counter, text in sorted(texts)
    ]
    return (
        HEAD
        + _table(("key", "unit", "lines", "better", "meaning"), metrics)
        + EVENTS
        + _table(("event", "keys", "meaning"), events)
        + COUNTERS
        + _table(("counter", "meaning"), counters)
        + NOTES
        + _table(("counter above 0", "note"), notes)
    )


def _table(head: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> str:
    lines = [head, tuple("---" for _ in head), *rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def _keys(keys: Sequence[str]) -> str:
    return ", ".join(f"`{key}`" for key in keys)


def _documented(kind: type) -> Iterator[tuple[str, str]]:
    """Yield the attributes of a class with the docstrings below them."""
    [found] = ast.parse(inspect.getsource(kind)).body
    assert isinstance(found, ast.ClassDef)
    for field, doc in zip(found.body, found.body[1:], strict=False):
        if isinstance(field, ast.AnnAssign) and isinstance(doc, ast.Expr) and isinstance(doc.value, ast.Constant):
            yield ast.unparse(field.target), _phrase(str(doc.value.value))


def _phrase(sentence: str) -> str:
    return " ".join((sentence[0].lower() + sentence[1:]).rstrip(".").split())
